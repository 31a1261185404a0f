"""Measures what the files of a local store take on disk beyond the bytes of its entries, which its limit counts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ejcache.stores.local.layout import PAIRS, scan

if TYPE_CHECKING:
    from ejcache.stores.local.layout import Layout

_UNIT = 512
"""Bytes of the unit of `st_blocks`."""


def overhead_of(layout: Layout, number: int) -> int:
    """Return at most how many bytes of the disk are taken beyond those of so many entries.

    Of each entry that is less than a block; and there are the directories, the order, other files, and quarantine.
    """
    try:
        block = os.statvfs(layout.local).f_frsize
        above = os.lstat(layout.local).st_blocks * _UNIT
    except FileNotFoundError:
        return 0
    within = (_files(each.path, is_of_entries=each.name in PAIRS) for each in scan(layout.local))
    damaged = _files(os.path.join(layout.root, "v1/quarantine"), is_of_entries=False)  # noqa: PTH118 (as all here)
    return number * block + above + sum(within) + damaged


def _files(path: str, *, is_of_entries: bool) -> int:
    """Return the bytes of the disk that a file or directory takes with all in it, without the files of entries."""
    try:
        size = os.lstat(path).st_blocks * _UNIT
    except FileNotFoundError:
        return 0
    for each in scan(path):
        if each.is_dir(follow_symlinks=False) or not is_of_entries:
            size += _files(each.path, is_of_entries=is_of_entries)
    return size
