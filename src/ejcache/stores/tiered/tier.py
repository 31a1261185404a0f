"""Asks one tier of a tiered store behind a circuit breaker, and counts its calls."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ejcache.errors import StoreBusyError, StoreError, StoreNotAskedError, StoreReadOnlyError, StoreTooSmallError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.bucket.breaker import CircuitBreaker
    from ejcache.stores.base import Store
    from ejcache.util.tally import Tally


T = TypeVar("T")


class Tier:
    """A store that is asked only while its breaker allows it.

    Args:
        name: prefix of its counters: `local` or `shared`.
        store: the store.
        breaker: of the store's URL.
        tally: where it counts.
    """

    def __init__(self, name: str, store: Store, *, breaker: CircuitBreaker, tally: Tally) -> None:
        self.name = name
        self.store = store
        self.breaker = breaker
        self._tally = tally

    def count(self, *what: str, amount: int = 1) -> None:
        """Add to these counters of this tier."""
        self._tally.add(**{f"{self.name}_{each}": amount for each in what})

    def call(self, function: Callable[[Store], T]) -> T:
        """Return `function(store)`; failures are counted and reported to the breaker.

        Raises:
            StoreNotAskedError: the breaker is open; the store was not asked.
            StoreError: the store failed.
        """
        try:
            return self.breaker.call(self.store.url, partial(function, self.store), probe=self._ask)
        except (StoreReadOnlyError, StoreTooSmallError, StoreNotAskedError):
            raise
        except StoreError as exc:
            self.count("errors")
            if isinstance(exc, StoreBusyError):
                self.count("timeouts")
            if self.breaker.is_open:  # since this call, which would not have been made before
                self.count("breaker_open")
            raise

    def quarantine(self, key: str, data: bytes, *, wrong: bool = False) -> bool:
        """Quarantine the entry if the store is writable and the entry still is exactly `data`; raises as `call`."""
        done = not self.store.read_only and self.call(lambda store: store.quarantine(key, data, wrong=wrong))
        if done:
            self.count("corrupt")
        return done

    def probe(self) -> bool:
        """True if the store may be used now; asks it first, for at most its whole deadline, if a probe is due."""
        return self.breaker.probe(self.store.url, self._ask)

    @property
    def patience(self) -> float:
        """Seconds that it is worth waiting for the store: none while it is not asked or presumed dead; no limit once it
        has answered.
        """
        return 0.0 if self.breaker.is_open or self.breaker.is_presumed_dead else self.breaker.patience

    def _ask(self) -> object:
        return self.store.contains("ejcache-probe")
