"""What to evict, as a pure function: entries, the time now and a policy in, an ordered list of deletions out.

The rules of a `Policy`, in the order in which they are applied:

1. `name_glob` narrows everything below to the entries whose name matches; the others are neither removed nor counted.
   With no other rule it removes what it matches.
2. `old_versions`, `older_than` and `unused_for` each judge one entry at a time; what any of them names goes.
3. `max_entries` and then `max_size` are limits on what is left: entries go in the order of eviction until they hold.

The order of eviction is least recently used first, except that a plain entry goes before its PGLE sibling (the same
program, compiled by the same environment, with a profile of itself), which serves whoever would use the plain one.

An old version is an entry whose key names another environment than the newest one of its platform. The newest
environment of a platform is the one of its most recently created entry, by the creation times in the listing. So on
storage that several kinds of hosts share, all kinds but one count as old: name them with `--name`, or use another rule.
Keys that do not say their environment are never old versions.

Entries of `keep` are never removed, nor what was used since `keep_used_since`, nor with `keep_pgle` what PGLE made, its
profiles included; they count for the limits.

A bucket may have more entries than fit into memory, so they are put in order on disk, and a plan is read from there.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from ejcache.keys.key import PGLE, PLAIN, PROFILING, is_side_key, profiled_program
from ejcache.stores.base import EntryInfo
from ejcache.upkeep.names import describe_key
from ejcache.upkeep.policy import Reason
from ejcache.upkeep.table import TemporaryTables, key_of_row, row_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from ejcache.keys.key import KeyParts
    from ejcache.upkeep.policy import Policy

__all__ = ["Deletion", "Plan", "newest_environments", "plan"]


@dataclass(frozen=True, slots=True)
class Deletion:
    """One entry that is to go, and the rule that says so."""

    entry: EntryInfo
    reason: Reason


_SCHEMA: Final = """
    CREATE TABLE entries (
        key BLOB, size INTEGER, created REAL, used REAL, turn REAL, logical TEXT, environment TEXT, profiled TEXT,
        plain INTEGER, optimised INTEGER, chosen INTEGER
    )
"""
_DERIVED: Final = (
    "CREATE INDEX programs ON entries (logical, environment)",
    # A profile is used whenever its program is: nobody reads it until it is needed.
    """UPDATE entries
       SET used = max(used, ifnull((SELECT max(used) FROM entries AS own WHERE own.logical = entries.profiled), used))
       WHERE profiled != ''""",
    "UPDATE entries SET turn = used WHERE profiled != ''",
    """UPDATE entries
        SET turn = min(used, ifnull((
            SELECT min(used) FROM entries AS own
            WHERE own.logical = entries.logical AND own.environment = entries.environment
                AND own.optimised AND own.chosen
        ), used))
        WHERE plain AND chosen""",
)
_IN_ORDER: Final = """
    CREATE TABLE ordered AS SELECT key, size, created, used FROM entries WHERE chosen
    ORDER BY turn, NOT plain, created, key
