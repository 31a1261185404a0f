"""Plans what to delete from a cache by a policy, as a pure function of entries, time and policy.

The rules of a policy, in the order in which they are applied:

1. `everything` deletes every entry, those in use too.
2. `name_glob` limits all rules below to the entries whose name matches; the other entries are neither deleted nor
   counted. Without any other rule, it deletes the entries that match.
3. `old_versions`, `older_than` and `unused_for` each judge one entry by itself. What any of them names is deleted.
4. `max_entries` and then `max_size` limit the rest: entries are deleted in the order of eviction until both hold.

The order of eviction is least recently used first, or with `by_cost` the order of what entries save; but what
is of no use while another entry is there goes before that one. The keys say of which entries that is so
(`keys.variants.evicted_before`). An entry of which nobody has said what it is worth counts as the average of the
others.

An old version is an entry whose key names another environment than the newest of its platform. The newest environment
of a platform is that of its most recently created entry. If several kinds of hosts share a cache, all but one kind
therefore count as old: select one with `name_glob`, or use another rule. A key that does not say its environment is
never an old version.

Some entries are never deleted by rules 2 to 4: those whose name matches `keep`, those used since `keep_used_since`, and
with `keep_pgle` those that PGLE made, its profiles included. They count for the limits.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from ejcache.errors import SettingError
from ejcache.keys.key import is_side_key, parse_any_key, profiled_program
from ejcache.keys.variants import evicted_before, is_made_by_pgle
from ejcache.maintenance.listed_entries import EntryTable
from ejcache.stores.worth import order_by_cost
from ejcache.util.patterns import fits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ejcache.stores.base import EntryInfo


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
            if any(fits(name, glob) for glob in self.keep):
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


class EvictionPlan:
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
    """

    def __init__(self, entries: Iterable[EntryInfo], *, now: float, policy: EvictionPolicy) -> None:
        self._now = now
        self._policy = policy
        self._rows = EntryTable(entries)
        self._newest: dict[str, tuple[float, str]] = {}
        self._deleted = array("q")
        self._reasons: list[Reason] = []
        self.entries = self.size = self.left = self.left_size = self.protected = 0
        self._plan()
        self.count = len(self._deleted)
        self.left -= self.entries
        self.left_size -= self.size

    def __iter__(self) -> Iterator[Deletion]:
        for number, reason in zip(self._deleted, self._reasons, strict=True):
            yield Deletion(self._rows[number], reason)

    def _plan(self) -> None:
        rows, policy = self._rows, self._policy
        turns, unknown, chosen = array("d"), array("q"), array("q")
        profiles: dict[str, list[int]] = {}
        for number, entry in enumerate(rows):
            # Texts, profiles and records take room, but are not entries that a person counts.
            is_entry = not is_side_key(entry.key)
            self.left += is_entry
            self.left_size += entry.size
            self.protected += is_entry and policy.protects(entry)
            parts, only = parse_any_key(entry.key), policy.only
            if parts.environment:
                newest = self._newest.get(parts.platform, (0.0, ""))
                self._newest[parts.platform] = max(newest, (entry.created, parts.environment))
            if fits(parts.name, policy.name_glob) and (only is None or entry.key in only):
                chosen.append(number)
            turn = order_by_cost(entry, now=self._now) if policy.by_cost else entry.last_used
            if turn is None:
                unknown.append(number)
            turns.append(turn or 0.0)
            if profiled := profiled_program(entry.key):
                profiles.setdefault(profiled, []).append(number)
        average = sum(turns) / (len(turns) - len(unknown)) if len(turns) > len(unknown) else None
        for number in unknown:
            turns[number] = rows.used[number] if average is None else average
        self._use_profiles(profiles, turns)
        self._judge(self._ordered(chosen, turns))

    def _use_profiles(self, profiles: dict[str, list[int]], turns: array[float]) -> None:
        """Count a profile as used whenever its program is, as it is read only when that is compiled again."""
        used = self._rows.used
        for number, key in enumerate(self._rows.keys if profiles else ()):
            for profile in profiles.get(parse_any_key(key).logical, ()):
                used[profile] = max(used[profile], used[number])
                turns[profile] = max(turns[profile], turns[number])

    def _ordered(self, chosen: array[int], turns: array[float]) -> list[int]:
        """Return the numbers of these entries in the order of eviction."""
        keys, there = self._rows.keys, set[str]()
        better: dict[str, list[float]] = {}
        """The turns of the entries beside which one is of no use."""
        for number in chosen:
            for worse in evicted_before(keys[number]):
                there = there or set(keys)
                if worse in there:
                    better.setdefault(worse, []).append(turns[number])
        for number in chosen if better else ():
            turns[number] = min([turns[number], *better.get(keys[number], ())])
        # One after the other, the least important first: the tuples of all four would take more than the entries.
        order = sorted(chosen, key=keys.__getitem__)
        order.sort(key=self._rows.created.__getitem__)
        order.sort(key=lambda number: -len(better.get(keys[number], ())))
        order.sort(key=turns.__getitem__)
        return order

    def _judge(self, order: list[int]) -> None:
        """Delete what a rule for single entries names, and then of the rest until the limits hold."""
        policy, rest = self._policy, array("q")
        count = size = 0
        for number in order:
            entry = self._rows[number]
            is_kept = policy.keeps(entry)
            reason = None if is_kept else self._reason(entry)
            if reason is not None:
                self._delete(number, reason)
                continue
            count, size = count + (not is_side_key(entry.key)), size + entry.size
            if not is_kept:
                rest.append(number)
        for number in rest:
            too_many = policy.max_entries is not None and count > policy.max_entries
            too_large = policy.max_size is not None and size > policy.max_size
            if not too_many and not too_large:
                return
            is_entry = not is_side_key(self._rows.keys[number])
            if too_large or is_entry:
                count, size = count - is_entry, size - self._rows.sizes[number]
                self._delete(number, Reason.MAX_ENTRIES if too_many and is_entry else Reason.MAX_SIZE)

    def _delete(self, number: int, reason: Reason) -> None:
        self._deleted.append(number)
        self._reasons.append(reason)
        self.size += self._rows.sizes[number]
        self.entries += not is_side_key(self._rows.keys[number])

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
