r"""What processes of this host used and counted and could not send, left to the next one that asks shared storage.

    <scratch>/usage.jsonl     one line for each process, appended when it ends

    line    := JSON {"at": seconds, "used": {key: seconds}, "sums": {counter: amount}} "\n"

A process whose entries were all on this host has nothing else to ask the storage for: making a client for that takes
longer than many a program runs, and cannot be done while a program ends. Others could not reach the storage. Times are
in seconds since the epoch. A line of another form is ignored; a later version adds fields, or takes another file. A
process that takes the lines and is killed before it has sent them loses them, as it loses its own.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from ejcache.errors import MALFORMED, StoreBusyError
from ejcache.util.key_text import check_key
from ejcache.util.locks import exclusive
from ejcache.util.safe_files import append_regular, read_regular

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["UsageBacklog", "decode_usage", "encode_usage"]

_DUE_SECONDS: Final = 600.0
_DUE_BYTES: Final = 64 << 10
_MOST_BYTES: Final = 1 << 20
"""More than this is left only while the storage cannot be reached; what would be added is lost."""
_LOCK_SECONDS: Final = 0.5
_START: Final = 64
"""Bytes that hold the time of the first line."""


def encode_usage(at: float, used: Mapping[str, float], sums: Mapping[str, float]) -> bytes:
    """The line of one process."""
    return json.dumps({"at": at, "used": dict(used), "sums": dict(sums)}).encode() + b"\n"


def decode_usage(data: bytes) -> tuple[dict[str, float], dict[str, float]]:
    """The latest use of each key, and the sums of the counters."""
    used: dict[str, float] = {}
    sums: Counter[str] = Counter()
    for line in data.splitlines():
        with contextlib.suppress(*MALFORMED):
            fields: dict[str, dict[str, Any]] = json.loads(line)
            uses = {check_key(key): float(when) for key, when in fields["used"].items()}
            amounts = {str(name): float(amount) for name, amount in fields["sums"].items()}
            for key, when in uses.items():
                used[key] = max(when, used.get(key, 0.0))
            sums.update(amounts)
    return used, dict(sums)


class UsageBacklog:
    """The backlog of one shared cache on this host. Safe for threads and processes; errors of the disk lose usage only.

    Args:
        path: of the file, on a local file system.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def leave(self, used: Mapping[str, float], sums: Mapping[str, float]) -> None:
        """Append what this process used and counted since the last call."""
        if not used and not sums:
            return
        line = encode_usage(time.time(), used, sums)
        with contextlib.suppress(OSError, StoreBusyError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._locked():
                if not self._path.exists() or self._path.stat().st_size + len(line) <= _MOST_BYTES:
                    append_regular(self._path, line)

    def is_due(self) -> bool:
        """Whether so much was left, or so long ago, that a process should send it even if it asks for nothing else."""
        try:
            if self._path.stat().st_size >= _DUE_BYTES:
                return True
            start = read_regular(self._path, max_size=_MOST_BYTES, length=_START)
            at = float(start.partition(b'"at": ')[2].partition(b",")[0])
        except FileNotFoundError:
            return False
        except (OSError, ValueError):
            return True  # `take` clears what cannot be read
        return not 0 <= time.time() - at < _DUE_SECONDS

    def take(self) -> tuple[dict[str, float], dict[str, float]]:
        """Remove everything that was left, and return it: uses by key, and sums of counters."""
        try:
            if not self._path.exists():
                return {}, {}
            with self._locked():
                try:
                    return decode_usage(read_regular(self._path, max_size=2 * _MOST_BYTES))
                finally:
                    self._path.unlink(missing_ok=True)
        except (OSError, StoreBusyError):
            return {}, {}

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        lock = self._path.with_name(f"{self._path.name}.lock")
        return exclusive(lock, deadline=time.monotonic() + _LOCK_SECONDS)
