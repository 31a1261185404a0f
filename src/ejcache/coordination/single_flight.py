"""Lets one do the work of all that miss one key, while the others wait for the entry (single flight).

Leases are taken in levels, one inside the other: those of the processes of a host, then those of hosts. So one process
of each host waits on behalf of the others. If the work leaves no entry (too small, too quick, failed), it is not waited
for a second time: all that waited then work at once.

Waiting for other processes is bounded per process, not per key: the time of waits that brought no entry is added up,
and a process that has spent its deadline does the work itself from then on. Another thread is waited for until its work
is done. Whatever fails in the coordination itself, of whatever type, means
"work alone".

Where storage is slow, the leases can be asked for while the entry is still looked up (`ask_ahead`).
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from ejcache.coordination.compile_speed import CompileSpeed
from ejcache.coordination.host_leases import LocalLeases
from ejcache.coordination.leases import QUIET_SECONDS, LivenessDetector, end_leases, lease_scheduler
from ejcache.coordination.leases_ahead import LeasesAhead
from ejcache.coordination.shared_leases import HEARTBEAT_SECONDS, StoreLeases
from ejcache.errors import StoreError, StoreReadOnlyError
from ejcache.stores.host_notes import HostNotes
from ejcache.stores.local.store import LocalStore
from ejcache.stores.shared.store import SharedStore
from ejcache.stores.tiered.store import TieredStore
from ejcache.util.jitter import between
from ejcache.util.lifecycle import track_forks
from ejcache.util.log import LONG_WAIT, log, say_waiting, warn_once

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ejcache.coordination.leases import HeldLease, Leases, LeaseState
    from ejcache.stores.base import Store
    from ejcache.util.scheduler import Scheduler

T = TypeVar("T")

_FIRST_PAUSE: Final = 0.05
_PAUSE_GROWTH: Final = 1.5
_EAGER_SECONDS: Final = 5.0
"""What takes longer than this to compile may be seen two seconds late: a thousand hosts may be waiting for it."""
_UNTAKEN_SECONDS: Final = 10.0
"""Leases that were asked for ahead and that nobody has taken by then are released: the program was not compiled."""
_SPEED_BYTES: Final = 4_000
_FAILED_LOOKS: Final = 3
"""After so many failures in a row to look at a lease, a waiting process does the work itself."""


class WaitingBudget:
    """The seconds that a process has waited for others without getting an entry. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.spent = 0.0

    def spend(self, seconds: float) -> None:
        """Add a wait that brought no entry."""
        with self._lock:
            self.spent += seconds


waiting_budget: Final = WaitingBudget()
"""The budget of this process."""


def _visible_at_once(key: str, callback: Callable[[], None]) -> bool:  # noqa: ARG001
    callback()
    return True


@dataclass(frozen=True, slots=True)
class LeaseLevel:
    """The leases of one kind of process, and when these see an entry.

    Attributes:
        leases: the leases.
        when_visible: `when_visible(key, callback)` calls `callback` as soon as other processes can see the entry that
            the work left, and returns whether there is one (as `TieredStore.when_uploaded` does). The lease is held
            until then.
        is_near: `is_near(key)` says, without a request, whether these processes have left the entry. Without it, a
            waiting process looks for the entry when the lease says that it is done, or is gone.
        longest_pause: seconds between two looks at a lease, at most, in the first five seconds of a wait.
        patient_pauses: the least and the most seconds between two looks after that.
        between_hosts: its leases cost requests.
    """

    leases: Leases
    when_visible: Callable[[str, Callable[[], None]], bool] = _visible_at_once
    is_near: Callable[[str], bool] | None = None
    longest_pause: float = 0.4
    patient_pauses: tuple[float, float] = (2.0, 2.2)
    between_hosts: bool = False


