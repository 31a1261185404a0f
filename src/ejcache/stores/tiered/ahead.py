"""Entries that will be asked for, fetched before that by concurrent requests."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ejcache.errors import StoreError
from ejcache.stores.base import FailureCounting
from ejcache.util.log import log
from ejcache.util.parallel import in_parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ejcache.stores.tiered.fetching import HostFetches
    from ejcache.stores.tiered.tier import Tier

__all__ = ["fetch_ahead"]


def fetch_ahead(
    keys: Iterable[str],
    shared: Tier,
    fetches: HostFetches,
    *,
    requests: int,
    here: Callable[[str], bool],
    fetch: Callable[[str], bool],
    wanted: Callable[[str], bool],
) -> Iterator[tuple[str, bool]]:
    """Each key, and whether its entry is in the local tier: first those that are there, then those that are fetched.

    Of the processes of a host, one fetches so at a time, so that the host makes at most `requests` at once; a process
    that has waited for long makes them one by one. After the first sign that the shared tier is throttled or fails,
    nothing more is asked for.

    Args:
        keys: of entries.
        shared: the shared tier.
        fetches: the locks of this host.
        requests: how many are made at once.
        here: whether the local tier has an entry.
        fetch: fetches one entry into the local tier; whether there is one.
        wanted: whether an entry is still to be fetched; asked before each request.
    """
    missing = []
    for key in keys:
        if here(key):
            yield key, True
        else:
            missing.append(key)
    if not missing:
        return
    failed = _tries_failed(shared)
    stopped = threading.Event()

    def fetch_one(key: str) -> tuple[str, bool]:
        if stopped.is_set() or shared.breaker.is_open or not wanted(key):
            return key, False
        found = False
        try:
            found = fetch(key)
        except StoreError as exc:
            log.debug("%s is not fetched ahead: %s", key, exc)
            stopped.set()
        if _tries_failed(shared) != failed:
            stopped.set()
        return key, found

    with fetches.many() as alone:
        yield from in_parallel(fetch_one, missing, threads=requests if alone else 1)


def _tries_failed(tier: Tier) -> int:
    store: object = tier.store
    return store.tries_failed() if isinstance(store, FailureCounting) else 0
