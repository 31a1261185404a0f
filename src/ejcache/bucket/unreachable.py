"""A note of this host: a bucket gave a process no answer, so the next ones wait for it for a shorter time.

    <scratch>/unreachable      empty; the time of its last change is when the first of these processes gave up

A process that gets an answer deletes the note. Those that wait for the shorter time do not renew it: after an hour one
process waits as long as the first one did, because the storage may only have been slow.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["UnreachableNote"]

_EXPIRY_SECONDS: Final = 3600.0


class UnreachableNote:
    """The note about one bucket. Safe for threads and processes; errors of the disk are ignored.

    Args:
        path: of the file, on a local file system.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def is_recent(self) -> bool:
        """Whether the bucket gave no answer within the last hour, and none since."""
        try:
            return 0 <= time.time() - self._path.stat().st_mtime < _EXPIRY_SECONDS
        except OSError:
            return False

    def leave(self) -> None:
        """Note that the bucket gave no answer, unless a recent note says so."""
        with contextlib.suppress(OSError):
            if not self.is_recent:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._path.touch(mode=0o600)

    def clear(self) -> None:
        """Note that the bucket has answered."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
