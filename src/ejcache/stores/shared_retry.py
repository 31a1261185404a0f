"""Trying again: within one deadline, with full jitter, and never longer.

The waits are drawn from the whole interval up to an exponentially growing cap ("full jitter", Brooker, Exponential
Backoff and Jitter, AWS Architecture Blog, 2015), because a pod's processes fail together and must not return together.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from ejcache.errors import StoreBusyError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RetryPolicy", "TransientError"]

T = TypeVar("T")

_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 2.0
_UNREACHABLE_TRIES: Final = 3


class TransientError(Exception):
    """One try failed, and the next one may not; it never leaves the shared store.

    Attributes:
        ambiguous: the request may have been carried out although no answer came.
        busy: the other side asked for patience, or said nothing in time.
        unreachable: there was nobody to ask; that heals too rarely to wait for the whole deadline.
    """

    def __init__(self, message: str, *, ambiguous: bool = False, busy: bool = False, unreachable: bool = False) -> None:
        super().__init__(message)
        self.ambiguous = ambiguous
        self.busy = busy
        self.unreachable = unreachable


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long one operation may take, retries included.

    Attributes:
        deadline: seconds.
        bytes_per_second: a slower transfer is a failed one; large bodies get the time that this speed takes.
    """

    deadline: float = 10.0
    bytes_per_second: float = 4e6

    def run(self, what: str, attempt: Callable[[float], T], *, size: int = 0) -> T:
        """Call `attempt(seconds it may take)` until it does not raise `TransientError`.

        Args:
            what: begins the message of an error: the operation and its object.
            attempt: raises `TransientError`, or what shall reach the caller.
            size: bytes to be sent, for which the deadline is extended.

        Raises:
            StoreBusyError: the deadline passed while the other side was slow or asked for patience.
            StoreUnavailableError: the other side failed, or could not be reached, until the deadline.
        """
        extra = size / self.bytes_per_second
        end = time.monotonic() + self.deadline + extra
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
        said = f"{what}: {failure} ({tries} {'try' if tries == 1 else 'tries'} within {self.deadline:g} s)"
        raise kind(said) from failure
