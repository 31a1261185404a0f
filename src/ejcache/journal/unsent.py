"""Keeps what processes of this host used, counted and recorded, and could not send to a shared cache.

    <scratch>/unsent     of each process a line (`line`) with uses, counts and the time, and then those of its record

A process leaves them whose entries were all on this host, because to make a client takes longer than many a program
runs and cannot be done while a program ends; or that could not reach the storage. The next process that asks the
storage takes the lines and sends them in its own journal. If it is killed before that, they are lost, as its own are.

If the lines take too much room, those of records go, which the log of this host has, and the others are folded into
one. If that is too large, the uses that are the oldest go, and are counted (`DROPPED`). What was counted never goes. A
line of another form, such as one that a killed process has cut short, is ignored, and so are errors of the disk.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from ejcache.errors import StoreBusyError
from ejcache.journal.line import encode_line, joined_uses
from ejcache.journal.start_records import decode_line
from ejcache.util.files import append_regular, make_below, read_regular, write_atomically
from ejcache.util.locks import exclusive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ejcache.journal.line import EntryUse

DROPPED: Final = "uses_dropped"
"""The counter of uses that there was no room for."""
_DUE_SECONDS: Final = 600.0
_DUE_BYTES: Final = 64 << 10
_LOCK_SECONDS: Final = 0.5
_RECORDED: Final = b'"programs":['
"""Is in the lines of records, which alone make nobody ask the storage."""


class Unsent(NamedTuple):
    """What was left: uses by key, sums of counters, and the lines of records."""

    uses: dict[str, EntryUse]
    sums: dict[str, float]
    lines: list[bytes]


class UnsentUses:
    """The lines of this host about one shared cache. Safe for threads, processes and forks.

    Args:
        path: of the file, on a local file system.
        limit: bytes that are kept while the storage cannot be reached.
        now: seconds since the epoch.
    """

    def __init__(self, path: Path, *, limit: int = 1_000_000, now: Callable[[], float] = time.time) -> None:
        self._limit = limit
        self._path = path
        self._now = now

    def leave(self, used: Mapping[str, EntryUse], sums: Mapping[str, float], record: Sequence[bytes] = ()) -> None:
        """Append what this process used, counted and recorded and has not sent."""
        if used or sums or record:
            with contextlib.suppress(OSError, StoreBusyError), self._lock():
                line = encode_line({"pid": os.getpid()}, counts=sums, uses=used, at=self._now())
                new = [line, *record]
                lines = [*self._lines(), *new]
                if sum(map(len, lines)) + len(lines) <= self._limit:
                    append_regular(self._path, b"".join(each + b"\n" for each in new))
                else:
                    write_atomically(self._path, self._folded(lines) + b"\n")

    def is_due(self) -> bool:
        """True if so much was left, or so long ago, that a process should send it even if it asks for nothing else."""
        lines = self._lines()
        if sum(len(line) for line in lines if _RECORDED not in line) >= _DUE_BYTES:
            return True
        oldest = decode_line(lines[0]) if lines else None
        return bool(lines) and (oldest is None or not 0 <= self._now() - oldest.at < _DUE_SECONDS)

    def take(self) -> Unsent:
        """Remove what processes left, and return it."""
        lines: list[bytes] = []
        if self._path.exists():
            with contextlib.suppress(OSError, StoreBusyError), self._lock():
                lines = self._lines()
                self._path.unlink()
        return _fold(lines)

    def _folded(self, lines: list[bytes]) -> bytes:
        """Return one line with the sums of these, and with as many of their uses as fit, the latest."""
        used, sums, _ = _fold(lines)
        latest = sorted(used.items(), key=lambda item: item[1].when, reverse=True)
        while True:
            line = encode_line({"pid": os.getpid()}, counts=sums, uses=dict(latest), at=self._now())
            if len(line) < self._limit or not latest:
                return line
            left = len(latest) * self._limit // (2 * len(line))
            sums[DROPPED] = sums.get(DROPPED, 0) + len(latest) - left
            latest = latest[:left]

    def _lines(self) -> list[bytes]:
        """Return the lines; none if there is no file, or if it cannot be read."""
        with contextlib.suppress(OSError):
            return read_regular(self._path, max_size=4 * self._limit).splitlines()
        return []

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        make_below(self._path.parent)
        lock = self._path.with_name(f"{self._path.name}.lock")
        with exclusive(lock, deadline=time.monotonic() + _LOCK_SECONDS):
            yield


def _fold(lines: Sequence[bytes]) -> Unsent:
    parts = [part for part in map(decode_line, lines) if part is not None]
    sums: Counter[str] = Counter()
    for part in parts:
        sums.update(part.counts)
    return Unsent(joined_uses(part.uses for part in parts), dict(sums), [line for line in lines if _RECORDED in line])
