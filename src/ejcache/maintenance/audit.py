"""Checks every entry and the structure of a store; where asked, it quarantines what is damaged.

An entry is read as a program would read it. `take_back` does the opposite of quarantine: it puts back what is intact.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from ejcache import entry
from ejcache.bucket.object_names import ENTRIES, key_of_name
from ejcache.errors import EntryError, EntryForeignError, EntryVersionError, StoreError, StoreReadOnlyError
from ejcache.keys.key import is_side_key
from ejcache.stores.shared.store import SharedStore
from ejcache.util.threads import in_parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ejcache.stores.base import EntryInfo, Store


class Problem(StrEnum):
    """The kind of damage to an entry, or to its store."""

    CORRUPT = "corrupt"
    """Truncated, changed, or never an entry."""
    FOREIGN = "foreign"
    """An intact entry, stored under another key than its own."""
    UNREADABLE = "unreadable"
    """The storage lists the entry and fails to return it."""
    STRUCTURE = "structure"
    """Damage of the store itself, as the store's own check describes it."""
    FOREIGN_NAME = "foreign_name"
    """A file among the entries whose name ejcache never gives. It does no harm, and is neither read nor deleted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem.

    Attributes:
        key: the entry's key; empty for a problem of the store itself.
        size: bytes of the entry.
        problem: its kind.
        detail: one sentence.
        repaired: the entry is quarantined, or the structure is repaired.
    """

    key: str
    size: int
    problem: Problem
    detail: str
    repaired: bool = False


@dataclass(slots=True)
class Audit:
    """The result of an audit.

    Attributes:
        entries: entries that were read.
        size: bytes of everything that was read.
        side_objects: texts, profiles and records beside the entries that were read, and `side_size` their bytes.
        findings: the problems.
        unknown_versions: intact entries of a format that this version does not read.
    """

    entries: int = 0
    size: int = 0
    side_objects: int = 0
    side_size: int = 0
    findings: list[Finding] = field(default_factory=list)
    unknown_versions: int = 0

    @property
    def clean(self) -> bool:
        """True if no problem is left that could harm a program."""
        return all(finding.repaired or finding.problem is Problem.FOREIGN_NAME for finding in self.findings)

    @property
    def unreadable(self) -> int:
        """The number of entries that the storage did not return."""
        return sum(finding.problem is Problem.UNREADABLE for finding in self.findings)


def audit(
    store: Store,
    entries: Iterable[EntryInfo],
    *,
    fix: bool = False,
    threads: int = 1,
    advance: Callable[[], None] = lambda: None,
) -> Audit:
    """Decode each of `entries`, and report those that are damaged. Last uses and counters do not change.

    Args:
        store: the store of the entries.
        entries: its listing; it is read one entry at a time, and nothing of it is kept.
        fix: quarantine damaged entries, so that the next compilation replaces them. An entry that was replaced after
            it was read stays.
        threads: entries that are read, and in memory, at once.
        advance: called after each entry.

    Raises:
        StoreReadOnlyError: `fix`, and the store is read-only.
    """

    def check(info: EntryInfo) -> _CheckedEntry:
        return replace(_check(store, info, fix=fix), is_entry=not is_side_key(info.key))

    return _gather(in_parallel(check, entries, threads=threads), advance)


@dataclass(frozen=True, slots=True)
class _CheckedEntry:
    """The result for one entry; `size` is None if it was gone."""

    size: int | None = None
    finding: Finding | None = None
    unknown_version: bool = False
    is_entry: bool = True


def _gather(checked: Iterable[_CheckedEntry], advance: Callable[[], None]) -> Audit:
    seen = Audit()
    for one in checked:
        if one.size is not None:
            seen.entries += one.is_entry
            seen.size += one.size
            seen.side_objects += not one.is_entry
            seen.side_size += 0 if one.is_entry else one.size
        seen.unknown_versions += one.unknown_version
        if one.finding is not None:
            seen.findings.append(one.finding)
        advance()
    return seen


def _check(store: Store, info: EntryInfo, *, fix: bool) -> _CheckedEntry:
    try:
        data = store.peek(info.key)
    except StoreError as exc:
        return _CheckedEntry(finding=Finding(info.key, info.size, Problem.UNREADABLE, str(exc)))
    if data is None:
        # It was deleted after it was listed.
        return _CheckedEntry()
    try:
        entry.decode(data, key=info.key)
        entry.decode_header(data)
    except EntryVersionError:
        return _CheckedEntry(len(data), unknown_version=True)
    except EntryError as exc:
        problem = Problem.FOREIGN if isinstance(exc, EntryForeignError) else Problem.CORRUPT
        repaired = fix and _repair(store, info.key, data)
        return _CheckedEntry(len(data), Finding(info.key, info.size, problem, str(exc), repaired=repaired))
    return _CheckedEntry(len(data))


def _repair(store: Store, key: str, data: bytes) -> bool:
    """Quarantine the damaged `data`; whether no program can be given it any more."""
    try:
        if store.quarantine(key, data):
            return True
        # Another process has deleted or replaced the entry since it was read.
        now = store.peek(key)
        if now is not None:
            entry.decode(now, key=key)
    except StoreReadOnlyError:
        raise
    except EntryVersionError:
        return True
    except (StoreError, EntryError):
        return False
    return True


def take_back(store: Store) -> int:
    """Put entries back that quarantine keeps and that are intact; return how many that was.

    Raises:
        StoreReadOnlyError: the store is read-only.
        StoreError: the storage failed.
    """
    return store.restore(_key_of_intact)


def _key_of_intact(data: bytes) -> str | None:
    try:
        return entry.decode(data).header.key
    except EntryError:
        return None


def audit_structure(store: Store, *, fix: bool = False) -> Audit:
    """Check the store's own structures, and, in a shared cache, look for files that are not ejcache's.

    Raises:
        StoreReadOnlyError: `fix`, and the store is read-only.
        StoreError: the storage failed.
    """
    if isinstance(store, SharedStore):
        foreign = (info for info in store.bucket.walk(ENTRIES) if key_of_name(info.name) is None)
        return Audit(
            findings=[
                Finding(
                    "", info.size, Problem.FOREIGN_NAME, f"{info.name!r} is not the name of an entry; it is ignored"
                )
                for info in foreign
            ]
        )
    problems = store.check(fix=fix)
    left = set(store.check()) if fix and problems else set(problems)
    return Audit(findings=[Finding("", 0, Problem.STRUCTURE, text, repaired=text not in left) for text in problems])
