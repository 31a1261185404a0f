"""A circuit breaker: storage that failed is not asked again for a while, so that a failure costs a program once.

While the breaker is closed, every call goes through. It opens after several failures in a row, or at once after a call
that failed as slowly as a deadline, because the next one would take as long. While it is open, calls are refused at
once. When the cool-down has passed, one refused call starts a probe in the background: if the probe succeeds, the
breaker closes; if it fails, the breaker stays open for longer.

All clients of one URL in a process share one breaker (`breaker_for`): what one of them has learnt, the others know.
"""

from __future__ import annotations

import functools
import random
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from ejcache.errors import (
    StoreError,
    StoreForbiddenError,
    StoreNotAskedError,
    StoreReadOnlyError,
    StoreTooSmallError,
)
from ejcache.util.lifecycle import track_forks
from ejcache.util.locks import ForkLock
from ejcache.util.threads import submit

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CircuitBreaker", "breaker_for", "forget_breakers"]

T = TypeVar("T")

_LONGEST: Final = 8.0
"""The cool-down grows to at most this many times the first one."""


class CircuitBreaker:
    """Decides whether storage is asked. Safe for threads and forks.

    Args:
        failures: this many failures in a row open it.
        slow_seconds: one failure that took this long opens it.
        cooldown: seconds until the first probe. They double with each probe that fails, and are varied by a quarter,
            because the processes of a pod fail at the same time and must not all come back at the same time.
        clock: monotonic seconds.
        jitter: `jitter(a, b)` returns a number between the two.
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
        self._in_a_row = 0
        self._retry_at: float | None = None
        self._cooldown = cooldown
        self._inside = threading.local()
        self.after_fork_in_child()
        track_forks(self)

    def after_fork_in_child(self) -> None:
        """Start with a free lock: a thread of the parent may have held it, or have been probing."""
        self._lock = threading.Lock()
        self._probing_until: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether calls are refused."""
        return self._retry_at is not None

    @property
    def retry_in(self) -> float:
        """Seconds until a probe may be made; 0 if one may be made now, or if the breaker is closed."""
        retry_at = self._retry_at
        return 0.0 if retry_at is None else max(0.0, retry_at - self._clock())

    def call(
        self,
        url: str,
        function: Callable[[], T],
        *,
        probe: Callable[[], object],
        prepare: Callable[[], None] = lambda: None,
    ) -> T:
        """Return what `function()` returns, and learn from how it went.

        A "not found" answer, or a refusal of one object or of a write, means that the storage is reachable, so it
        closes the breaker. A call within a call of the same breaker and thread goes through; only the outer one is
        judged.

        Args:
            url: the storage, for messages.
            function: asks the storage.
            probe: asks the storage something cheap; called in another thread, when a call was refused and the
                cool-down has passed.
            prepare: waits until the client can ask. Its time does not make a failure slow, and a client that is not
                ready says nothing of the storage.

        Raises:
            StoreNotAskedError: the breaker is open, or the client is not ready.
            StoreError: `function` raised it.
        """
        if getattr(self._inside, "active", False):
            prepare()
            return function()
        if self._retry_at is not None:
            if not self.retry_in and self.allow_probe():
                submit(lambda: self._probe(probe))
            raise StoreNotAskedError(f"{url} failed and is not asked for another {self.retry_in:.0f} s")
        return self._judged(function, prepare)

    def probe(self, function: Callable[[], object]) -> bool:
        """Whether calls go through now; calls `function` first, in this thread, if a probe is due."""
        if self._retry_at is not None and self.allow_probe():
            self._probe(function)
        return self._retry_at is None

    def allow_probe(self) -> bool:
        """Whether the caller may ask now: always while the breaker is closed; one caller at a time while it is open.

        A prober that never reports counts as failed after a cool-down.
        """
        with self._lock:
            if self._retry_at is None:
                return True
            now = self._clock()
            if now < self._retry_at or (self._probing_until is not None and now < self._probing_until):
                return False
            self._probing_until = now + self._first_cooldown
            return True

    def succeed(self) -> None:
        """Note that the storage answered; "not found" is an answer too."""
        if self._retry_at is None and not self._in_a_row:
            return  # the common case takes no lock
        with self._lock:
            self._in_a_row = 0
            self._retry_at = self._probing_until = None
            self._cooldown = self._first_cooldown

    def fail(self, *, seconds: float = 0.0) -> None:
        """Note that the storage failed, after `seconds`."""
        with self._lock:
            self._in_a_row += 1
            if self._retry_at is not None:
                if self._probing_until is None:
                    return  # this call began before the breaker opened, so its failure says nothing new
                self._cooldown = min(self._cooldown * 2, self._first_cooldown * _LONGEST)
            elif self._in_a_row < self._failures and seconds < self._slow:
                return
            self._probing_until = None
            self._retry_at = self._clock() + self._cooldown * self._jitter(0.75, 1.25)

    def _probe(self, function: Callable[[], object]) -> None:
        with suppress(StoreError):
            self._judged(function)

    def _judged(self, function: Callable[[], T], prepare: Callable[[], None] = lambda: None) -> T:
        started = self._clock()
        self._inside.active = True
        try:
            prepare()
            started = self._clock()
            result = function()
        except (StoreForbiddenError, StoreReadOnlyError, StoreTooSmallError):
            self.succeed()
            raise
        except StoreNotAskedError:
            raise
        except StoreError:
            self.fail(seconds=self._clock() - started)
            raise
        finally:
            self._inside.active = False
        self.succeed()
        return result


_lock: Final = ForkLock()


def breaker_for(url: str) -> CircuitBreaker:
    """The breaker that all clients of `url` in this process share."""
    with _lock:  # without it, two threads at the same moment could get two
        return _breaker_for(url)


@functools.lru_cache(maxsize=256)
def _breaker_for(url: str) -> CircuitBreaker:  # noqa: ARG001  # the cache is keyed by it
    return CircuitBreaker()


def forget_breakers() -> None:
    """Give later clients new, closed breakers: for tests."""
    _breaker_for.cache_clear()
