"""Counts in memory that threads share: amounts by name, and which of them nobody has written down yet."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING

from ejcache.util.lifecycle import track_forks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Tally:
    """Amounts by name, counted in this process. Safe for threads and for signal handlers that run inside them; a
    forked child starts from zero.

    A handler that saves a checkpoint compiles, and so counts above its own thread: the lock is re-entrant, and a
    handler cannot run in the middle of a change, because handlers run after calls, not within an item's `+=`.

    Attributes:
        listener: called with the amounts of each addition, in the process that adds.
    """

    def __init__(self) -> None:
        self.listener: Callable[[Mapping[str, float]], object] | None = None
        self.after_fork_in_child()
        track_forks(self)

    def after_fork_in_child(self) -> None:
        """Start from zero: the parent reports what it counted, and the lock may be held by a thread of the parent."""
        self._lock = threading.RLock()
        self._totals: defaultdict[str, float] = defaultdict(int)
        self._pending: defaultdict[str, float] = defaultdict(int)

    def add(self, **amounts: float) -> None:
        """Add to the counters of these names."""
        with self._lock:
            for name, amount in amounts.items():
                self._totals[name] += amount
                self._pending[name] += amount
        if amounts and self.listener is not None:
            self.listener(amounts)

    def totals(self) -> dict[str, float]:
        """Return everything counted in this process."""
        with self._lock:
            return dict(self._totals)

    def take_pending(self) -> dict[str, float]:
        """Take the amounts counted since the last call. The caller has to report them, or to put them back."""
        with self._lock:
            pending, self._pending = self._pending, defaultdict(int)
        return {name: amount for name, amount in pending.items() if amount}

    def put_back(self, amounts: Mapping[str, float]) -> None:
        """Have the next `take_pending` return these, too: they could not be reported."""
        with self._lock:
            for name, amount in amounts.items():
                self._pending[name] += amount
