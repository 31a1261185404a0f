"""Opens a cache at its location: its store, behind a local tier if it is remote, and its single flight."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ejcache.cache.policy_watch import MAX_BYTES, PolicyWatch, Reading
from ejcache.cache.reading import OpenedStore
from ejcache.keys.variants import evicted_before
from ejcache.stores.location import Location
from ejcache.stores.opening import open_store, usable_location
from ejcache.stores.sharing_detection import detect_shared_storage
from ejcache.util.directory_access import POLICY
from ejcache.util.files import read_regular

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.coordination.single_flight import SingleFlight
    from ejcache.settings.table import Settings
    from ejcache.stores.base import Store


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
        from ejcache.cache.opening_tiers import open_tiered  # the door to shared storage

        return open_tiered(location, settings, worth=worth_by(settings))
    return _open_directory(location, settings)


def _open_directory(location: Location, settings: Settings) -> Store:
    """Open the store of one host, or of this process, at `location`."""
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

    from ejcache.stores.worth import worth  # the door to eviction by cost

    return worth


def open_single_flight(url: str | Location, store: Store, settings: Settings) -> SingleFlight | None:
    """Make what has the users of `store` compile each program once; None if no other process can use the store.

    Args:
        url: of the cache.
        store: as `open_cache_store` returned it.
        settings: the settings now.
    """
    location = usable_location(Location.parse(url), settings)
    if store.read_only or location.kind == "memory":
        return None
    from ejcache.coordination.single_flight import SingleFlight  # a room that no hit needs

    if detect_shared_storage(location):
        from ejcache.stores.tier_directory import find_local_tier  # the door to shared storage

        place = find_local_tier(location, settings)
        scratch = None if place is None else place / "scratch"
        if scratch is None:
            return SingleFlight.of_store(store, directory=None)
        return SingleFlight.of_store(store, directory=scratch / "leases", speeds=scratch / "speeds")
    return SingleFlight.of_store(store, directory=Path(location.path) / "v1" / "leases")


def open_cache(url: str | Location, settings: Settings) -> OpenedStore:
    """Open the store at `url`, as `open_cache_store` does, and what knows whether it is turned off and where it is.

    What hosts share is opened at the place of which this host knows; `PolicyWatch.store_in` says where it is since.

    Raises:
        UsageError: `url` names no store.
        StoreError: the store cannot be opened.
    """
    location = usable_location(Location.parse(url), settings, or_raise=settings.raise_errors)
    if detect_shared_storage(location):
        from ejcache.cache.opening_tiers import TierOpener  # the door to shared storage

        return TierOpener(location, settings, worth=worth_by(settings)).open()

    store = _open_directory(location, settings)
    if location.kind == "memory":
        return OpenedStore(store)

    path = Path(location.path) / POLICY

    def read_file() -> Reading:
        try:
            return Reading(read_regular(path, max_size=MAX_BYTES))
        except FileNotFoundError:
            return Reading(b"")

    return OpenedStore(store, PolicyWatch(location.url, read_file))
