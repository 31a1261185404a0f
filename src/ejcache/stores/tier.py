"""One tier of a tiered store: a store behind a circuit breaker, and what was asked of it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from ejcache.errors import StoreBusyError, StoreError, StoreReadOnlyError, StoreTooSmallError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.stores.base import Store
    from ejcache.stores.breaker import CircuitBreaker

__all__ = ["Tier", "TierCounters"]

T = TypeVar("T")


class TierCounters:
    """Amounts by name, of this process; `take` gives each of them once. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: Counter[str] = Counter()
        self._fresh: Counter[str] = Counter()

    def add(self, name: str, amount: int = 1) -> None:
        """Add to one of them."""
        with self._lock:
            self._totals[name] += amount
            self._fresh[name] += amount

    def totals(self) -> dict[str, float]:
        """Everything counted in this process."""
        with self._lock:
            return dict(self._totals)

    def take(self) -> dict[str, float]:
        """What was counted since the last call."""
        with self._lock:
            fresh, self._fresh = self._fresh, Counter()
        return dict(fresh)

    def after_fork(self) -> None:
        """In a forked child: what was counted so far is the parent's to report."""
        self.__init__()  # type: ignore[misc]  # every attribute anew, the lock included


class Tier:
    """A store that is asked only while its breaker allows it.

    Args:
        name: prefix of its counters: `local` or `shared`.
        store: what is asked.
        breaker: of the store's URL.
        counters: where its counts go.
        probe: called when a refused call found that a probe is due; it has `probe` called later, and does not wait.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        name: str,
        store: Store,
        *,
        breaker: CircuitBreaker,
        counters: TierCounters,
        probe: Callable[[Tier], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.store = store
        self.breaker = breaker
        self._counters = counters
        self._probe = probe
        self._clock = clock
        self._probe_wanted = False

    def __repr__(self) -> str:
        return f"Tier({self.name!r}, {self.store!r})"

    def count(self, what: str, amount: int = 1) -> None:
        """Add to this tier's counter `what`."""
        self._counters.add(f"{self.name}_{what}", amount)

    def call(self, function: Callable[[Store], T]) -> T:
        """What `function` makes of the store; its trouble is counted and told to the breaker.

        Raises:
            StoreUnavailableError: the breaker is open; the store was not asked.
            StoreError: the store failed.
        """
        if not self.breaker.allow():
            if not self.breaker.retry_in and not self._probe_wanted:
                self._probe_wanted = True
                self._probe(self)
            raise StoreUnavailableError(
                f"{self.store.url} failed and is left alone for another {self.breaker.retry_in:.0f} s"
            )
        return self._ask(function)

    def probe(self) -> bool:
        """Whether the store may be used now; asks it first, for its whole deadline at worst, if a probe is due."""
        self._probe_wanted = False
        if not self.breaker.is_open:
            return True
        if not self.breaker.allow_probe():
            return False
        try:
            self._ask(lambda store: store.contains("ejcache-probe"))
        except StoreError:
            return False
        return True

    def _ask(self, function: Callable[[Store], T]) -> T:
        started = self._clock()
        try:
            result = function(self.store)
        except (StoreReadOnlyError, StoreTooSmallError):
            self.breaker.succeed()  # a refusal is an answer
            raise
        except StoreError as exc:
            self.count("errors")
            if isinstance(exc, StoreBusyError):
                self.count("timeouts")
            was_open = self.breaker.is_open
            self.breaker.fail(seconds=self._clock() - started)
            if self.breaker.is_open and not was_open:
                self.count("breaker_open")
            raise
        self.breaker.succeed()
        return result
