"""Who looks after shared storage, and when: of all processes that use a store, one at a time.

A process makes a pass when it has stored a share of the limit, and otherwise now and then unless somebody else has.
The passes of a pod are spread by chance and by the snapshot that each pass writes: a process that sees that it has
changed leaves it at that. Who stores little and ends soon makes one with the chance that its bytes are of that share,
so that many short programs keep the limit, too.
"""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING, Final

from ejcache.errors import StoreError
from ejcache.stores.breaker import breaker_for
from ejcache.stores.guarded import GuardedObjects
from ejcache.stores.leases import Watch
from ejcache.stores.leases_shared import StoreLeases
from ejcache.stores.shared import SharedStore
from ejcache.upkeep.journals import SNAPSHOT, JournalWriter
from ejcache.upkeep.policy import Policy
from ejcache.upkeep.shared_pass import run_pass

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.stores.leases import Lease, Leases
    from ejcache.stores.objects import ConditionalObjects
    from ejcache.stores.tiered import TieredStore
    from ejcache.upkeep.shared_pass import Report

__all__ = ["Upkeep", "look_after"]

log = logging.getLogger("ejcache")

_KEY: Final = "ejcache upkeep"
_TICK_SECONDS: Final = 60.0
_EVERY_SECONDS: Final = 900.0
_SHARE: Final = 0.05
_LEAST_BYTES: Final = 64 << 20


class Upkeep:
    """Passes over one store by one process at a time. Not for several threads at once: one worker calls it.

    Args:
        objects: the store's.
        leases: who is elected.
        policy: what may stay, asked before each pass; None for everything.
        stored: bytes that this process has stored so far.
        every_seconds: between two passes, by whomever, on average.
        clock: monotonic seconds.
        chance: a number from 0 to 1.

    Attributes:
        reports: of the passes that this process made, the last few.
    """

    def __init__(
        self,
        objects: ConditionalObjects,
        leases: Leases,
        *,
        policy: Callable[[], Policy | None],
        stored: Callable[[], float],
        every_seconds: float = _EVERY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.reports: list[Report] = []
        self._objects = objects
        self._leases = leases
        self._policy = policy
        self._stored = stored
        self._every = every_seconds
        self._clock = clock
        self._chance = chance
        self._watch = Watch(clock=clock)
        self._stored_before = stored()
        self._seen: str | None = None
        self._due = clock() + self._interval()

    def tick(self) -> Report | None:
        """Make a pass if one is due; to be called every minute. Never raises a `StoreError`."""
        try:
            policy = self._policy()
            if self._share_stored(policy) >= 1.0:
                return self._run(policy)
            if self._seen is None:
                self._seen = self._snapshot_version()
            if self._clock() < self._due:
                return None
            seen, self._seen = self._seen, self._snapshot_version()
            if seen != self._seen:
                self._due = self._clock() + self._interval()  # somebody else made one lately
                return None
            return self._run(policy)
        except StoreError as exc:
            log.debug("upkeep waits: %s", exc)
            return None

    def leave(self) -> Report | None:
        """At the end of a program, make a pass with the chance that is this process's. Never raises a `StoreError`."""
        try:
            if self._stored() <= self._stored_before:
                return None  # no chance at all: nobody is asked
            policy = self._policy()
            return self._run(policy) if self._chance() < self._share_stored(policy) else None
        except StoreError as exc:
            log.debug("no upkeep at the end: %s", exc)
            return None

    def _run(self, policy: Policy | None) -> Report | None:
        lease = self._elected()
        self._due = self._clock() + self._interval()
        self._stored_before = self._stored()
        if lease is None:
            return None
        try:
            report = run_pass(self._objects, policy=policy, stopped=lambda: lease.lost)
        finally:
            lease.release()
        self._seen = self._snapshot_version()
        self.reports = [*self.reports[-9:], report]
        return report

    def _elected(self) -> Lease | None:
        lease = self._leases.acquire(_KEY)
        if lease is None:
            seen = self._leases.look(_KEY)
            if seen is not None and self._watch.see(seen):
                return self._leases.take_over(_KEY, seen)
        return lease

    def _share_stored(self, policy: Policy | None) -> float:
        """What this process has stored since its last pass, as a share of what makes a pass due."""
        if policy is None or policy.max_size is None:
            return 0.0
        return (self._stored() - self._stored_before) / max(_LEAST_BYTES, policy.max_size * _SHARE)

    def _snapshot_version(self) -> str:
        blob = self._objects.read(SNAPSHOT, length=0)
        return "" if blob is None else blob.version

    def _interval(self) -> float:
        return self._every * (0.5 + self._chance())


def look_after(store: TieredStore, *, policy: Callable[[], Policy | None] | None = None) -> Upkeep | None:
    """Have `store`'s worker write journals of what is used, and make passes of upkeep over its shared tier.

    Args:
        store: whose shared tier is a `SharedStore`; of any other nothing is looked after.
        policy: what may stay; by default the shared tier's `max_size`.
    """
    shared = store.shared
    if not isinstance(shared, SharedStore) or shared.read_only or store.read_only:
        return None

    def default() -> Policy | None:
        return Policy(max_size=shared.max_size) if shared.max_size > 0 else None

    objects = GuardedObjects(shared.bucket, breaker_for(shared.url))
    journals = JournalWriter(objects, shared.drain_used)
    upkeep = Upkeep(
        objects,
        StoreLeases(objects),
        policy=policy or default,
        stored=lambda: store.tier_counters().get("shared_bytes_written", 0),
    )

    def tick() -> None:
        if journals.write():
            upkeep.tick()

    def leave() -> None:
        if journals.write():
            upkeep.leave()

    store.worker.every(_TICK_SECONDS, tick)
    store.before_close(leave)
    return upkeep
