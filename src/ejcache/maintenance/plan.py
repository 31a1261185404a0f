"""Which entries to delete, and in which order: a pure function of entries, the time and an `EvictionPolicy`.

The rules of a policy, in the order in which they are applied:

1. `everything` deletes every entry, pinned ones and those in use too.
2. `name_glob` limits all rules below to the entries whose name matches; the other entries are neither deleted nor
   counted. Without any other rule, it deletes the entries that match.
3. `old_versions`, `older_than` and `unused_for` each judge one entry by itself. What any of them names is deleted.
4. `max_entries` and then `max_size` limit the rest: entries are deleted in the order of eviction until both hold.

The order of eviction is least recently used first, except that a plain entry goes before its PGLE sibling: the same
program, compiled in the same environment, with a profile of itself. The PGLE entry serves every user of the plain one.

An old version is an entry whose key names another environment than the newest of its platform. The newest environment
of a platform is that of its most recently created entry. If several kinds of hosts share a cache, all but one kind
therefore count as old: select one with `name_glob`, or use another rule. A key that does not say its environment is
never an old version.

Some entries are never deleted by rules 2 to 4: those of `keep`, those used since `keep_used_since`, and with
`keep_pgle` those that PGLE made, its profiles included. They count for the limits.

A bucket may hold more entries than fit into memory. So the entries are sorted in a temporary table on disk, and the
plan is read from there.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ejcache.keys.key import PGLE, PLAIN, PROFILING, is_side_key, parse_any_key, profiled_program
from ejcache.maintenance.policy import Reason
from ejcache.maintenance.tables import TemporaryTables, key_of_row, row_key
from ejcache.stores.base import EntryInfo
from ejcache.util.lifecycle import Closing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ejcache.maintenance.policy import EvictionPolicy

__all__ = ["Deletion", "EvictionPlan"]


@dataclass(frozen=True, slots=True)
class Deletion:
    """An entry to delete, and the rule that says so."""

    entry: EntryInfo
    reason: Reason


_SCHEMA: Final = """
    CREATE TABLE entries (
        key BLOB, size INTEGER, created REAL, used REAL, version TEXT, turn REAL,
        logical TEXT, environment TEXT, profiled TEXT, plain INTEGER, optimised INTEGER, chosen INTEGER
    )
"""
_DERIVED: Final = (
    "CREATE INDEX programs ON entries (logical, environment)",
    # A profile counts as used whenever its program is, because it is read only when the program is compiled again.
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
    CREATE TABLE ordered AS SELECT key, size, created, used, version FROM entries WHERE chosen
    ORDER BY turn, NOT plain, created, key
"""


class EvictionPlan(Closing):
    """The deletions, in the order in which to carry them out: iterate over the plan, as often as needed.

    If only the first part of a plan is carried out, the rest of it still makes sense.

    Args:
        entries: the listing of a cache.
        now: seconds since the epoch; an entry from the future has no age.
        policy: what may stay.

    Attributes:
        count: deletions; `entries` of them are entries, and `size` is the number of bytes they free.
        left: entries that stay, and `left_size` the bytes of them and of the texts, profiles and records beside them.
        protected: entries that stay because they were used a short while ago.

    Raises:
        StoreError: there is no room for temporary files.
    """

    def __init__(self, entries: Iterable[EntryInfo], *, now: float, policy: EvictionPolicy) -> None:
        self._now = now
        self._policy = policy
        self._tables = TemporaryTables(_SCHEMA)
        self.count = self.entries = self.size = self.left = self.left_size = self.protected = 0
        self._newest: dict[str, tuple[float, str]] = {}
        self._tables.insert("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", map(self._row, entries))
        self._tables.run(*_DERIVED, _IN_ORDER, "DROP TABLE entries")
        # What the rules for single entries leave, which the limits then judge.
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

    def _row(self, entry: EntryInfo) -> tuple[object, ...]:
        self.left += not is_side_key(entry.key)
        self.left_size += entry.size
        self.protected += self._policy.protects(entry) and not is_side_key(entry.key)
        parts, glob, only = parse_any_key(entry.key), self._policy.name_glob, self._policy.only
        if parts.environment:
            newest = self._newest.get(parts.platform, (0.0, ""))
            self._newest[parts.platform] = max(newest, (entry.created, parts.environment))
        chosen = (glob is None or fnmatch.fnmatchcase(parts.name, glob)) and (only is None or entry.key in only)
        program = parts.logical, parts.environment, profiled_program(entry.key)
        variant = parts.variant in {PLAIN, PROFILING}, parts.variant == PGLE
        used = entry.last_used
        return row_key(entry.key), entry.size, entry.created, used, entry.version, used, *program, *variant, chosen

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
            # Texts, profiles and records take room, but are not entries that a person counts.
            is_entry = not is_side_key(entry.key)
            if reason is not None or kept or not (too_large or is_entry):
                continue
            yield Deletion(entry, Reason.MAX_ENTRIES if too_many and is_entry else Reason.MAX_SIZE)
            count, size = count - is_entry, size - entry.size

    def _judged(self) -> Iterator[tuple[EntryInfo, Reason | None, bool]]:
        """In the order of eviction: an entry, the rule that deletes it, and whether it is kept from all rules."""
        for key, *fields in self._tables.rows("SELECT * FROM ordered ORDER BY rowid"):
            entry = EntryInfo(key_of_row(key), *fields)
            kept = self._policy.keeps(entry)
            yield entry, None if kept else self._reason(entry), kept

    def _reason(self, entry: EntryInfo) -> Reason | None:
        policy = self._policy
        if policy.everything:
            return Reason.ALL
        if policy.old_versions:
            parts = parse_any_key(entry.key)
            if parts.environment and self._newest[parts.platform][1] != parts.environment:
                return Reason.OLD_VERSION
        if policy.older_than is not None and self._now - entry.created > policy.older_than:
            return Reason.OLDER_THAN
        if policy.unused_for is not None and self._now - entry.last_used > policy.unused_for:
            return Reason.UNUSED_FOR
        return Reason.NAME if policy.name_glob is not None and not policy.has_rule else None

    def close(self) -> None:
        """Delete the temporary table; this also happens when the last reference disappears."""
        self._tables.close()
