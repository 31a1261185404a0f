"""Single flight: of all that miss one key, one does the work and the others wait for the entry.

    SingleFlight(LocalLeases(…))                       threads and processes of one host
    SingleFlight(StoreLeases(…))                       hosts

`StoreSingleFlight` puts one into the other (`work` of the first is `run` of the second), so that one process of each
host waits on behalf of the others. If the work leaves no entry (too small, too quick, failed), it is not waited for a
second time: all that waited then work at once.

Waiting is bounded per process, not per key: the time of waits that brought no entry is added up, and a process that has
spent its deadline does the work itself from then on. Whatever fails in the coordination itself, of whatever type, means
"work alone".
"""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Final, TypeVar

from ejcache.coordination.leases import LivenessDetector
from ejcache.errors import StoreError, StoreReadOnlyError
from ejcache.util.lifecycle import track_forks
from ejcache.util.log import LONG_WAIT, log, say_waiting, warn_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.coordination.leases import HeldLease, Leases, LeaseState

__all__ = ["SingleFlight", "WaitingBudget", "waiting_budget"]

T = TypeVar("T")

_FIRST_PAUSE: Final = 0.05
_PAUSE_GROWTH: Final = 1.5
_EAGER_SECONDS: Final = 5.0
"""What takes longer than this to compile may be seen two seconds late: a thousand hosts may be waiting for it."""
_PATIENT_PAUSES: Final = (2.0, 2.2)
_FAILED_LOOKS: Final = 3
"""After so many failures in a row to look at a lease, a waiting process does the work itself."""


