r"""Notes of this host: which programs compiled too quickly to be published, so that nobody is asked for them.

    <scratch>/quick.notes     one line for each program, appended by the processes of this host

    line    := digest " " ( microseconds | "-" ) " " created "\n"
    digest  := the first 32 hexadecimal digits of the SHA-256 of the key

`microseconds` is what compiling took, and `created` is in seconds since the epoch; both are decimal. `-` withdraws
earlier notes of the program. A line of another form, such as one that a killed process has cut short, is ignored. A
later version adds words to a line, or takes another file. A note that is lost costs one request.
"""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ejcache.errors import StoreBusyError
from ejcache.util.files import write_atomically
from ejcache.util.key_text import key_digest
from ejcache.util.locks import exclusive
from ejcache.util.safe_files import append_regular, read_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

__all__ = ["EXPIRY_SECONDS", "QuickNote", "QuickNotes", "decode_notes", "encode_notes"]

EXPIRY_SECONDS: Final = 30 * 86_400.0
"""After that a program is asked for again: another host may have stored it meanwhile, with a lower floor."""

_LIMIT: Final = 1_000_000
"""Bytes of the file, about 18,000 notes. When it is larger, the older half goes."""
_COMPACTION_SECONDS: Final = 0.5
_LINE: Final = re.compile(rb"([0-9a-f]{32}) ([0-9]{1,12}|-) ([0-9]{1,12})(?: .*)?")


@dataclass(frozen=True, slots=True)
class QuickNote:
    """The note of one program.

    Attributes:
        seconds: that compiling took on this host; None once the program was published after all.
        created: seconds since the epoch.
    """

    seconds: float | None
    created: float


def encode_notes(notes: Iterable[tuple[str, QuickNote]]) -> bytes:
    """The lines for notes by their digests."""
    lines = (
        f"{digest} {'-' if note.seconds is None else round(note.seconds * 1e6)} {int(note.created)}\n"
        for digest, note in notes
    )
    return "".join(lines).encode()


def decode_notes(data: bytes) -> dict[str, QuickNote]:
    """Notes by their digests, in the order of their last lines; of several for one program, the last."""
    notes: dict[str, QuickNote] = {}
    for line in data.splitlines():
        found = _LINE.fullmatch(line)
        if found is not None:
            digest = found[1].decode()
            notes.pop(digest, None)
            notes[digest] = QuickNote(None if found[2] == b"-" else int(found[2]) / 1e6, float(found[3]))
    return notes


class QuickNotes:
    """The notes of this host. Safe for threads, processes and forks.

    The file is read once; what other processes append after that costs one request for each program. Errors of the disk
    are ignored: the notes are then those of this process.

    Args:
        path: of the file, on a local file system; None for notes in memory only.
        now: seconds since the epoch.
    """

    def __init__(self, path: Path | None, *, now: Callable[[], float] = time.time) -> None:
        self._path = path
        self._now = now
        # Only single operations on it, which the interpreter makes atomic, so that no lock must survive forks.
        self._notes: dict[str, QuickNote] | None = None

    def seconds(self, key: str) -> float | None:
        """The seconds that the program took to compile on this host; None if nobody knows, or not any more."""
        note = self._read().get(key_digest(key, 32))
        if note is None or not 0 <= self._now() - note.created < EXPIRY_SECONDS:
            return None
        return note.seconds

    def add(self, key: str, seconds: float) -> None:
        """Note that the program under `key` took so many seconds to compile."""
        self._append(key, QuickNote(seconds, self._now()))

    def withdraw(self, key: str) -> None:
        """Note that the program under `key` is published, if another note says that it is not."""
        if self.seconds(key) is not None:
            self._append(key, QuickNote(None, self._now()))

    def _append(self, key: str, note: QuickNote) -> None:
        digest = key_digest(key, 32)
        self._read()[digest] = note
        if self._path is None:
            return
        line = encode_notes([(digest, note)])
        with contextlib.suppress(OSError, StoreBusyError):
            try:
                written = append_regular(self._path, line)
            except FileNotFoundError:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                written = append_regular(self._path, line)
            if written.st_size > _LIMIT:
                self._compact(self._path)

    def _read(self) -> dict[str, QuickNote]:
        notes = self._notes
        if notes is None:
            notes = {}
            if self._path is not None:
                with contextlib.suppress(OSError):
                    notes = decode_notes(read_regular(self._path, max_size=2 * _LIMIT))
            self._notes = notes
        return notes

    def _compact(self, path: Path) -> None:
        """Keep the newer half. What another process appends meanwhile is lost."""
        deadline = time.monotonic() + _COMPACTION_SECONDS
        with exclusive(path.with_name(f"{path.name}.lock"), deadline=deadline):
            data = read_regular(path, max_size=2 * _LIMIT)
            if len(data) > _LIMIT:  # otherwise another process was faster
                notes = list(decode_notes(data).items())
                write_atomically(path, encode_notes(notes[len(notes) // 2 :]))
