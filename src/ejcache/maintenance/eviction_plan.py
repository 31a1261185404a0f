"""The plan of what to delete from a cache by a policy: a pure function of entries, time and policy.

The rules of a policy, in the order in which they are applied:

1. `everything` deletes every entry, those in use too.
2. `name_glob` limits all rules below to the entries whose name matches; the other entries are neither deleted nor
   counted. Without any other rule, it deletes the entries that match.
3. `old_versions`, `older_than` and `unused_for` each judge one entry by itself. What any of them names is deleted.
4. `max_entries` and then `max_size` limit the rest: entries are deleted in the order of eviction until both hold.

The order of eviction is least recently used first, or with `by_cost` the order of what entries save; but what
is of no use while another entry is there goes before that one. The keys say of which entries that is so
(`keys.key.evicted_before`). An entry of which nobody has said what it is worth counts as the average of the others.

An old version is an entry whose key names another environment than the newest of its platform. The newest environment
of a platform is that of its most recently created entry. If several kinds of hosts share a cache, all but one kind
therefore count as old: select one with `name_glob`, or use another rule. A key that does not say its environment is
never an old version.

Some entries are never deleted by rules 2 to 4: those whose name matches `keep`, those used since `keep_used_since`, and
with `keep_pgle` those that PGLE made, its profiles included. They count for the limits.

A bucket may hold more entries than fit into memory. So they are sorted and judged in temporary tables on disk, from
which the plan is read.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ejcache.errors import SettingError
from ejcache.keys.parsing import evicted_before, is_made_by_pgle, parse_any_key
from ejcache.keys.side_keys import is_side_key, profiled_program
from ejcache.maintenance.temporary_tables import TemporaryTables, key_of_row, row_key
from ejcache.maintenance.worth import order_by_cost
from ejcache.stores.listing import EntryInfo
from ejcache.util.lifecycle import Closing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Reason(StrEnum):
    """The rule that deletes an entry."""

    NAME = "name"
    OLD_VERSION = "old_version"
    OLDER_THAN = "older_than"
    UNUSED_FOR = "unused_for"
    MAX_ENTRIES = "max_entries"
    MAX_SIZE = "max_size"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionPolicy:
    """What may stay in a cache.

    Attributes:
        everything: delete every entry, whatever the other attributes say.
        max_size: bytes of all entries; None for no limit.
        max_entries: number of entries; None for no limit.
        older_than: seconds after its creation at which an entry is deleted.
        unused_for: seconds after its last use at which an entry is deleted.
        name_glob: a case-sensitive shell pattern over names; None for all names.
        only: the keys that the rules apply to; None for all. Other entries are neither deleted nor counted.
        old_versions: delete entries of other environments than the newest of their platform.
        keep: case-sensitive shell patterns; no rule deletes an entry whose name matches one of them.
        keep_used_since: no rule deletes an entry used at or after this time, in seconds since the epoch.
        keep_pgle: no rule deletes optimised entries and profiles.
        by_cost: evict by what entries save (`worth.order_by_cost`).

    Raises:
        SettingError: a limit or an age is negative.
    """

    everything: bool = False
    max_size: int | None = None
    max_entries: int | None = None
    older_than: float | None = None
    unused_for: float | None = None
    name_glob: str | None = None
    only: frozenset[str] | None = None
    old_versions: bool = False
    keep: tuple[str, ...] = ()
    keep_used_since: float | None = None
    keep_pgle: bool = False
    by_cost: bool = False

    def __post_init__(self) -> None:
        for name in ("max_size", "max_entries", "older_than", "unused_for"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise SettingError(name, value, "0 or more")

    def keeps(self, entry: EntryInfo) -> bool:
        """True if the entry stays whatever the rules say."""
        if self.everything:
            return False
        if self.protects(entry):
            return True
        if self.keep and not is_side_key(entry.key):
            name = parse_any_key(entry.key).name
            if any(fnmatch.fnmatchcase(name, glob) for glob in self.keep):
                return True
        return self.keep_pgle and is_made_by_pgle(entry.key)

    def protects(self, entry: EntryInfo) -> bool:
        """True if the entry stays because it was used a short while ago."""
        if self.everything or self.keep_used_since is None:
            return False
        return entry.last_used >= self.keep_used_since

    @property
    def has_criterion(self) -> bool:
        """True if any rule is set; without a rule nothing is deleted."""
        return self.has_rule or self.name_glob is not None

    @property
    def has_rule(self) -> bool:
        """True if a rule other than the name is set."""
        rules = (self.max_size, self.max_entries, self.older_than, self.unused_for)
        return self.everything or self.old_versions or any(rule is not None for rule in rules)


@dataclass(frozen=True, slots=True)
class Deletion:
    """An entry to delete, and the rule that says so."""

    entry: EntryInfo
    reason: Reason


_SCHEMA: Final = """
    CREATE TABLE entries (
        key BLOB, size INTEGER, created REAL, used REAL, version TEXT, turn REAL,
        logical TEXT, profiled TEXT, chosen INTEGER, is_entry INTEGER, better INTEGER
    )
