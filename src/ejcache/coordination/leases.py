"""Gives a piece of work to one process at a time (a lease), and lets the others notice when that dies.

A lease saves work and decides nothing: entries are created only if absent, with or without a lease. So a lease may be
released, taken over or ignored at any moment; at worst, a program is compiled twice.

The holder renews its lease in heartbeats, changes that waiting processes see. A waiting process takes the holder for
dead when it has missed three heartbeats in a row, by its own monotonic clock: no two clocks are compared.

Here is what both kinds of leases have in common: those between processes of a host (`host_leases`) and those between
hosts (`shared_leases`).
"""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from ejcache.util.lifecycle import ExitPhase, at_exit, is_ending, members
from ejcache.util.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable


MISSED_BEATS: Final = 3
_EXIT_SECONDS: Final = 2.0
"""How long the release of leases may take at exit. Others take over a lease that is not released by then."""

QUIET_SECONDS: Final = 1.0
"""A new lease is not written again for so long: buckets refuse more than one write a second to an object.
A host that waits looks for the entry itself meanwhile (`single_flight`)."""

lease_scheduler: Final = Scheduler(threads=4, name="ejcache-leases", spare=2)
"""Asks for leases ahead, renews and releases those of this process. Not for anything else: heartbeats must not wait
behind uploads. Several threads: storage may take a second for each answer."""


@dataclass(frozen=True, slots=True)
class LeaseState:
    """A lease as another process sees it.

    Attributes:
        token: changes with every heartbeat and with every holder.
        interval: seconds between heartbeats, as the holder wrote.
        abandoned: the operating system, or the storage's clock, says that the holder is dead.
        holder: `process 812 on node-3`, for people; empty if it is unknown.
        is_done: the holder says that others can see what its work left.
    """

    token: str
    interval: float
    abandoned: bool = False
    holder: str = ""
    is_done: bool = False


class HeldLease(ABC):
    """A lease of this process: renewed in the background until it is released or another process takes it over.

    Args:
        interval: seconds between heartbeats.
        scheduler: whose threads renew and release it.

    Attributes:
        lost: a heartbeat found that another process has taken it over.
    """

    def __init__(self, interval: float, scheduler: Scheduler) -> None:
        self.lost = False
        self._interval = interval
        self._scheduler = scheduler
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._is_released = self._ended = self._is_gone = False
        self._may_show_at = scheduler.clock() + QUIET_SECONDS
        self._ends_at = math.inf
        _held.add(self)
        scheduler.later(interval, self._renew_and_repeat)

    def release(self, *, after: float = 0.0) -> None:
        """Release the lease in the background, after so many seconds; a second call does nothing. Never raises.

        With `after`, the lease shows others at once that they can see what the work left; a lease younger than a second
        shows it later, or only by its end. In a forked child it does nothing: the lease belongs to the parent.
        """
        self._is_released = True
        if self._pid != os.getpid():
            return
        if is_ending():
            after = 0.0  # nobody is left to release it later
        now = self._scheduler.clock()
        self._ends_at = now + after
        young = max(0.0, self._may_show_at - now)
        if after and young < QUIET_SECONDS / 2:
            self._scheduler.later(young, self._show_done)
        if not self._scheduler.later(after, self.end):
            self.end()  # during exit

    def renew(self) -> bool:
        """Show that the holder is alive; False if it holds the lease no longer. Never raises."""
        with self._lock:
            if self._ended or self.lost or self._pid != os.getpid():
                return False
            self.lost = not self._beat()
            return not self.lost

    def end(self) -> None:
        """Release the lease now."""
        with self._lock:
            if not self._ended:
                self._ended = True
                self._delete()
                self._is_gone = True

    def _renew_and_repeat(self) -> None:
        # One that ends before its next heartbeat would be missed needs none more.
        if self._ends_at - self._scheduler.clock() > self._interval and self.renew():
            self._scheduler.later(self._interval, self._renew_and_repeat)

    def _show_done(self) -> None:
        with self._lock:
            if not self._ended and not self.lost and not is_ending():
                self._mark_done()

    def _mark_done(self) -> None:  # noqa: B027 (processes of one host see the entry itself)
        """Tell others that they can see what the work left. With the lock held. Raises nothing."""

    @abstractmethod
    def _beat(self) -> bool:
        """Change what others see; False if another process has the lease. With the lock held. Raises nothing."""

    @abstractmethod
    def _delete(self) -> None:
        """Remove what others see, unless the lease was lost. With the lock held. Raises nothing."""


class Leases(Protocol):
    """Leases by key.

    Attributes:
        grace: seconds for which a lease is held after its work has become visible. A process that looked for the
            result a moment too early then still finds the lease held, and looks again. A process that ends within
            that time releases it at once, so that its exit does not wait: then the work may be done twice.
    """

    grace: float

    def acquire(self, key: str) -> HeldLease | None:
        """Return the lease, or None if another holder has it; raises a `StoreError` if the storage cannot say."""

    def look(self, key: str) -> LeaseState | None:
        """Look at the lease as it is now; None if there is none. Raises a `StoreError` if the storage cannot say."""

    def look_for_dead(self, key: str) -> LeaseState | None:
        """Look once; return the lease if its holder is certainly dead, else None, which does not say that it lives."""

    def take_over(self, key: str, seen: LeaseState) -> HeldLease | None:
        """Return the lease of a dead holder, or None if it has changed since `seen`; of several callers one gets it."""


class LivenessDetector:
    """Tells a dead holder of a lease from a slow one, from what one waiting process has seen.

    Two looks count as one unless they are a heartbeat apart. So a waiting process that was itself stopped, perhaps
    together with the holder, does not take its own absence for the holder's death.

    Attributes:
        missed: heartbeats in a row that this process has not seen.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._token: str | None = None
        self._counted_at = 0.0
        self.missed = 0

    def is_dead(self, state: LeaseState) -> bool:
        """True if, with this new look at the lease, its holder counts as dead."""
        now = self._clock()
        if state.token != self._token:
            self._token, self._counted_at, self.missed = state.token, now, 0
        elif now - self._counted_at >= state.interval:
            self._counted_at = now
            self.missed += 1
        return state.abandoned or self.missed >= MISSED_BEATS


_held: Final[weakref.WeakSet[HeldLease]] = weakref.WeakSet()


def end_leases(*, released_only: bool = False) -> None:
    """Release the leases of this process now, for a bounded time; with `released_only`, those whose work is done.

    While the program ends, it is waited for in a later phase.
    """
    _begin_to_end(released_only=released_only)
    if not is_ending():
        _await_ends()


def _begin_to_end(*, released_only: bool = False) -> None:
    for lease in members(_held):
        # The exit waits for a release that has begun, too, or the lease would stay.
        is_there = lease._pid == os.getpid() and not lease._is_gone  # noqa: SLF001 (the other half of the class)
        if is_there and (lease._is_released or not released_only):  # noqa: SLF001
            lease_scheduler.submit(lease.end)


def _await_ends() -> None:
    lease_scheduler.drain(patience=_EXIT_SECONDS, limit=_EXIT_SECONDS)


# The last uploads, and then the counters, are sent meanwhile.
at_exit(ExitPhase.WRITE, partial(_begin_to_end, released_only=True))
at_exit(ExitPhase.LEASES, _begin_to_end)
at_exit(ExitPhase.RELEASED, _await_ends)
