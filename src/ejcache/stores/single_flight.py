"""Single flight: of all who miss one key, one does the work and the others wait for what comes of it.

    SingleFlight(LocalLeases(…))                       threads and processes of one host
    SingleFlight(StoreLeases(…))                       hosts

Put one into the other (`work` of the first is `run` of the second) and one process of each host waits on behalf of
its neighbours. Nobody waits longer than their deadline, and whoever has waited in vain does the work themselves. Work
that left no entry (too small, too quick, failed) is not waited for a second time: all who waited then work at once.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeVar

from ejcache.errors import StoreError, StoreReadOnlyError
from ejcache.stores.leases import Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.stores.leases import Lease, Leases, Sighting

__all__ = ["SingleFlight"]

log = logging.getLogger("ejcache")

T = TypeVar("T")

_FIRST_PAUSE: Final = 0.05
_PAUSE_GROWTH: Final = 1.5
_BLIND_LOOKS: Final = 3
"""Looks at a lease that fail in a row before its waiter gives up on it."""


def _at_once(key: str, callback: Callable[[], None]) -> bool:  # noqa: ARG001
    callback()
    return True


class SingleFlight:
    """One flight at a time per key. Safe for threads, processes and forks.

    Args:
        leases: who flies.
        when_visible: `when_visible(key, callback)` calls `callback` when others can see what the work has left, at
            once if they can already, and says whether it has left anything. `TieredStore.when_uploaded` is such. The
            lease is held until then.
        longest_pause: seconds between two looks, at most.
        clock: monotonic seconds.
        sleep: waits so many seconds.
        jitter: `jitter(a, b)` is a number between the two.

    Attributes:
        counters: `flights` that did the work under a lease, `found` what somebody else had made meanwhile,
            `takeovers` from a dead holder, `unshared` work after one that left nothing, `expired` deadlines, `blind`
            work because the lease could not be asked for.
    """

    def __init__(
        self,
        leases: Leases,
        *,
        when_visible: Callable[[str, Callable[[], None]], bool] = _at_once,
        longest_pause: float = 0.4,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._leases = leases
        self._when_visible = when_visible
        self._longest_pause = longest_pause
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter
        self._after_fork()

    def _after_fork(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._flying: dict[str, threading.Event] = {}

    def run(
        self,
        key: str,
        *,
        lookup: Callable[[], T | None],
        work: Callable[[], T],
        deadline: float,
        missed: bool = False,
    ) -> T:
        """What `lookup` finds, now or when somebody else has done the work, or what `work` gives.

        Args:
            key: what is looked up and worked on.
            lookup: finds what there is, or None.
            work: makes it, and leaves it where `lookup` finds it, if it is to be kept.
            deadline: seconds to wait for others in all.
            missed: `lookup` has just found nothing.

        Raises what `lookup` and `work` raise, and nothing of its own: without storage one works alone.
        """
        if self._pid != os.getpid():
            self._after_fork()
        started = self._clock()
        deadline = min(deadline, threading.TIMEOUT_MAX)
        if not missed:
            found = lookup()
            if found is not None:
                return found
        with self._lock:
            others = self._flying.get(key)
            if others is None:
                mine = self._flying[key] = threading.Event()
        if others is not None:
            others.wait(max(0.0, deadline - (self._clock() - started)))
            found = self._found(lookup)
            if found is None:
                self.counters["unshared"] += 1
                return work()
            return found
        try:
            return self._lead(key, lookup, work, started, deadline)
        finally:
            with self._lock:
                if self._flying.get(key) is mine:
                    del self._flying[key]
            mine.set()

    def _lead(
        self, key: str, lookup: Callable[[], T | None], work: Callable[[], T], started: float, deadline: float
    ) -> T:
        try:
            lease = self._leases.acquire(key)
        except StoreError as exc:
            log.debug("no lease for %s: %s", key, exc)
            self.counters["blind"] += 1
            return work()
        if lease is None:
            found, lease = self._wait(key, lookup, started + deadline)
            if found is not None:
                return found
            if lease is None:
                return work()
        try:
            # Somebody may have finished between the look and the lease; not if the lease outlives that by its grace.
            if self._clock() - started >= self._leases.grace:
                found = self._found(lookup)
                if found is not None:
                    lease.release()
                    return found
            self.counters["flights"] += 1
            result = work()
        except BaseException:
            lease.release()
            raise
        self._release(key, lease)
        return result

    def _release(self, key: str, lease: Lease) -> None:
        lock = threading.Lock()
        visible = asked = False

        def seen() -> None:
            nonlocal visible
            with lock:
                visible = True
                if not asked:
                    return
            lease.release(after=self._leases.grace)

        try:
            left = self._when_visible(key, seen)
        except BaseException:
            lease.release()
            raise
        with lock:
            asked = True
            if not visible:
                return
        lease.release(after=self._leases.grace if left else 0.0)

    def _wait(self, key: str, lookup: Callable[[], T | None], end: float) -> tuple[T | None, Lease | None]:
        """What the holder made, or the lease of a dead one, or neither: then the caller works without."""
        watch = Watch(clock=self._clock)
        pause = _FIRST_PAUSE
        blind = polls = 0
        while (left := end - self._clock()) > 0:
            self._sleep(min(left, pause * self._jitter(0.5, 1.0)))
            pause = min(pause * _PAUSE_GROWTH, self._longest_pause)
            polls += 1
            try:
                seen = self._leases.look(key)
                blind = 0
            except StoreError as exc:
                log.debug("the lease for %s cannot be seen: %s", key, exc)
                blind += 1
                if blind < _BLIND_LOOKS:
                    continue
                self.counters["blind"] += 1
                return None, None
            # The entry is visible before the lease is gone, so that without a lease one look decides.
            found = self._found(lookup) if seen is None or polls % 2 else None
            if found is not None:
                return found, None
            if seen is None:
                self.counters["unshared"] += 1
                return None, None
            if watch.see(seen):
                try:
                    lease = self._taken_over(key, seen)
                except StoreReadOnlyError as exc:
                    # Nobody with these credentials ever ends a dead lease, so that all would wait to the end.
                    log.debug("the lease for %s is dead and stays: %s", key, exc)
                    self.counters["blind"] += 1
                    return self._found(lookup), None
                if lease is not None:
                    return None, lease
        self.counters["expired"] += 1
        return self._found(lookup), None

    def _taken_over(self, key: str, seen: Sighting) -> Lease | None:
        try:
            lease = self._leases.take_over(key, seen)
        except StoreReadOnlyError:
            raise
        except StoreError as exc:
            log.debug("the lease for %s cannot be taken over: %s", key, exc)
            return None
        if lease is not None:
            self.counters["takeovers"] += 1
            log.info("ejcache: whoever was compiling %s is gone; this process does it", key)
        return lease

    def _found(self, lookup: Callable[[], T | None]) -> T | None:
        found = lookup()
        if found is not None:
            self.counters["found"] += 1
        return found
