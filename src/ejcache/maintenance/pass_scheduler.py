"""Decides when a process writes its usage journal to a shared cache, and when it makes an eviction pass there.

Of all processes that use the cache, one at a time makes a pass: when it has stored a certain share of the limit, and
otherwise from time to time, unless another process has made one. The processes of a pod choose their times by chance,
and each pass writes the snapshot of the usage journals: a process that finds the snapshot changed skips its turn. A
process that stores little and soon ends makes a pass with probability (bytes it stored / share of the limit), so that
many short jobs together still keep the limit.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from ejcache.coordination.leases import LivenessDetector
from ejcache.coordination.shared_leases import StoreLeases
from ejcache.errors import StoreError
from ejcache.journal.format import SNAPSHOT
from ejcache.journal.recorder import recorder
from ejcache.maintenance.eviction import run_pass
from ejcache.maintenance.eviction_plan import EvictionPolicy
from ejcache.stores.shared.store import SharedStore
from ejcache.util.jitter import between

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.coordination.leases import HeldLease, Leases
    from ejcache.maintenance.eviction import EvictionReport
    from ejcache.stores.tiered.store import TieredStore

log = logging.getLogger("ejcache")

_LEASE_KEY: Final = "ejcache upkeep"
_CHECK_SECONDS: Final = 60.0
_INTERVAL_SECONDS: Final = 900.0
"""Mean time between two passes of all processes together."""
_SHARE: Final = 0.05
_LEAST_BYTES: Final = 64 << 20
_CHANCE: Final = partial(between, 0.0, 1.0)


class MaintenanceScheduler:
    """Decides when this process makes a pass over one shared cache. For one thread at a time.

    Args:
        shared: the cache.
        leases: elect the process that makes a pass.
        policy: called before each pass; what may stay, or None for everything.
        stored: bytes that this process has stored so far.
        before: called before a pass, to write down what this process used; if it returns False there is no pass.
        clock: monotonic seconds.
        chance: a random number from 0 to 1.
    """

    def __init__(
        self,
        shared: SharedStore,
        leases: Leases,
        *,
        policy: Callable[[], EvictionPolicy | None],
        stored: Callable[[], float],
        before: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = _CHANCE,
    ) -> None:
        self._shared = shared
        self._leases = leases
        self._policy = policy
        self._stored = stored
        self._before = before
        self._clock = clock
        self._chance = chance
        self._chance_at_exit = chance()
        self._watch = LivenessDetector(clock=clock)
        self._stored_before = stored()
        self._snapshot: str | None = None
        self._due = clock() + self._interval()

    def run_if_due(self) -> EvictionReport | None:
        """Make a pass if one is due; call this every minute. Never raises a `StoreError`."""
        try:
            policy = self._policy()
            if self._share_stored(policy) >= 1.0:
                return self._run(policy)
            if self._snapshot is None:
                self._snapshot = self._snapshot_version()
            if self._clock() < self._due:
                return None
            seen, self._snapshot = self._snapshot, self._snapshot_version()
            if seen != self._snapshot:
                self._due = self._clock() + self._interval()  # another process has made a pass
                return None
            return self._run(policy)
        except StoreError as exc:
            log.debug("the eviction pass waits: %s", exc)
            return None

    def run_at_exit(self) -> EvictionReport | None:
        """Make a pass at exit, with this process's probability; None without one. Never raises a `StoreError`."""
        if self._chance_at_exit * _LEAST_BYTES >= self._stored() - self._stored_before:
            return None  # whatever the policy is, so that the storage need not be asked for it
        try:
            policy = self._policy()
            return self._run(policy) if self._chance_at_exit < self._share_stored(policy) else None
        except StoreError as exc:
            log.debug("no eviction pass at exit: %s", exc)
            return None

    def _run(self, policy: EvictionPolicy | None) -> EvictionReport | None:
        lease = self._elect() if self._before() else None
        self._due = self._clock() + self._interval()
        self._stored_before = self._stored()
        if lease is None:
            return None
        try:
            report = run_pass(self._shared, policy, stopped=lambda: lease.lost)
        finally:
            lease.release()
        self._snapshot = self._snapshot_version()
        return report

    def _elect(self) -> HeldLease | None:
        lease = self._leases.acquire(_LEASE_KEY)
        if lease is None:
            seen = self._leases.look_for_dead(_LEASE_KEY) or self._leases.look(_LEASE_KEY)
            if seen is not None and self._watch.is_dead(seen):
                return self._leases.take_over(_LEASE_KEY, seen)
        return lease

    def _share_stored(self, policy: EvictionPolicy | None) -> float:
        """Divide the bytes stored since the last pass by the bytes after which a pass is due."""
        if policy is None or policy.max_size is None:
            return 0.0
        return (self._stored() - self._stored_before) / max(_LEAST_BYTES, policy.max_size * _SHARE)

    def _snapshot_version(self) -> str:
        blob = self._shared.root.read(SNAPSHOT, length=0)
        return "" if blob is None else blob.version

    def _interval(self) -> float:
        return _INTERVAL_SECONDS * (0.5 + self._chance())


def attach(
    store: TieredStore,
    *,
    policy: Callable[[], EvictionPolicy | None] | None = None,
    chance: Callable[[], float] = _CHANCE,
) -> bool:
    """Let `store`'s background thread write usage journals and make eviction passes over its shared tier.

    Args:
        store: nothing is attached if it is read-only, or if its shared tier is not a `SharedStore`.
        policy: what may stay; by default the shared tier's `max_size`.
        chance: a random number from 0 to 1.

    Returns:
        Whether anything was attached.
    """
    shared = store.shared
    if not isinstance(shared, SharedStore) or shared.read_only or store.read_only:
        return False

    def default() -> EvictionPolicy | None:
        return EvictionPolicy(max_size=shared.max_size) if shared.max_size > 0 else None

    usage = shared.journal
    usage.tell(recorder)
    scheduler = MaintenanceScheduler(
        shared,
        StoreLeases(shared.bucket),
        policy=policy or default,
        stored=lambda: store.tier_counters().get("shared_bytes_written", 0),
        before=usage.write,
        chance=chance,
    )

    breaker = shared.bucket.breaker
    if usage.are_unsent_uses_due() and not (breaker is not None and breaker.is_presumed_dead):
        shared.bucket.prepare()

    def check() -> None:
        usage.take_unsent_uses()
        if usage.write():
            scheduler.run_if_due()

    def finish() -> None:
        if shared.bucket.is_prepared and store.patience() > 0:
            usage.take_unsent_uses()
            scheduler.run_at_exit()

    store.worker.every(_CHECK_SECONDS, check)
    store.before_close(finish)
    return True
