"""Deletes what is still stored in the ended epochs of a shared cache (`ejcache recall --all` ends one).

Hosts that do not know yet that an epoch has ended go on storing there for a while, and what a killed process has left
to upload gets there days later; so maintenance looks there again for thirty days. It goes by the policy as it is then:
before each step it asks whether that is still the one that it has read. An epoch that the policy does not list is never
touched: its policy may be the one that is right, and this one a copy of an earlier day.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from ejcache.bucket.object_names import ENTRIES, QUARANTINE
from ejcache.coordination.shared_leases import LEASES
from ejcache.errors import EntryError
from ejcache.maintenance.stored_policy import MAX_BYTES, POLICY, decode_policy, epochs_of
from ejcache.stores.epochs import FIRST, folder_of
from ejcache.util.log import log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.bucket.base import Bucket

_SECONDS: Final = 30 * 86_400.0
_STEP: Final = 500
_OF_THE_FIRST: Final = (ENTRIES, QUARANTINE, LEASES, "v1/xla/")
"""What belongs to the epoch without a name; beside it lies what belongs to none."""


class EndedEpochs:
    """The epochs that the policy of a cache lists as former ones, as it is when this is made.

    Args:
        objects: of the whole cache.
        now: seconds since the epoch, by the storage's clock; epochs that ended longer ago than thirty days are left
            out. None leaves none out.

    Raises:
        StoreError: the storage failed.
    """

    def __init__(self, objects: Bucket, *, now: float | None = None) -> None:
        self._objects = objects
        self._version = ""
        self.epochs: list[str] = []
        found = objects.read(POLICY, length=MAX_BYTES + 1)
        if found is None:
            return
        try:
            former = epochs_of(decode_policy(found.data)).former
        except EntryError as exc:
            log.debug("nothing that was recalled is deleted, because %s cannot be read: %s", POLICY, exc)
            return
        self._version = found.version
        self.epochs = [each.epoch for each in former if now is None or now - each.ended < _SECONDS]

    def remove(self) -> Iterator[str]:
        """Delete what lies in these epochs, as long as the policy stays the one that was read.

        Yields:
            The names of the objects that were deleted.

        Raises:
            StoreError: the storage failed; what is left goes with the next call.
        """
        for epoch in self.epochs:
            prefixes = _OF_THE_FIRST if epoch == FIRST else (folder_of(epoch),)
            for prefix in prefixes:
                listed = iter(self._objects.walk(prefix))
                while step := [(info.name, info.version) for info in itertools.islice(listed, _STEP)]:
                    current = self._objects.stat(POLICY)
                    if current is None or current.version != self._version:
                        log.info(
                            "ejcache: %s/%s has changed: what it recalled is left for now", self._objects.url, POLICY
                        )
                        return
                    yield from self._objects.delete_many(step)
