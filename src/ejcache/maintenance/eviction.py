"""Makes eviction passes: the only code that deletes entries by a policy, for jobs and for `ejcache prune`.

A pass over a shared cache lists it once, compacts the usage journals, deletes what the policy names, merges and deletes
what ended processes left behind, and deletes what lies where nobody looks any more (`ended_epochs`). An entry is
deleted only if it still is the version that was listed, and if nobody made or used it within the last five minutes
(processes write down once a minute what they used). A pass over a local store has only the entries to look at.
"""

from __future__ import annotations

import itertools
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from ejcache.bucket.base import Bucket
from ejcache.bucket.folder import BucketFolder
from ejcache.bucket.object_names import ENTRIES, TEMPORARY, entry_name, key_of_name
from ejcache.coordination.shared_leases import LEASES
from ejcache.errors import StoreError, StoreForbiddenError, StoreReadOnlyError, StoreRefusedError
from ejcache.journal.fold import JournalListing, compact, merge_start_records
from ejcache.journal.format import JOURNALS, Folded, is_records_name
from ejcache.keys.key import is_side_key
from ejcache.maintenance.ended_epochs import EndedEpochs
from ejcache.maintenance.eviction_plan import EvictionPlan, EvictionPolicy
from ejcache.maintenance.listed_entries import Listing
from ejcache.stores.base import Clearable, DeletesMany, EntryInfo
from ejcache.stores.epochs import split_name
from ejcache.stores.shared.store import SharedStore
from ejcache.util.store_keys import unescape_key
from ejcache.util.writer import is_process_name, process_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ejcache.bucket.base import BlobInfo
    from ejcache.maintenance.eviction_plan import Deletion
    from ejcache.stores.base import Store

log = logging.getLogger("ejcache")

_PATIENCE: Final = 3
"""Requests in a row that the storage refuses before the pass stops asking."""
_NAMED_FAILURES: Final = 1000
_AT_ONCE: Final = 100
"""Entries that one request or transaction deletes."""
IN_USE_SECONDS: Final = 300.0
"""An entry of a shared cache that was made or used within this time counts as in use: a process writes down what it
used once a minute."""
_ABANDONED_SECONDS: Final = 86_400.0
"""Leases and half-written files of this age belong to dead processes. A lease is renewed within minutes, and clocks
differ by less than a day."""
_ROOT: Final = "v1/"
_OUTSIDE: Final = (JOURNALS, TEMPORARY)
"""What is listed beside the entries, where these lie in a folder of their own."""
_RECORD_SECONDS: Final = 30 * 86_400.0
"""What processes have told of themselves is deleted after that."""


@dataclass(slots=True)
class EvictionReport:
    """The result of an eviction pass.

    "Entries" counts executables; sizes also include the texts, profiles and records that are kept beside them.

    Attributes:
        dry_run: nothing was changed; `removed` and `freed` say what would have been removed.
        entries: entries before the pass, and `size` the bytes of everything.
        planned: deletions that the policy asked for.
        removed: deleted entries, and `freed` the deleted bytes.
        left: entries that are there after the pass, and `left_size` the bytes of everything that is.
        gone: planned deletions of objects that others deleted or replaced meanwhile.
        failed: keys that the storage did not delete, and why; at most the first 1,000.
        failures: how many it did not delete.
        in_use: entries that stay because they were made or used a short while ago.
        journals: usage journals that were compacted.
        swept: leases and half-written files of dead processes that were deleted.
        problems: one sentence for each other step that failed.
    """

    dry_run: bool = False
    entries: int = 0
    size: int = 0
    planned: int = 0
    removed: int = 0
    freed: int = 0
    left: int = 0
    left_size: int = 0
    gone: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    failures: int = 0
    in_use: int = 0
    journals: int = 0
    swept: int = 0
    problems: list[str] = field(default_factory=list)


