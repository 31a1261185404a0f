"""Copies entries from one cache to another: those that are intact and not there yet.

An interrupted copy is simply repeated: entries that have arrived are not copied again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ejcache import entry
from ejcache.errors import EntryError, EntryVersionError, InvalidKeyError, StoreError, StoreReadOnlyError
from ejcache.keys.key import is_side_key, parse_any_key
from ejcache.maintenance.listed_entries import EntryTable
from ejcache.maintenance.recalls import NOTHING, Recalls, stamp_of
from ejcache.util.patterns import fits
from ejcache.util.store_keys import check_key
from ejcache.util.threads import THREADS, in_parallel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ejcache.stores.base import EntryInfo


_PATIENCE: Final = 5
"""Entries in a row that fail before the others are not tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which entries to copy.

    Attributes:
        name_glob: a case-sensitive shell pattern over names; None for all names.
        newer_than: seconds since creation, at most.
        used_within: seconds since the last use, at most.
    """

    name_glob: str | None = None
    newer_than: float | None = None
    used_within: float | None = None

    def includes(self, info: EntryInfo, *, now: float) -> bool:
        """True if the entry is copied. Texts, profiles and records come along only if everything is copied, because
        their keys do not say which entries they belong to.
        """
        if self == Selection():
            return True
        return (
            not is_side_key(info.key)
            and fits(parse_any_key(info.key).name, self.name_glob)
            and (self.newer_than is None or now - info.created <= self.newer_than)
            and (self.used_within is None or now - info.last_used <= self.used_within)
        )


class CopyPlan:
    """The entries to copy, the least recently used first: iterate over it, as often as needed.

    A target that cannot hold all of them therefore keeps those used last.

    Args:
        listed: the listing of the source.
        have: the keys that the target has.
        selection: which entries to copy.
        now: seconds since the epoch.

    Attributes:
        count: objects to copy; `entries` of them are entries, and `size` is the bytes of all of them.
        already: selected entries that the target has.
    """

    def __init__(self, listed: Iterable[EntryInfo], have: Iterable[str], *, selection: Selection, now: float) -> None:
        self._rows = EntryTable()
        self.entries = self.already = 0
        there = set(have)
        for info in listed:
            if selection.includes(info, now=now):
                if info.key in there:
                    self.already += not is_side_key(info.key)
                else:
                    self.entries += not is_side_key(info.key)
                    self._rows.add(info)
        self.count = len(self._rows)
        self.size = sum(self._rows.sizes)
        self._order = sorted(range(self.count), key=self._rows.keys.__getitem__)
        self._order.sort(key=self._rows.used.__getitem__)

    def __iter__(self) -> Iterator[EntryInfo]:
        return map(self._rows.__getitem__, self._order)


@dataclass(slots=True)
class TransferResult:
    """The result of `transfer`. Texts, profiles and records are copied too, but only entries are counted.

    Attributes:
        copied: entries that were copied, and `size` the bytes of everything that was copied.
        already: entries that the target had.
        gone: entries that somebody deleted meanwhile.
        unknown_versions: intact entries of a format that this version does not read; they are not copied.
        recalled: entries that the target has recalled, by what their headers say; they are not copied.
        damaged: keys of damaged entries, and their damage; they are not copied.
        failed: keys of entries that could not be read or written, and why.
        not_tried: entries that were not tried because too many before them had failed.
    """

    copied: int = 0
    size: int = 0
    already: int = 0
    gone: int = 0
    unknown_versions: int = 0
    recalled: int = 0
    damaged: list[tuple[str, str]] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    not_tried: int = 0

    @property
    def complete(self) -> bool:
        """True if every selected entry that still exists has arrived."""
        return not (self.damaged or self.failed or self.not_tried)


EntryReader = tuple[str, Callable[[], bytes | None]]
"""A key, and a function that reads its entry; the function returns None if the entry is gone."""


def transfer(
    entries: Iterable[EntryReader],
    *,
    write: Callable[[str, bytes], bool],
    recalls: Recalls = NOTHING,
    threads: int = THREADS,
    advance: Callable[[], None] = lambda: None,
) -> TransferResult:
    """Read, verify and write each of `entries`. One that is damaged, or has a key that no store can hold, is reported,
    and the others are copied.

    Args:
        entries: what to copy.
        write: creates an entry, and returns False if there is one; several threads call it.
        recalls: what the target has recalled, which is not brought back.
        threads: entries in memory at once.
        advance: called after each entry.

    Raises:
        StoreReadOnlyError: the target cannot be written to.
    """
    done = TransferResult()
    failures = 0

    def copy(item: EntryReader) -> tuple[str, str, str | int]:
        return (item[0], "not_tried", "") if failures >= _PATIENCE else (item[0], *_copy(*item, write, recalls))

    for key, outcome, detail in in_parallel(copy, entries, threads=threads):
        failures = failures + 1 if outcome == "failed" else failures if outcome == "not_tried" else 0
        if outcome in ("damaged", "failed"):
            getattr(done, outcome).append((key, detail))
        else:
            setattr(done, outcome, getattr(done, outcome) + (not is_side_key(key)))
            done.size += int(detail or 0)
        advance()
    return done


def _copy(
    key: str, read: Callable[[], bytes | None], write: Callable[[str, bytes], bool], recalls: Recalls
) -> tuple[str, str | int]:
    """Copy an entry; return the counter of `TransferResult` for it, with the error or the bytes copied."""
    try:
        check_key(key)
        data = read()
        if data is None:
            return "gone", ""
        if recalls.keeps_out(stamp_of(entry.verify(data, key=key), data)):
            return "recalled", ""
        return ("copied", len(data)) if write(key, data) else ("already", "")
    except EntryVersionError:
        return "unknown_versions", ""
    except (EntryError, InvalidKeyError) as exc:
        return "damaged", str(exc)
    except StoreReadOnlyError:
        raise
    except StoreError as exc:
        return "failed", str(exc)
