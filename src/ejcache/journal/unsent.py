r"""What processes of this host used and counted of a shared cache, and could not send.

    <scratch>/unsent     lines that processes append

    line    := JSON {"at": created, "used": {key: [seconds, times, worth]}, "sums": {counter: amount}} "\n"

A process leaves a line whose entries were all on this host, because to make a client takes longer than many a program
runs and cannot be done while a program ends; or that could not reach the storage. The next process that asks the
storage takes the lines and sends them in its own journal. If it is killed before that, they are lost, as its own are.

Times are in seconds since the epoch. A line of another form, such as one that a killed process has cut short, is
ignored, and so are errors of the disk.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from ejcache.errors import MALFORMED, StoreBusyError
from ejcache.journal.line import EntryUse
from ejcache.util.files import append_regular, make_below, read_regular
from ejcache.util.locks import exclusive
from ejcache.util.store_keys import check_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

_DUE_SECONDS: Final = 600.0
_DUE_BYTES: Final = 64 << 10
_LOCK_SECONDS: Final = 0.5
_BEGINNING: Final = b'{"at": '


def encode_usage(at: float, used: Mapping[str, EntryUse], sums: Mapping[str, float]) -> bytes:
    """Return the line of what one process used and counted."""
    return json.dumps({"at": at, "used": dict(used), "sums": dict(sums)}).encode() + b"\n"


def decode_usage(lines: Iterable[bytes]) -> tuple[dict[str, EntryUse], dict[str, float]]:
    """Return the uses of each key together, and the sums of the counters."""
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


class UnsentUses:
    """The lines of this host about one shared cache. Safe for threads, processes and forks.

    Args:
        path: of the file, on a local file system.
        limit: bytes that are kept while the storage cannot be reached; what would be added is lost.
        now: seconds since the epoch.
    """

    def __init__(self, path: Path, *, limit: int = 1_000_000, now: Callable[[], float] = time.time) -> None:
        self._limit = limit
        self._path = path
        self._now = now

    def leave(self, used: Mapping[str, EntryUse], sums: Mapping[str, float]) -> None:
        """Append what this process used and counted and has not sent."""
        if used or sums:
            with contextlib.suppress(OSError, StoreBusyError), self._lock():
                line = encode_usage(self._now(), used, sums)
                if sum(map(len, self._lines())) + len(line) <= self._limit:
                    append_regular(self._path, line)

    def is_due(self) -> bool:
        """True if so much was left, or so long ago, that a process should send it even if it asks for nothing else."""
        lines = self._lines()
        if sum(map(len, lines)) >= _DUE_BYTES:
            return True
        at = lines[0][len(_BEGINNING) :].partition(b",")[0] if lines else b""
        try:
            return bool(lines) and not 0 <= self._now() - float(at) < _DUE_SECONDS
        except ValueError:
            return True

    def take(self) -> tuple[dict[str, EntryUse], dict[str, float]]:
        """Remove what processes left, and return it: uses by key, and sums of counters."""
        lines: list[bytes] = []
        if self._path.exists():
            with contextlib.suppress(OSError, StoreBusyError), self._lock():
                lines = self._lines()
                self._path.unlink()
        return decode_usage(lines)

    def _lines(self) -> list[bytes]:
        """Return the lines; none if there is no file, or if it cannot be read."""
        with contextlib.suppress(OSError):
            data = read_regular(self._path, max_size=4 * self._limit)
            return [line for line in data.splitlines() if line.startswith(_BEGINNING)]
        return []

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        make_below(self._path.parent)
        lock = self._path.with_name(f"{self._path.name}.lock")
        with exclusive(lock, deadline=time.monotonic() + _LOCK_SECONDS):
            yield
