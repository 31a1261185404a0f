"""Opens a shared store behind a local tier on this host, at the place that the policy of the cache names.

Both tiers are opened at the place that the policy of the cache names (`stores.epochs`). Until this host has read the
policy, its copies are the whole cache: nothing is asked of shared storage but that.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Final

from ejcache import entry
from ejcache.bucket.folder import BucketFolder
from ejcache.bucket.storage_note import FAILED, StorageNote
from ejcache.cache.early_entries import EarlyEntries
from ejcache.cache.former_copies import FormerCopies
from ejcache.cache.policy_watch import Reading
from ejcache.cache.reading import OpenedStore
from ejcache.cache.shared_policy_watch import LOOK_SECONDS, SharedPolicyWatch, noted_epoch
from ejcache.errors import EntryRecalledError, StoreError, StoreNotAskedError
from ejcache.journal.unsent import UnsentUses
from ejcache.keys.variants import evicted_before
from ejcache.maintenance.pass_scheduler import attach
from ejcache.maintenance.stored_policy import MAX_BYTES, POLICY, EffectiveEvictionPolicy
from ejcache.stores.base import UNLIMITED
from ejcache.stores.epochs import FIRST, folder_of, spool_folder, tier_folder
from ejcache.stores.local.store import LocalStore
from ejcache.stores.memory import MemoryStore
from ejcache.stores.opening import open_bucket
from ejcache.stores.shared.store import SharedStore
from ejcache.stores.tier_directory import find_local_tier
from ejcache.stores.tiered.store import TieredStore
from ejcache.util.log import log
from ejcache.util.threads import submit

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.settings.table import Settings
    from ejcache.stores.base import Store
    from ejcache.stores.location import Location

_AGAIN_SECONDS: Final = 1.0
"""How long a process waits for the first answer of storage that gave this host none before."""
_MEMORY_BYTES: Final = 256 << 20
"""Limit of the local tier where there is no local disk for it and this process's memory holds it."""


