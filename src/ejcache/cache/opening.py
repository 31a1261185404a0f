"""The cache as a program uses it, and the store that it works on, opened at its location.

The cache as a program uses it: `ejcache.enable()` and `ejcache.active()` return a `CompilationCache`.

What a compilation cache works on: the store at its location, behind a local tier on this host if that is remote.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from ejcache import entry
from ejcache.cache.counters import Miss
from ejcache.errors import StoreError, UsageError
from ejcache.keys.key import evicted_before, is_side_key
from ejcache.maintenance.worth import worth_by
from ejcache.settings.resolve import resolve_if_changed
from ejcache.stores.base import UNLIMITED
from ejcache.stores.location import Location, LocationKind, detect_shared_storage
from ejcache.stores.opening import find_local_tier, open_bucket, open_store, usable_location
from ejcache.util.text import check_key
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from ejcache.bucket.base import Bucket
    from ejcache.cache.counters import Stats
    from ejcache.cache.policy import CachePolicy
    from ejcache.coordination.single_flight import SingleFlight
    from ejcache.settings.table import Settings
    from ejcache.stores.base import EntryInfo, Store
    from ejcache.stores.documents import Documents


_HEADER_FIELDS: Final = frozenset(
    {"kind", "name", "platform", "jax", "jaxlib", "variant", "logical_key", "profile_digest", "components"}
)


class CompilationCache:
    """Compiled executables under their keys, kept in a store.

    `ejcache.enable` returns one. All methods may be called from any thread and after a fork. A failure of the storage
    raises nothing: it is logged once, counted, and means a miss or an entry that is not stored; only
    `jax_raise_persistent_cache_errors` lets the error through.

    Args:
        policy: reads and writes the entries.
        settings: returns the current settings; called at each operation, because a program may change them any time.

    Attributes:
        when_left: called at the end of a `with` block; `ejcache.enable` sets it.

    Everybody who can write to a cache can run code in the programs that read it: share it only with people you trust.
    """

    def __init__(self, policy: CachePolicy, *, settings: Callable[[], Settings] = resolve_if_changed) -> None:
        self._policy = policy
        self._settings = settings
        self.when_left: Callable[[], None] | None = None
        self._blocks: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"CompilationCache({self.url!r})"

    def __enter__(self) -> Self:
        """Enter `with ejcache.enable(...):`. At its end the state before that call of `enable` comes back.

        A cache that `enable` has not returned is closed instead.
        """
        self._blocks.append(self.when_left or self.close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._blocks.pop()()

    @property
    def url(self) -> str:
        """Where the entries are, as `ejcache.open_store` takes it."""
        return self._policy.url

    @property
    def read_only(self) -> bool:
        """Whether nothing is written."""
        return self._settings().read_only

    def get(self, key: str) -> bytes | None:
        """The bytes that were put under `key`, or None; `stats().misses_by_reason` says why there are none.

        A damaged entry is counted as corrupt and quarantined, and the result is None.
        """
        looked = self._policy.read(check_key(key), self._settings(), kind=None)
        if looked.entry is None:
            self._policy.count_miss(looked.miss or Miss.ABSENT)
            return None
        self._policy.count_hit(looked.entry.header, load_seconds=0.0)
        return looked.entry.raw

    def put(
        self, key: str, value: bytes, *, compile_seconds: float = 0.0, metadata: Mapping[str, Any] | None = None
    ) -> bool:
        """Store `value` under `key`; False if it was not stored (`stats().skipped` says why).

        Args:
            key: a text of at most 700 bytes without control characters.
            value: any bytes.
            compile_seconds: what it took to make, compared with the minimum compile time. 0.0 means that the time is
                not known; then the minimum does not apply.
            metadata: JSON fields for the entry's header; the names of fields of `entry.Header` set those fields.

        Raises:
            UsageError: the header cannot hold that `metadata`, or that `compile_seconds`.
        """
        fields = dict(metadata or {})
        known = {name: fields.pop(name) for name in _HEADER_FIELDS & fields.keys()}
        header = entry.Header(key=check_key(key), compile_seconds=compile_seconds, **known, extra=fields)
        try:
            entry.encode(header, b"", level=0)
        except ValueError as exc:
            raise UsageError(str(exc)) from exc
        return self._policy.write(header, value, self._settings()).skip is None

    def contains(self, key: str) -> bool:
        """Whether there is an entry under `key`; it is neither read nor counted."""
        return self._policy.contains(check_key(key), self._settings())

    def entries(self) -> Iterator[EntryInfo]:
        """Every entry of the store, in no particular order; none if the store cannot be opened.

        Module texts, profiles and records, which are stored beside the entries, are left out.

        Raises:
            StoreError: the store cannot be listed.
        """
        store = self._policy.opened(self._settings())
        if store is not None:
            yield from (info for info in store.entries() if not is_side_key(info.key))

    def stats(self, *, whole_store: bool = False) -> Stats:
        """What this process has counted; with `whole_store`, what all processes have since the store was made."""
        return self._policy.store_stats(self._settings()) if whole_store else self._policy.stats()

    def flush(self, timeout: float | None = None) -> bool:
        """Write the counters of this process to the store.

        Args:
            timeout: also wait up to this many seconds until other hosts can see what was stored.

        Returns:
            False if an upload has not finished within `timeout`.
        """
        return self._policy.flush(timeout)

    def close(self) -> None:
        """Write the counters and close the store. The cache may be used again: it opens the store again."""
        self._policy.close()


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
    location = usable_location(Location.parse(url), settings)
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


def _open_tiered(location: Location, settings: Settings) -> Store:
    """The shared store at `location`, behind a local tier.

    The client of a bucket is made at the first request. Without a local disk it is made now: the process has nowhere to
    leave its usage, and would wait for the client when it ends.
    """
    from ejcache.bucket.breaker import StorageNote
    from ejcache.maintenance.plan import EffectivePolicy
    from ejcache.maintenance.scheduler import attach
    from ejcache.stores.memory import MemoryStore
    from ejcache.stores.shared.store import SharedStore
    from ejcache.stores.shared.unsent import UnsentUses
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
        shared.bucket.breaker.use_note(StorageNote(scratch / "storage"), seconds=shared.bucket.again_seconds)
    tiered = TieredStore(
        local if local is not None else MemoryStore(max_size=_MEMORY_BYTES),
        shared,
        scratch=scratch,
        verify=_verify,
        read_only=settings.read_only,
    )
    attach(tiered, policy=EffectivePolicy(shared.bucket, max_size=shared.max_size, evict=settings.evict))
    return tiered


def open_single_flight(url: str | Location, store: Store, settings: Settings) -> SingleFlight | None:
    """Has the users of `store` compile each program once; None if no other process can use the store.

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
        place = find_local_tier(location, settings)
        return SingleFlight.of_store(store, directory=None if place is None else place / "scratch" / "leases")
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

    location = usable_location(Location.parse(url), settings)
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
    place = find_local_tier(location, settings)
    return None if place is None else XlaCacheLocation(documents, place, "xla")


def _verify(key: str, data: bytes) -> object:
    return entry.verify(data, key=key)
