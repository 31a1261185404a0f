"""Leases: of all who want to make one thing, one at a time may, and its death is noticed.

A lease saves work and decides nothing: an entry is published create-only, whoever believes to hold what. So a lease
may be given up, taken over or ignored at any moment, and the worst that comes of it is that a program is compiled
twice.

The holder shows that it lives by heartbeats, changes that others see. A holder is dead after three heartbeats in a row
that a waiter did not see, by the waiter's own monotonic clock: no two clocks are ever compared. The one that takes a
lease over gets a higher fencing token.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MISSED_BEATS", "Lease", "Leases", "Sighting", "Watch"]

MISSED_BEATS: Final = 3


@dataclass(frozen=True, slots=True)
class Sighting:
    """A lease as somebody else saw it.

    Attributes:
        token: changes with every heartbeat and with every holder.
        fence: the holder's fencing token.
        interval: seconds between heartbeats, as the holder says.
        abandoned: the operating system says that the holder is dead.
    """

    token: str
    fence: int
    interval: float
    abandoned: bool = False


class Lease(Protocol):
    """Held until it is released, or until somebody else takes it over.

    Attributes:
        fence: higher than that of whom it was taken over from.
    """

    @property
    def fence(self) -> int: ...

    @property
    def lost(self) -> bool:
        """Whether a heartbeat found that somebody else has it now."""

    def release(self, *, after: float = 0.0) -> None:
        """Give it up, after so many seconds, behind the program; more than once does nothing more. Never raises."""


class Leases(Protocol):
    """Leases by key.

    Attributes:
        grace: for so many seconds a lease outlives what it was held for, so that whoever looked a moment before that
            was visible still finds it held.
    """

    grace: float

    def acquire(self, key: str) -> Lease | None:
        """The lease, or None if somebody has it; raises a `StoreError` if that cannot be found out."""

    def look(self, key: str) -> Sighting | None:
        """Who has the lease, or None if nobody has; raises a `StoreError` if that cannot be found out."""

    def take_over(self, key: str, seen: Sighting) -> Lease | None:
        """The lease of a dead holder, or None if it has changed since it was seen; of several one gets it."""


class Watch:
    """Whether the holder of a lease is dead, from what one waiter saw of it.

    Two sightings count as one unless they are a heartbeat apart. So a waiter that was itself stopped, together with
    the holder perhaps, does not take its own absence for the holder's.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._token: str | None = None
        self._counted_at = 0.0
        self._missed = 0

    def see(self, sighting: Sighting) -> bool:
        """Whether, with this sighting, the holder counts as dead."""
        now = self._clock()
        if sighting.token != self._token:
            self._token, self._counted_at, self._missed = sighting.token, now, 0
        elif now - self._counted_at >= sighting.interval:
            self._counted_at = now
            self._missed += 1
        return sighting.abandoned or self._missed >= MISSED_BEATS
