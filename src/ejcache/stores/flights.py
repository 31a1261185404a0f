"""The single flights of a store: one within the host, and one between hosts where the store is shared."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ejcache.errors import StoreError
from ejcache.stores.breaker import breaker_for
from ejcache.stores.guarded import GuardedObjects
from ejcache.stores.leases_local import LocalLeases
from ejcache.stores.leases_shared import StoreLeases
from ejcache.stores.shared import SharedStore
from ejcache.stores.single_flight import SingleFlight
from ejcache.stores.tiered import TieredStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ejcache.stores.base import Store

__all__ = ["Flights"]

T = TypeVar("T")


class Flights:
    """Work that the users of one store do once. Safe for threads, processes and forks.

    Args:
        store: where the work is left, and found.
        directory: for the locks of this host, on a local file system; None without them.
        heartbeat: seconds between signs of life on shared storage; whoever missed three is dead.
    """

    def __init__(self, store: Store, *, directory: Path | None, heartbeat: float = 3.0) -> None:
        self._host = None
        if directory is not None:
            # With a grace, as between hosts: without it, whoever gets the lease would have to look once more, and
            # behind a local tier that is a request.
            leases_here = LocalLeases(directory, grace=1.0)
            self._host = SingleFlight(leases_here, when_visible=self._visible_here, longest_pause=0.1)
        self._store = store
        self._between: SingleFlight | None = None
        shared = store.shared if isinstance(store, TieredStore) else store
        if isinstance(shared, SharedStore) and not (store.read_only or shared.read_only):
            leases = StoreLeases(GuardedObjects(shared.bucket, breaker_for(shared.url)), interval=heartbeat)
            if isinstance(store, TieredStore):
                self._between = SingleFlight(leases, when_visible=store.when_uploaded)
            else:
                self._between = SingleFlight(leases)

    def run(
        self,
        key: str,
        *,
        lookup: Callable[[], T | None],
        work: Callable[[], T],
        deadline: float,
        missed: bool = False,
        between_hosts: bool = True,
    ) -> T:
        """What `lookup` finds, now or when another thread, process or host has done the work, or what `work` gives.

        One process of a host waits for the other hosts on behalf of its neighbours.

        Args:
            key: what is looked up and worked on.
            lookup: finds what there is in the store, or None.
            work: makes it, and puts it into the store if it is to be kept.
            deadline: seconds to wait for others in all.
            missed: `lookup` has just found nothing.
            between_hosts: also wait for other hosts. Asking them costs a request before the work and one after it, and
                a second when they are at it: too much for work that is likely to take less.

        Raises what `lookup` and `work` raise, and nothing of its own.
        """
        between = self._between
        if between is None or not between_hosts:
            if self._host is None:
                found = None if missed else lookup()
                return work() if found is None else found
            return self._host.run(key, lookup=lookup, work=work, deadline=deadline, missed=missed)
        if self._host is None:
            return between.run(key, lookup=lookup, work=work, deadline=deadline, missed=missed)

        def fly() -> T:
            return between.run(key, lookup=lookup, work=work, deadline=deadline, missed=True)

        return self._host.run(key, lookup=lookup, work=fly, deadline=deadline, missed=missed)

    def _visible_here(self, key: str, callback: Callable[[], None]) -> bool:
        callback()
        near = self._store.local if isinstance(self._store, TieredStore) else self._store
        try:
            return isinstance(near, SharedStore) or near.contains(key)
        except StoreError:
            return False

    def counters(self) -> dict[str, float]:
        """What became of the flights, by names that begin with `host_flight_` and `shared_flight_`."""
        counted: dict[str, float] = {}
        for prefix, flight in (("host_flight_", self._host), ("shared_flight_", self._between)):
            for name, amount in flight.counters.items() if flight is not None else ():
                counted[prefix + name] = amount
        return counted
