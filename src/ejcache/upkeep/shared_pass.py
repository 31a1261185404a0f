"""One pass of upkeep over shared storage: one listing, the journals folded, what is too much removed in batches.

Everything of a store is below `v1/`, so that one listing gives entries, pins, journals, and what killed processes have
left. An entry is removed only if it still is the version that was listed, and not if it is pinned, or was made or used
within the last minutes: a process that uses it may have written that down a minute ago at most.
"""

from __future__ import annotations

import itertools
import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

from ejcache.stores.leases_shared import LEASES
from ejcache.stores.shared_counters import fold_counters
from ejcache.stores.shared_layout import COUNTERS, ENTRIES, PINS, TEMPORARY, entry_name, key_of_name, unescape_key
from ejcache.upkeep.journals import USED, fold, read_used
from ejcache.upkeep.listing import Listing
from ejcache.upkeep.plan import plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from ejcache.stores.objects import ConditionalObjects
    from ejcache.stores.shared_bucket import BlobInfo
    from ejcache.upkeep.policy import Policy

__all__ = ["PROTECTED_SECONDS", "Report", "Survey", "remove", "run_pass", "survey"]

log = logging.getLogger("ejcache")

PROTECTED_SECONDS: Final = 300.0
"""An entry that was made or used so lately is in use."""
_ABANDONED_SECONDS: Final = 86_400.0
"""Leases and half-written files that are older were left by processes that are dead; no lease is held for a day
without a heartbeat, whatever the clocks."""
_ROOT: Final = "v1/"


@dataclass(frozen=True, slots=True)
class Report:
    """What a pass came to.

    Attributes:
        entries: how many there were, and `size` their bytes.
        removed: entries that were removed, `freed` their bytes.
        kept: entries that should have gone but were changed meanwhile, or that the storage did not remove.
        journals: journals that were folded.
        swept: leases and half-written files of dead processes that were removed.
    """

    entries: int = 0
    size: int = 0
    removed: int = 0
    freed: int = 0
    kept: int = 0
    journals: int = 0
    swept: int = 0


class Survey:
    """What is in a shared store. For one thread at a time; to be closed, or forgotten with its last reference.

    Attributes:
        listing: the entries with the last uses that are known, and their versions.
        pinned: keys.
        journals: of uses, and `abandoned` leases and half-written files of dead processes.
        counters: of processes.
    """

    def __init__(self, objects: ConditionalObjects, *, now: float) -> None:
        self.listing = Listing()
        self.journals: list[BlobInfo] = []
        self.abandoned: list[BlobInfo] = []
        self.counters: list[BlobInfo] = []
        pinned: set[str] = set()

        def entries() -> Iterator[tuple[str, int, float, str]]:
            for info in objects.walk(_ROOT):
                if info.name.startswith(ENTRIES):
                    key = key_of_name(info.name)
                    if key is not None:
                        yield key, info.size, info.created, info.version
                elif info.name.startswith(PINS):
                    key = unescape_key(info.name.removeprefix(PINS))
                    if key is not None:
                        pinned.add(key)
                elif info.name.startswith(USED):
                    self.journals.append(info)
                elif info.name.startswith(COUNTERS):
                    self.counters.append(info)
                elif info.name.startswith((LEASES, TEMPORARY)) and now - info.created > _ABANDONED_SECONDS:
                    self.abandoned.append(info)

        self.listing.add(entries())
        self.pinned = frozenset(pinned)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Forget it."""
        self.listing.close()


def survey(objects: ConditionalObjects, *, now: float | None = None) -> Survey:
    """One listing, and the last uses by the snapshot and the journals; nothing is changed.

    Raises:
        StoreError: the storage failed, or there is no room for temporary files.
    """
    surveyed = Survey(objects, now=time.time() if now is None else now)
    read_used(objects, surveyed.listing, infos=surveyed.journals)
    return surveyed


def remove(
    objects: ConditionalObjects,
    listing: Listing,
    keys: Iterable[str],
    *,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[str]:
    """Remove the entries under `keys`, in batches, each only if it still is as it was listed.

    Yields:
        The keys of those that were removed.
    """
    conditions = (
        (entry_name(key), found[1])
        for key in itertools.takewhile(lambda _: not stopped(), keys)
        if (found := listing.find(key)) is not None
    )
    for name in objects.delete_many(conditions):
        key = key_of_name(name)
        if key is not None:
            yield key


def run_pass(
    objects: ConditionalObjects,
    *,
    policy: Policy | None,
    protected_seconds: float = PROTECTED_SECONDS,
    now: Callable[[], float] = time.time,
    stopped: Callable[[], bool] = lambda: False,
) -> Report:
    """Fold the journals, and remove what `policy` says; nothing is removed without one.

    Args:
        objects: the store's.
        policy: which entries go; its `keep` is added to what is pinned.
        protected_seconds: an entry that was made or used so lately stays.
        now: seconds since the epoch.
        stopped: asked before each removal; the pass ends when it says so.

    Raises:
        StoreError: the storage failed, or there is no room for temporary files; what was done until then is done, and
            the next pass does the rest.
    """
    began = now()
    with Survey(objects, now=began) as surveyed:
        listing = surveyed.listing
        folded = fold(objects, listing, infos=surveyed.journals, complete=True, now=began)
        removed = freed = wanted = 0
        if policy is not None and policy.has_criterion:
            kept = replace(policy, keep=policy.keep | surveyed.pinned, keep_used_since=began - protected_seconds)
            with plan(listing.entries(), now=began, policy=kept) as planned:
                wanted = planned.count
                keys = (deletion.entry.key for deletion in planned)
                for key in remove(objects, listing, keys, stopped=stopped):
                    removed += 1
                    found = listing.find(key)
                    freed += found[0] if found is not None else 0
        fold_counters(objects, surveyed.counters, now=began)
        swept = sum(1 for _ in objects.delete_many([(info.name, info.version) for info in surveyed.abandoned]))
        entries, size = listing.count()
    report = Report(
        entries=entries,
        size=size,
        removed=removed,
        freed=freed,
        kept=wanted - removed,
        journals=folded.journals,
        swept=swept,
    )
    log.debug("upkeep: %s", report)
    return report
