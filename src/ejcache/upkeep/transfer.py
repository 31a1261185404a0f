"""Copying entries from one place to another: what is intact, and not there yet.

Broken off, it is simply done again: what has arrived is not copied a second time.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from ejcache import entry
from ejcache.errors import EntryError, EntryVersionError, StoreError, StoreReadOnlyError
from ejcache.keys.key import is_side_key
from ejcache.upkeep.names import describe_key
from ejcache.upkeep.parallel import THREADS, in_parallel

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ejcache.stores.base import EntryInfo

__all__ = ["Carry", "Selection", "Transferred", "transfer"]

_PATIENCE: Final = 5
"""Entries in a row that fail before the rest is not tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which entries are meant.

    Attributes:
        name_glob: a shell pattern over names, case counting; None for all.
        newer_than: seconds since creation, at most.
        used_within: seconds since the last use, at most.
    """

    name_glob: str | None = None
    newer_than: float | None = None
    used_within: float | None = None

    def of(self, entries: Iterable[EntryInfo], *, now: float) -> list[EntryInfo]:
        """Those of `entries` that are meant, the least recently used first.

        So a target that holds less than all keeps what was used last. The texts that explain entries come along with
        the whole only: nobody knows here whose they are.
        """
        whole = self == Selection()
        chosen = [info for info in entries if whole or (not is_side_key(info.key) and self._means(info, now))]
        return sorted(chosen, key=lambda info: (info.last_used, info.key))

    def _means(self, info: EntryInfo, now: float) -> bool:
        return (
            (self.name_glob is None or fnmatch.fnmatchcase(describe_key(info.key).name, self.name_glob))
            and (self.newer_than is None or now - info.created <= self.newer_than)
            and (self.used_within is None or now - info.last_used <= self.used_within)
        )


@dataclass(slots=True)
class Transferred:
    """What came of it.

    Attributes:
        copied: entries that were copied, `size` their bytes.
        already: entries that were there.
        gone: entries that somebody removed meanwhile.
        unknown_versions: intact entries of a format that this version does not read; they are not copied.
        damaged: keys of entries that are not intact, and what is wrong with them; they are not copied.
        failed: keys of entries that could not be read or written, and why.
        not_tried: entries that were left because too many failed before them.
    """

    copied: int = 0
    size: int = 0
    already: int = 0
    gone: int = 0
    unknown_versions: int = 0
    damaged: list[tuple[str, str]] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    not_tried: int = 0

    @property
    def complete(self) -> bool:
        """Whether everything that was meant, and is not removed, has arrived."""
        return not (self.damaged or self.failed or self.not_tried)


Carry = tuple[str, Callable[[], bytes | None]]
"""A key, and what reads its entry; None if it is gone."""


def transfer(
    entries: Iterable[Carry],
    *,
    write: Callable[[str, bytes], bool],
    threads: int = THREADS,
    advance: Callable[[], None] = lambda: None,
) -> Transferred:
    """Read, verify and write each of `entries`.

    Args:
        entries: what is meant.
        write: creates an entry, and answers False if there is one; called by several threads.
        threads: entries under way at once, each in memory.
        advance: called after each.

    Raises:
        StoreReadOnlyError: the target cannot be written to.
    """
    done = Transferred()
    failures = 0

    def carry(item: Carry) -> _Carried:
        return _Carried(item[0], _Fate.NOT_TRIED) if failures >= _PATIENCE else _carry(*item, write)

    for carried in in_parallel(carry, entries, threads=threads):
        if carried.fate is _Fate.FAILED:
            failures += 1
        elif carried.fate is not _Fate.NOT_TRIED:
            failures = 0
        _count(carried, done)
        advance()
    return done


class _Fate(Enum):
    COPIED = "copied"
    ALREADY = "already"
    GONE = "gone"
    UNKNOWN = "unknown"
    DAMAGED = "damaged"
    FAILED = "failed"
    NOT_TRIED = "not tried"


@dataclass(frozen=True, slots=True)
class _Carried:
    key: str
    fate: _Fate
    size: int = 0
    problem: str = ""


def _carry(key: str, read: Callable[[], bytes | None], write: Callable[[str, bytes], bool]) -> _Carried:
    try:
        data = read()
        if data is None:
            return _Carried(key, _Fate.GONE)
        entry.verify(data, key=key)
        return _Carried(key, _Fate.COPIED, len(data)) if write(key, data) else _Carried(key, _Fate.ALREADY)
    except EntryVersionError:
        return _Carried(key, _Fate.UNKNOWN)
    except EntryError as exc:
        return _Carried(key, _Fate.DAMAGED, problem=str(exc))
    except StoreReadOnlyError:
        raise
    except StoreError as exc:
        return _Carried(key, _Fate.FAILED, problem=str(exc))


def _count(carried: _Carried, done: Transferred) -> None:
    one = not is_side_key(carried.key)  # what lies beside an entry comes along uncounted
    match carried.fate:
        case _Fate.COPIED:
            done.copied += one
            done.size += carried.size
        case _Fate.ALREADY:
            done.already += one
        case _Fate.GONE:
            done.gone += one
        case _Fate.UNKNOWN:
            done.unknown_versions += one
        case _Fate.DAMAGED:
            done.damaged.append((carried.key, carried.problem))
        case _Fate.FAILED:
            done.failed.append((carried.key, carried.problem))
        case _Fate.NOT_TRIED:
            done.not_tried += one
