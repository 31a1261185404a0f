"""A recall: what is recalled is written down first, and removed then.

A command that is killed in between has recalled it all the same: whoever reads what is written down loads none of it.
The same command again removes the rest.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from ejcache import entry, entry_encoding
from ejcache.bucket.object_names import ENTRIES, entry_name, key_of_name
from ejcache.errors import EntryError
from ejcache.keys.side_keys import is_text_key
from ejcache.maintenance.recalls import Recalls, Rule, Stamp, digests_of
from ejcache.maintenance.stored_policy import change_recalls
from ejcache.stores.shared.store import SharedStore
from ejcache.util.parallel import in_parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ejcache.bucket.base import Bucket
    from ejcache.stores.base import Store

_HEADER_GUESS: Final = 8192
"""Bytes that hold nearly every header; a longer one is read again in full."""


@dataclass(slots=True)
class RecallReport:
    """What a recall has done.

    Attributes:
        number: of the recall; 0 if there was nothing to recall.
        removed: the keys of the entries that were removed.
        absent: keys that were named and have no entry.
    """

    number: int = 0
    removed: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)


def recall_entries(
    store: Store, objects: Bucket, keys: Iterable[str], *, now: float, advance: Callable[[], None] = lambda: None
) -> RecallReport:
    """Recall the entries under these keys, as their bytes are now.

    Args:
        store: of the cache.
        objects: where its policy is.
        keys: of the entries.
        now: seconds since 1970.
        advance: called after each entry.

    Raises:
        EntryError: what is recalled already is of a later version.
        StoreError: the storage failed; the same call goes on with what is left.
    """
    report, found = RecallReport(), {}
    for key in keys:
        data = store.peek(key)
        if data is None:
            report.absent.append(key)
        else:
            found[key] = data
    if not found:
        return report
    digests = [digests_of(key, entry.checksum_of(data)) for key, data in found.items()]
    recalls = change_recalls(objects, lambda known: known.with_entries(digests, known.next_number(now)))
    report.number = recalls.number
    for key in remove_recalled(store, recalls, only=found):
        report.removed.append(key)
        advance()
    return report


def recall_by_rule(
    store: Store, objects: Bucket, rule: Rule, *, now: float, advance: Callable[[], None] = lambda: None
) -> RecallReport:
    """Recall what `rule` says, whose number is given here; arguments and errors are those of `recall_entries`."""

    def with_rule(known: Recalls) -> Recalls:
        return known.with_rule(rule._replace(number=known.next_number(now), unfinished=True))

    recalls = change_recalls(objects, with_rule)
    begun = next(each for each in recalls.rules if each.unfinished and each.is_like(rule))
    report = RecallReport(number=begun.number)
    for key in remove_recalled(store, Recalls(begun.number, rules=(begun,))):
        report.removed.append(key)
        advance()
    change_recalls(objects, lambda known: known.finished(begun))
    return report


def remove_recalled(store: Store, recalls: Recalls, *, only: Iterable[str] | None = None) -> Iterator[str]:
    """Remove the entries of a store that are recalled, each only if it still is the one that was looked at.

    Args:
        store: of the entries.
        recalls: what is recalled.
        only: the keys to look at; None for all.

    Yields:
        The keys of those that were removed.

    Raises:
        StoreError: the store failed.
    """
    if isinstance(store, SharedStore):
        yield from _remove_objects(store.bucket, recalls, only)
        return
    for key in _to_look_at(recalls, (info.key for info in store.entries()) if only is None else only):
        if _find_recalled(recalls, key, partial(_peek, store, key)) is None:
            continue
        data = store.peek(key)
        is_still = data is not None and _find_recalled(recalls, key, lambda _, data=data: data)  # type: ignore[misc]
        if data is not None and is_still and store.quarantine(key, data, wrong=True):
            yield key


def _peek(store: Store, key: str, length: int | None) -> bytes | None:
    return store.peek(key, length=length)


def _remove_objects(objects: Bucket, recalls: Recalls, only: Iterable[str] | None) -> Iterator[str]:
    """Remove the entries of a bucket that are recalled: one request looks at each, and few remove them."""
    keys = (key_of_name(info.name) for info in objects.walk(ENTRIES)) if only is None else only

    def look(key: str) -> tuple[str, str] | None:
        name, version = entry_name(key), ""

        def read(length: int | None) -> bytes | None:
            nonlocal version
            blob = objects.read(name, length=length)
            version = "" if blob is None else blob.version
            return None if blob is None else blob.data

        return None if _find_recalled(recalls, key, read) is None else (name, version)

    wanted = _to_look_at(recalls, (key for key in keys if key is not None))
    for name in objects.delete_many(found for found in in_parallel(look, wanted) if found is not None):
        yield key_of_name(name) or name


def _to_look_at(recalls: Recalls, keys: Iterable[str]) -> Iterator[str]:
    """Leave out what cannot be recalled. Texts of programs explain misses, and nothing runs because of them."""
    return (key for key in keys if (recalls.rules or recalls.may_include(key)) and not is_text_key(key))


def _find_recalled(recalls: Recalls, key: str, read: Callable[[int | None], bytes | None]) -> bytes | None:
    """Return what was read of an entry that is recalled: all of it, or its beginning; None if it is not recalled."""
    lengths = (None,) if recalls.may_include(key) else (_HEADER_GUESS, None)
    for length in lengths:
        data = read(length)
        if data is None:
            return None
        with contextlib.suppress(EntryError):  # cut off; what is damaged nobody loads
            header = entry_encoding.decode_header(data)
            checksum = entry.checksum_of(data) if length is None else b""
            stamp = Stamp(header.created, header.writer, header.recall, checksum)
            return data if recalls.includes(stamp) else None
    return None
