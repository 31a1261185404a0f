"""Retries: several tries of one operation, within one deadline.

The waits between tries are drawn from the whole interval up to an exponentially growing limit ("full jitter", Brooker,
Exponential Backoff and Jitter, AWS Architecture Blog, 2015), because the processes of a pod fail at the same time and
must not all come back at the same time.

Storage that asks to slow down (429, SlowDown, 503) works, and has too much to do: a thousand hosts may be starting. An
operation is then tried for longer than its deadline, and all threads of the process keep to one pace (`Pace`).
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from ejcache.errors import StoreBusyError, StoreUnavailableError
from ejcache.util.threads import CallTimeoutError, call_with_timeout
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 2.0
_UNREACHABLE_TRIES: Final = 3
_PATIENCE: Final = 60.0
"""Storage that asks to slow down is waited for if it has done something for this process within so many seconds."""
_MOST_PATIENCE: Final = 120.0
"""Seconds that one operation is tried, at most."""
_LEAST_INTERVAL: Final = 0.02
_LEAST_TRY: Final = 0.1
_MOST_INTERVAL: Final = 1.0
_RECOVERY: Final = 0.55
_LONGEST_RETRY_AFTER: Final = 30.0


class ThrottledError(StoreBusyError):
    """The storage asked this process to slow down for as long as the operation could wait, and served others."""


class TransientError(Exception):
    """One try failed, and the next one may succeed. Only backends raise it, and only `RetryPolicy` sees it.

    Attributes:
        ambiguous: the storage may have carried out the request although no answer came.
        busy: the storage asked to slow down, or did not answer in time.
        unreachable: no connection could be made. That seldom passes within a deadline, so it is not waited for.
        throttled: the storage asked to slow down. A 503, which is ambiguous, may also mean that it is broken.
        retry_after: seconds after which the storage wants to be asked again (`Retry-After`).
    """

    def __init__(
        self,
        message: str,
        *,
        ambiguous: bool = False,
        busy: bool = False,
        unreachable: bool = False,
        throttled: bool = False,
        retry_after: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.throttled = throttled
        self.retry_after = retry_after
        self.ambiguous = ambiguous
        self.busy = busy
        self.unreachable = unreachable


def try_within(what: str, function: Callable[[], T], seconds: float) -> T:
    """Make one try in another thread, which is left behind after `seconds`.

    Raises:
        TransientError: it did not return in time; it may still be running, and may still succeed.
    """
    try:
        return call_with_timeout(what, function, seconds)
    except CallTimeoutError as exc:
        raise TransientError(str(exc), ambiguous=True, busy=True) from exc


def _between(least: float, most: float) -> float:
    return random.uniform(least, most)  # noqa: S311 (jitter)


def seconds_of(retry_after: object) -> float:
    """The seconds of a `Retry-After` header (RFC 9110, 10.2.3); 0 without one, and for a date."""
    text = str(retry_after or "")
    return min(float(text), _LONGEST_RETRY_AFTER) if text.isdecimal() and len(text) < 9 else 0.0


class Pace:
    """How fast this process asks one storage: as fast as it likes, until the storage asks it to slow down.

    Each "slow down" doubles the time between two requests, each success shortens it, and soon it is gone. Safe for
    threads, which all keep to it: two of them that take the same turn do no harm.
    """

    def __init__(self) -> None:
        self._interval = self._next = 0.0
        self._slowed_at = self._moved_at = -math.inf

    @property
    def is_moving(self) -> bool:
        """Whether the storage has done something for this process a short while ago."""
        return time.monotonic() - self._moved_at < _PATIENCE

    def wait(self, most: float) -> float:
        """Wait for a turn, for `most` seconds; returns when the request begins, by the monotonic clock."""
        now = time.monotonic()
        turn = max(now, self._next)
        if self._interval:
            self._next = turn + self._interval * _between(0.5, 1.5)
        if turn > now:
            time.sleep(min(turn - now, most))
        return time.monotonic()

    def succeed(self) -> None:
        """Note that the storage did what it was asked for."""
        self._moved_at = time.monotonic()
        if self._interval:
            shorter = self._interval * _RECOVERY
            self._interval = shorter if shorter >= _LEAST_INTERVAL else 0.0

    def slow_down(self, began: float, *, after: float = 0.0, is_alive: bool = True) -> float:
        """Note that the storage asked to slow down.

        Args:
            began: when the request began: those that were under way at the same time count once.
            after: seconds for which it does not want to be asked.
            is_alive: the storage works, whatever it did before.

        Returns:
            The time, by the monotonic clock, until which it is worth waiting.
        """
        now = time.monotonic()
        if is_alive and self._moved_at == -math.inf:
            self._moved_at = now
        if began >= self._slowed_at:
            self._slowed_at = now
            self._interval = min(max(2 * self._interval, 2 * _LEAST_INTERVAL), _MOST_INTERVAL)
        pause = max(after * _between(1.0, 1.5), self._interval * _between(0.0, 1.0))
        self._next = max(self._next, now + pause)
        return self._moved_at + _PATIENCE


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long one operation may take, retries included.

    Attributes:
        deadline: seconds.
        bytes_per_second: the slowest upload that is accepted: a large body gets the time that it takes at this speed.
    """

    deadline: float = 10.0
    bytes_per_second: float = 4e6

    def run(
        self,
        what: str,
        attempt: Callable[[float], T],
        *,
        size: int = 0,
        most: float = math.inf,
        pace: Pace | None = None,
    ) -> T:
        """Call `attempt(seconds it may take)` until it does not raise `TransientError`.

        Args:
            what: the operation and its object, with which the message of an error begins.
            attempt: raises `TransientError` for another try; any other error reaches the caller.
            size: bytes to be sent, which extend the deadline.
            most: seconds for this operation, if that is less.
            pace: of the storage. An operation that the storage asks to slow down takes longer than its deadline, up to
                two minutes, if the storage does something for this process meanwhile. A 503 without a `Retry-After`
                may come from storage that is broken, and makes no operation longer.

        Raises:
            ThrottledError: the storage asked to slow down, but works.
            StoreBusyError: the deadline passed while the storage was slow or asked to slow down.
            StoreUnavailableError: the storage failed, or could not be reached, until the deadline.
        """
        extra = size / self.bytes_per_second
        pace = pace or Pace()
        started = time.monotonic()
        end = started + min(self.deadline + extra, most)
        failure = TransientError("no time was given", busy=True)
        tries = 0
        while (left := end - time.monotonic()) > 0:
            tries += 1
            began = pace.wait(left)
            left = end - time.monotonic()
            try:
                # Half of the time at most: a connection that went silent must leave time for another one.
                result = attempt(min(max(left, _LEAST_TRY), self.deadline / 2 + extra))
            except TransientError as exc:
                failure = exc
            else:
                pace.succeed()
                return result
            if failure.throttled:
                is_alive = not failure.ambiguous or failure.retry_after > 0
                patient = pace.slow_down(began, after=failure.retry_after, is_alive=is_alive)
                if is_alive:
                    end = max(end, min(patient, started + _MOST_PATIENCE))
                continue
            if failure.unreachable and tries >= _UNREACHABLE_TRIES:
                break
            pause = _between(0, min(_LONGEST_WAIT, _FIRST_WAIT * 2.0**tries))
            if time.monotonic() + pause >= end:
                break
            time.sleep(pause)
        kind = StoreBusyError if failure.busy else StoreUnavailableError
        if failure.throttled and pace.is_moving:
            kind = ThrottledError
        said = f"{what}: {failure} ({plural(tries, 'try', 'tries')} within {end - started:.3g} s)"
        raise kind(said) from failure
