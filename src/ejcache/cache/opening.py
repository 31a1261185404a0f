"""Opens the store of a compilation cache at its location, behind a local tier on this host if that is remote."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache import entry
from ejcache.errors import EntryRecalledError, StoreError, StoreForbiddenError, StoreNotAskedError
from ejcache.keys.key import evicted_before
from ejcache.stores.base import UNLIMITED
from ejcache.stores.location import Location, LocationKind
from ejcache.stores.network_filesystems import detect_shared_storage
from ejcache.stores.opening import open_bucket, open_store, usable_location
from ejcache.util.directory_access import POLICY
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.bucket.base import Bucket
    from ejcache.cache.switch import CacheSwitch
    from ejcache.coordination.single_flight import SingleFlight
    from ejcache.settings.table import Settings
    from ejcache.stores.base import Store
    from ejcache.stores.documents import Documents
    from ejcache.stores.shared.store import SharedStore
    from ejcache.stores.tiered.store import TieredStore


log = logging.getLogger("ejcache")

_AGAIN_SECONDS: Final = 1.0
"""How long a process waits for the first answer of storage that gave this host none before."""
_MEMORY_BYTES: Final = 256 << 20
"""Limit of the local tier where there is no local disk for it and this process's memory holds it."""
_XLA_SECONDS: Final = 5.0
"""The first compilation waits for XLA's own caches, from storage that is down for at most this long."""


def open_cache_store(url: str | Location, settings: Settings) -> Store:
    """Open the store at `url` with the limits of `settings`; remote storage gets a local tier, so it delays nobody.

    Without a local disk for copies, or with EJCACHE_LOCAL_MAX_SIZE=0, the local tier is this process's memory: uploads
    still happen in the background, and storage that fails is still waited for only once.

    Raises:
        UsageError: `url` names no store.
        StoreError: the store cannot be opened. Whether remote storage can be reached shows at the first use.
    """
    location = usable_location(Location.parse(url), settings, or_raise=settings.raise_errors)
    if detect_shared_storage(location):
        return _open_tiered(location, settings)
    return open_store(
        location,
        max_size=settings.chosen_max_size,
        read_only=settings.read_only,
        settings=settings,
        evict_before=evicted_before,
        worth=worth_by(settings),
    )


def worth_by(settings: Settings) -> Callable[[bytes, int], float] | None:
    """Return the function by which a local store orders its entries; None to order them by their last use."""
    if settings.evict != "cost":
        return None
    from ejcache.maintenance.worth import worth  # most starts keep the order of uses

    return worth


def _open_tiered(location: Location, settings: Settings) -> Store:
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
                worth=worth_by(settings),
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


def open_single_flight(url: str | Location, store: Store, settings: Settings) -> SingleFlight | None:
    """Make what has the users of `store` compile each program once; None if no other process can use the store.

    Args:
        url: of the cache.
        store: as `open_cache_store` returned it.
        settings: the settings now.
    """
    location = usable_location(Location.parse(url), settings)
    if store.read_only or location.kind is LocationKind.MEMORY:
        return None
    from ejcache.coordination.single_flight import SingleFlight

    if detect_shared_storage(location):
        from ejcache.stores.tier_directory import find_local_tier

        place = find_local_tier(location, settings)
        return SingleFlight.of_store(store, directory=None if place is None else place / "scratch" / "leases")
    return SingleFlight.of_store(store, directory=Path(location.path) / "v1" / "leases")


def open_switch(url: str | Location, store: Store, settings: Settings) -> CacheSwitch | None:
    """Make what knows whether the cache is turned off, and begin to ask; None if nobody can turn it off.

    Args:
        url: of the cache.
        store: as `open_cache_store` returned it.
        settings: the settings now.
    """
    from ejcache.cache.switch import MAX_BYTES, CacheSwitch
    from ejcache.util.files import read_regular

    location = usable_location(Location.parse(url), settings)
    if location.kind is LocationKind.MEMORY:
        return None
    if not detect_shared_storage(location):
        path = Path(location.path) / POLICY

        def read_file() -> bytes:
            try:
                return read_regular(path, max_size=MAX_BYTES)
            except FileNotFoundError:
                return b""

        return CacheSwitch(location.url, read_file, remote=False)
    from ejcache.stores.shared.store import SharedStore
    from ejcache.stores.tiered.store import TieredStore

    if not isinstance(store, TieredStore) or not isinstance(store.shared, SharedStore):
        return None
    return _ask_storage(location, store, store.shared, settings)


def _ask_storage(location: Location, store: TieredStore, shared: SharedStore, settings: Settings) -> CacheSwitch:
    from ejcache.bucket.breaker import FAILED, StorageNote
    from ejcache.cache.recalled_copies import RecalledCopies
    from ejcache.cache.switch import LOOK_SECONDS, MAX_BYTES, CacheSwitch
    from ejcache.stores.local.store import LocalStore
    from ejcache.stores.tier_directory import find_local_tier

    def read_object() -> bytes:
        found = shared.bucket.read(POLICY, length=MAX_BYTES + 1)
        return b"" if found is None else found.data

    place = find_local_tier(location, settings) if isinstance(store.local, LocalStore) else None
    scratch = None if place is None else place / "scratch"
    switch = CacheSwitch(
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


class XlaCacheLocation(NamedTuple):
    """Where XLA's own caches are.

    Attributes:
        location: of the cache.
        shared: hosts share it.
        root: a local directory, which may be reached through links.
        below: the directory below it for what each process has of its own; it may not exist yet.
    """

    location: Location
    shared: bool
    root: Path
    below: str


def find_xla_caches(url: str | Location, settings: Settings) -> XlaCacheLocation | None:
    """Find the place of XLA's own caches for the cache at `url`; None if there is no local disk for them.

    Raises:
        UsageError: `url` names no store.
    """
    location = usable_location(Location.parse(url), settings)
    if location.kind is LocationKind.MEMORY:
        return None
    shared = detect_shared_storage(location)
    if not shared and not settings.read_only:
        return XlaCacheLocation(location, shared, Path(location.path), "v1/xla-processes")
    from ejcache.stores.tier_directory import find_local_tier

    place = find_local_tier(location, settings)
    return None if place is None else XlaCacheLocation(location, shared, place, "xla")


def open_xla_documents(place: XlaCacheLocation, settings: Settings) -> Documents:
    """Open what all processes share of XLA's own caches.

    Raises:
        UsageError: the cache is at a URL that names no store.
    """
    from ejcache.bucket.files import FileBucket
    from ejcache.stores.documents import Documents

    bucket: Bucket
    if place.shared:
        bucket = open_bucket(place.location, settings=settings, deadline=_XLA_SECONDS)
    else:
        bucket = FileBucket(place.location.path, local=True, documents=True)
    return Documents(bucket, read_only=settings.read_only)


def _verify(key: str, data: bytes) -> object:
    return entry.verify(data, key=key)