"""
_LIST: Final = "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)"
_CHOSEN: Final = "SELECT key, turn FROM entries WHERE chosen"
_WORSE: Final = "CREATE TABLE worse (key BLOB, turn REAL)"
"""The keys that go before an entry of the listing, and the turn of that."""
_LIST_WORSE: Final = "INSERT INTO worse VALUES (?, ?)"
_DERIVED: Final = (
    "UPDATE entries SET turn = ifnull((SELECT avg(turn) FROM entries), used) WHERE turn IS NULL",
    "CREATE INDEX programs ON entries (logical)",
    "CREATE INDEX worse_keys ON worse (key)",
    # A profile counts as used whenever its program is, because it is read only when the program is compiled again.
    """UPDATE entries SET
       used = max(used, ifnull((SELECT max(used) FROM entries AS own WHERE own.logical = entries.profiled), used)),
       turn = max(turn, ifnull((SELECT max(turn) FROM entries AS own WHERE own.logical = entries.profiled), turn))
       WHERE profiled != ''""",
    """UPDATE entries
        SET turn = min(turn, (SELECT min(turn) FROM worse WHERE worse.key = entries.key)),
            better = (SELECT count(*) FROM worse WHERE worse.key = entries.key)
        WHERE chosen AND key IN (SELECT key FROM worse)""",
)
_IN_ORDER: Final = """
    CREATE TABLE ordered AS SELECT is_entry, key, size, created, used, version FROM entries WHERE chosen
    ORDER BY turn, better DESC, created, key
"""
_DELETIONS: Final = "CREATE TABLE deletions (place INTEGER, reason TEXT)"
_DELETE: Final = "INSERT INTO deletions VALUES (?, ?)"
_PLANNED: Final = """
    SELECT key, size, created, used, version, reason
    FROM deletions JOIN ordered ON ordered.rowid = place ORDER BY deletions.rowid
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
        self._tables.insert(_LIST, map(self._row, entries))
        self._tables.run(_WORSE)
        self._tables.insert(_LIST_WORSE, self._worse())
        self._tables.run(*_DERIVED, _IN_ORDER, "DROP TABLE entries", "DROP TABLE worse", _DELETIONS)
        # What the rules for single entries leave, which the limits then judge.
        self._count_left = self._size_left = 0
        self._tables.insert(_DELETE, self._by_rules())
        self._tables.insert(_DELETE, self._by_limits())
        self.left -= self.entries
        self.left_size -= self.size

    def _row(self, entry: EntryInfo) -> tuple[object, ...]:
        # Texts, profiles and records take room, but are not entries that a person counts.
        is_entry = not is_side_key(entry.key)
        self.left += is_entry
        self.left_size += entry.size
        self.protected += is_entry and self._policy.protects(entry)
        parts, glob, only = parse_any_key(entry.key), self._policy.name_glob, self._policy.only
        if parts.environment:
            newest = self._newest.get(parts.platform, (0.0, ""))
            self._newest[parts.platform] = max(newest, (entry.created, parts.environment))
        chosen = (glob is None or fnmatch.fnmatchcase(parts.name, glob)) and (only is None or entry.key in only)
        used = entry.last_used
        turn = order_by_cost(entry, now=self._now) if self._policy.by_cost else used
        row = row_key(entry.key), entry.size, entry.created, used, entry.version, turn
        return *row, parts.logical, profiled_program(entry.key), chosen, is_entry

    def _worse(self) -> Iterator[tuple[object, float]]:
        for key, turn in self._tables.rows(_CHOSEN):
            for worse in evicted_before(key_of_row(key)):
                yield row_key(worse), turn

    def __iter__(self) -> Iterator[Deletion]:
        for key, *fields, reason in self._tables.rows(_PLANNED):
            yield Deletion(EntryInfo(key_of_row(key), *fields), Reason(reason))

    def _by_rules(self) -> Iterator[tuple[int, str]]:
        """Place and reason of the entries that a rule deletes by itself."""
        for place, entry, is_entry in self._in_order():
            reason = None if self._policy.keeps(entry) else self._reason(entry)
            if reason is None:
                self._count_left += is_entry
                self._size_left += entry.size
            else:
                yield self._count(place, entry, is_entry, reason)

    def _by_limits(self) -> Iterator[tuple[int, str]]:
        """Place and reason of the entries that are deleted until the limits hold."""
        count, size, limits = self._count_left, self._size_left, self._policy
        for place, entry, is_entry in self._in_order():
            too_many = limits.max_entries is not None and count > limits.max_entries
            too_large = limits.max_size is not None and size > limits.max_size
            if not too_many and not too_large:
                return
            if not (too_large or is_entry) or limits.keeps(entry) or self._reason(entry) is not None:
                continue
            count, size = count - is_entry, size - entry.size
            reason = Reason.MAX_ENTRIES if too_many and is_entry else Reason.MAX_SIZE
            yield self._count(place, entry, is_entry, reason)

    def _in_order(self) -> Iterator[tuple[int, EntryInfo, bool]]:
        """Yield in the order of eviction the place, the entry, and whether it is one that a person counts."""
        for place, is_entry, key, *fields in self._tables.rows("SELECT rowid, * FROM ordered ORDER BY rowid"):
            yield place, EntryInfo(key_of_row(key), *fields), bool(is_entry)

    def _count(self, place: int, entry: EntryInfo, is_entry: bool, reason: Reason) -> tuple[int, str]:  # noqa: FBT001
        self.count += 1
        self.size += entry.size
        self.entries += is_entry
        return place, reason

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
