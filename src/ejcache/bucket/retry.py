"""Tries an operation of shared storage several times, within one budget of time.

The waits between tries are drawn from the whole interval up to an exponentially growing limit ("full jitter", Brooker,
Exponential Backoff and Jitter, AWS Architecture Blog, 2015), because the processes of a pod fail at the same time and
must not all come back at the same time.

Storage that asks to slow down (429, SlowDown, 503) works, and has too much to do: a thousand hosts may be starting. All
threads of the process then keep to one `RateLimit`. If it wants to be asked again only after the budget has ended
(`Retry-After`), the operation ends at once.
"""

from __future__ import annotations

import math
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from ejcache.errors import StorageCause, StoreBusyError, StoreError, StoreNotAskedError, StoreUnavailableError
from ejcache.util.jitter import between
from ejcache.util.log import LONG_WAIT, say_waiting
from ejcache.util.threads import CallTimeoutError, call_with_timeout
from ejcache.util.time_budget import Budget, current_budget
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 2.0
_UNREACHABLE_TRIES: Final = 3
_LEAST_INTERVAL: Final = 0.02
_LEAST_TRY: Final = 0.1
_MOST_INTERVAL: Final = 1.0
_MOST_FIRST_INTERVAL: Final = 0.1
"""Between two requests of a process that the storage has not served yet: it gives up soon, and others go slower."""
_RECOVERY: Final = 0.55
_LONGEST_RETRY_AFTER: Final = 30.0


class ThrottledError(StoreBusyError):
    """The storage asked this process to slow down for as long as the operation could wait.

    Attributes:
        works: it served other threads of this process meanwhile.
    """

    cause = StorageCause.THROTTLED

    def __init__(self, message: str, *, works: bool) -> None:
        super().__init__(message)
        self.works = works


