"""What earlier starts on this host found out about files, so that a start looks at their status and reads none.

    memo := line, …
    line := what TAB status TAB text
    status := device, inode, size, time of modification, time of change, parted by spaces

What is a path, or a path and what else is known about the file: "module /path". A text holds for a file of the same
status. None is kept of a file that changed less than two seconds ago: two writes within one tick of the clock have one
status. A memo that is damaged is none. Of two processes that write at the same time the last one wins, and the other
one's files are read again.
"""

from __future__ import annotations

import functools
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ejcache.settings.directories import state_directory
from ejcache.util.files import make_private, write_atomically
from ejcache.util.locks import ForkLock

if TYPE_CHECKING:
    import os
    from pathlib import Path

_SETTLED_SECONDS: Final = 2.0
_MOST: Final = 50_000
"""Files in the memo. Where there are more, only those of the last process stay."""


class Memo:
    """What is known about files. Safe for threads.

    Args:
        place: the file of the memo.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        self._lock = ForkLock()
        self._fresh: dict[str, str] = {}

    @functools.cached_property
    def _known(self) -> dict[str, str]:
        return self._read()

    def known(self, what: str, status: os.stat_result) -> str | None:
        """Look up what is known about a file of this status; None if nothing is."""
        line = self._known.get(what)
        if line is None:
            return None
        stamp, _, text = line.partition("\t")
        return text if stamp == _stamp(status) else None

    def keep(self, what: str, status: os.stat_result, text: str) -> None:
        """Remember what was found out about a file of this status, unless it changed just now."""
        is_settled = time.time() - max(status.st_mtime, status.st_ctime) > _SETTLED_SECONDS
        if is_settled and what.isprintable():
            self._fresh[what] = f"{_stamp(status)}\t{text}"

    def write(self) -> None:
        """Write what this process found out; what cannot be written is found out again."""
        with self._lock:
            fresh, self._fresh = self._fresh, {}
            if not fresh:
                return
            merged = {**self._read(), **fresh}
            lines = (merged if len(merged) <= _MOST else fresh).items()
            with suppress(OSError, ValueError):
                make_private(self._place.parent)
                write_atomically(self._place, "".join(f"{what}\t{line}\n" for what, line in lines).encode())

    def _read(self) -> dict[str, str]:
        try:
            lines = self._place.read_bytes().decode().split("\n")
        except (OSError, ValueError):
            return {}
        parts = (line.partition("\t") for line in lines[:-1])
        return {what: rest for what, _, rest in parts}


def _stamp(status: os.stat_result) -> str:
    return f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


@functools.cache
def memo_of_host() -> Memo:
    """Return the memo of this user on this host."""
    return Memo(state_directory() / "reuse.memo")