class TierOpener:
    """Opens the tiers of a cache on shared storage, at one place after the other.

    The client of a bucket is made at the first request. Without a local disk it is made now: the process has nowhere to
    leave its usage, and would wait for the client when it ends.

    Args:
        location: of the cache.
        settings: the settings now.
        worth: by which the local tier orders its entries; None to order them by their last use.

    Attributes:
        scratch: what this host keeps of the cache beside copies; None without a local disk for it.
        epoch: in which the cache was, as this host has noted; None if it does not know that.
    """

    def __init__(self, location: Location, settings: Settings, *, worth: Callable[[bytes, int], float] | None) -> None:
        self._location = location
        self._settings = settings
        self._worth = worth
        self._tier = find_local_tier(location, settings) if settings.local_max_size else None
        self.epoch = None if self._tier is None else noted_epoch(self._tier / "scratch" / "policy")
        self._first: Store | None = self._local(self.epoch or FIRST)
        if isinstance(self._first, MemoryStore):
            self._tier = self.epoch = None
        self.scratch = None if self._tier is None else self._tier / "scratch"
        self._root = open_bucket(location, settings=settings, prepare=self.scratch is None)
        self._root.entries_only = True
        if self._root.breaker is not None and self.scratch is not None:
            self._root.breaker.use_note(StorageNote(self.scratch / "storage"), seconds=_AGAIN_SECONDS)

    def _local(self, epoch: str) -> Store:
        """Open the copies of an epoch: on a local disk, or in memory."""
        if self._tier is not None:
            try:
                return LocalStore(
                    self._tier / tier_folder(epoch),
                    max_size=self._settings.local_max_size,
                    trusted=self._settings.trust_dir,
                    evict_before=evicted_before,
                    worth=self._worth,
                )
            except StoreError as exc:
                log.warning("ejcache: copies of %s are kept in memory only: %s", self._location, exc)
        return MemoryStore(max_size=_MEMORY_BYTES)

    def local_at(self, epoch: str) -> Store:
        """Return the store of this host's copies of an epoch."""
        if self._first is not None and epoch == (self.epoch or FIRST):
            first, self._first = self._first, None
            return first
        return self._local(epoch)

    def at(self, epoch: str, local: Store | None = None) -> TieredStore:
        """Return the store of an epoch: what hosts share, behind this host's copies.

        Args:
            epoch: in which the cache is.
            local: the copies, if they are open.
        """
        settings, scratch = self._settings, self.scratch
        shared = SharedStore(
            BucketFolder(self._root, folder_of(epoch)) if epoch else self._root,
            root=self._root,
            max_size=UNLIMITED if settings.chosen_max_size is None else settings.chosen_max_size,
            read_only=settings.read_only or self._location.anonymous,
            unsent=None if scratch is None else UnsentUses(scratch / "unsent"),
        )
        spool = None
        if scratch is not None and self._tier is not None:
            # What is pending belongs to the epoch, as the copies do that hold its bytes: in another one, nobody looks.
            spool = self._tier / spool_folder(epoch)
        tiered = TieredStore(
            local if local is not None else self.local_at(epoch),
            shared,
            scratch=scratch,
            spool=spool,
            verify=_verify,
            read_only=settings.read_only,
        )
        limits = EffectiveEvictionPolicy(self._root, max_size=shared.max_size, evict=settings.evict)
        attach(tiered, policy=limits)
        return tiered

    def read_policy(self) -> Reading:
        """Read what is stored with the cache of its use; raises StoreError if the storage failed."""
        found = self._root.read(POLICY, length=MAX_BYTES + 1)
        return Reading(b"") if found is None else Reading(found.data, found.version)

    def open(self) -> OpenedStore:
        """Open the store at the place that this host knows, and what knows about the cache, which begins to ask."""
        note = None if self.scratch is None else self.scratch / "policy"
        self._watch = watch = SharedPolicyWatch(
            self._location.url, self.read_policy, note=note, open_at=self._moved, storage_url=self._root.url
        )
        is_dead = self.scratch is not None and StorageNote(self.scratch / "storage").said == FAILED
        watch.begin(ask=not is_dead)
        if self.epoch is None:
            watch.keep_looking()
            may_send = self._tier is not None and not self._location.anonymous
            spool = self._tier / spool_folder(FIRST) if self._tier is not None and may_send else None
            return OpenedStore(self.local_at(FIRST), watch, None, EarlyEntries(spool))
        return OpenedStore(self._watching(self.at(self.epoch), self.epoch), watch, self.epoch)

    def _moved(self, epoch: str, opened: Store) -> Store:
        """Return the store of another epoch, after `opened`, whose uploads are dropped."""
        self._watch.stop()
        if isinstance(opened, TieredStore):
            opened.verify = opened.verify_upload = _refuse
            submit(partial(_leave, opened))
            return self._watching(self.at(epoch), epoch)
        return self._watching(self.at(epoch, None if epoch else opened), epoch)

    def _watching(self, tiered: TieredStore, epoch: str) -> TieredStore:
        """Have the store verify by the stored policy what it copies and uploads, and look at that once a minute."""
        watch = self._watch

        def verify(key: str, data: bytes) -> object:
            header = entry.verify(data, key=key)
            if watch.epoch != epoch or watch.is_recalled(header, data):
                raise EntryRecalledError(f"{key} was recalled")
            return header

        def verify_upload(key: str, data: bytes) -> object:
            watch.ask()
            if watch.is_off():
                raise StoreNotAskedError(f"{self._location} is turned off")
            return verify(key, data)

        tiered.verify, tiered.verify_upload = verify, verify_upload
        tiered.worker.every(LOOK_SECONDS, watch.look)
        if self._tier is not None and epoch:
            former = FormerCopies(self._tier, lambda: (each.epoch for each in watch.former), self._local)
            tiered.worker.every(LOOK_SECONDS, former.clear)
        return tiered


def open_tiered(location: Location, settings: Settings, *, worth: Callable[[bytes, int], float] | None) -> TieredStore:
    """Return the store at the place of which this host knows, whatever the policy says by now."""
    opener = TierOpener(location, settings, worth=worth)
    return opener.at(opener.epoch or FIRST)


def _leave(tiered: TieredStore) -> None:
    """Close a store whose place is over. The client stays open: the store that took its place has the same one."""
    with contextlib.suppress(StoreError):
        tiered.finish()
        tiered.local.close()
        if isinstance(tiered.shared, SharedStore) and not tiered.shared.read_only:
            tiered.shared.journal.write_or_hand_over()


def _refuse(key: str, _: bytes) -> object:
    raise EntryRecalledError(f"{key} was recalled with everything else")


def _verify(key: str, data: bytes) -> object:
    return entry.verify(data, key=key)
