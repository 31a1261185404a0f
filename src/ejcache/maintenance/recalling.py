"""Recalls entries: what is recalled is written down first, and removed then.

A command that is killed in between has recalled it all the same: whoever reads what is written down loads none of it.
The same command again removes the rest.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from ejcache import entry
from ejcache.bucket.object_names import ENTRIES, QUARANTINE, entry_name, key_of_name
from ejcache.errors import EntryError
from ejcache.keys.key import is_side_key, is_text_key
from ejcache.maintenance.ended_epochs import EndedEpochs
from ejcache.maintenance.eviction import storage_time
from ejcache.maintenance.recalls import Recalls, Rule, Stamp, digests_of
from ejcache.maintenance.stored_policy import begin_epoch, change_recalls
from ejcache.stores.base import Clearable
from ejcache.stores.epochs import split_name
from ejcache.stores.shared.store import SharedStore
from ejcache.util.presence import living
from ejcache.util.threads import in_parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from ejcache.bucket.base import Bucket
    from ejcache.stores.base import Store

_HEADER_GUESS: Final = 8192
"""Bytes that hold nearly every header; a longer one is read again in full."""
_XLA: Final = ("v1/xla/", "v1/xla-processes/")
_PRESENT: Final = "present"


@dataclass(slots=True)
class RecallReport:
    """What a recall has done.

    Attributes:
        at: the time of the recall, in seconds since the epoch; 0 if there was nothing to recall.
        removed: the keys of the entries that were removed; of everything, without what is kept beside entries.
        absent: keys that were named and have no entry.
    """

    at: float = 0.0
    removed: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recaller:
    """Recalls entries of a cache.

    Args:
        store: of the cache.
        objects: where its policy is.
        directory: of a cache that one host uses; None if hosts share it.
        replace_damaged: write another policy in the place of a damaged one.
        advance: called after each entry that was removed.

    Its methods raise PolicyDamagedError and EntryVersionError for a policy that cannot be read, and UsageError for a
    recall that does not fit into it: nothing was changed then. They raise StoreError if the storage failed; the same
    call goes on with what is left.
    """

    store: Store
    objects: Bucket
    directory: Path | None = None
    replace_damaged: bool = False
    advance: Callable[[], None] = lambda: None

    def entries(self, keys: Iterable[str]) -> RecallReport:
        """Recall the entries under these keys, as their bytes are now."""
        report, found = RecallReport(), {}
        for key in keys:
            data = self.store.peek(key)
            if data is None:
                report.absent.append(key)
            else:
                found[key] = data
        if not found:
            return report
        digests = [digests_of(key, entry.checksum_of(data)) for key, data in found.items()]
        recalls = self._change(lambda known: known.with_entries(digests))
        report.at = time.time()
        self._remove(report, recalls, only=found)
        return report

    def by_rule(self, rule: Rule) -> RecallReport:
        """Recall what `rule` says, whose times are set here: `at`, and a `before` that is later than now."""
        now = storage_time(self.objects)
        before = None if rule.before is None else min(rule.before, now)
        rule = rule._replace(at=now, before=before)
        report = RecallReport(at=now)
        if rule.is_of_all and self.directory is None:
            begin_epoch(self.objects, rule, replace_damaged=self.replace_damaged)
            for name in EndedEpochs(self.objects).remove():
                _, inner = split_name(name)
                key = key_of_name(inner)
                if key is not None and not is_side_key(key):
                    report.removed.append(key)
                self.advance()
            return report
        self._change(lambda known: known.with_rule(rule))
        if rule.is_of_all and self.directory is not None:
            self._empty(report, self.directory)
        else:
            self._remove(report, Recalls(rules=(rule,)), stored_before=rule.before)
        return report

    def _change(self, change: Callable[[Recalls], Recalls]) -> Recalls:
        shared = self.directory is None
        return change_recalls(self.objects, change, replace_damaged=self.replace_damaged, shared=shared)

    def _remove(
        self,
        report: RecallReport,
        recalls: Recalls,
        *,
        only: Iterable[str] | None = None,
        stored_before: float | None = None,
    ) -> None:
        for key in remove_recalled(self.store, recalls, only=only, stored_before=stored_before):
            report.removed.append(key)
            self.advance()

    def _empty(self, report: RecallReport, directory: Path) -> None:
        """Remove everything of a cache of one host: what XLA has of it, its quarantine, and in one step its entries.

        What a living process of XLA uses stays until it ends.
        """
        with contextlib.suppress(FileNotFoundError):
            alive = set(map(str, living(directory / _XLA[1] / _PRESENT)))
            names = itertools.chain.from_iterable(self.objects.walk(prefix) for prefix in (QUARANTINE, *_XLA))
            wanted = ((info.name, None) for info in names if alive.isdisjoint(info.name.split("/")))
            for _ in self.objects.delete_many(wanted):
                pass
        keys = [info.key for info in self.store.entries()]
        if isinstance(self.store, Clearable):
            self.store.clear()
        else:
            for key in keys:
                self.store.delete(key)
        report.removed += [key for key in keys if not is_side_key(key)]
        for _ in keys:
            self.advance()


def remove_recalled(
    store: Store, recalls: Recalls, *, only: Iterable[str] | None = None, stored_before: float | None = None
) -> Iterator[str]:
    """Remove the entries of a store that are recalled, each only if it still is the one that was looked at.

    Args:
        store: of the entries.
        recalls: what is recalled.
        only: the keys to look at; None for all.
        stored_before: what was stored before that by the storage's own clock goes, too, whatever its header says; in
            seconds since the epoch.

    Yields:
        The keys of those that were removed.

    Raises:
        StoreError: the store failed.
    """
    if isinstance(store, SharedStore):
        yield from _remove_objects(store.bucket, recalls, only, stored_before)
        return
    listed = ((info.key, info.created) for info in store.entries())
    for key, created in listed if only is None else ((key, float("inf")) for key in only):
        if not _is_to_look_at(recalls, key):
            continue
        is_old = stored_before is not None and created < stored_before
        if not is_old and _find_recalled(recalls, key, partial(_peek, store, key)) is None:
            continue
        data = store.peek(key)
        is_still = data is not None and (is_old or _find_recalled(recalls, key, lambda _, data=data: data))  # type: ignore[misc]
        if data is not None and is_still and store.quarantine(key, data, wrong=True):
            yield key


def _peek(store: Store, key: str, length: int | None) -> bytes | None:
    return store.peek(key, length=length)


def _remove_objects(
    objects: Bucket, recalls: Recalls, only: Iterable[str] | None, stored_before: float | None
) -> Iterator[str]:
    """Remove the entries of a bucket that are recalled: one request looks at each, and few remove them."""

    def look(item: tuple[str, str, float]) -> tuple[str, str] | None:
        key, version, created = item
        name = entry_name(key)
        if stored_before is not None and created < stored_before:
            return name, version

        def read(length: int | None) -> bytes | None:
            nonlocal version
            blob = objects.read(name, length=length)
            version = "" if blob is None else blob.version
            return None if blob is None else blob.data

        return None if _find_recalled(recalls, key, read) is None else (name, version)

    if only is None:
        listed = ((key_of_name(info.name), info.version, info.created) for info in objects.walk(ENTRIES))
        keys: Iterator[tuple[str, str, float]] = ((key, version, at) for key, version, at in listed if key is not None)
    else:
        keys = ((key, "", float("inf")) for key in only)
    wanted = (item for item in keys if _is_to_look_at(recalls, item[0]))
    for name in objects.delete_many(found for found in in_parallel(look, wanted) if found is not None):
        yield key_of_name(name) or name


def _is_to_look_at(recalls: Recalls, key: str) -> bool:
    """Return whether the entry can be recalled. Texts of programs explain misses, and nothing runs because of them."""
    return bool(recalls.rules or recalls.may_include(key)) and not is_text_key(key)


def _find_recalled(recalls: Recalls, key: str, read: Callable[[int | None], bytes | None]) -> bytes | None:
    """Return what was read of an entry that is recalled: all of it, or its beginning; None if it is not recalled."""
    lengths = (None,) if recalls.may_include(key) else (_HEADER_GUESS, None)
    for length in lengths:
        data = read(length)
        if data is None:
            return None
        with contextlib.suppress(EntryError):  # cut off; what is damaged nobody loads
            header = entry.decode_header(data)
            checksum = entry.checksum_of(data) if length is None else b""
            return data if recalls.condemns(Stamp(header.created, header.writer, checksum)) else None
    return None
