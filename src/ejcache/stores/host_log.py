r"""What processes of this host leave to the next ones about one shared cache, in one log.

    <scratch>/host.log     lines that processes append

    line    := note | usage
    note    := digest " " ( millionths | "-" ) " " created "\n"
    digest  := the first 32 hexadecimal digits of the SHA-256 of a key
    usage   := JSON {"at": created, "used": {key: [seconds, times, worth]}, "sums": {counter: amount}} "\n"

A note says that the entry of a key is not on shared storage, and a number by which whoever made the note decides
whether to ask the storage for it: the seconds that a program took to compile (`cache/policy.py`). `-` says that the
entry was published after all.

A usage is what a process used and counted and could not send: its entries were all on this host, and to make a client
takes longer than many a program runs and cannot be done while a program ends; or the storage could not be reached. The
next process that asks the storage takes the usages and sends them. If it is killed before that, they are lost, as its
own are.

Times are in seconds since the epoch. A line of another form, such as one that a killed process has cut short, is
ignored. Errors of the disk are ignored: a lost note costs one request.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from ejcache.errors import MALFORMED, StoreBusyError
from ejcache.stores.base import EntryUse
from ejcache.util.files import append_regular, make_below, read_regular, write_atomically
from ejcache.util.locks import exclusive
from ejcache.util.text import check_key, key_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

EXPIRY_SECONDS: Final = 30 * 86_400.0
"""After that a program is asked for again: another host may have stored it meanwhile, with a lower floor."""

_LIMIT: Final = 1_000_000
"""Bytes of the notes, about 18,000; when they are more, the older half goes. As many bytes of usages are kept while the
storage cannot be reached; what would be added is lost."""
_DUE_SECONDS: Final = 600.0
_DUE_BYTES: Final = 64 << 10
_LOCK_SECONDS: Final = 0.5
_NOTE: Final = re.compile(rb"([0-9a-f]{32}) ([0-9]{1,12}|-) ([0-9]{1,12})(?: .*)?")
_USAGE: Final = b'{"at": '


def encode_note(digest: str, number: float | None, created: float) -> bytes:
    """The line of a note, with its number in millionths; None: the entry is published."""
    return f"{digest} {'-' if number is None else round(number * 1e6)} {int(created)}\n".encode()


def decode_notes(data: bytes) -> dict[str, tuple[float | None, float]]:
    """By digest, the number and the time of the last note of each key, in the order of these notes."""
    notes: dict[str, tuple[float | None, float]] = {}
    for line in data.splitlines():
        if found := _NOTE.fullmatch(line):
            digest = found[1].decode()
            notes.pop(digest, None)
            notes[digest] = None if found[2] == b"-" else int(found[2]) / 1e6, float(found[3])
    return notes


def encode_usage(at: float, used: Mapping[str, EntryUse], sums: Mapping[str, float]) -> bytes:
    """The line of what one process used and counted."""
    return json.dumps({"at": at, "used": dict(used), "sums": dict(sums)}).encode() + b"\n"


def decode_usage(lines: Iterable[bytes]) -> tuple[dict[str, EntryUse], dict[str, float]]:
    """The uses of each key together, and the sums of the counters."""
    used: dict[str, EntryUse] = {}
    sums: Counter[str] = Counter()
    for line in lines:
        with contextlib.suppress(*MALFORMED):
            fields: dict[str, dict[str, Any]] = json.loads(line)
            uses = {
                check_key(key): EntryUse(float(when), int(times), None if worth is None else float(worth))
                for key, (when, times, worth) in fields["used"].items()
            }
            amounts = {str(name): float(amount) for name, amount in fields["sums"].items()}
            for key, use in uses.items():
                used[key] = used[key].joined(use) if key in used else use
            sums.update(amounts)
    return used, dict(sums)


class HostLog:
    """The log of this host about one shared cache. Safe for threads, processes and forks.

    The notes are read once; what other processes append after that costs one request for each program.

    Args:
        path: of the file, on a local file system; None to keep the notes in memory, and no usages.
        now: seconds since the epoch.
    """

    def __init__(self, path: Path | None, *, now: Callable[[], float] = time.time) -> None:
        self._path = path
        self._now = now
        # Only single operations on it, which the interpreter makes atomic, so that no lock must survive forks.
        self._notes: dict[str, tuple[float | None, float]] | None = None

    # -- entries that are not on shared storage --------------------------------------------------------------------

    def number(self, key: str) -> float | None:
        """The number of the note of a key; None if there is none, or not any more."""
        number, created = self._read_notes().get(key_digest(key, 32), (None, 0.0))
        return number if 0 <= self._now() - created < EXPIRY_SECONDS else None

    def note_published(self, key: str) -> None:
        """Note that the entry of `key` is published, if another note says that it is not."""
        if self.number(key) is not None:
            self.note(key, None)

    def note(self, key: str, number: float | None) -> None:
        """Note that the entry of `key` is not published, and a number from 0 on; with None, that it is."""
        digest, now = key_digest(key, 32), self._now()
        self._read_notes()[digest] = number, now
        size = self._append(encode_note(digest, number, now))
        if size > 2 * _LIMIT:
            with contextlib.suppress(OSError, StoreBusyError), self._locked() as path:
                self._rewrite(path, usages=self._usages())

    def _read_notes(self) -> dict[str, tuple[float | None, float]]:
        if self._notes is None:
            self._notes = decode_notes(self._data())
        return self._notes

    # -- uses and counters -----------------------------------------------------------------------------------------

    def leave_usage(self, used: Mapping[str, EntryUse], sums: Mapping[str, float]) -> None:
        """Append what this process used and counted and has not sent."""
        if used or sums:
            with contextlib.suppress(OSError, StoreBusyError), self._locked():
                line = encode_usage(self._now(), used, sums)
                if sum(map(len, self._usages())) + len(line) <= _LIMIT:
                    self._append(line)

    def is_usage_due(self) -> bool:
        """Whether so much was left, or so long ago, that a process should send it even if it asks for nothing else."""
        usages = self._usages()
        if sum(map(len, usages)) >= _DUE_BYTES:
            return True
        at = usages[0][len(_USAGE) :].partition(b",")[0] if usages else b""
        try:
            return bool(usages) and not 0 <= self._now() - float(at) < _DUE_SECONDS
        except ValueError:
            return True

    def take_usage(self) -> tuple[dict[str, EntryUse], dict[str, float]]:
        """Remove what processes left, and return it: uses by key, and sums of counters."""
        usages: list[bytes] = []
        with contextlib.suppress(OSError, StoreBusyError), self._locked() as path:
            if usages := self._usages():
                self._rewrite(path, usages=[])
        return decode_usage(usages)

    # -- the file --------------------------------------------------------------------------------------------------

    def _data(self) -> bytes:
        """Read the log; empty if there is none, or if it cannot be read."""
        with contextlib.suppress(OSError):
            return b"" if self._path is None else read_regular(self._path, max_size=4 * _LIMIT)
        return b""

    def _usages(self) -> list[bytes]:
        data = self._data()
        return [line for line in data.splitlines() if line.startswith(_USAGE)] if _USAGE in data else []

    def _append(self, line: bytes) -> int:
        """Append a line; returns how many bytes the log has then, as far as is known."""
        if self._path is None:
            return 0
        try:
            try:
                return append_regular(self._path, line).st_size
            except FileNotFoundError:
                make_below(self._path.parent)
                return append_regular(self._path, line).st_size
        except OSError:
            return 0

    def _rewrite(self, path: Path, *, usages: list[bytes]) -> None:
        """Keep these usages, and the newer half of too many notes. A note that is appended meanwhile is lost."""
        notes = [encode_note(digest, *note) for digest, note in decode_notes(self._data()).items()]
        kept = notes[len(notes) // 2 :] if sum(map(len, notes)) > _LIMIT else notes
        write_atomically(path, b"".join([*kept, *(line + b"\n" for line in usages)]))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[Path]:
        if self._path is None:
            raise StoreBusyError("this log has no file")
        make_below(self._path.parent)
        lock = self._path.with_name(f"{self._path.name}.lock")
        with exclusive(lock, deadline=time.monotonic() + _LOCK_SECONDS):
            yield self._path
