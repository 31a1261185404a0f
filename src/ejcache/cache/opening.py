"""What a compilation cache works on: the store at its location, behind a local tier on this host if that is remote."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache import entry
from ejcache.errors import StoreError, UntrustedDirectoryError
from ejcache.keys.key import evicted_before
from ejcache.settings.directories import make_user_directory_above, temporary_directory, user_directory
from ejcache.stores.base import UNLIMITED
from ejcache.stores.filesystems import detect_shared_storage
from ejcache.stores.location import Location, LocationKind
from ejcache.stores.opening import open_bucket, open_store
from ejcache.util.log import warn_once
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from ejcache.bucket.base import Bucket
    from ejcache.coordination.single_flight import SingleFlight
    from ejcache.settings.table import Settings
    from ejcache.stores.base import Store
    from ejcache.stores.documents import Documents
    from ejcache.stores.local_tier import LocalTierPaths

log = logging.getLogger("ejcache")

_MEMORY_BYTES: Final = 256 << 20
"""Limit of the local tier where there is no local disk for it and this process's memory holds it."""
_XLA_SECONDS: Final = 5.0
"""The first compilation waits for XLA's own caches, from storage that is down for at most this long."""


def open_cache_store(url: str | Location, settings: Settings) -> Store:
    """The store at `url` with the limits of `settings`; remote storage gets a local tier, so that it delays nobody.

    Without a local disk for copies, or with EJCACHE_LOCAL_MAX_SIZE=0, the local tier is this process's memory: uploads
    still happen in the background, and storage that fails is still waited for only once.

    Raises:
        UsageError: `url` names no store.
        StoreError: the store cannot be opened. Whether remote storage can be reached shows at the first use.
    """
    location = _usable(Location.parse(url), settings)
    if detect_shared_storage(location):
        return _open_tiered(location, settings)
    store = open_store(
        location,
        max_size=settings.chosen_max_size,
        read_only=settings.read_only,
        settings=settings,
        evict_before=evicted_before,
    )
    is_default = settings.chosen_max_size is None and store.max_size == UNLIMITED
    if location.kind is LocationKind.DIRECTORY and is_default and not store.read_only:
        _tell_of_no_limit(Path(location.path))
    return store


def _open_tiered(location: Location, settings: Settings) -> Store:
    """The shared store at `location`, behind a local tier.

    The client of a bucket is made at the first request. Without a local disk it is made now: the process has nowhere to
    leave its usage, and would wait for the client when it ends.
    """
    from ejcache.bucket.breaker import UnreachableNote
    from ejcache.maintenance.scheduler import attach
    from ejcache.maintenance.stored_policy import EffectivePolicy
    from ejcache.stores.host_log import HostLog
    from ejcache.stores.memory import MemoryStore
    from ejcache.stores.shared.store import SharedStore
    from ejcache.stores.tiered.store import TieredStore

    paths = _prepare_local_tier(location, settings) if settings.local_max_size else None
    local: Store | None = None
    if paths is not None:
        from ejcache.stores.local.store import LocalStore

        try:
            local = LocalStore(
                paths.directory,
                max_size=settings.local_max_size,
                trusted=settings.trust_dir,
                evict_before=evicted_before,
            )
        except StoreError as exc:
            log.warning("ejcache: copies of %s are kept in memory only: %s", location, exc)
    scratch = paths.scratch if paths is not None and local is not None else None
    host_log = None if scratch is None else HostLog(scratch / "host.log")
    shared = SharedStore(
        open_bucket(location, settings=settings, prepare=scratch is None),
        max_size=UNLIMITED if settings.chosen_max_size is None else settings.chosen_max_size,
        read_only=settings.read_only,
        log=host_log,
    )
    shared.bucket.entries_only = True
    if shared.bucket.breaker is not None and scratch is not None:
        shared.bucket.breaker.use_note(UnreachableNote(scratch / "unreachable"), seconds=shared.bucket.again_seconds)
    tiered = TieredStore(
        local if local is not None else MemoryStore(max_size=_MEMORY_BYTES),
        shared,
        scratch=scratch,
        log=host_log,
        verify=_verify,
        read_only=settings.read_only,
    )
    attach(tiered, policy=EffectivePolicy(shared.bucket, max_size=shared.max_size))
    return tiered


