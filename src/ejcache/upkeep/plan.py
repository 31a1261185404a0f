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

Entries of `keep` are never removed, nor with `keep_pgle` what PGLE made, its profiles included; they count for the
limits.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from ejcache.errors import SettingError
from ejcache.keys.key import PGLE, PLAIN, PROFILING, is_profile_key, is_side_key, profiled_program
from ejcache.upkeep.names import describe_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ejcache.keys.key import KeyParts
    from ejcache.stores.base import EntryInfo

__all__ = ["Deletion", "Policy", "Reason", "newest_environments", "plan"]


class Reason(StrEnum):
    """Which rule removes an entry."""

    NAME = "name"
    OLD_VERSION = "old_version"
    OLDER_THAN = "older_than"
    UNUSED_FOR = "unused_for"
    MAX_ENTRIES = "max_entries"
    MAX_SIZE = "max_size"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What may stay.

    Attributes:
        max_size: bytes of all entries; None for no limit.
        max_entries: number of entries; None for no limit.
        older_than: seconds since creation after which an entry goes.
        unused_for: seconds since its last use after which an entry goes.
        name_glob: a shell pattern over names, case counting; None for all.
        old_versions: entries of other environments than the newest of their platform go.
        keep: keys that stay whatever the rules say.
        keep_pgle: so do optimised entries, and profiles.

    Raises:
        SettingError: a limit or an age is negative.
    """

    max_size: int | None = None
    max_entries: int | None = None
    older_than: float | None = None
    unused_for: float | None = None
    name_glob: str | None = None
    old_versions: bool = False
    keep: frozenset[str] = frozenset()
    keep_pgle: bool = False

    def __post_init__(self) -> None:
        for name in ("max_size", "max_entries", "older_than", "unused_for"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise SettingError(name, value, "0 or more")

    def keeps(self, key: str, variant: str) -> bool:
        """Whether the entry stays whatever the rules say."""
        return key in self.keep or (self.keep_pgle and (variant == PGLE or is_profile_key(key)))

    @property
    def has_criterion(self) -> bool:
        """Whether any rule is set; without one nothing is ever removed."""
        return self.has_rule or self.name_glob is not None

    @property
    def has_rule(self) -> bool:
        """Whether a rule other than the name is set."""
        rules = (self.max_size, self.max_entries, self.older_than, self.unused_for)
        return self.old_versions or any(rule is not None for rule in rules)


@dataclass(frozen=True, slots=True)
class Deletion:
    """One entry that is to go, and the rule that says so."""

    entry: EntryInfo
    reason: Reason


def plan(entries: Iterable[EntryInfo], *, now: float, policy: Policy) -> list[Deletion]:
    """What `policy` removes of `entries`, in the order in which to remove it.

    Args:
        entries: a store's listing.
        now: seconds since the epoch; a time in the future counts as no age at all.
        policy: see this module.

    Stopping halfway leaves a store on which the rest of the plan still makes sense.
    """
    described = _with_uses_of_profiles([(entry, describe_key(entry.key)) for entry in entries])
    environments = newest_environments(entry for entry, _ in described)
    if policy.name_glob is not None:
        glob = policy.name_glob
        described = [(entry, parts) for entry, parts in described if fnmatch.fnmatchcase(parts.name, glob)]
    ordered = _in_order_of_eviction(described)
    deletions: list[Deletion] = []
    left: list[tuple[EntryInfo, KeyParts]] = []
    for entry, parts in ordered:
        reason = _reason(entry, parts, now=now, policy=policy, environments=environments)
        if reason is None or policy.keeps(entry.key, parts.variant):
            left.append((entry, parts))
        else:
            deletions.append(Deletion(entry, reason))
    count, size = sum(not is_side_key(entry.key) for entry, _ in left), sum(entry.size for entry, _ in left)
    for entry in [entry for entry, parts in left if not policy.keeps(entry.key, parts.variant)]:
        too_many = policy.max_entries is not None and count > policy.max_entries
        too_large = policy.max_size is not None and size > policy.max_size
        # A text kept for explanations takes room, but is no entry that a person counts.
        is_entry = not is_side_key(entry.key)
        if too_many and is_entry:
            deletions.append(Deletion(entry, Reason.MAX_ENTRIES))
        elif too_large:
            deletions.append(Deletion(entry, Reason.MAX_SIZE))
        elif too_many:
            continue
        else:
            break
        count, size = count - is_entry, size - entry.size
    return deletions


def newest_environments(entries: Iterable[EntryInfo]) -> dict[str, str]:
    """The environment of the most recently created entry of each platform, over keys that say theirs."""
    newest: dict[str, tuple[float, str]] = {}
    for entry in entries:
        parts = describe_key(entry.key)
        if parts.environment:
            newest[parts.platform] = max(newest.get(parts.platform, (0.0, "")), (entry.created, parts.environment))
    return {platform: environment for platform, (_, environment) in newest.items()}


def _reason(
    entry: EntryInfo, parts: KeyParts, *, now: float, policy: Policy, environments: dict[str, str]
) -> Reason | None:
    if policy.old_versions and parts.environment and environments[parts.platform] != parts.environment:
        return Reason.OLD_VERSION
    if policy.older_than is not None and now - entry.created > policy.older_than:
        return Reason.OLDER_THAN
    if policy.unused_for is not None and now - entry.last_used > policy.unused_for:
        return Reason.UNUSED_FOR
    return Reason.NAME if policy.name_glob is not None and not policy.has_rule else None


def _with_uses_of_profiles(described: list[tuple[EntryInfo, KeyParts]]) -> list[tuple[EntryInfo, KeyParts]]:
    """A profile is used whenever its program is: nobody reads it until it is needed."""
    used: dict[str, float] = {}
    for entry, parts in described:
        if parts.logical:
            used[parts.logical] = max(used.get(parts.logical, 0.0), entry.last_used)
    return [
        (replace(entry, last_used=max(entry.last_used, used.get(logical, 0.0))), parts)
        if (logical := profiled_program(entry.key))
        else (entry, parts)
        for entry, parts in described
    ]


def _in_order_of_eviction(described: list[tuple[EntryInfo, KeyParts]]) -> list[tuple[EntryInfo, KeyParts]]:
    siblings: dict[tuple[str, str], float] = {}
    for entry, parts in described:
        if parts.variant == PGLE:
            program = (parts.logical, parts.environment)
            siblings[program] = min(siblings.get(program, entry.last_used), entry.last_used)

    def turn(item: tuple[EntryInfo, KeyParts]) -> tuple[float, bool, float, str]:
        entry, parts = item
        plain = parts.variant in {PLAIN, PROFILING}
        used = entry.last_used
        if plain:
            used = min(used, siblings.get((parts.logical, parts.environment), used))
        return used, not plain, entry.created, entry.key

    return sorted(described, key=turn)
