"""The commit of a checkout, from the files in which git keeps it; git itself is not run.

.git       := a directory, or in a worktree a file "gitdir: " path; with HEAD, refs and perhaps commondir
HEAD       := commit | "ref: " name
name       := a file below refs with the commit, or a line of packed-refs: commit " " name
commondir  := the path of the directory with the refs of a worktree
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from ejcache.util.files import read_regular
from ejcache.util.store_keys import is_hex

if TYPE_CHECKING:
    from pathlib import Path

_DIGITS: Final = (40, 64)
"""Of a commit by SHA-1 and by SHA-256."""
_SHOWN: Final = 12
_LARGEST: Final = 4_000_000
_DEEPEST: Final = 24
"""Directories above a program in which a checkout is looked for."""


@functools.lru_cache(8)
def commit_of(directory: Path) -> str:
    """Return the first digits of the commit that is checked out around this directory; empty if there is none."""
    try:
        for place in [directory, *directory.parents][:_DEEPEST]:
            git = place / ".git"
            if git.is_dir():
                return _head(git)
            if git.is_file():
                return _head(place / _text(git).removeprefix("gitdir: "))
    except (OSError, ValueError):
        pass
    return ""


def _head(git: Path) -> str:
    head = _text(git / "HEAD")
    if head.startswith("ref: "):
        head = _reference(git, head.removeprefix("ref: "))
    return head[:_SHOWN] if any(is_hex(head, digits) for digits in _DIGITS) else ""


def _reference(git: Path, name: str) -> str:
    common = git / _text(git / "commondir") if (git / "commondir").is_file() else git
    for place in (git, common):
        if (place / name).is_file():
            return _text(place / name)
    lines = _text(common / "packed-refs").splitlines()
    return next((line.partition(" ")[0] for line in lines if line.partition(" ")[2] == name), "")


def _text(path: Path) -> str:
    return read_regular(path, max_size=_LARGEST).decode().strip()
