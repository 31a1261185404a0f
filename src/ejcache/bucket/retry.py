"""Retries: several tries of one operation, within one deadline.

The waits between tries are drawn from the whole interval up to an exponentially growing limit ("full jitter", Brooker,
Exponential Backoff and Jitter, AWS Architecture Blog, 2015), because the processes of a pod fail at the same time and
must not all come back at the same time.
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

__all__ = ["RetryPolicy", "TransientError", "try_within"]

T = TypeVar("T")

_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 2.0
_UNREACHABLE_TRIES: Final = 3


class TransientError(Exception):
    """One try failed, and the next one may succeed. Only backends raise it, and only `RetryPolicy` sees it.

    Attributes:
        ambiguous: the storage may have carried out the request although no answer came.
        busy: the storage asked to slow down, or did not answer in time.
        unreachable: no connection could be made. That seldom passes within a deadline, so it is not waited for.
    """

    def __init__(self, message: str, *, ambiguous: bool = False, busy: bool = False, unreachable: bool = False) -> None:
        super().__init__(message)
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


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long one operation may take, retries included.

    Attributes:
        deadline: seconds.
        bytes_per_second: the slowest upload that is accepted: a large body gets the time that it takes at this speed.
    """

    deadline: float = 10.0
    bytes_per_second: float = 4e6

    def run(self, what: str, attempt: Callable[[float], T], *, size: int = 0, most: float = math.inf) -> T:
        """Call `attempt(seconds it may take)` until it does not raise `TransientError`.

        Args:
            what: the operation and its object, with which the message of an error begins.
            attempt: raises `TransientError` for another try; any other error reaches the caller.
            size: bytes to be sent, which extend the deadline.
            most: seconds for this operation, if that is less.

        Raises:
            StoreBusyError: the deadline passed while the storage was slow or asked to slow down.
            StoreUnavailableError: the storage failed, or could not be reached, until the deadline.
        """
        extra = size / self.bytes_per_second
        limit = min(self.deadline + extra, most)
        end = time.monotonic() + limit
        failure = TransientError("no time was given", busy=True)
        tries = 0
        while (left := end - time.monotonic()) > 0:
            tries += 1
            try:
                # Half of the time at most: a connection that went silent must leave time for another one.
                return attempt(min(left, self.deadline / 2 + extra))
            except TransientError as exc:
                failure = exc
            if failure.unreachable and tries >= _UNREACHABLE_TRIES:
                break
            pause = random.uniform(0, min(_LONGEST_WAIT, _FIRST_WAIT * 2.0**tries))  # noqa: S311 (jitter)
            if time.monotonic() + pause >= end:
                break
            time.sleep(pause)
        kind = StoreBusyError if failure.busy else StoreUnavailableError
        said = f"{what}: {failure} ({plural(tries, 'try', 'tries')} within {limit:.3g} s)"
        raise kind(said) from failure
