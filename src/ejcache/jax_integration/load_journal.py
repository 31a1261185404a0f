"""Journals which entries a process loads now, in case one of them ends the process.

XLA may crash while it loads an entry whose bytes are intact: a forged one, or one of a faulty compiler. Each process
has a file in the directory `loading` of this user on this host, which is locked while the process lives. A load writes
its entry there before it begins, and takes it out when it ends. So the file of a dead process says what it was loading.

A process that is killed from outside leaves the same trace. Only where two starts in a row have died while they loaded
the same bytes, the entry is suspected: it is compiled anew and replaced. A process that loads it removes the traces.

An executable that loads, and ends the process when it first runs, leaves no trace. In a first run most of the programs
die, too, that need more memory than there is, and no process is told how another one has died: good entries of these
programs would be suspected.

    file := one record of 1,024 bytes for each load at the same time; a free one begins with a zero byte
    record := deaths of earlier starts at this entry, when the entry was stored, its key, separated by blanks
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from ejcache.settings.directories import state_directory
from ejcache.util.files import make_private, read_regular
from ejcache.util.lifecycle import ExitPhase, at_exit, track_forks
from ejcache.util.locks import ForkLock
from ejcache.util.presence import Presence, dead_presences

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ejcache.entry import Header


_MOST_RECORDS: Final = 256
_EXPIRY_SECONDS: Final = 7 * 86_400.0


class LoadTraces:
    """At which entries earlier starts have died. Safe for threads as long as one at a time changes it.

    Args:
        record: bytes of one record in a journal.
    """

    def __init__(self, record: int) -> None:
        self._record = record
        self._deaths: dict[str, int] = {}
        self._traces: dict[Path, set[str]] = {}

    def read(self, paths: Iterable[Path]) -> None:
        """Read the journals of dead processes; one that says nothing, or is old, is removed."""
        for path in paths:
            with contextlib.suppress(OSError):  # another process has just removed it, or it is no journal
                self._read(path)

    def deaths_at(self, header: Header) -> int:
        """Return how many starts in a row have died while they loaded this entry."""
        return self._deaths.get(_name_of_bytes(header), 0) if self._deaths else 0

    def forget(self, header: Header) -> None:
        """Remove the traces of an entry that this process has loaded."""
        name = _name_of_bytes(header)
        if self._deaths.pop(name, None) is None:
            return
        for path, names in list(self._traces.items()):
            names.discard(name)
            if not names:
                del self._traces[path]
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)

    def _read(self, path: Path) -> None:
        names = {}
        # One from the future was left while the clock was ahead, and may be of any age.
        if abs(time.time() - path.stat().st_mtime) < _EXPIRY_SECONDS:
            data = read_regular(path, max_size=_MOST_RECORDS * self._record)
            for start in range(0, len(data), self._record):
                record = data[start : start + self._record].rstrip(b"\0").decode(errors="replace")
                deaths, _, name = record.partition(" ")
                if deaths.isdecimal() and len(deaths) < 9 and name:
                    names[name] = int(deaths) + 1
        for name, deaths_now in names.items():
            self._deaths[name] = max(self._deaths.get(name, 0), deaths_now)
        if names:
            self._traces[path] = set(names)
        else:
            path.unlink(missing_ok=True)


def _name_of_bytes(header: Header) -> str:
    """Return the bytes that are loaded: the key, and when they were stored under it."""
    return f"{header.created!r} {header.key}"


_DEATHS: Final = 2
"""So many starts in a row must have died."""
_RECORD: Final = 1024


class LoadJournal:
    """The file of this process, and what those of dead ones say. Safe for threads and forks; errors are ignored."""

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._traces: LoadTraces | None = None  # what dead processes have left, if one has
        self._presence: Presence | None = None
        self._is_open = False
        self._used: set[int] = set()
        track_forks(self)

    def after_fork_in_child(self) -> None:
        """Have a file of its own: the lock of this one is the parent's."""
        if self._presence is not None:
            self._presence.forget()
        self._presence = None
        self._is_open = False
        self._used = set()

    def is_suspected(self, header: Header) -> bool:
        """True if two starts in a row have died while they loaded this entry."""
        if not self._is_open:
            self.open()
        return self._traces is not None and self._traces.deaths_at(header) >= _DEATHS

    def begin(self, header: Header) -> int | None:
        """Have it known that this process is loading the entry, until `end` gets what this returns."""
        if not self._is_open:
            self.open()
        deaths = 0 if self._traces is None else self._traces.deaths_at(header)
        record = f"{deaths} {header.created!r} {header.key}".encode()
        if self._presence is None or len(record) > _RECORD:
            return None
        with self._lock:
            place = min(set(range(len(self._used) + 1)) - self._used)
            self._used.add(place)
        with contextlib.suppress(OSError):
            self._presence.write(record.ljust(_RECORD, b"\0"), place * _RECORD)
        return place

    def end(self, place: int | None, header: Header, *, is_loaded: bool) -> None:
        """Have it known that the load is over; an entry that could be loaded is not suspected any more."""
        if place is not None:
            if self._presence is not None:
                with contextlib.suppress(OSError):
                    self._presence.write(b"\0", place * _RECORD)
            self._used.discard(place)
        if is_loaded and self._traces is not None:
            with self._lock:
                self._traces.forget(header)

    def close(self) -> None:
        """Remove the file: this process ends in another way."""
        presence, self._presence = self._presence, None
        if presence is not None:
            presence.leave(clean=True)

    def open(self) -> None:
        """Read the traces of dead processes, and begin a file, once."""
        with self._lock:
            if self._is_open:
                return
            directory = state_directory() / "loading"
            try:
                with contextlib.suppress(OSError, ImportError):
                    make_private(directory)
                    if dead := dead_presences(directory):
                        self._traces = self._traces or LoadTraces(_RECORD)
                        self._traces.read(dead)
                    self._presence = Presence(directory)
            finally:
                self._is_open = True  # not before: other threads then ask without the lock


load_journal: Final = LoadJournal()
"""The journal of this process."""
at_exit(ExitPhase.CLOSE, load_journal.close)
