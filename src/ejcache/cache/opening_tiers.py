"""Opens the store of a cache on storage that hosts share, behind a local tier on this host, and its switch."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from ejcache import entry
from ejcache.errors import EntryRecalledError, StoreError, StoreForbiddenError, StoreNotAskedError
from ejcache.keys.parsing import evicted_before
from ejcache.stores.base import UNLIMITED
from ejcache.stores.opening import open_bucket
from ejcache.util.directory_access import POLICY
from ejcache.util.log import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.cache.switch import CacheSwitch
    from ejcache.settings.table import Settings
    from ejcache.stores.base import Store
    from ejcache.stores.location import Location
    from ejcache.stores.shared.store import SharedStore
    from ejcache.stores.tiered.store import TieredStore

_AGAIN_SECONDS: Final = 1.0
"""How long a process waits for the first answer of storage that gave this host none before."""
_MEMORY_BYTES: Final = 256 << 20
"""Limit of the local tier where there is no local disk for it and this process's memory holds it."""


def open_tiered(location: Location, settings: Settings, *, worth: Callable[[bytes, int], float] | None) -> TieredStore:
    """Return the shared store at `location`, behind a local tier.

    The client of a bucket is made at the first request. Without a local disk it is made now: the process has nowhere to
    leave its usage, and would wait for the client when it ends.
    """
    from ejcache.bucket.breaker import StorageNote
    from ejcache.journal.unsent import UnsentUses
    from ejcache.maintenance.scheduler import attach
    from ejcache.maintenance.stored_policy import EffectiveEvictionPolicy
    from ejcache.stores.memory import MemoryStore
    from ejcache.stores.shared.store import SharedStore
    from ejcache.stores.tier_directory import find_local_tier
    from ejcache.stores.tiered.store import TieredStore

    place = find_local_tier(location, settings) if settings.local_max_size else None
    local: Store | None = None
    if place is not None:
        from ejcache.stores.local.store import LocalStore

        try:
            local = LocalStore(
                place,
                max_size=settings.local_max_size,
                trusted=settings.trust_dir,
                evict_before=evicted_before,
                worth=worth,
            )
        except StoreError as exc:
            log.warning("ejcache: copies of %s are kept in memory only: %s", location, exc)
    scratch = place / "scratch" if place is not None and local is not None else None
    shared = SharedStore(
        open_bucket(location, settings=settings, prepare=scratch is None),
        max_size=UNLIMITED if settings.chosen_max_size is None else settings.chosen_max_size,
        read_only=settings.read_only or location.anonymous,
        unsent=None if scratch is None else UnsentUses(scratch / "unsent"),
    )
    shared.bucket.entries_only = True
    if shared.bucket.breaker is not None and scratch is not None:
        shared.bucket.breaker.use_note(StorageNote(scratch / "storage"), seconds=_AGAIN_SECONDS)
    tiered = TieredStore(
        local if local is not None else MemoryStore(max_size=_MEMORY_BYTES),
        shared,
        scratch=scratch,
        verify=_verify,
        read_only=settings.read_only,
    )
    attach(tiered, policy=EffectiveEvictionPolicy(shared.bucket, max_size=shared.max_size, evict=settings.evict))
    return tiered


def switch_of_storage(location: Location, store: TieredStore, shared: SharedStore, settings: Settings) -> CacheSwitch:
    """Return what says whether the cache on this storage is turned off, and what of it is recalled.

    From now on `store` verifies by it what it copies and uploads, and looks at it again once a minute.
    """
    from ejcache.bucket.breaker import FAILED, StorageNote
    from ejcache.cache.recalled_copies import RecalledCopies
    from ejcache.cache.shared_switch import LOOK_SECONDS, SharedSwitch
    from ejcache.cache.switch import MAX_BYTES
    from ejcache.stores.local.store import LocalStore
    from ejcache.stores.tier_directory import find_local_tier

    def read_object() -> bytes:
        found = shared.bucket.read(POLICY, length=MAX_BYTES + 1)
        return b"" if found is None else found.data

    place = find_local_tier(location, settings) if isinstance(store.local, LocalStore) else None
    scratch = None if place is None else place / "scratch"
    switch = SharedSwitch(
        location.url,
        read_object,
        note=None if scratch is None else scratch / "policy",
        copies=None if scratch is None else RecalledCopies(store.local, scratch / "recalled"),
    )

    def verify(key: str, data: bytes) -> object:
        header = entry.verify(data, key=key)
        if switch.is_recalled(header, data):
            raise EntryRecalledError(f"{key} was recalled")
        return header

    def verify_upload(key: str, data: bytes) -> object:
        with contextlib.suppress(StoreForbiddenError):  # who may write and not look has no word in this
            switch.ask()
        if switch.is_off():
            raise StoreNotAskedError(f"{location} is turned off")
        return verify(key, data)

    store.verify, store.verify_upload = verify, verify_upload
    switch.begin(ask=scratch is None or StorageNote(scratch / "storage").said != FAILED)
    store.worker.every(LOOK_SECONDS, switch.look)
    return switch


def _verify(key: str, data: bytes) -> object:
    return entry.verify(data, key=key)
