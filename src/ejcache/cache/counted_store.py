"""The store of a cache: opened when it is needed, its failures reported once, and what this process counts on it."""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

from ejcache.cache.counters import CacheTally, Stats
from ejcache.errors import StoreBusyError, StoreError, StoreForbiddenError, StoreUnavailableError, UsageError
from ejcache.stores.base import UploadingStore, two_tiers
from ejcache.stores.location import Location, display_url
from ejcache.util.lifecycle import ExitPhase, at_exit, track_forks
from ejcache.util.log import log, warn_once
from ejcache.util.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.bucket.breaker import CircuitBreaker
    from ejcache.coordination.store_single_flight import StoreSingleFlight
    from ejcache.settings.resolve import Settings
    from ejcache.stores.base import Store

__all__ = ["CountedStore"]

_FLUSH_SECONDS: Final = 2.0
"""Counters go to the store at most this often: that is a transaction, or a request. A killed process loses the last."""
_scheduler: Final = Scheduler(threads=1, name="ejcache-counters")


class CountedStore:
    """The store of one cache. Safe for threads and forks.

    Args:
        url: where the entries are, as `ejcache.open_store` takes it.
        open_store: opens the store; called when it is first needed.
        open_single_flight: makes what lets several processes compile each program once, for the store that was
            opened; called at the first miss.
        read_only: never write, whatever the settings say.
    """

    def __init__(
        self,
        url: str,
        *,
        open_store: Callable[[], Store],
        open_single_flight: Callable[[Store], StoreSingleFlight | None] = lambda _: None,
        read_only: bool = False,
    ) -> None:
        self.url = display_url(url)  # of a URL that is refused because it carries a credential
        self.read_only = read_only
        self.tally = CacheTally()
        self._open_store = open_store
        self._open_single_flight = open_single_flight
        self._single_flight: tuple[Store, StoreSingleFlight | None] | None = None
        self._store: Store | None = None
        self._opening: CircuitBreaker | None = None
        self._flushed_at = time.monotonic()
        self._flush_seconds = _FLUSH_SECONDS
        self._flush_is_planned = False
        self._lock = threading.RLock()
        _alive.add(self)
        track_forks(self)

    @cached_property
    def absolute_url(self) -> str:
        """`url` with an absolute path: `why` may be called in another directory. Parsing it takes 0.1 ms."""
        return Location.parse(self.url).url

    @property
    def domain(self) -> str:
        """Names the place where the entries are: processes with equal domains see the same entries."""
        return self.url if "://" in self.url else f"{socket.gethostname()}:{os.path.abspath(self.url)}"  # noqa: PTH100

    def opened(self, settings: Settings) -> Store | None:
        """The store, opened if it was not; None if it cannot be opened."""
        store = self._store
        if store is not None:
            return store
        with self._lock:
            if self._store is not None:
                return self._store
            if self._opening is not None and not self._opening.allow_probe():
                return None
            try:
                store = self._open_store()
                self._store = store
                self._opening = None
                if isinstance(store, UploadingStore):
                    # Uploads that are made while it closes count, too.
                    store.when_closing(self.flush)
            except (StoreError, UsageError) as exc:
                self._note_failed_opening()
                self.report_failure("open the cache", exc, settings)
            return self._store

    def _note_failed_opening(self) -> None:
        """Try again after the cool-down of a circuit breaker: the store may be mounted again."""
        if self._opening is None:
            from ejcache.bucket.breaker import CircuitBreaker

            self._opening = CircuitBreaker(failures=1)
        self._opening.fail()

    def _opened_single_flight(self) -> StoreSingleFlight | None:
        """What lets several processes compile each program once; opened at the first miss, because hits do without."""
        with self._lock:
            store = self._store
            if store is None:
                return None
            if self._single_flight is None or self._single_flight[0] is not store:
                self._single_flight = store, self._open_single_flight(store)
            return self._single_flight[1]

    def flush(self, timeout: float | None = None) -> bool:
        """Write the counters; with `timeout`, also wait that many seconds for uploads. False if one is not finished."""
        store = self._store
        if store is None or store.read_only:
            return True
        uploaded = True
        if timeout is not None and isinstance(store, UploadingStore):
            uploaded = store.flush(timeout)
        self._count_tiers()
        amounts = self.tally.take_pending()
        if amounts:
            self._flushed_at = time.monotonic()
            try:
                store.add_counters(amounts)
            except Exception as exc:
                # Whatever is wrong with counters must not fail a compile.
                log.debug("counters of %s were not written: %s", self.url, exc)
        return uploaded

    def close(self) -> None:
        """Write the counters and close the store. The next operation opens it again."""
        self.flush()
        store = self._store
        if store is None:
            return
        # Not under the lock: closing may wait for uploads, and other threads compile meanwhile.
        store.close()
        with self._lock:
            if self._store is store:
                self._store = None

    def _count_tiers(self) -> None:
        store: object = self._store
        if isinstance(store, UploadingStore):
            self.tally.add(**store.take_tier_counters())

    def _flush_if_due(self) -> None:
        """Write the counters now, or in the background as soon as they are due."""
        left = self._flushed_at + self._flush_seconds - time.monotonic()
        if left > 0 and (self._flush_is_planned or _scheduler.later(left, partial(_flush_later, weakref.ref(self)))):
            self._flush_is_planned = True
        else:
            self.flush()

    def after_fork_in_child(self) -> None:
        """Count from zero, with a free lock, and write each counter at once.

        A forked child often ends by `os._exit`, as those of `multiprocessing` do, which runs no exit handlers.
        """
        self._lock = threading.RLock()
        self._flush_seconds = 0.0
        self._flush_is_planned = False
        self.tally.after_fork_in_child()

    def _may_write(self, store: Store, settings: Settings) -> bool:
        return not (self.read_only or settings.read_only or store.read_only)

    def stats(self) -> Stats:
        """What this process has counted."""
        self._count_tiers()
        return self.tally.stats()

    def store_stats(self, settings: Settings) -> Stats:
        """What all processes have counted since the store was made."""
        self.flush()
        store = self.opened(settings)
        try:
            return Stats.of(store.counters()) if store is not None else Stats()
        except StoreError as exc:
            self.report_failure("read the counters", exc, settings)
            return Stats()

    def report_failure(self, doing: str, exc: Exception, settings: Settings, *, program: str = "") -> None:
        """Count an error, and log it the first time that `doing` fails.

        Raises:
            Exception: `exc` itself, if the setting `raise_errors` asks for that.
        """
        self.tally.add(errors=1)
        if settings.raise_errors:
            raise exc
        of_program = f" for {program!r}" if program else ""
        text = (
            f"could not {doing} in {self.url}{of_program}; the program goes on without it: {type(exc).__name__}: {exc}"
        )
        if isinstance(exc, StoreForbiddenError):
            # Storage that refuses reads refuses uploads too (stores.tiered.uploads); one sentence says so.
            self.warn("refused", text)
        elif isinstance(exc, StoreBusyError | StoreUnavailableError) and self._is_shared:
            # The circuit breaker says it if nothing but work in the background has failed (bucket.breaker).
            warn_once(("unreachable", self._store.url if self._store is not None else self.url), "ejcache: %s", text)
        else:
            self.warn(doing, text)

    @property
    def _is_shared(self) -> bool:
        return self._store is not None and two_tiers(self._store) is not None

    def warn(self, kind: str, message: str) -> None:
        """Log a warning the first time that something of this `kind` happens with this cache, at DEBUG after that."""
        warn_once((kind, self.url), "ejcache: %s", message)


_alive: weakref.WeakSet[CountedStore] = weakref.WeakSet()


def _flush_later(reference: weakref.ref[CountedStore]) -> None:
    store = reference()
    if store is not None:
        store._flush_is_planned = False  # noqa: SLF001 (the other half of the class)
        store.flush()


def _flush_all() -> None:
    for store in list(_alive):
        store.flush()


at_exit(ExitPhase.COUNTERS, _flush_all)