class SingleFlight:
    """One worker at a time per key. Safe for threads, processes and forks.

    Args:
        levels: decide which process does the work, the outermost first; without any, each process works.
        budget: shared by everything that waits in this process.
        clock: monotonic seconds.
        sleep: waits so many seconds.
        say_after: seconds of waiting after which a line says who is waited for; one line for each wait.
        jitter: `jitter(a, b)` is a number between the two.
        scheduler: asks for leases ahead.
        speed: of compilations on this host; by default as this process learns it.
    """

    def __init__(
        self,
        levels: Sequence[LeaseLevel],
        *,
        budget: WaitingBudget = waiting_budget,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[float, float], float] = between,
        say_after: float = LONG_WAIT,
        scheduler: Scheduler = lease_scheduler,
        speed: CompileSpeed | None = None,
    ) -> None:
        self._levels = tuple(levels)
        self._speed = speed or CompileSpeed(HostNotes(None))
        self._scheduler = scheduler
        self._budget = budget
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter
        self._say_after = say_after
        self.after_fork_in_child()
        track_forks(self)

    @classmethod
    def of_store(
        cls,
        store: Store,
        *,
        directory: Path | None,
        heartbeat: float = HEARTBEAT_SECONDS,
        sleep: Callable[[float], None] = time.sleep,
        speeds: Path | None = None,
    ) -> SingleFlight:
        """Make each entry of `store` once.

        Args:
            store: where the entries are kept.
            directory: for the leases of this host, on a local file system; None for no coordination within the host.
            heartbeat: seconds between heartbeats on shared storage; a holder that missed three counts as dead.
            sleep: waits so many seconds.
            speeds: the file in which this host keeps how fast it compiles; None to keep it in this process.
        """
        return cls(
            _levels_of(store, directory, heartbeat),
            sleep=sleep,
            speed=CompileSpeed(HostNotes(speeds, limit=_SPEED_BYTES)),
        )

    def may_take(self, platform: str, size: int, seconds: float) -> bool:
        """True if a program of so many bytes may take so many seconds or longer, as far as this host knows.

        False if no host would wait for another one anyway.
        """
        return self._is_between_hosts and self._speed.may_take(platform, size, seconds)

    def note_compiled(self, platform: str, size: int, seconds: float) -> None:
        """Learn from a program of so many bytes that compiled in so many seconds."""
        if self._is_between_hosts:
            self._speed.note(platform, size, seconds)

    @property
    def _is_between_hosts(self) -> bool:
        return bool(self._levels) and self._levels[-1].between_hosts

    def after_fork_in_child(self) -> None:
        """Forget the threads of the parent, which do not exist here."""
        self._lock = threading.RLock()
        self._working: dict[str, tuple[int, threading.Event]] = {}
        self._ahead: dict[str, LeasesAhead] = {}

    def ask_ahead(self, key: str) -> None:
        """Ask for the leases of `key` while its entry is looked up; `run` or `drop_ahead` follows. Raises nothing.

        Nothing is asked for if another process of this host, or another thread, is at work on it.
        """
        if not self._is_between_hosts:
            return
        *near, far = [level.leases for level in self._levels]

        with self._lock:
            if key in self._working or key in self._ahead:
                return
            try:
                ahead = LeasesAhead.ask(key, near, far, scheduler=self._scheduler)
            except Exception as exc:
                _note("taken", key, exc)
                return
            if ahead is None:
                return
            self._ahead[key] = ahead
        if not self._scheduler.later(_UNTAKEN_SECONDS, partial(self._drop_untaken, key, ahead)):
            self.drop_ahead(key)

    def drop_ahead(self, key: str) -> None:
        """Release the leases that were asked for ahead, if there are any: nothing is compiled under them."""
        with self._lock:
            ahead = self._ahead.pop(key, None)
        if ahead is not None:
            ahead.drop()

    def _drop_untaken(self, key: str, ahead: LeasesAhead) -> None:
        if self._ahead.get(key) is ahead:
            self.drop_ahead(key)

    def run(
        self,
        key: str,
        *,
        lookup: Callable[[], T | None],
        work: Callable[[], T],
        deadline: float,
        missed_since: float | None = None,
        between_hosts: bool = True,
        left_entry: Callable[[], bool] | None = None,
        in_words: Callable[[str], str] = str,
    ) -> T:
        """Return what `lookup` finds, now or after another process has done the work, or what `work` returns.

        Args:
            key: of the entry.
            lookup: finds the entry, or returns None.
            work: makes the result, and stores it where `lookup` finds it if it is to be kept.
            deadline: seconds that this process waits for others without getting an entry, in all calls together.
            missed_since: when `lookup`, which has just returned None, was begun, by the clock.
            between_hosts: wait for other hosts too. This costs a request before the work and one after it, and more
                while another host works: too much for work that is likely to take less.
            left_entry: asked after `work`: whether the processes of this host can see its entry now. Without it,
                `when_visible` of their level is asked.
            in_words: makes of `key` what the line about a long wait calls the work; asked for long waits only.

        Raises what `lookup` and `work` raise, and nothing of its own.
        """
        looked = missed_since
        if looked is None:
            looked = self._clock()
            found = lookup()
            if found is not None:
                return found
        levels = [level for level in self._levels if between_hosts or not level.between_hosts]
        if not levels:
            return work()
        started = self._clock()
        ahead = None
        with self._lock:
            other_thread, done = self._working.get(key, (0, threading.Event()))
            if not other_thread:
                mine = done
                self._working[key] = threading.get_ident(), mine
                ahead = self._ahead.pop(key, None)
        call = _Call(key, lookup, work, deadline, left_entry, in_words, ahead)
        if other_thread == threading.get_ident():
            return work()  # a signal handler, above the call that works
        if other_thread:
            return self._after_other_thread(done, call, started)  # type: ignore[no-any-return]
        try:
            result: T = self._lead(levels, call, looked)
            return result
        finally:
            with self._lock:
                if self._working.get(key, (0, None))[1] is mine:
                    del self._working[key]
            mine.set()
            if ahead is not None:
                ahead.drop()

    def _after_other_thread(self, done: threading.Event, call: _Call, started: float) -> Any:
        """Wait until another thread has done the same work, and look up what it made; work here if there is nothing."""
        if not done.wait(self._say_after):
            self._say_waiting("another thread of this process", call, started, math.inf)
            done.wait()
        found = call.lookup()
        return call.work() if found is None else found

    def _lead(self, levels: Sequence[LeaseLevel], call: _Call, looked: float) -> Any:
        """Take the leases of all levels, and work; `looked` is when the last look that found no entry was begun."""
        if not levels:
            return call.work()
        level, *inner = levels
        try:
            ahead = call.ahead
            lease = level.leases.acquire(call.key) if ahead is None else ahead.acquire(level.leases)
        except Exception as exc:
            _note("taken", call.key, exc)
            return self._lead(inner, call, looked)
        if lease is None:
            found, lease = self._wait(level, call)
            if found is not None:
                return found
            if lease is None:
                return self._lead(inner, call, looked)
        try:
            # The entry may have been made after storage answered the last look. A lease is held for a grace period
            # after that, so a lease that was had sooner than this after the look was begun proves that it was not.
            # What these processes may have left, a look costs no request for, however slow the last one was.
            is_late = self._clock() - looked >= level.leases.grace
            if is_late and (level.is_near is None or level.is_near(call.key)):
                looked = self._clock()
                found = call.lookup()
                if found is not None:
                    lease.release()
                    return found
            result = self._lead(inner, call, looked)
        except BaseException:
            lease.release()
            raise
        _release(level, lease, call)
        return result

    def _say_waiting(self, holder: str, call: _Call, started: float, limit: float) -> None:
        work = call.in_words(call.key)
        say_waiting(f"{holder}, which compiles {work}", so_far=self._clock() - started, limit=limit)

    def _wait(self, level: LeaseLevel, call: _Call) -> tuple[Any, HeldLease | None]:
        """Return the entry of the holder, or the lease of a dead one, or neither: then the caller works without a
        lease.
        """
        started = self._clock()
        found, lease = self._wait_until(level, call, started + call.deadline - self._budget.spent)
        if found is None:
            self._budget.spend(self._clock() - started)
            if self._budget.spent >= call.deadline:
                warn_once(
                    "waiting budget",
                    "ejcache: this process has waited %.0f s for entries that other processes did not deliver; from now"
                    " on it compiles what it misses at once",
                    self._budget.spent,
                )
        return found, lease

    def _wait_until(self, level: LeaseLevel, call: _Call, end: float) -> tuple[Any, HeldLease | None]:
        started, said = self._clock(), False
        detector = LivenessDetector(clock=self._clock)
        pause = _FIRST_PAUSE
        failed = 0
        if level.between_hosts and (lease := _take_abandoned(level.leases, call.key)) is not None:
            return None, lease
        while (left := end - self._clock()) > 0:
            eager = self._clock() - started < _EAGER_SECONDS
            self._sleep(min(left, pause * self._jitter(0.5, 1.0) if eager else self._jitter(*level.patient_pauses)))
            pause = min(pause * _PAUSE_GROWTH, level.longest_pause)
            if level.between_hosts and self._clock() - started < QUIET_SECONDS:
                found = call.lookup()
                if found is not None:
                    return found, None
                continue
            try:
                state = level.leases.look(call.key)
                dead = state is not None and detector.is_dead(state)
                if level.between_hosts and detector.missed and not dead:
                    # The holder may have died before this wait began: then its lease is older than the wait.
                    dead = level.leases.look_for_dead(call.key) is not None
                failed = 0
            except Exception as exc:
                _note("read", call.key, exc)
                failed += 1
                if failed < _FAILED_LOOKS:
                    continue
                return None, None
            # The entry is visible before the lease is released, so without a lease one look at the entry decides.
            is_near = level.is_near is not None and level.is_near(call.key)
            found = call.lookup() if state is None or state.is_done or is_near else None
            if found is not None or state is None:
                return found, None
            if not said and not dead and self._clock() - started >= self._say_after:
                said = True
                self._say_waiting(state.holder or "another process", call, started, end - started)
            if dead:
                lease, hopeless = _take_over(level.leases, call.key, state)
                if hopeless:
                    break
                if lease is not None:
                    return None, lease
        return call.lookup(), None


