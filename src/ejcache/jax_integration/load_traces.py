"""The traces of processes that died while they loaded entries: what the load journals of dead processes say."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from ejcache.util.files import read_regular

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
