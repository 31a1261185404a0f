"""A circuit breaker: storage that failed is left alone for a while, so that trouble costs a program once, not per call.

Closed, every call goes through. It opens after some failures in a row, or at once after a failure that took as long as
a deadline, because the next one would as well. Open, no call goes through; when the cool-down has passed one call may
probe (half-open): its success closes the breaker, its failure opens it again for longer.

One breaker serves all users of a URL in the process (`breaker_for`): what one of them has learnt the others need not
pay for again.
"""

from __future__ import annotations

import os
import random
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CircuitBreaker", "breaker_for", "forget_breakers"]

_LONGEST: Final = 8.0
"""The cool-down grows to at most this many times the first one."""


class CircuitBreaker:
    """Whether storage is worth asking. Safe for threads and forks.

    Args:
        failures: so many in a row open it.
        slow_seconds: a failure that took this long opens it at once.
        cooldown: seconds until the first probe; it doubles with each probe that fails, and is jittered by a quarter,
            because the processes of a pod fail together and must not come back together.
        clock: monotonic seconds.
        jitter: `jitter(a, b)` is a number between the two.

    Attributes:
        opened: how often it opened, failed probes not counted.
        probes: how many probes were let through.
        refused: how many calls were not.
    """

    def __init__(
        self,
        *,
        failures: int = 3,
        slow_seconds: float = 2.0,
        cooldown: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._failures = failures
        self._slow = slow_seconds
        self._first_cooldown = cooldown
        self._clock = clock
        self._jitter = jitter
        self._after_fork()
        self.opened = self.probes = self.refused = 0

    def _after_fork(self) -> None:
        # A child starts with a lock that nobody holds, and without the probe that its parent may be making.
        self._lock = threading.Lock()
        self._in_a_row = getattr(self, "_in_a_row", 0)
        self._retry_at: float | None = getattr(self, "_retry_at", None)
        self._cooldown = getattr(self, "_cooldown", self._first_cooldown)
        self._probing_until: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether calls are refused, probes aside."""
        return self._retry_at is not None

    @property
    def retry_in(self) -> float:
        """Seconds until a probe is due; 0 if one is, or if the breaker is closed."""
        retry_at = self._retry_at
        return 0.0 if retry_at is None else max(0.0, retry_at - self._clock())

    def allow(self) -> bool:
        """Whether a call may be made that is no probe; every refusal is counted."""
        if self._retry_at is None:
            return True
        with self._lock:
            self.refused += 1
        return False

    def allow_probe(self) -> bool:
        """Whether the caller is to probe, or the breaker is closed; one caller at a time gets True while it is open.

        A prober that never reports counts as failed after a cool-down.
        """
        with self._lock:
            if self._retry_at is None:
                return True
            now = self._clock()
            if now < self._retry_at or (self._probing_until is not None and now < self._probing_until):
                return False
            self._probing_until = now + self._first_cooldown
            self.probes += 1
            return True

    def succeed(self) -> None:
        """The storage answered; absence is an answer too."""
        if self._retry_at is None and not self._in_a_row:
            return  # the common case takes no lock
        with self._lock:
            self._in_a_row = 0
            self._retry_at = self._probing_until = None
            self._cooldown = self._first_cooldown

    def fail(self, *, seconds: float = 0.0) -> None:
        """The storage failed, after `seconds`."""
        with self._lock:
            self._in_a_row += 1
            if self._retry_at is not None:
                if self._probing_until is None:
                    return  # a call that began before it opened says nothing new
                self._cooldown = min(self._cooldown * 2, self._first_cooldown * _LONGEST)
            elif self._in_a_row < self._failures and seconds < self._slow:
                return
            else:
                self.opened += 1
            self._probing_until = None
            self._retry_at = self._clock() + self._cooldown * self._jitter(0.75, 1.25)


_lock: Final = threading.RLock()
_breakers: Final[dict[str, CircuitBreaker]] = {}


def breaker_for(url: str) -> CircuitBreaker:
    """The breaker that all users of `url` in this process share."""
    with _lock:
        if url not in _breakers:
            _breakers[url] = CircuitBreaker()
        return _breakers[url]


def forget_breakers() -> None:
    """Start anew with closed breakers: for tests, and for a program that has mended its network."""
    with _lock:
        _breakers.clear()


def _after_fork_in_child() -> None:
    _lock.release()
    for breaker in _breakers.values():
        breaker._after_fork()  # noqa: SLF001  # the other half of the class


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_after_fork_in_child)