class _Call(NamedTuple):
    """Arguments of `SingleFlight.run`."""

    key: str
    lookup: Callable[[], Any]
    work: Callable[[], Any]
    deadline: float
    left_entry: Callable[[], bool] | None
    in_words: Callable[[str], str]
    ahead: LeasesAhead | None


def _release(level: LeaseLevel, lease: HeldLease, call: _Call) -> None:
    if call.left_entry is not None and not level.between_hosts:
        lease.release(after=level.leases.grace if call.left_entry() else 0.0)
        return
    kept = False
    try:
        kept = level.when_visible(call.key, lambda: lease.release(after=level.leases.grace))
    except Exception as exc:
        _note("held until the entry is visible", call.key, exc)
    finally:
        if not kept:
            lease.release()


def _take_over(leases: Leases, key: str, state: LeaseState) -> tuple[HeldLease | None, bool]:
    """Return the lease of a dead holder if this process gets it, and whether no process ever will."""
    try:
        lease = leases.take_over(key, state)
    except Exception as exc:
        _note("taken over", key, exc)
        # Without permission to delete, the lease stays for good, and each process would wait until its deadline.
        return None, isinstance(exc, StoreReadOnlyError)
    if lease is not None:
        log.info("ejcache: the process that was compiling %s died; this process compiles it", key)
    return lease, False


