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
from typing import TYPE_CHECKING, Final

from ejcache.stores.base import EntryInfo
from ejcache.stores.leases_shared import LEASES
from ejcache.stores.shared_layout import ENTRIES, PINS, TEMPORARY, entry_name, key_of_name, unescape_key
from ejcache.upkeep.journals import USED, fold, read_used
from ejcache.upkeep.plan import plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ejcache.stores.objects import ConditionalObjects
    from ejcache.stores.shared_bucket import BlobInfo
    from ejcache.upkeep.plan import Deletion, Policy

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


@dataclass(frozen=True, slots=True)
class Survey:
    """What is in a shared store.

    Attributes:
        entries: with the last uses that are known.
        pinned: keys.
        versions: of the entries by key, as they were listed.
        journals: of uses, and `abandoned` leases and half-written files of dead processes.
    """

    entries: list[EntryInfo]
    pinned: frozenset[str]
    versions: dict[str, str]
    journals: list[BlobInfo]
    abandoned: list[BlobInfo]


def survey(objects: ConditionalObjects, *, now: float | None = None) -> Survey:
    """One listing, and the last uses by the snapshot and the journals; nothing is changed.

    Raises:
        StoreError: the storage failed.
    """
    listed = _list(objects, time.time() if now is None else now)
    return _with_uses(listed, read_used(objects, infos=listed.journals))


def remove(
    objects: ConditionalObjects,
    surveyed: Survey,
    deletions: Iterable[Deletion],
    *,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[str]:
    """Remove what `deletions` say, in batches, each entry only if it still is as it was surveyed.

    Yields:
        The keys of those that were removed.
    """
    conditions = (
        (entry_name(deletion.entry.key), surveyed.versions[deletion.entry.key])
        for deletion in itertools.takewhile(lambda _: not stopped(), deletions)
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
        StoreError: the storage failed; what was done until then is done, and the next pass does the rest.
    """
    began = now()
    listed = _list(objects, began)
    folded = fold(objects, infos=listed.journals, keys=listed.versions, now=began)
    surveyed = _with_uses(listed, folded.used)
    removed = freed = wanted = 0
    if policy is not None and policy.has_criterion:
        fresh = {entry.key for entry in surveyed.entries if began - entry.last_used < protected_seconds}
        keep = policy.keep | surveyed.pinned | fresh
        deletions = plan(surveyed.entries, now=began, policy=replace(policy, keep=frozenset(keep)))
        sizes = {deletion.entry.key: deletion.entry.size for deletion in deletions}
        wanted = len(deletions)
        for key in remove(objects, surveyed, deletions, stopped=stopped):
            removed += 1
            freed += sizes[key]
    swept = sum(1 for _ in objects.delete_many([(info.name, info.version) for info in listed.abandoned]))
    report = Report(
        entries=len(surveyed.entries),
        size=sum(entry.size for entry in surveyed.entries),
        removed=removed,
        freed=freed,
        kept=wanted - removed,
        journals=folded.journals,
        swept=swept,
    )
    log.debug("upkeep: %s", report)
    return report


def _list(objects: ConditionalObjects, now: float) -> Survey:
    entries: list[EntryInfo] = []
    versions: dict[str, str] = {}
    pinned: set[str] = set()
    journals: list[BlobInfo] = []
    abandoned: list[BlobInfo] = []
    for info in objects.walk(_ROOT):
        if info.name.startswith(ENTRIES):
            key = key_of_name(info.name)
            if key is not None:
                entries.append(EntryInfo(key, info.size, info.created, info.created))
                versions[key] = info.version
        elif info.name.startswith(PINS):
            key = unescape_key(info.name.removeprefix(PINS))
            if key is not None:
                pinned.add(key)
        elif info.name.startswith(USED):
            journals.append(info)
        elif info.name.startswith((LEASES, TEMPORARY)) and now - info.created > _ABANDONED_SECONDS:
            abandoned.append(info)
    return Survey(entries, frozenset(pinned), versions, journals, abandoned)


def _with_uses(listed: Survey, used: dict[str, float]) -> Survey:
    entries = [
        replace(entry, last_used=max(entry.created, used.get(entry.key, entry.created))) for entry in listed.entries
    ]
    return replace(listed, entries=entries)
