"""Removes the copies that this host has of a shared cache from epochs that are over.

So do the pending uploads of these epochs that dead processes have left.

    <tier>/scratch/former := JSON: for each of these epochs, when its copies were removed, in seconds since 1970

A process that does not know yet that its epoch is over may copy something there afterwards; so they are removed once
more after a day, as long as the policy lists the epoch.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Final

from ejcache.errors import MALFORMED, StoreBusyError, StoreError
from ejcache.stores.base import Clearable
from ejcache.stores.epochs import spool_folder, tier_folder
from ejcache.stores.tiered.pending_uploads import PendingUploads
from ejcache.util.files import make_below, read_regular, write_atomically
from ejcache.util.locks import exclusive
from ejcache.util.log import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from ejcache.stores.base import Store

_MAX_BYTES: Final = 8192
_AGAIN_SECONDS: Final = 86_400.0
_LOOK_SECONDS: Final = 3600.0


class FormerCopies:
    """Removes the copies of epochs that are over. Safe for threads and processes.

    Args:
        tier: what this host keeps of the cache.
        former: returns the names of these epochs.
        open_local: opens the copies of an epoch.
    """

    def __init__(self, tier: Path, former: Callable[[], Iterable[str]], open_local: Callable[[str], Store]) -> None:
        self._tier = tier
        self._note = tier / "scratch" / "former"
        self._former = former
        self._open_local = open_local
        self._looked_at = float("-inf")

    def clear(self) -> None:
        """Remove what is there, if that was not done within a day, and if no other process of this host does so now."""
        if time.monotonic() - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = time.monotonic()
        cleared, now = self._cleared(), time.time()
        due = [
            epoch
            for epoch in self._former()
            if not 0 <= now - cleared.get(epoch, float("-inf")) <= _AGAIN_SECONDS
            and (self._tier / tier_folder(epoch) / "v1").is_dir()
        ]
        if not due:
            return
        with contextlib.suppress(StoreError, OSError), contextlib.ExitStack() as stack:
            make_below(self._note.parent)
            with contextlib.suppress(StoreBusyError):
                stack.enter_context(
                    exclusive(self._note.with_name(f"{self._note.name}.lock"), deadline=time.monotonic())
                )
                for epoch in due:
                    PendingUploads(self._tier / spool_folder(epoch)).drop()
                    with contextlib.closing(self._open_local(epoch)) as store:
                        if isinstance(store, Clearable) and next(iter(store.entries()), None) is not None:
                            log.info("ejcache: the copies of %s, which were recalled, are removed", store.url)
                            store.clear()
                    cleared[epoch] = now
                write_atomically(self._note, json.dumps(cleared).encode())

    def _cleared(self) -> dict[str, float]:
        with contextlib.suppress(OSError, *MALFORMED):
            found = json.loads(read_regular(self._note, max_size=_MAX_BYTES))
            return {str(epoch): float(at) for epoch, at in found.items()}
        return {}