def _take_abandoned(leases: Leases, key: str) -> HeldLease | None:
    """Return the lease, if it can be seen at once that its holder is dead."""
    try:
        state = leases.look_for_dead(key)
    except Exception as exc:
        _note("read", key, exc)
        return None
    return None if state is None else _take_over(leases, key, state)[0]


def _levels_of(store: Store, directory: Path | None, heartbeat: float) -> list[LeaseLevel]:
    """Make the levels of leases of a store: on this host, if there is a directory for them; then between hosts."""
    near: Store | None = store
    levels: list[LeaseLevel] = []
    if not isinstance(store, LocalStore):
        near, levels = _between_hosts(store, heartbeat)

    def is_near(key: str) -> bool:
        try:
            return near is not None and near.contains(key)
        except StoreError:
            return False

    def when_visible(key: str, callback: Callable[[], None]) -> bool:
        callback()
        return near is None or is_near(key)

    if directory is not None:
        # With a grace period, as between hosts: without it, every process that gets the lease would have to look
        # once more, which behind a local tier is a request.
        leases = LocalLeases(directory, grace=1.0)
        known = None if near is None else is_near
        levels.insert(0, LeaseLevel(leases, when_visible, known, longest_pause=0.1, patient_pauses=(0.1, 0.2)))
    return levels


def _between_hosts(store: Store, heartbeat: float) -> tuple[Store | None, list[LeaseLevel]]:
    """Return the tier that finds this host's entries without a request, and the level between hosts, if any."""
    tiered = store if isinstance(store, TieredStore) else None
    near = tiered.local if tiered is not None else store
    shared = tiered.shared if tiered is not None else store
    levels: list[LeaseLevel] = []
    if isinstance(shared, SharedStore) and not (store.read_only or shared.read_only):
        visible = _visible_at_once if tiered is None else tiered.when_uploaded
        if tiered is not None:
            # Closed, it has no client any more that could release them later.
            tiered.when_closing(partial(end_leases, released_only=True))
        leases = StoreLeases(shared.bucket, interval=heartbeat)
        levels = [LeaseLevel(leases, visible, between_hosts=True)]
    return None if isinstance(near, SharedStore) else near, levels


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
