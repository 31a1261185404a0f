"""The copies of a remote cache's entries on this host: those that are recalled go, once for each recall.

    <tier>/scratch/recalled := the number of the last recall whose copies are removed, in decimal

A host that was not there for so long that the list of recalls has lost what it had not seen cannot tell which of its
copies are good: all of them go.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from ejcache.errors import StoreBusyError, StoreError
from ejcache.maintenance.recalling import remove_recalled
from ejcache.stores.abilities import Clearable
from ejcache.util.files import read_regular
from ejcache.util.locks import exclusive
from ejcache.util.log import log
from ejcache.util.new_files import make_below, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from ejcache.maintenance.recalls import Recalls
    from ejcache.stores.base import Store

_MAX_BYTES: Final = 64


class RecalledCopies:
    """Removes the copies of what is recalled. Safe for threads and processes.

    Args:
        local: the store of the copies.
        note: the file with the number.
    """

    def __init__(self, local: Store, note: Path) -> None:
        self._local = local
        self._note = note
        self._done = 0

    def drop_if_unknown(self, recalls: Recalls) -> None:
        """Drop all copies if nobody can tell any more which of them were recalled."""
        if not self._removed() < recalls.dropped:
            return
        with contextlib.suppress(StoreError):
            if isinstance(self._local, Clearable) and next(iter(self._local.entries()), None) is not None:
                log.info("ejcache: the copies in %s go: this host has missed what was recalled", self._local.url)
                self._local.clear()
            self._write(recalls.number)

    def remove(self, recalls: Recalls) -> None:
        """Remove the copies of what was recalled since the last time, if no other process does so now."""
        if recalls.number <= self._done or recalls.number <= self._removed():
            self._done = max(self._done, recalls.number)
            return
        with contextlib.suppress(StoreError, OSError), contextlib.ExitStack() as stack:
            make_below(self._note.parent)
            try:
                stack.enter_context(
                    exclusive(self._note.with_name(f"{self._note.name}.lock"), deadline=time.monotonic())
                )
            except StoreBusyError:
                return
            if not self._local.read_only:
                for _ in remove_recalled(self._local, recalls):
                    pass
            self._write(recalls.number)

    def _removed(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            return max(self._done, int(read_regular(self._note, max_size=_MAX_BYTES)))
        return self._done

    def _write(self, number: int) -> None:
        self._done = number
        with contextlib.suppress(OSError):
            make_below(self._note.parent)
            write_atomically(self._note, f"{number}\n".encode())