class EvictionPass:
    """One pass: making it scans the cache and plans, and `run` deletes.

    Args:
        storage: the store, or the objects of a shared cache.
        policy: what may stay; None or an empty policy removes nothing.
        dry_run: remove nothing, and leave the usage journals.
        in_use_seconds: how long an entry of a shared cache counts as in use.
        now: seconds since the epoch; by default, by the storage's clock, from which this host's may differ by a day, or
            by this host's if the storage is not shared or this process may not write to it.

    Attributes:
        plan: the deletions, in order; it can be iterated as often as needed.

    Raises:
        StoreReadOnlyError: the store is read-only, and this is not a dry run.
        StoreError: the storage failed; nothing was removed.
    """

    def __init__(
        self,
        storage: Store | Bucket,
        policy: EvictionPolicy | None,
        *,
        dry_run: bool = False,
        in_use_seconds: float = IN_USE_SECONDS,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._dry_run = dry_run
        if not dry_run and getattr(storage, "read_only", False):
            raise StoreReadOnlyError(f"{getattr(storage, 'url', 'the store')} is open for reading only")
        shared = storage if isinstance(storage, SharedStore) else None
        objects = storage if shared is None else shared.root
        if isinstance(objects, Bucket):
            began = storage_time(objects) if now is None else now()
            place = objects if shared is None else shared.bucket
            self._scan: Scan = BucketScan(
                objects, place=place, now=began, in_use_seconds=in_use_seconds, compacts=not dry_run
            )
        else:
            began = time.time() if now is None else now()
            self._scan = Scan(objects)
        policy = policy or EvictionPolicy()
        every = policy.everything and policy.only is None and policy.name_glob is None
        self._clearable = storage if every and isinstance(storage, Clearable) else None
        kept = replace(policy, keep_used_since=self._scan.in_use_since)
        self.plan = EvictionPlan(self._scan.entries(), now=began, policy=kept)

    def run(
        self, *, stopped: Callable[[], bool] = lambda: False, advance: Callable[[], None] = lambda: None
    ) -> EvictionReport:
        """Carry out the plan, and tidy up. An entry that cannot be deleted does not keep the others from it.

        Args:
            stopped: asked before each request; once it returns True nothing more is deleted.
            advance: called after each planned deletion was tried.
        """
        planned = self.plan
        report = EvictionReport(
            dry_run=self._dry_run,
            entries=planned.entries + planned.left,
            size=planned.size + planned.left_size,
            planned=planned.count,
            left=planned.left,
            left_size=planned.left_size,
            in_use=planned.protected,
        )
        if self._dry_run:
            report.removed, report.freed = planned.entries, planned.size
            return report
        if self._clearable is not None:
            self._clear(self._clearable, report, advance)
            return report
        report.left, report.left_size = report.entries, report.size
        self._delete(report, stopped, advance)
        if not stopped():
            report.problems = self._scan.tidy()
        report.journals, report.swept = self._scan.journals, self._scan.swept
        log.debug("eviction pass: %s", report)
        return report

    def _clear(self, store: Clearable, report: EvictionReport, advance: Callable[[], None]) -> None:
        """Delete all entries at once, those too that were stored after the plan was made."""
        found = [(not is_side_key(entry.key), entry.size) for entry in self._scan.entries()]
        store.clear()
        report.removed, report.freed = sum(is_entry for is_entry, _ in found), sum(size for _, size in found)
        report.gone = max(0, report.planned - len(found))
        report.left = report.left_size = 0
        for _ in range(report.planned):
            advance()

    def _delete(self, report: EvictionReport, stopped: Callable[[], bool], advance: Callable[[], None]) -> None:
        source = iter(self.plan)
        refused, problem = 0, ""
        while not stopped() and (batch := list(itertools.islice(source, self._scan.batch))):
            deleted: set[str] = set()
            if refused < _PATIENCE:
                try:
                    deleted, problem = self._scan.delete([deletion.entry for deletion in batch])
                    refused = 0
                except StoreReadOnlyError:
                    raise
                except StoreError as exc:
                    refused, problem = refused + 1, str(exc)
            _count(report, batch, deleted, problem)
            for _ in batch:
                advance()


def _count(report: EvictionReport, batch: Sequence[Deletion], deleted: set[str], problem: str) -> None:
    for deletion in batch:
        key, is_entry = deletion.entry.key, not is_side_key(deletion.entry.key)
        if problem and key not in deleted:
            report.failures += 1
            if len(report.failed) < _NAMED_FAILURES:
                report.failed.append((key, problem))
            continue
        report.left -= is_entry
        report.left_size -= deletion.entry.size
        if key in deleted:
            report.removed += is_entry
            report.freed += deletion.entry.size
        else:
            report.gone += 1


def storage_time(objects: Bucket) -> float:
    """Return the time by the storage's clock, also for a dry run, if these credentials may ask it with an object."""
    with suppress(StoreReadOnlyError, StoreForbiddenError, StoreRefusedError):
        return objects.now(f"{TEMPORARY}{process_name()}") or time.time()
    return time.time()


def run_pass(
    storage: Store | Bucket,
    policy: EvictionPolicy | None,
    *,
    dry_run: bool = False,
    in_use_seconds: float = IN_USE_SECONDS,
    now: Callable[[], float] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> EvictionReport:
    """Make one whole `EvictionPass`; arguments and errors are those of the class and of its `run`."""
    return EvictionPass(storage, policy, dry_run=dry_run, in_use_seconds=in_use_seconds, now=now).run(stopped=stopped)


# -- what a cache holds at one moment ---------------------------------------------------------------------------------


class Scan:
    """A cache at one moment, as an eviction pass needs it: a local store.

    Attributes:
        batch: entries that `delete` takes at once.
        in_use_since: entries made or used at or after this time, in seconds since the epoch, are in use; None if the
            cache belongs to one host, where a deleted entry harms nobody who has read it.
        journals: usage journals that were compacted.
        swept: leases and half-written files of dead processes that were deleted.

    One thread at a time may use it.
    """

    batch: int = 1
    in_use_since: float | None = None
    journals: int = 0
    swept: int = 0

    def __init__(self, store: Store) -> None:
        self._store = store
        self._many = store if isinstance(store, DeletesMany) else None
        if self._many is not None:
            self.batch = _AT_ONCE

    def entries(self) -> Iterator[EntryInfo]:
        """Return every entry, with its last use."""
        return self._store.entries()

    def delete(self, batch: Sequence[EntryInfo]) -> tuple[set[str], str]:
        """Delete the entries of `batch`; the keys of those that were deleted, and why others could not be."""
        keys = [info.key for info in batch]
        if self._many is None:
            return {key for key in keys if self._store.delete(key)}, ""
        deleted, problem = self._many.delete_many(keys), ""
        for key in set(keys) - deleted if deleted else ():
            try:
                if self._store.delete(key):
                    deleted.add(key)
            except StoreError as exc:
                problem = str(exc)
        return deleted, problem

    def tidy(self) -> list[str]:
        """Delete what killed processes left beside the entries; a sentence for each failure.

        A local store tidies up when it is opened.
        """
        return []


class BucketScan(Scan):
    """A `Scan` of a shared cache, by one listing of everything below `v1/`, or by one of where its entries are and one
    of the rest.

    Args:
        objects: of the cache.
        place: where its entries are, if that is a folder of it.
        now: seconds since the epoch, by the storage's clock.
        in_use_seconds: an entry that was made or used within this time is in use.
        compacts: merge the usage journals into the snapshot; otherwise they are only read.

    Raises:
        StoreError: the storage failed.
    """

    batch: int = _AT_ONCE

    def __init__(
        self,
        objects: Bucket,
        *,
        place: Bucket | None = None,
        now: float | None = None,
        in_use_seconds: float = IN_USE_SECONDS,
        compacts: bool = False,
    ) -> None:
        self._objects = objects
        self._place = objects if place is None else place
        self._now = time.time() if now is None else now
        self.in_use_since = self._now - in_use_seconds
        self._listing = Listing()
        self._abandoned: list[BlobInfo] = []
        self._records: list[BlobInfo] = []
        listed = JournalListing(Folded.read(objects), [])
        self._usage = listed.infos
        self._listing.add(self._list_entries())
        done = compact(
            objects,
            self._listing,
            listed=listed,
            complete=True,
            dry_run=not compacts,
            now=self._now,
            in_use_since=self.in_use_since,
        )
        self._listing.end()
        self.journals = done.journals

    def _list_entries(self) -> Iterator[EntryInfo]:
        """Pick the entries among all objects; the others are noted where they belong, foreign names are ignored."""
        for info in self._walk():
            name = info.name
            if name.startswith(ENTRIES):
                key = key_of_name(name)
                if key is not None:
                    yield EntryInfo(key, info.size, info.created, info.created, info.version)
            elif is_records_name(name):
                (self._abandoned if self._now - info.created > _RECORD_SECONDS else self._records).append(info)
            elif name.startswith(JOURNALS):
                self._usage.append(info)
            elif _is_leftover(name) and self._now - info.created > _ABANDONED_SECONDS:
                self._abandoned.append(info)

    def _walk(self) -> Iterator[BlobInfo]:
        folder = self._place.folder if isinstance(self._place, BucketFolder) else ""
        if not folder:
            return self._objects.walk(_ROOT)
        # Names of leases are those of the whole cache, for `_sweep`; what lies in other epochs is not looked at.
        leases = (replace(info, name=folder + info.name) for info in self._place.walk(LEASES))
        rest = (info for prefix in _OUTSIDE for info in self._objects.walk(prefix))
        return itertools.chain(self._place.walk(ENTRIES), leases, rest)

    def entries(self) -> Iterator[EntryInfo]:
        """Return every entry, with the last use that any process has written down."""
        return self._listing.entries()

    def delete(self, batch: Sequence[EntryInfo]) -> tuple[set[str], str]:
        """Delete those entries of `batch` that still are as they were listed; the keys of the deleted ones."""
        names = {entry_name(info.key): info for info in batch}
        deleted = self._place.delete_many((name, info.version) for name, info in names.items())
        return {names[name].key for name in deleted}, ""

    def tidy(self) -> list[str]:
        """Delete abandoned leases, half-written files and old start records, and merge those of past days."""
        try:
            self._sweep()
        except Exception as exc:  # what others wrote must not stop this job's eviction
            log.debug("ejcache: leftovers were not deleted", exc_info=True)
            return [f"leftovers were not deleted: {exc}"]
        return []

    def _sweep(self) -> None:
        for _ in self._objects.delete_many((info.name, info.version) for info in self._abandoned):
            self.swept += 1
        merge_start_records(self._objects, self._records, now=self._now)
        for _ in EndedEpochs(self._objects, now=self._now).remove():
            self.swept += 1


def _is_leftover(name: str) -> bool:
    """True if a process of ejcache may have made `name` and died: only such objects are ever swept."""
    _, inner = split_name(name)
    if inner.startswith(LEASES):
        return unescape_key(inner.removeprefix(LEASES)) is not None
    return name.startswith(TEMPORARY) and is_process_name(name.removeprefix(TEMPORARY))


class ScannedStore(SharedStore):
    """`shared`, with listings that know what all processes used, not only this one."""

    def __init__(self, shared: SharedStore) -> None:
        super().__init__(shared.bucket, root=shared.root, max_size=shared.max_size, read_only=shared.read_only)

    def entries(self) -> Iterator[EntryInfo]:
        """Return every entry, with the last use that any process has written down."""
        return BucketScan(self.root, place=self.bucket).entries()
