"""What a cache holds at one moment: the entries with their last uses, and which of them must stay.

A local store knows all of this itself. Of a shared cache it takes one listing of everything below `v1/` (entries, pins,
journals, leftovers of killed processes) and the usage journals of all processes.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ejcache.bucket.layout import (
    COUNTERS,
    ENTRIES,
    PINS,
    TEMPORARY,
    entry_name,
    is_process_name,
    key_of_name,
    unescape_key,
)
from ejcache.coordination.leases_shared import LEASES
from ejcache.errors import StoreBusyError
from ejcache.maintenance.journals import USED, compact, read_uses
from ejcache.maintenance.tables import Listing
from ejcache.stores.base import BatchDeletable, EntryInfo, pinned_keys
from ejcache.stores.shared.counters import fold_counters
from ejcache.stores.wrappers import WrapperStore
from ejcache.util.lifecycle import Closing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ejcache.bucket.base import BlobInfo, Bucket
    from ejcache.stores.base import Store
    from ejcache.stores.plain_jax import JaxEntries
    from ejcache.stores.shared.store import SharedStore

__all__ = ["IN_USE_SECONDS", "BucketScan", "Scan", "ScannedStore"]

log = logging.getLogger("ejcache")

IN_USE_SECONDS: Final = 300.0
"""An entry of a shared cache that was made or used within this time counts as in use: a process writes down what it
used once a minute."""
_ABANDONED_SECONDS: Final = 86_400.0
"""Leases and half-written files of this age belong to dead processes. A lease is renewed within minutes, and clocks
differ by less than a day."""
_ROOT: Final = "v1/"


class Scan(Closing):
    """A cache at one moment, as an eviction pass needs it: a local store, or what plain JAX wrote.

    Attributes:
        batch: entries that `delete` takes at once.
        pinned: the keys that are pinned.
        in_use_since: entries made or used at or after this time, in seconds since the epoch, are in use; None if the
            cache belongs to one host, where a deleted entry harms nobody who has read it.
        journals: usage journals that were compacted.
        swept: leases and half-written files of dead processes that were deleted.

    One thread at a time may use it.
    """

    in_use_since: float | None = None
    journals: int = 0
    swept: int = 0

    def __init__(self, store: Store | JaxEntries) -> None:
        self._store = store
        self.batch = 100 if isinstance(store, BatchDeletable) else 1
        self.pinned = pinned_keys(store)

    def entries(self) -> Iterator[EntryInfo]:
        """Every entry, with its last use."""
        return self._store.entries()

    def delete(self, batch: Sequence[EntryInfo]) -> set[str]:
        """Delete the entries of `batch`; the keys of those that were deleted."""
        if isinstance(self._store, BatchDeletable):
            return set(self._store.delete_many([info.key for info in batch]))
        return {info.key for info in batch if self._store.delete(info.key)}

    def tidy(self) -> list[str]:
        """Merge and delete what ended and killed processes left beside the entries; a sentence for each failure.

        A local store tidies up when it is opened.
        """
        return []

    def close(self) -> None:
        """Delete the temporary tables of the scan."""


class BucketScan(Scan):
    """A `Scan` of a shared cache, by one listing of everything below `v1/`.

    Args:
        objects: of the cache.
        now: seconds since the epoch, by the storage's clock.
        in_use_seconds: an entry that was made or used within this time is in use.
        compacts: merge the usage journals into the snapshot; otherwise they are only read.

    Raises:
        StoreError: the storage failed, or there is no room for temporary files.
    """

    batch: int = 100

    def __init__(
        self,
        objects: Bucket,
        *,
        now: float | None = None,
        in_use_seconds: float = IN_USE_SECONDS,
        compacts: bool = False,
    ) -> None:
        self._objects = objects
        self._now = time.time() if now is None else now
        self.in_use_since = self._now - in_use_seconds
        self._listing = Listing()
        self._usage: list[BlobInfo] = []
        self._abandoned: list[BlobInfo] = []
        self._counters: list[BlobInfo] = []
        pinned: set[str] = set()
        self._listing.add(self._listed(pinned))
        self.pinned = frozenset(pinned)
        if compacts:
            with suppress(StoreBusyError):  # the uses are in the listing; the journals stay for the next pass
                done = compact(
                    objects,
                    self._listing,
                    infos=self._usage,
                    complete=True,
                    now=self._now,
                    in_use_since=self.in_use_since,
                )
                self.journals = done.journals
        else:
            read_uses(objects, self._listing, infos=self._usage, now=self._now, in_use_since=self.in_use_since)

    def _listed(self, pinned: set[str]) -> Iterator[EntryInfo]:
        """The entries among all objects; the others are noted where they belong, and foreign names are ignored."""
        for info in self._objects.walk(_ROOT):
            name = info.name
            if name.startswith(ENTRIES):
                key = key_of_name(name)
                if key is not None:
                    yield EntryInfo(key, info.size, info.created, info.created, info.version)
            elif name.startswith(PINS):
                key = unescape_key(name.removeprefix(PINS))
                if key is not None:
                    pinned.add(key)
            elif name.startswith(USED):
                self._usage.append(info)
            elif name.startswith(COUNTERS):
                self._counters.append(info)
            elif _is_leftover(name) and self._now - info.created > _ABANDONED_SECONDS:
                self._abandoned.append(info)

    def entries(self) -> Iterator[EntryInfo]:
        """Every entry, with the last use that any process has written down."""
        return self._listing.entries()

    def delete(self, batch: Sequence[EntryInfo]) -> set[str]:
        """Delete those entries of `batch` that still are as they were listed; the keys of the deleted ones."""
        names = {entry_name(info.key): info for info in batch}
        deleted = self._objects.delete_many((name, info.version) for name, info in names.items())
        return {names[name].key for name in deleted}

    def tidy(self) -> list[str]:
        """Add old counters to the baseline, and delete abandoned leases and half-written files.

        A step that fails, for whatever reason, does not keep the other one from its work.
        """
        steps = {
            "old counters were not merged": lambda: fold_counters(self._objects, self._counters, now=self._now),
            "leftovers were not deleted": self._sweep,
        }
        problems = []
        for what, step in steps.items():
            try:
                step()
            except Exception as exc:  # what others wrote must not stop this job's eviction
                log.debug("ejcache: %s", what, exc_info=True)
                problems.append(f"{what}: {exc}")
        return problems

    def _sweep(self) -> None:
        for _ in self._objects.delete_many((info.name, info.version) for info in self._abandoned):
            self.swept += 1

    def close(self) -> None:
        """Delete the temporary tables of the scan."""
        self._listing.close()


def _is_leftover(name: str) -> bool:
    """Whether a process of ejcache may have made `name` and died: only such objects are ever swept."""
    if name.startswith(LEASES):
        return unescape_key(name.removeprefix(LEASES)) is not None
    return name.startswith(TEMPORARY) and is_process_name(name.removeprefix(TEMPORARY))


class ScannedStore(WrapperStore):
    """A shared store whose listings know what all processes used, not only this one."""

    def __init__(self, shared: SharedStore) -> None:
        super().__init__(shared)
        self.shared = shared

    def entries(self) -> Iterator[EntryInfo]:
        """Every entry, with the last use that any process has written down."""
        with BucketScan(self.shared.bucket) as scan:
            yield from scan.entries()

    def pin(self, key: str) -> bool:
        """As `shared` does."""
        return self.shared.pin(key)

    def unpin(self, key: str) -> bool:
        """As `shared` does."""
        return self.shared.unpin(key)

    def pinned(self) -> list[str]:
        """As `shared` does."""
        return self.shared.pinned()
