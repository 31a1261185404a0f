"""Reading every entry as a program would, and setting aside what no program should be given."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from ejcache import entry
from ejcache.errors import EntryError, EntryForeignError, EntryVersionError, StoreError, StoreReadOnlyError
from ejcache.keys.key import is_side_key
from ejcache.upkeep.abilities import Checkable
from ejcache.upkeep.parallel import in_parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ejcache.stores.base import EntryInfo, Store
    from ejcache.stores.jaxdir import JaxEntries

__all__ = ["Audit", "Finding", "Problem", "audit", "audit_jax_directory", "audit_structure"]


class Problem(StrEnum):
    """What is wrong with an entry."""

    CORRUPT = "corrupt"
    """Truncated, flipped, or never an entry."""
    FOREIGN = "foreign"
    """An intact entry, under another key than its own."""
    UNREADABLE = "unreadable"
    """The storage lists it and cannot give it."""
    STRUCTURE = "structure"
    """Something about the store itself, as the store's own check words it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        key: the entry; empty for the store itself.
        size: bytes of the entry.
        problem: what kind.
        detail: one sentence.
        repaired: whether it is out of use now.
    """

    key: str
    size: int
    problem: Problem
    detail: str
    repaired: bool = False


@dataclass(slots=True)
class Audit:
    """What an audit saw.

    Attributes:
        entries: how many were read; the texts and profiles beside them are read too, and not counted.
        size: the bytes of all that was read.
        findings: what is wrong.
        unknown_versions: intact entries of a format that this version does not read; nothing is wrong with them.
    """

    entries: int = 0
    size: int = 0
    findings: list[Finding] = field(default_factory=list)
    unknown_versions: int = 0

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong, or nothing any more."""
        return all(finding.repaired for finding in self.findings)


def audit(
    store: Store,
    entries: Iterable[EntryInfo],
    *,
    fix: bool = False,
    threads: int = 1,
    advance: Callable[[], None] = lambda: None,
) -> Audit:
    """Decode each of `entries`, and report those that are damaged.

    Args:
        store: where they are; recency and counters are left alone.
        entries: its listing. What is removed or replaced meanwhile by others is judged as it is when it is read.
        fix: take damaged entries out of use (the next compilation replaces them). An entry that somebody replaced
            after it was read stays.
        threads: how many entries are read at once; each is in memory meanwhile.
        advance: called after each.

    Raises:
        StoreReadOnlyError: `fix`, and the store is read-only.
    """

    def check(info: EntryInfo) -> _Checked:
        return replace(_check(store, info, fix=fix), is_entry=not is_side_key(info.key))

    return _gather(in_parallel(check, entries, threads=threads), advance)


@dataclass(frozen=True, slots=True)
class _Checked:
    """What became of one entry; `size` is None if there was nothing to read."""

    size: int | None = None
    finding: Finding | None = None
    unknown_version: bool = False
    is_entry: bool = True


def _gather(checked: Iterable[_Checked], advance: Callable[[], None]) -> Audit:
    seen = Audit()
    for one in checked:
        if one.size is not None:
            seen.entries += one.is_entry
            seen.size += one.size
        seen.unknown_versions += one.unknown_version
        if one.finding is not None:
            seen.findings.append(one.finding)
        advance()
    return seen


def _check(store: Store, info: EntryInfo, *, fix: bool) -> _Checked:
    try:
        data = store.peek(info.key)
    except StoreError as exc:
        return _Checked(finding=Finding(info.key, info.size, Problem.UNREADABLE, str(exc)))
    if data is None:
        # Gone since it was listed; a store whose index still names it says so in its own check.
        return _Checked()
    try:
        entry.decode(data, key=info.key)
    except EntryVersionError:
        return _Checked(len(data), unknown_version=True)
    except EntryError as exc:
        problem = Problem.FOREIGN if isinstance(exc, EntryForeignError) else Problem.CORRUPT
        repaired = fix and _repair(store, info.key, data)
        return _Checked(len(data), Finding(info.key, info.size, problem, str(exc), repaired=repaired))
    return _Checked(len(data))


def _repair(store: Store, key: str, data: bytes) -> bool:
    """Whether the damaged `data` is out of use now."""
    try:
        if store.quarantine(key, data):
            return True
        # Not these bytes any more: somebody else removed or replaced them since they were read.
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


def audit_structure(store: Store, *, fix: bool = False) -> Audit:
    """What the store finds wrong with its own structures, if it is one that can look.

    Raises:
        StoreReadOnlyError: `fix`, and the store is read-only.
    """
    if not isinstance(store, Checkable):
        return Audit()
    problems = store.check(fix=fix)
    left = set(store.check()) if fix and problems else set(problems)
    return Audit(findings=[Finding("", 0, Problem.STRUCTURE, text, repaired=text not in left) for text in problems])


def audit_jax_directory(
    directory: JaxEntries,
    entries: Iterable[EntryInfo],
    *,
    fix: bool = False,
    threads: int = 1,
    advance: Callable[[], None] = lambda: None,
) -> Audit:
    """Decompress each of `entries`, and report those that JAX could not read either.

    Args:
        directory: where they are.
        entries: its listing.
        fix: remove damaged entries, which JAX itself never replaces.
        threads: how many are read at once.
        advance: called after each.
    """

    def check(info: EntryInfo) -> _Checked:
        try:
            gone = directory.compile_seconds(info.key) is None  # evicted since it was listed
        except EntryError as exc:
            repaired = fix and (directory.delete(info.key) or True)
            return _Checked(finding=Finding(info.key, info.size, Problem.CORRUPT, str(exc), repaired=repaired))
        except StoreError as exc:
            return _Checked(finding=Finding(info.key, info.size, Problem.UNREADABLE, str(exc)))
        return _Checked(None if gone else info.size)

    return _gather(in_parallel(check, entries, threads=threads), advance)