def _tell_of_no_limit(path: Path) -> None:
    """Say it if the cache has no limit because an earlier version made it, once for the cache."""
    from ejcache.stores.local.layout import Layout

    layout = Layout(path)
    with suppress(OSError):
        if layout.limit() is None and layout.note_unlimited():
            log.warning(
                "ejcache: %s has no size limit, because an earlier version made it; `ejcache config set max_size=20GB`"
                " sets one. This is said once",
                path,
            )


def _usable(location: Location, settings: Settings) -> Location:
    """`location`, or a directory of this user if other users could have put code into the local directory there."""
    if settings.trust_dir or location.kind is not LocationKind.DIRECTORY or detect_shared_storage(location):
        return location
    from ejcache.stores.local.layout import Layout

    why = Layout(Path(location.path)).why_untrusted()
    if not why:
        return location
    own = next((path for path in (user_directory(), temporary_directory()) if path and _is_own(path)), None)
    if own is None or str(own) == location.path:
        raise UntrustedDirectoryError(why)
    warn_once(("untrusted", location.path), "ejcache: %s. This process uses %s instead", why, own)
    return Location.parse(own)


def _is_own(path: Path) -> bool:
    from ejcache.stores.local.layout import Layout

    try:
        Layout(path).check()
    except StoreError:
        return False
    return True


def open_single_flight(url: str | Location, store: Store, settings: Settings) -> SingleFlight | None:
    """Has the users of `store` compile each program once; None if no other process can use the store.

    Args:
        url: of the cache.
        store: as `open_cache_store` returned it.
        settings: the settings now.
    """
    location = _usable(Location.parse(url), settings)
    if store.read_only or location.kind is LocationKind.MEMORY:
        return None
    from ejcache.coordination.single_flight import SingleFlight

    if detect_shared_storage(location):
        paths = _prepare_local_tier(location, settings)
        return SingleFlight.of_store(store, directory=paths.scratch / "leases" if paths is not None else None)
    return SingleFlight.of_store(store, directory=Path(location.path) / "v1" / "leases")


class XlaCacheLocation(NamedTuple):
    """Where XLA's own caches are.

    Attributes:
        documents: what all processes share.
        root: a local directory, which may be reached through links.
        below: the directory below it for what each process has of its own; it may not exist yet.
    """

    documents: Documents
    root: Path
    below: str


def find_xla_caches(url: str | Location, settings: Settings) -> XlaCacheLocation | None:
    """Where XLA's own caches are for the cache at `url`; None if there is no local disk for them.

    Raises:
        UsageError: `url` names no store.
    """
    from ejcache.bucket.files import FileBucket
    from ejcache.stores.documents import Documents

    location = _usable(Location.parse(url), settings)
    if location.kind is LocationKind.MEMORY:
        return None
    shared = detect_shared_storage(location)
    bucket: Bucket
    if shared:
        bucket = open_bucket(location, settings=settings, deadline=_XLA_SECONDS)
    else:
        bucket = FileBucket(location.path, local=True, documents=True)
    documents = Documents(bucket, read_only=settings.read_only)
    if not shared and not settings.read_only:
        return XlaCacheLocation(documents, Path(location.path), "v1/xla-processes")
    from ejcache.stores.local_tier import find_local_tier

    paths = find_local_tier(location, settings)
    return XlaCacheLocation(documents, paths.xla.parent, paths.xla.name) if paths is not None else None


def _prepare_local_tier(location: Location, settings: Settings) -> LocalTierPaths | None:
    """As `find_local_tier`. Makes the user's cache folder private first: a store makes only its own directories so."""
    from ejcache.stores.local_tier import find_local_tier

    paths = find_local_tier(location, settings)
    if paths is not None:
        with suppress(OSError):
            make_user_directory_above(paths.directory)
    return paths


def _verify(key: str, data: bytes) -> object:
    return entry.verify(data, key=key)
