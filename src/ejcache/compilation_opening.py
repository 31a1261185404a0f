"""The store that a compilation cache works on: what is at its URL, with a node-local tier over it if that is remote."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache import entry
from ejcache.errors import StoreError
from ejcache.settings import make_user_directory_above
from ejcache.stores.nearby import nearby
from ejcache.stores.opening import is_shared, local_path, open_bucket_at, open_store

if TYPE_CHECKING:
    from ejcache.settings import Settings
    from ejcache.stores.base import Store
    from ejcache.stores.documents import DocumentStore
    from ejcache.stores.flights import Flights
    from ejcache.stores.nearby import Nearby

__all__ = ["XlaPlaces", "open_cache_store", "open_flights", "xla_places"]

log = logging.getLogger("ejcache")

_MEMORY_BYTES: Final = 256 << 20
"""What is kept in memory at most, for uploads, where there is no local disk."""
_XLA_SECONDS: Final = 5.0
"""The first compilation waits for XLA's own caches: from storage that is down, no longer than this."""


def open_cache_store(url: str, settings: Settings) -> Store:
    """The store at `url`, as `settings` want it; a remote one behind a local tier, so that it never holds a program up.

    Where there is no local disk to keep copies on, or EJCACHE_LOCAL_MAX_SIZE is 0, the local tier is this process's
    memory: uploads still happen behind the program, and trouble is still met only once.

    Raises:
        UsageError: `url` is no URL of a store.
        StoreError: the store cannot be opened; of a remote one that shows only when it is used.
    """
    store = open_store(url, max_size=settings.max_size, read_only=settings.read_only, settings=settings)
    if not is_shared(url):
        return store
    from ejcache.stores.breaker import breaker_for
    from ejcache.stores.guarded import GuardedObjects
    from ejcache.stores.memory import MemoryStore
    from ejcache.stores.shared import SharedStore
    from ejcache.stores.tiered import TieredStore
    from ejcache.upkeep.election import look_after
    from ejcache.upkeep.stored_policy import EffectivePolicy

    place = _nearby(url, settings) if settings.local_max_size else None
    local: Store | None = None
    if place is not None:
        from ejcache.stores.local import LocalStore

        try:
            local = LocalStore(place.directory, max_size=settings.local_max_size)
        except StoreError as exc:
            log.warning("ejcache: copies of %s are kept in memory only: %s", url, exc)
    tiered = TieredStore(
        local if local is not None else MemoryStore(max_size=_MEMORY_BYTES),
        store,
        scratch=place.scratch if place is not None and local is not None else None,
        verify=_verify,
        read_only=settings.read_only,
    )
    if isinstance(store, SharedStore):
        # Behind the breaker as the rest of upkeep is: a program that ends waits for storage in trouble once, not twice.
        objects = GuardedObjects(store.bucket, breaker_for(store.url))
        look_after(tiered, policy=EffectivePolicy(objects, max_size=store.max_size))
    return tiered


def open_flights(url: str, store: Store, settings: Settings) -> Flights | None:
    """What lets the users of `store` compile each program once; None where there is nobody to wait for.

    Args:
        url: of the cache.
        store: as `open_cache_store` gave it.
        settings: the settings now.
    """
    if store.read_only or url.startswith("memory://"):
        return None
    from ejcache.stores.flights import Flights

    directory = local_path(url)
    if is_shared(url):
        place = _nearby(url, settings)
        return Flights(store, directory=place.scratch / "leases" if place is not None else None)
    return Flights(store, directory=Path(directory) / "v1" / "leases" if directory is not None else None)


@dataclass(frozen=True, slots=True)
class XlaPlaces:
    """Where XLA's own caches are.

    Attributes:
        documents: what all processes share.
        processes: a local directory for what each has of its own; it need not exist.
    """

    documents: DocumentStore
    processes: Path


def xla_places(url: str, settings: Settings) -> XlaPlaces | None:
    """Where XLA's own caches are for the cache at `url`; None where there is no local disk for them.

    Raises:
        UsageError: `url` is no URL of a store.
    """
    from ejcache.stores.documents import BucketDocuments
    from ejcache.stores.documents_directory import DirectoryDocuments

    if is_shared(url):
        place = nearby(url, settings)
        if place is None:
            return None
        bucket = open_bucket_at(url, settings=settings, deadline=_XLA_SECONDS)
        return XlaPlaces(BucketDocuments(bucket, read_only=settings.read_only), place.xla)
    directory = local_path(url)
    if directory is None:
        return None
    documents = DirectoryDocuments(directory, read_only=settings.read_only)
    if settings.read_only:
        place = nearby(url, settings)
        return XlaPlaces(documents, place.xla) if place is not None else None
    return XlaPlaces(documents, Path(directory) / "v1" / "xla-processes")


def _nearby(url: str, settings: Settings) -> Nearby | None:
    """As `nearby`; what is kept there makes its own directories, but not the user's cache directory above them."""
    place = nearby(url, settings)
    if place is not None:
        with suppress(OSError):
            make_user_directory_above(place.directory)
    return place


def _verify(key: str, data: bytes) -> object:
    return entry.verify(data, key=key)
