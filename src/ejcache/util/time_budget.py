"""Budgets the time for which a program waits: the seconds in which storage refuses, or is silent.

An answer that arrives costs a budget nothing, however long it takes: a budget says how long storage that gives none
holds a program up. `spending` makes one hold for everything that a thread asks storage meanwhile, such as all requests
of one look-up.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator


class Budget:
    """Seconds that may be waited. Safe for threads: waits of several threads at the same time count once.

    Args:
        seconds: at the beginning.
        within: other budgets, which the same waits are taken from, and which end this one when they are spent.
        every_second: count each second from now on, whatever happens in it, because somebody else waits meanwhile.

    Attributes:
        seconds: at the beginning.
        is_said: a line has said that a program waits.
    """

    __slots__ = ("_ends", "_left", "_lock", "_since", "_waits", "_within", "is_said", "seconds")

    def __init__(self, seconds: float, *, within: tuple[Budget, ...] = (), every_second: bool = False) -> None:
        self.seconds = self._left = seconds
        self.is_said = False
        self._within = within
        self._ends = time.monotonic() + seconds if every_second else math.inf
        self._lock = threading.RLock()
        self._waits = 0
        self._since = 0.0

    @property
    def left(self) -> float:
        """Seconds that are left, not below 0."""
        waited = time.monotonic() - self._since if self._waits else 0.0
        return max(0.0, min(self._left - waited, self.time_left, *(each.left for each in self._within)))

    @property
    def time_left(self) -> float:
        """Seconds until another process stops waiting for this one; infinite if none waits."""
        mine = self._ends if self._ends == math.inf else max(0.0, self._ends - time.monotonic())
        return min([mine, *(each.time_left for each in self._within)])

    @property
    def spent(self) -> float:
        """Seconds that were waited: of this budget and those that it is within, the most."""
        return max([self.seconds - self.left, *(each.spent for each in self._within)])

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside."""
        with contextlib.ExitStack() as stack:
            for each in self._within:
                stack.enter_context(each.waiting())
            self._begin()
            try:
                yield
            finally:
                self._end()

    def give_back(self, seconds: float) -> None:
        """Count so many seconds less: an answer arrived in them."""
        with self._lock:
            self._left += seconds
        for each in self._within:
            each.give_back(seconds)

    def _begin(self) -> None:
        with self._lock:
            if not self._waits:
                self._since = time.monotonic()
            self._waits += 1

    def _end(self) -> None:
        with self._lock:
            self._waits -= 1
            if not self._waits:
                self._left -= time.monotonic() - self._since


_current: Final[ContextVar[Budget | None]] = ContextVar("budget", default=None)


def current_budget() -> Budget | None:
    """Return the budget of what this thread does for the program now; None if nothing waits for it."""
    return _current.get()


_unhurried: Final[ContextVar[bool]] = ContextVar("unhurried", default=False)


def is_waited_for() -> bool:
    """Return true unless this thread works in the background (`in_background`)."""
    return not _unhurried.get()


@contextlib.contextmanager
def in_background() -> Iterator[None]:
    """Mark what this thread does inside as work that no program waits for."""
    token = _unhurried.set(True)
    try:
        yield
    finally:
        _unhurried.reset(token)


@contextlib.contextmanager
def spending(budget: Budget | None) -> Iterator[None]:
    """Take what this thread waits for inside from a budget; None changes nothing."""
    if budget is None:
        yield
        return
    token = _current.set(budget)
    try:
        yield
    finally:
        _current.reset(token)
