"""Notes what a process stores before its host knows where the shared cache is, and has it uploaded then.

Each entry is noted on disk as a pending upload of the first place, the one without a name. If the policy names that
one, the next process of the host adopts the notes as those of any other (`stores.tiered.pending_uploads`); if it names
another, `former_copies` drops them with the copies.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final

from ejcache.errors import StoreError
from ejcache.stores.tiered.pending_uploads import PUT, PendingUploads
from ejcache.stores.tiered.store import TieredStore
from ejcache.util.lifecycle import AtExit, ExitPhase, track_forks
from ejcache.util.tally import Tally

if TYPE_CHECKING:
    from pathlib import Path

    from ejcache.stores.base import Store


class EarlyEntries:
    """The entries that this process has stored meanwhile. Safe for threads; a forked child leaves them to the parent.

    Args:
        spool: the pending uploads of the first place; None if nothing is to be uploaded, or without a local disk.
    """

    def __init__(self, spool: Path | None) -> None:
        self._markers = None if spool is None else PendingUploads(spool)
        self.after_fork_in_child()
        _open.add(self)
        track_forks(self)

    def after_fork_in_child(self) -> None:
        """Leave what was stored until now to the parent."""
        self._lock = threading.RLock()
        self._keys: set[str] = set()
        self._tally = Tally()

    def add(self, key: str) -> None:
        """Note that the entry of `key` is about to be stored."""
        with self._lock:
            self._keys.add(key)
        if self._markers is not None:
            self._markers.add(key, PUT)

    def carry_over(self, opened: Store, to: Store) -> None:
        """Store in `to` what this process has stored in `opened`, and leave the rest to the next process.

        Args:
            opened: this host's copies, which may be those of `to`.
            to: the store of the cache.
        """
        with self._lock:
            keys, self._keys = self._keys, set()
        is_same = isinstance(to, TieredStore) and to.local is opened
        for key in keys:
            with contextlib.suppress(StoreError):
                if isinstance(to, TieredStore) and is_same:
                    to.upload(key)
                elif (data := opened.peek(key)) is not None:
                    to.put(key, data)
                if self._markers is not None:
                    self._markers.remove(key)  # the store has its own by now
        if not is_same:
            opened.close()
        self.leave()

    def leave(self) -> None:
        """Leave to the next process of this host what could not be sent, and count it."""
        if self._markers is not None and (left := self._markers.leave()):
            self._tally.add(shared_spooled=left)

    def take_counters(self) -> dict[str, float]:
        """Return what was counted since the last call."""
        return self._tally.take_pending()


_open: Final = AtExit(ExitPhase.UPLOAD, EarlyEntries.leave)