class TransientError(Exception):
    """One try failed, and the next one may succeed. Only backends raise it, and only `RetryPolicy` sees it.

    Attributes:
        ambiguous: the storage may have carried out the request although no answer came.
        busy: the storage asked to slow down, or did not answer in time.
        unreachable: no connection could be made. That seldom passes within a budget, so it is not waited for.
        throttled: the storage asked to slow down. A 503, which is ambiguous, may also mean that it is broken.
        retry_after: seconds after which the storage wants to be asked again (`Retry-After`).
        arriving: an answer had begun to arrive,
        arrived: and so many bytes of it had come.
        asks_for_less: the next try asks for a smaller part of it, which may arrive in time: this one costs no budget.
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
        arriving: bool = False,
        arrived: int = 0,
    ) -> None:
        super().__init__(message)
        self.throttled = throttled
        self.retry_after = retry_after
        self.ambiguous = ambiguous
        self.busy = busy
        self.unreachable = unreachable
        self.arriving = arriving
        self.arrived = arrived
        self.asks_for_less = False


def try_within(what: str, function: Callable[[], T], seconds: float) -> T:
    """Make one try in another thread, which is left behind after `seconds`.

    Raises:
        TransientError: it did not return in time; it may still be running, and may still succeed.
    """
    try:
        return call_with_timeout(what, function, seconds)
    except CallTimeoutError as exc:
        raise TransientError(str(exc), ambiguous=True, busy=True) from exc


def seconds_of(retry_after: object) -> float:
    """Return the seconds of a `Retry-After` header (RFC 9110, 10.2.3); 0 without one, and for a date."""
    text = str(retry_after or "")
    return min(float(text), _LONGEST_RETRY_AFTER) if text.isdecimal() and len(text) < 9 else 0.0


class RateLimit:
    """Limits how fast this process asks one storage, from when the storage answers 429 or 503.

    Each "slow down" doubles the time between two requests, each success shortens it, and soon it is gone. Safe for
    threads, which all keep to it: two of them that take the same turn do no harm.
    """

    def __init__(self) -> None:
        self._interval = self._next = 0.0
        self._slowed_at = self._moved_at = -math.inf

    def has_moved_since(self, moment: float) -> bool:
        """True if the storage has done something for this process since `moment`, by the monotonic clock."""
        return self._moved_at >= moment

    @property
    def delay(self) -> float:
        """Seconds until the next turn."""
        return max(0.0, self._next - time.monotonic())

    def wait(self, most: float) -> float | None:
        """Wait for a turn; None, at once, if it comes in more than `most` seconds.

        Returns:
            When the request begins, by the monotonic clock.
        """
        now = time.monotonic()
        turn = max(now, self._next)
        if turn - now > most:
            return None
        if self._interval:
            self._next = turn + self._interval * between(0.5, 1.5)
        if turn > now:
            time.sleep(turn - now)
        return time.monotonic()

    def succeed(self) -> None:
        """Note that the storage did what it was asked for."""
        self._moved_at = time.monotonic()
        if self._interval:
            shorter = self._interval * _RECOVERY
            self._interval = shorter if shorter >= _LEAST_INTERVAL else 0.0

    def slow_down(self, began: float, *, after: float = 0.0) -> None:
        """Note that the storage asked to slow down.

        Args:
            began: when the request began: those that were under way at the same time count once.
            after: seconds for which it does not want to be asked.
        """
        now = time.monotonic()
        if began >= self._slowed_at:
            self._slowed_at = now
            most = _MOST_FIRST_INTERVAL if self._moved_at == -math.inf else _MOST_INTERVAL
            self._interval = min(max(2 * self._interval, 2 * _LEAST_INTERVAL), most)
        pause = max(after * between(1.0, 1.5), self._interval * between(0.0, 1.0))
        self._next = max(self._next, now + pause)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long one operation may take, retries included.

    Attributes:
        deadline: seconds of a budget of its own. An answer that has begun to arrive may take half as long as well.
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
        budget: Budget | None = None,
        pace: RateLimit | None = None,
    ) -> T:
        """Call `attempt(seconds it may take)` until it does not raise `TransientError`.

        Args:
            what: the operation and its object, with which the message of an error begins.
            attempt: raises `TransientError` for another try; any other error reaches the caller.
            size: bytes to be sent, for which each try has more time.
            budget: of the operation, by default `deadline` seconds. What a try takes whose answer arrives does not
                count.
            pace: of the storage.

        Raises:
            ThrottledError: the storage asked to slow down until the budget ended, or for longer.
            StoreBusyError: the budget ended while the storage was slow.
            StoreUnavailableError: the storage failed, or could not be reached, until the budget ended.
            StoreNotAskedError: the budget had ended before.
        """
        extra = size / self.bytes_per_second
        budget = budget or Budget(self.deadline)
        pace = pace or RateLimit()
        failure: TransientError | None = None
        started, tries = time.monotonic(), 0
        with budget.waiting():
            while (left := budget.left) > 0 and (began := pace.wait(left)) is not None:
                tries += 1
                try:
                    # Half of the time at most: a connection that went silent must leave time for another one.
                    result = attempt(min(max(budget.left, _LEAST_TRY), self.deadline / 2) + extra)
                except TransientError as exc:
                    failure = exc
                else:
                    budget.give_back(time.monotonic() - began)
                    pace.succeed()
                    return result
                took = time.monotonic() - began
                budget.give_back(took if failure.asks_for_less else min(extra, took))
                _say_if_long(what, failure, budget)
                if failure.throttled:
                    pace.slow_down(began, after=failure.retry_after)
                    continue
                pause = between(0, min(_LONGEST_WAIT, _FIRST_WAIT * 2.0**tries))
                if self._is_last(failure, tries, left=budget.left) or pause >= budget.left:
                    break
                time.sleep(pause)
        if failure is None:
            said = f"{what}: the storage has kept this program waiting for as long as it may"
            raise StoreNotAskedError(said).because(StorageCause.THROTTLED)
        message = f"{what}: {failure} ({plural(tries, 'try', 'tries')} within {time.monotonic() - started:.3g} s)"
        raise _error_of(failure, message, works=pace.has_moved_since(started)) from failure

    def _is_last(self, failure: TransientError, tries: int, *, left: float) -> bool:
        """True if another try would bring nothing, `left` seconds being left for it."""
        if failure.unreachable and tries >= _UNREACHABLE_TRIES:
            return True
        # Another answer that begins and does not end would take longer.
        return failure.arriving and not failure.asks_for_less and left < self.deadline / 2


def _say_if_long(what: str, failure: TransientError, budget: Budget) -> None:
    """Say once that the program waits, if it has waited long."""
    look_up = current_budget()
    if look_up is None or look_up.is_said or look_up.spent < LONG_WAIT:
        return
    look_up.is_said = True
    spent = look_up.spent
    say_waiting(f"the storage ({what}: {failure})", so_far=spent, limit=spent + budget.left)


def _error_of(failure: TransientError, message: str, *, works: bool) -> StoreError:
    """Translate the last failure of an operation; `works` if the storage did something for other threads meanwhile."""
    # A 503 alone, while nothing is done for any thread of this process, is broken storage.
    if failure.throttled and (works or not failure.ambiguous):
        return ThrottledError(message, works=works)
    error = StoreBusyError(message) if failure.busy else StoreUnavailableError(message)
    return error.because(StorageCause.NO_ADDRESS if _is_of_dns(failure) else None)


def _is_of_dns(error: BaseException | None) -> bool:
    """True if an error was raised because a name has no address; libraries say it with other errors."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, socket.gaierror):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False
