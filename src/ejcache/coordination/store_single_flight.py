"""The single flights of a store: one within the host and, if the store is shared, one between hosts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ejcache.coordination.leases_local import LocalLeases
from ejcache.coordination.single_flight import SingleFlight
from ejcache.errors import StoreError
from ejcache.stores.local.store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ejcache.stores.base import Store

__all__ = ["StoreSingleFlight"]

T = TypeVar("T")


class StoreSingleFlight:
    """Makes each entry of one store once. Safe for threads, processes and forks.

    Args:
        store: where the entries are kept.
        directory: for the leases of this host, on a local file system; None for no coordination within the host.
        heartbeat: seconds between heartbeats on shared storage; a holder that missed three counts as dead.
    """

    def __init__(self, store: Store, *, directory: Path | None, heartbeat: float = 3.0) -> None:
        self._host = None
        if directory is not None:
            # With a grace period, as between hosts: without it, every process that gets the lease would have to look
            # once more, which behind a local tier is a request.
            leases_here = LocalLeases(directory, grace=1.0)
            self._host = SingleFlight(
                leases_here,
                when_visible=self._visible_here,
                is_near=self._is_near,
                longest_pause=0.1,
                patient_pauses=(0.1, 0.2),
            )
        self._near: Store | None = store
        self._between: SingleFlight | None = None
        if not isinstance(store, LocalStore):
            self._near, self._between = _tiers(store, heartbeat)

    def run(
        self,
        key: str,
        *,
        lookup: Callable[[], T | None],
        work: Callable[[], T],
        deadline: float,
        missed: bool = False,
        between_hosts: bool = True,
        left_entry: Callable[[], bool] | None = None,
        in_words: Callable[[str], str] = str,
    ) -> T:
        """What `lookup` finds, now or after another process has done the work, or what `work` returns.

        One process of a host waits for the other hosts on behalf of its neighbours.

        Args:
            key: of the entry.
            lookup: finds the entry in the store, or returns None.
            work: makes the result, and stores it if it is to be kept.
            deadline: seconds that this process waits for others without getting an entry, in all calls together.
            missed: `lookup` has just returned None.
            between_hosts: wait for other hosts too. This costs a request before the work and one after it, and more
                while another host works: too much for work that is likely to take less.
            left_entry: asked after `work`: whether the processes of this host can see its entry now. Without it, the
                store is asked.
            in_words: makes of `key` what the line about a long wait calls the work.

        Raises what `lookup` and `work` raise, and nothing of its own.
        """
        between = self._between
        if between is None or not between_hosts:
            if self._host is None:
                found = None if missed else lookup()
                return work() if found is None else found
            return self._host.run(
                key,
                lookup=lookup,
                work=work,
                deadline=deadline,
                missed=missed,
                left_entry=left_entry,
                in_words=in_words,
            )
        if self._host is None:
            return between.run(key, lookup=lookup, work=work, deadline=deadline, missed=missed, in_words=in_words)

        def work_between_hosts() -> T:
            return between.run(key, lookup=lookup, work=work, deadline=deadline, missed=True, in_words=in_words)

        return self._host.run(
            key,
            lookup=lookup,
            work=work_between_hosts,
            deadline=deadline,
            missed=missed,
            left_entry=left_entry,
            in_words=in_words,
        )

    def _visible_here(self, key: str, callback: Callable[[], None]) -> bool:
        callback()
        return self._near is None or self._is_near(key)

    def _is_near(self, key: str) -> bool:
        try:
            return self._near is not None and self._near.contains(key)
        except StoreError:
            return False


def _tiers(store: Store, heartbeat: float) -> tuple[Store | None, SingleFlight | None]:
    """What can be asked without a request for what this host has, and the single flight between hosts, if any."""
    # Imported here: with a local directory none of it is loaded.
    from ejcache.coordination.leases import end_leases
    from ejcache.coordination.leases_shared import StoreLeases
    from ejcache.stores.shared.store import SharedStore
    from ejcache.stores.tiered.store import TieredStore

    tiered = store if isinstance(store, TieredStore) else None
    near = tiered.local if tiered is not None else store
    shared = tiered.shared if tiered is not None else store
    between = None
    if isinstance(shared, SharedStore) and not (store.read_only or shared.read_only):
        if tiered is not None:
            # Closed, it has no client any more that could release them later.
            tiered.when_closing(partial(end_leases, released_only=True))
        leases = StoreLeases(shared.bucket, interval=heartbeat)
        between = (
            SingleFlight(leases, when_visible=tiered.when_uploaded) if tiered is not None else SingleFlight(leases)
        )
    return None if isinstance(near, SharedStore) else near, between
