"""The policy over a store: what is looked up, what is kept, what is counted, and what happens to damage.

Nothing in here fails a program. Trouble of the storage is counted, said once, and becomes a miss; only
`jax_raise_persistent_cache_errors` lets it out.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import socket
import threading
import time
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, runtime_checkable

from ejcache import entry
from ejcache.errors import (
    EntryCorruptError,
    EntryError,
    EntryVersionError,
    StoreError,
    StoreReadOnlyError,
    StoreTooSmallError,
    UsageError,
)
from ejcache.explaining import Explanation, Known, explain
from ejcache.keys.key import module_text_key
from ejcache.settings import Settings, resolve
from ejcache.statistics import Miss, Skip, Stats, Tally
from ejcache.stores.base import check_key
from ejcache.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ejcache.misses import MissRecord
    from ejcache.stores.base import Store
    from ejcache.stores.flights import Flights

T = TypeVar("T")

__all__ = ["CompilationCache", "Lookup"]

log = logging.getLogger("ejcache")

_REOPEN_SECONDS: Final = 30.0
"""A store that could not be opened is tried again after this long: a mount may come back."""
_TEXT_BYTES: Final = 4_000_000
_FLUSH_SECONDS: Final = 2.0
"""Counters go to the store at most this often, except when something was stored."""


@runtime_checkable
class Tiered(Protocol):
    """A store that uploads behind the program and counts what it asks of each tier: `TieredStore` is such."""

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until nothing is left to upload; False if something is."""

    def take_tier_counters(self) -> dict[str, float]:
        """What was counted since the last call."""

    def when_closing(self, callback: Callable[[], object]) -> None:
        """Call `callback` whenever the store is closed, before its tiers are."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """What a lookup gave: an entry, or the reason why not."""

    entry: entry.Entry | None
    miss: Miss | None = None


class CompilationCache:
    """Compiled executables under their keys, kept in a store.

    Made by `ejcache.enable`. All methods may be called from any thread and after a fork.

    Args:
        url: where the entries are, as `ejcache.open_store` takes it.
        open_store: opens it; called when the store is first needed.
        open_flights: what lets several processes compile each program once, for the store that was opened.
        settings: the settings now; read anew at each operation, because a program may change JAX's flags at any time.
        read_only: never write, whatever the settings say.

    A cache that others can write to is code that others can run here: share it with those you trust.
    """

    def __init__(
        self,
        url: str,
        *,
        open_store: Callable[[], Store],
        open_flights: Callable[[Store], Flights | None] = lambda _: None,
        settings: Callable[[], Settings] = resolve,
        read_only: bool = False,
    ) -> None:
        self.url = url
        self.read_only = read_only
        self._settings = settings
        self._open_store = open_store
        self._open_flights = open_flights
        self._flights: Flights | None = None
        self._store: Store | None = None
        self._retry_at = 0.0
        self._flushed_at = 0.0
        self._lock = threading.RLock()
        self._tally = Tally()
        self._warned: set[str] = set()
        _alive.add(self)

    def __repr__(self) -> str:
        return f"CompilationCache({self.url!r})"

    @property
    def domain(self) -> str:
        """Names the place where the entries are: equal for those who see the same entries, as far as can be told."""
        return self.url if "://" in self.url else f"{socket.gethostname()}:{os.path.abspath(self.url)}"  # noqa: PTH100

    # -- the public verbs: bytes in, bytes out ---------------------------------------------------------------------

    def get(self, key: str) -> bytes | None:
        """What was put under `key`, or None.

        A damaged entry counts as corrupt, is taken out of use, and is None.
        """
        looked = self.lookup(check_key(key))
        if looked.entry is None:
            self.count_miss(looked.miss or Miss.ABSENT)
            return None
        self.count_hit(looked.entry.header, load_seconds=0.0)
        return looked.entry.raw

    def put(
        self,
        key: str,
        value: bytes,
        *,
        compile_seconds: float = 0.0,
        metadata: Mapping[str, Any] | None = None,
    ) -> bool:
        """Keep `value` under `key`; False if it was not stored (`stats().skipped` says why).

        Args:
            key: as `check_key` allows.
            value: any bytes.
            compile_seconds: what it took to make; compared with the minimum compile time. 0.0 stands for unknown and
                is not held against it.
            metadata: JSON fields kept in the entry's header; those of `entry.Header` set that field.

        Raises:
            UsageError: the header cannot hold that `metadata`, or that `compile_seconds`.
        """
        fields = dict(metadata or {})
        known = {name: fields.pop(name) for name in _SETTABLE & fields.keys()}
        header = entry.Header(key=check_key(key), compile_seconds=compile_seconds, **known, extra=fields)
        try:
            entry.encode(header, b"", level=0)
        except ValueError as exc:
            raise UsageError(str(exc)) from exc
        return self.store(header, value) is None

    def contains(self, key: str) -> bool:
        """Whether an entry stands under `key`; no entry is read and nothing is counted."""
        store = self._opened()
        if store is None or self._settings().recompile_force:
            return False
        try:
            return store.contains(check_key(key))
        except StoreError as exc:
            self._trouble("look for an entry", exc)
            return False

    def stats(self, *, whole_store: bool = False) -> Stats:
        """What this process counted; with `whole_store`, what all processes counted since the store was made."""
        self._count_tiers()
        if not whole_store:
            return self._tally.stats()
        self.flush()
        store = self._opened()
        try:
            return Stats.of(store.counters()) if store is not None else Stats()
        except StoreError as exc:
            self._trouble("read the counters", exc)
            return Stats()

    def flush(self, timeout: float | None = None) -> bool:
        """Write out what this process counted.

        Args:
            timeout: seconds to wait until what was stored can be seen by other hosts; without it nothing is waited
                for.

        Returns:
            Whether nothing is left to upload, as far as that was waited for.
        """
        store = self._store
        if store is None or store.read_only:
            return True
        uploaded = True
        if timeout is not None and isinstance(store, Tiered):
            uploaded = store.flush(timeout)
        self._write_counters(store)
        return uploaded

    def _write_counters(self, store: Store) -> None:
        self._count_tiers()
        amounts = self._tally.take_pending()
        if not amounts:
            return
        self._flushed_at = time.monotonic()
        try:
            store.add_counters(amounts)
        except StoreError as exc:
            log.debug("counters of %s were not kept: %s", self.url, exc)

    def close(self) -> None:
        """Write out what this process counted and release the store. The cache may be used again: it reopens."""
        self.flush()
        store = self._store
        if store is None:
            return
        store.close()
        with self._lock:
            if self._store is store:
                self._store = None

    # -- what `jaxside` uses ---------------------------------------------------------------------------------------

    def lookup(self, key: str) -> Lookup:
        """The verified entry under `key`, or why there is none. The caller counts the outcome.

        Damage is counted here, and taken out of use, so that the next `store` heals it.
        """
        settings = self._settings()
        if settings.disabled_reason:
            return Lookup(None, Miss.ABSENT)
        if settings.recompile_force:
            return Lookup(None, Miss.FORCED)
        store = self._opened()
        if store is None:
            return Lookup(None, Miss.ERROR)
        damaged: list[bytes] = []
        looked = self._look(store, key, damaged)
        if damaged and not self.read_only and not store.read_only:
            # It is taken out of use: of two tiers the other one may have the good one, or another host has healed it.
            again = self._look(store, key, damaged)
            if again.entry is not None:
                return again
        return looked

    def _look(self, store: Store, key: str, damaged: list[bytes]) -> Lookup:
        try:
            data = store.get(key)
        except StoreError as exc:
            self._trouble("read an entry", exc)
            return Lookup(None, Miss.ERROR)
        if data is None:
            return Lookup(None, Miss.ABSENT)
        try:
            found = entry.decode(data, key=key)
        except EntryVersionError:
            return Lookup(None, Miss.VERSION)
        except EntryError as exc:
            if data not in damaged:
                damaged.append(data)
                self._take_out(store, key, data, exc)
            return Lookup(None, Miss.CORRUPT if isinstance(exc, EntryCorruptError) else Miss.FOREIGN)
        self._tally.add(bytes_read=len(data))
        return Lookup(found)

    def store(self, header: entry.Header, raw: bytes, *, heal: bool = False) -> Skip | None:
        """Keep `raw` under `header.key`; None if that made an entry, else why not (counted).

        Args:
            header: sizes, codec and creation time are filled in here.
            raw: the serialised executable.
            heal: an entry stands that is of no use here; replace it.
        """
        skip = self._store_checked(header, raw, heal=heal)
        if skip is not None:
            self._tally.skip(skip)
        else:
            self._tally.add(stores=1)
        self._flush_if_due(now=skip is None)
        return skip

    def once(self, key: str, *, lookup: Callable[[], T | None], work: Callable[[], T], between_hosts: bool) -> T:
        """What `work` gives, or what `lookup` finds when another thread, process or host has done it meanwhile.

        Args:
            key: what has just been looked up, and missed.
            lookup: looks again.
            work: compiles, and stores.
            between_hosts: also wait for other hosts, which costs requests.

        Waits for others as long as the setting `wait_seconds` says, then works.
        """
        settings = self._settings()
        flights = self._flights
        if flights is None or settings.wait_seconds <= 0 or settings.recompile_force:
            return work()
        return flights.run(
            key, lookup=lookup, work=work, deadline=settings.wait_seconds, missed=True, between_hosts=between_hosts
        )

    def skip_before_serialising(self, compile_seconds: float) -> Skip | None:
        """Why a compilation that took `compile_seconds` would not be stored whatever it is, or None. Not counted."""
        settings = self._settings()
        if self.read_only or settings.read_only:
            return Skip.READ_ONLY
        if 0.0 < compile_seconds < settings.min_compile_seconds:
            return Skip.QUICK
        return None

    def count_hit(self, header: entry.Header, *, load_seconds: float) -> None:
        """Count a hit on an entry that took `load_seconds` to fetch and load."""
        self._tally.add(
            hits=1, load_seconds=load_seconds, seconds_saved=max(0.0, header.compile_seconds - load_seconds)
        )
        self._flush_if_due()

    def count_miss(self, reason: Miss, *, compile_seconds: float = 0.0) -> None:
        """Count a miss that cost `compile_seconds`."""
        self._tally.miss(reason)
        if compile_seconds:
            self._tally.add(compile_seconds=compile_seconds)
        self._flush_if_due()

    def count_skip(self, reason: Skip) -> None:
        """Count a compilation that was not stored, or not looked up, for this reason."""
        self._tally.skip(reason)
        self._flush_if_due()

    def count_check(self, verdict: str) -> None:
        """Count a stored executable that was compared with a fresh one, and what came of it."""
        self._tally.add(**{"checks": 1, f"check_{verdict}": 1})
        self._flush_if_due()

    def keep_text(self, text: str) -> str:
        """Keep a module's text beside the entries; its digest, or empty if it was not kept.

        It explains later misses and is worth little room: at most 4 MB, and a hundredth of the limit.
        """
        settings = self._settings()
        store = self._opened()
        raw = text.encode()
        if not settings.keep_module_text or store is None or store.read_only or len(raw) > _TEXT_BYTES:
            return ""
        digest = hashlib.sha256(raw).hexdigest()
        key = module_text_key(digest)
        try:
            # Whether it is there is not asked first: behind a local tier that would be a request before the program.
            data = entry.encode(entry.Header(key=key, kind="module_text", created=time.time()), raw)
            if 0 < store.max_size < 100 * len(data):
                return ""
            store.put(key, data)
        except StoreError as exc:
            self._trouble("keep a module's text", exc)
            return ""
        return digest

    def keep_profile(self, header: entry.Header, profile: bytes) -> bool:
        """Keep a profile beside the entries, in place of an older one of that key; False if it was not kept.

        Neither floors nor counters are for it: it is no executable, and small.
        """
        settings = self._settings()
        store = self._opened()
        if store is None or self.read_only or settings.read_only or store.read_only or settings.disabled_reason:
            return False
        try:
            store.replace(header.key, entry.encode(replace(header, created=time.time()), profile))
        except StoreError as exc:
            self._trouble("keep a profile", exc)
            return False
        return True

    def explain(self, record: MissRecord) -> Explanation | None:
        """Why the compilation of `record` was not answered, or None if the store cannot be asked."""
        store = self._opened()
        try:
            return explain(record, Known(store)) if store is not None else None
        except StoreError as exc:
            self._trouble("explain a miss", exc)
            return None

    def remove(self, key: str) -> None:
        """Take an entry out that is proven wrong, keeping a copy aside where the store has room for it."""
        store = self._opened()
        if store is None or self.read_only or store.read_only:
            return
        try:
            data = store.peek(key)
            if data is not None:
                store.quarantine(key, data)
        except StoreError as exc:
            self._trouble("take a wrong entry out", exc)

    def trouble(self, doing: str, exc: Exception) -> None:
        """Count an error met while `doing` something with the cache; say so once."""
        self._trouble(doing, exc)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _store_checked(self, header: entry.Header, raw: bytes, *, heal: bool) -> Skip | None:
        settings = self._settings()
        if settings.disabled_reason:
            return Skip.DISABLED
        early = self.skip_before_serialising(header.compile_seconds)
        if early is not None:
            return early
        store = self._opened()
        if store is None:
            return Skip.ERROR
        data = entry.encode(replace(header, created=time.time()), raw)
        if len(data) < settings.min_entry_size:
            return Skip.SMALL
        try:
            if heal or settings.recompile_force:
                store.replace(header.key, data)
            elif not store.put(header.key, data):
                return Skip.DUPLICATE
        except StoreTooSmallError as exc:
            self.warn(
                "large",
                f"an executable of {format_size(len(data))} ({header.name or header.key}) is larger than "
                f"{settings['max_size'].source} allows ({format_size(store.max_size)}) and is not stored: {exc}",
            )
            return Skip.LARGE
        except StoreReadOnlyError:
            return Skip.READ_ONLY
        except StoreError as exc:
            self._trouble("write an entry", exc)
            return Skip.ERROR
        self._tally.add(bytes_written=len(data))
        return None

    def _take_out(self, store: Store, key: str, data: bytes, exc: EntryError) -> None:
        self._tally.add(corrupt=1)
        self.warn("corrupt", f"a damaged entry in {self.url} is not used and will be replaced: {key}: {exc}")
        if self.read_only or store.read_only:
            return
        try:
            store.quarantine(key, data)
        except StoreError as trouble:
            self._trouble("set a damaged entry aside", trouble)
        if self._settings().raise_errors:
            raise exc

    def _opened(self) -> Store | None:
        store = self._store
        if store is not None:
            return store
        with self._lock:
            if self._store is not None:
                return self._store
            if time.monotonic() < self._retry_at:
                return None
            try:
                store = self._open_store()
                self._flights = self._open_flights(store)
                self._store = store
                if isinstance(store, Tiered):
                    # What is uploaded while it closes counts, too.
                    store.when_closing(self.flush)
            except (StoreError, UsageError) as exc:
                self._retry_at = time.monotonic() + _REOPEN_SECONDS
                self._trouble("open the cache", exc)
            return self._store

    def _count_tiers(self) -> None:
        store: object = self._store
        if isinstance(store, Tiered):
            self._tally.add(**store.take_tier_counters())

    def _flush_if_due(self, *, now: bool = False) -> None:
        if now or time.monotonic() - self._flushed_at > _FLUSH_SECONDS:
            self.flush()

    def _trouble(self, doing: str, exc: Exception) -> None:
        self._tally.add(errors=1)
        if self._settings().raise_errors:
            raise exc
        self.warn("trouble", f"could not {doing} in {self.url}; the program goes on without it: {exc}")

    def warn(self, kind: str, message: str) -> None:
        """Log a warning the first time something of this `kind` happens, and for debugging after that."""
        with self._lock:
            first = kind not in self._warned
            self._warned.add(kind)
        log.log(logging.WARNING if first else logging.DEBUG, "ejcache: %s", message)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()
        self._tally.forget()


_SETTABLE: Final = frozenset(
    {"kind", "name", "platform", "jax", "jaxlib", "variant", "logical_key", "profile_digest", "components"}
)

_alive: weakref.WeakSet[CompilationCache] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for cache in list(_alive):
        cache._after_fork()  # noqa: SLF001 (this module's own)


@atexit.register
def _flush_at_exit() -> None:
    for cache in list(_alive):
        cache.flush()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