"""


class Plan:
    """What is to be removed, in the order in which to remove it: iterate over it, as often as needed.

    Stopping halfway leaves a store on which the rest of the plan still makes sense.

    Attributes:
        count: deletions, `entries` how many of them are of entries, and `size` the bytes of what they remove.
        left: entries that stay, without what is kept beside entries, and `left_size` the bytes of all that stays.
        protected: entries that stay because they were used lately.
    """

    def __init__(self, entries: Iterable[EntryInfo], *, now: float, policy: Policy) -> None:
        self._now = now
        self._policy = policy
        self._tables = TemporaryTables(_SCHEMA)
        self.count = self.entries = self.size = self.left = self.left_size = self.protected = 0
        newest = _Newest()
        self._tables.insert(
            "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (self._row(entry, newest) for entry in entries),
        )
        self._environments = newest.environments
        self._tables.run(*_DERIVED, _IN_ORDER, "DROP TABLE entries")
        # What no rule removes, and the limits are for.
        self._count_left = self._size_left = 0
        for entry, reason, _ in self._judged():
            if reason is None:
                self._count_left += not is_side_key(entry.key)
                self._size_left += entry.size
        for deletion in self:
            self.count += 1
            self.size += deletion.entry.size
            self.entries += not is_side_key(deletion.entry.key)
        self.left -= self.entries
        self.left_size -= self.size

    def _row(self, entry: EntryInfo, newest: _Newest) -> tuple[object, ...]:
        self.left += not is_side_key(entry.key)
        self.left_size += entry.size
        self.protected += self._policy.protects(entry) and not is_side_key(entry.key)
        parts, glob = describe_key(entry.key), self._policy.name_glob
        newest.see(entry, parts)
        chosen = glob is None or fnmatch.fnmatchcase(parts.name, glob)
        program = parts.logical, parts.environment, profiled_program(entry.key)
        variant = parts.variant in {PLAIN, PROFILING}, parts.variant == PGLE
        used = entry.last_used
        return row_key(entry.key), entry.size, entry.created, used, used, *program, *variant, chosen

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Deletion]:
        for entry, reason, _ in self._judged():
            if reason is not None:
                yield Deletion(entry, reason)
        count, size, limits = self._count_left, self._size_left, self._policy
        for entry, reason, kept in self._judged():
            too_many = limits.max_entries is not None and count > limits.max_entries
            too_large = limits.max_size is not None and size > limits.max_size
            if not too_many and not too_large:
                return
            # A text kept for explanations takes room, but is no entry that a person counts.
            is_entry = not is_side_key(entry.key)
            if reason is not None or kept or not (too_large or is_entry):
                continue
            yield Deletion(entry, Reason.MAX_ENTRIES if too_many and is_entry else Reason.MAX_SIZE)
            count, size = count - is_entry, size - entry.size

    def _judged(self) -> Iterator[tuple[EntryInfo, Reason | None, bool]]:
        """In the order of eviction: an entry, which rule removes it, and whether it is kept from all of them."""
        for key, size, created, used in self._tables.rows(
            "SELECT key, size, created, used FROM ordered ORDER BY rowid"
        ):
            entry = EntryInfo(key_of_row(key), size, created, used)
            kept = self._policy.keeps(entry)
            yield entry, None if kept else self._reason(entry), kept

    def _reason(self, entry: EntryInfo) -> Reason | None:
        policy = self._policy
        if policy.old_versions:
            parts = describe_key(entry.key)
            if parts.environment and self._environments[parts.platform] != parts.environment:
                return Reason.OLD_VERSION
        if policy.older_than is not None and self._now - entry.created > policy.older_than:
            return Reason.OLDER_THAN
        if policy.unused_for is not None and self._now - entry.last_used > policy.unused_for:
            return Reason.UNUSED_FOR
        return Reason.NAME if policy.name_glob is not None and not policy.has_rule else None

    def close(self) -> None:
        """Forget it; a plan that is not closed is forgotten with its last reference."""
        self._tables.close()


def plan(entries: Iterable[EntryInfo], *, now: float, policy: Policy) -> Plan:
    """What `policy` removes of `entries`.

    Args:
        entries: a store's listing.
        now: seconds since the epoch; a time in the future counts as no age at all.
        policy: see this module.

    Raises:
        StoreError: there is no room for temporary files.
    """
    return Plan(entries, now=now, policy=policy)


def newest_environments(entries: Iterable[EntryInfo]) -> dict[str, str]:
    """The environment of the most recently created entry of each platform, over keys that say theirs."""
    newest = _Newest()
    for entry in entries:
        newest.see(entry, describe_key(entry.key))
    return newest.environments


class _Newest:
    def __init__(self) -> None:
        self._newest: dict[str, tuple[float, str]] = {}

    def see(self, entry: EntryInfo, parts: KeyParts) -> None:
        if parts.environment:
            newest = self._newest.get(parts.platform, (0.0, ""))
            self._newest[parts.platform] = max(newest, (entry.created, parts.environment))

    @property
    def environments(self) -> dict[str, str]:
        return {platform: environment for platform, (_, environment) in self._newest.items()}
