"""Counts for a local store in a file to which processes append lines; many lines are joined into one."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.util.files import UnsafeFileError, append_regular, read_regular, write_atomically
from ejcache.util.locks import exclusive

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ejcache.stores.local.layout import Layout

_FOLDED_BYTES: Final = 64 << 10
_MOST_BYTES: Final = 16 << 20
"""A larger file was not written by this."""


def add_line(layout: Layout, amounts: Mapping[str, float], *, timeout: float) -> None:
    """Append the amounts as one line, under the lock of the store, so that no line is lost when they are joined.

    Raises:
        StoreBusyError: others kept the store busy for so many seconds.
        OSError: the line cannot be written.
    """
    with exclusive(Path(layout.lock), deadline=time.monotonic() + timeout):
        line = json.dumps(dict(amounts), separators=(",", ":")).encode() + b"\n"
        if append_regular(layout.counters, line).st_size > _FOLDED_BYTES:
            _write(layout, read_sums(layout))


def read_sums(layout: Layout) -> dict[str, float]:
    """Return the sums of all lines; a line that was cut short counts nothing."""
    try:
        lines = read_regular(layout.counters, max_size=_MOST_BYTES).splitlines()
    except (OSError, UnsafeFileError):
        return {}
    sums: dict[str, float] = {}
    for line in lines:
        try:
            amounts = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(amounts, dict):
            for name, amount in amounts.items():
                if type(amount) in (int, float) and math.isfinite(amount):
                    sums[name] = sums.get(name, 0) + amount
    return sums


def reset(layout: Layout, *, timeout: float) -> None:
    """Start from zero; raises as `add_line` does."""
    with exclusive(Path(layout.lock), deadline=time.monotonic() + timeout):
        _write(layout, {})


def _write(layout: Layout, sums: Mapping[str, float]) -> None:
    write_atomically(layout.counters, json.dumps(sums, separators=(",", ":")).encode() + b"\n" if sums else b"")
