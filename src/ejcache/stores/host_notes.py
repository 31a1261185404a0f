r"""Notes on this host which programs one shared storage does not have, so that it is not asked for them.

    <scratch>/notes     lines that processes append

    note    := digest " " ( millionths | "-" ) " " created "\n"
    digest  := the first 32 hexadecimal digits of the SHA-256 of a key

A note says that the entry of a key is not on shared storage, and how many seconds the program took to compile, by which
the caller decides whether to ask the storage for it (`cache/reading.py`). `-` says that the entry was published after
all.

Times are in seconds since the epoch. A line of another form, such as one that a killed process has cut short, is
ignored. Errors of the disk are ignored: a lost note costs one request.
"""

from __future__ import annotations

import contextlib
import re
import time
from typing import TYPE_CHECKING, Final

from ejcache.errors import StoreBusyError
from ejcache.util.files import append_regular, make_below, read_regular, write_atomically
from ejcache.util.locks import exclusive
from ejcache.util.store_keys import key_digest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

EXPIRY_SECONDS: Final = 30 * 86_400.0
"""After that a program is asked for again: another host may have stored it meanwhile, with a lower floor."""

_LOCK_SECONDS: Final = 0.5
_NOTE: Final = re.compile(rb"([0-9a-f]{32}) ([0-9]{1,12}|-) ([0-9]{1,12})(?: .*)?")


def encode_note(digest: str, number: float | None, created: float) -> bytes:
    """Return the line of a note, with its number in millionths; None: the entry is published."""
    return f"{digest} {'-' if number is None else round(number * 1e6)} {int(created)}\n".encode()


def decode_notes(data: bytes) -> dict[str, tuple[float | None, float]]:
    """Return by digest the number and the time of the last note of each key, in the order of these notes."""
    notes: dict[str, tuple[float | None, float]] = {}
    for line in data.splitlines():
        if found := _NOTE.fullmatch(line):
            digest = found[1].decode()
            notes.pop(digest, None)
            notes[digest] = None if found[2] == b"-" else int(found[2]) / 1e6, float(found[3])
    return notes


class HostNotes:
    """The notes of this host about one shared cache. Safe for threads, processes and forks.

    They are read once; what other processes append after that costs one request for each program.

    Args:
        path: of the file, on a local file system; None to keep the notes in memory.
        limit: bytes of the notes, by default about 18,000; when they are twice as many, the older half goes.
        now: seconds since the epoch.
    """

    def __init__(self, path: Path | None, *, limit: int = 1_000_000, now: Callable[[], float] = time.time) -> None:
        self._limit = limit
        self._path = path
        self._now = now
        # Only single operations on it, which the interpreter makes atomic, so that no lock must survive forks.
        self._notes: dict[str, tuple[float | None, float]] | None = None

    def number(self, key: str) -> float | None:
        """Return the number of the note of a key; None if there is none, or not any more."""
        number, created = self._read().get(key_digest(key, 32), (None, 0.0))
        return number if 0 <= self._now() - created < EXPIRY_SECONDS else None

    def note_published(self, key: str) -> None:
        """Note that the entry of `key` is published, if another note says that it is not."""
        if self.number(key) is not None:
            self.note(key, None)

    def note(self, key: str, number: float | None) -> None:
        """Note that the entry of `key` is not published, and a number from 0 on; with None, that it is."""
        digest, now = key_digest(key, 32), self._now()
        self._read()[digest] = number, now
        if self._path is None:
            return
        with contextlib.suppress(OSError, StoreBusyError):
            line = encode_note(digest, number, now)
            try:
                size = append_regular(self._path, line).st_size
            except FileNotFoundError:
                make_below(self._path.parent)
                size = append_regular(self._path, line).st_size
            if size > 2 * self._limit:
                self._drop_older(self._path)

    def _read(self) -> dict[str, tuple[float | None, float]]:
        if self._notes is None:
            self._notes = {}
            if self._path is not None:
                with contextlib.suppress(OSError):
                    self._notes = decode_notes(read_regular(self._path, max_size=4 * self._limit))
        return self._notes

    def _drop_older(self, path: Path) -> None:
        """Keep the newer half. A note that is appended meanwhile is lost."""
        with exclusive(path.with_name(f"{path.name}.lock"), deadline=time.monotonic() + _LOCK_SECONDS):
            kept = decode_notes(read_regular(path, max_size=4 * self._limit))
            lines = [encode_note(digest, *note) for digest, note in kept.items()]
            write_atomically(path, b"".join(lines[len(lines) // 2 :] if sum(map(len, lines)) > self._limit else lines))