class WaitingBudget:
    """The seconds that a process has waited for others without getting an entry. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.spent = 0.0

    def spend(self, seconds: float) -> None:
        """Add a wait that brought no entry."""
        with self._lock:
            self.spent += seconds


waiting_budget: Final = WaitingBudget()
"""The budget of this process."""


def _not_seen(key: str) -> bool:  # noqa: ARG001
    return False


def _visible_at_once(key: str, callback: Callable[[], None]) -> bool:  # noqa: ARG001
    callback()
    return True


class SingleFlight:
    """One worker at a time per key. Safe for threads, processes and forks.

    Args:
        leases: decide which process does the work.
        when_visible: `when_visible(key, callback)` calls `callback` as soon as other processes can see the entry that
            the work left, and returns whether there is one (as `TieredStore.when_uploaded` does). The lease is held
            until then.
        is_near: `is_near(key)` says, without a request, whether the entry is there. Without it, a waiting process looks
            for the entry when the lease says that it is done, or is gone.
        longest_pause: seconds between two looks at a lease, at most, in the first five seconds of a wait.
        patient_pauses: the least and the most seconds between two looks after that.
        budget: shared by everything that waits in this process.
        clock: monotonic seconds.
        sleep: waits so many seconds.
        say_after: seconds of waiting after which a line says who is waited for; one line for each wait.
        jitter: `jitter(a, b)` is a number between the two.
    """

    def __init__(
        self,
        leases: Leases,
        *,
        when_visible: Callable[[str, Callable[[], None]], bool] = _visible_at_once,
        is_near: Callable[[str], bool] = _not_seen,
        longest_pause: float = 0.4,
        patient_pauses: tuple[float, float] = _PATIENT_PAUSES,
        budget: WaitingBudget = waiting_budget,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[float, float], float] = random.uniform,
        say_after: float = LONG_WAIT,
    ) -> None:
        self._leases = leases
        self._when_visible = when_visible
        self._is_near = is_near
        self._longest_pause = longest_pause
        self._patient_pauses = patient_pauses
        self._budget = budget
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter
        self._say_after = say_after
        self.after_fork_in_child()
        track_forks(self)

    def after_fork_in_child(self) -> None:
        """Forget the threads of the parent, which do not exist here."""
        self._lock = threading.Lock()
        self._working: dict[str, threading.Event] = {}

    def run(
        self,
        key: str,
        *,
        lookup: Callable[[], T | None],
        work: Callable[[], T],
        deadline: float,
        missed: bool = False,
        left_entry: Callable[[], bool] | None = None,
        in_words: Callable[[str], str] = str,
    ) -> T:
        """What `lookup` finds, now or after another process has done the work, or what `work` returns.

        Args:
            key: of the entry.
            lookup: finds the entry, or returns None.
            work: makes the result, and stores it where `lookup` finds it if it is to be kept.
            deadline: seconds that this process waits for others without getting an entry, in all calls together.
            missed: `lookup` has just returned None.
            left_entry: asked after `work`: whether others can see its entry now. Without it, `when_visible` is asked.
            in_words: makes of `key` what the line about a long wait calls the work; asked for long waits only.

        Raises what `lookup` and `work` raise, and nothing of its own.
        """
        if not missed:
            found = lookup()
            if found is not None:
                return found
        started = self._clock()
        with self._lock:
            other_thread = self._working.get(key)
            if other_thread is None:
                mine = self._working[key] = threading.Event()
        if other_thread is not None:
            left = min(deadline, threading.TIMEOUT_MAX)
            if not other_thread.wait(min(self._say_after, left)) and left > self._say_after:
                self._say_waiting("another thread of this process", in_words(key), started, deadline)
                other_thread.wait(left - self._say_after)
            found = lookup()
            return work() if found is None else found
        try:
            return self._lead(key, lookup, work, started, deadline, in_words, left_entry)
        finally:
            with self._lock:
                if self._working.get(key) is mine:
                    del self._working[key]
            mine.set()

    def _lead(
        self,
        key: str,
        lookup: Callable[[], T | None],
        work: Callable[[], T],
        started: float,
        deadline: float,
        in_words: Callable[[str], str],
        left_entry: Callable[[], bool] | None,
    ) -> T:
        try:
            lease = self._leases.acquire(key)
        except Exception as exc:
            _note("taken", key, exc)
            return work()
        if lease is None:
            found, lease = self._wait(key, lookup, deadline, in_words)
            if found is not None:
                return found
            if lease is None:
                return work()
        try:
            # The entry may have been made between the look and the lease. A lease is held for a grace period after
            # that, so an `acquire` that took less time proves that it was not.
            if self._clock() - started >= self._leases.grace:
                found = lookup()
                if found is not None:
                    lease.release()
                    return found
            result = work()
        except BaseException:
            lease.release()
            raise
        self._release(key, lease, left_entry)
        return result

    def _say_waiting(self, holder: str, work: str, started: float, limit: float) -> None:
        say_waiting(f"{holder}, which compiles {work}", so_far=self._clock() - started, limit=limit)

    def _release(self, key: str, lease: HeldLease, left_entry: Callable[[], bool] | None) -> None:
        if left_entry is not None:
            lease.release(after=self._leases.grace if left_entry() else 0.0)
            return
        kept = False
        try:
            kept = self._when_visible(key, lambda: lease.release(after=self._leases.grace))
        except Exception as exc:
            _note("held until the entry is visible", key, exc)
        finally:
            if not kept:
                lease.release()

    def _wait(
        self, key: str, lookup: Callable[[], T | None], deadline: float, in_words: Callable[[str], str]
    ) -> tuple[T | None, HeldLease | None]:
        """The entry of the holder, or the lease of a dead one, or neither: then the caller works without a lease."""
        started = self._clock()
        found, lease = self._wait_until(key, lookup, started + deadline - self._budget.spent, in_words)
        if found is None:
            self._budget.spend(self._clock() - started)
            if self._budget.spent >= deadline:
                warn_once(
                    "waiting budget",
                    "ejcache: this process has waited %.0f s for entries that other processes did not deliver; from now"
                    " on it compiles what it misses at once",
                    self._budget.spent,
                )
        return found, lease

    def _wait_until(
        self, key: str, lookup: Callable[[], T | None], end: float, in_words: Callable[[str], str]
    ) -> tuple[T | None, HeldLease | None]:
        started, said = self._clock(), False
        detector = LivenessDetector(clock=self._clock)
        pause = _FIRST_PAUSE
        failed = 0
        while (left := end - self._clock()) > 0:
            eager = self._clock() - started < _EAGER_SECONDS
            self._sleep(min(left, pause * self._jitter(0.5, 1.0) if eager else self._jitter(*self._patient_pauses)))
            pause = min(pause * _PAUSE_GROWTH, self._longest_pause)
            try:
                state = self._leases.look(key)
                dead = state is not None and detector.is_dead(state)
                failed = 0
            except Exception as exc:
                _note("read", key, exc)
                failed += 1
                if failed < _FAILED_LOOKS:
                    continue
                return None, None
            # The entry is visible before the lease is released, so without a lease one look at the entry decides.
            found = lookup() if state is None or state.is_done or self._is_near(key) else None
            if found is not None or state is None:
                return found, None
            if not said and not dead and self._clock() - started >= self._say_after:
                said = True
                self._say_waiting(state.holder or "another process", in_words(key), started, end - started)
            if dead:
                lease, hopeless = self._take_over(key, state)
                if hopeless:
                    break
                if lease is not None:
                    return None, lease
        return lookup(), None

    def _take_over(self, key: str, state: LeaseState) -> tuple[HeldLease | None, bool]:
        """The lease of a dead holder if this process gets it, and whether no process ever will."""
        try:
            lease = self._leases.take_over(key, state)
        except Exception as exc:
            _note("taken over", key, exc)
            # Without permission to delete, the lease stays for good, and each process would wait until its deadline.
            return None, isinstance(exc, StoreReadOnlyError)
        if lease is not None:
            log.info("ejcache: the process that was compiling %s died; this process compiles it", key)
        return lease, False


def _note(what: str, key: str, exc: Exception) -> None:
    if isinstance(exc, StoreError):
        log.debug("the lease for %s cannot be %s: %s", key, what, exc)
    else:
        warn_once(
            ("single flight", what, type(exc)),
            "ejcache: the lease for %s cannot be %s, because of an unexpected error; this process goes on without it",
            key,
            what,
            exc_info=exc,
        )
