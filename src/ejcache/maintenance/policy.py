"""What may stay in a cache, and the rules that delete the rest; `plan` says in which order they apply."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from ejcache.errors import SettingError
from ejcache.keys.key import PGLE, is_profile_key, parse_any_key

if TYPE_CHECKING:
    from ejcache.stores.base import EntryInfo

__all__ = ["EvictionPolicy", "Reason"]


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
        keep: keys that no rule deletes.
        keep_used_since: no rule deletes an entry used at or after this time, in seconds since the epoch.
        keep_pgle: no rule deletes optimised entries and profiles.

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
    keep: frozenset[str] = frozenset()
    keep_used_since: float | None = None
    keep_pgle: bool = False

    def __post_init__(self) -> None:
        for name in ("max_size", "max_entries", "older_than", "unused_for"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise SettingError(name, value, "0 or more")

    def keeps(self, entry: EntryInfo) -> bool:
        """Whether the entry stays whatever the rules say."""
        if self.everything:
            return False
        if entry.key in self.keep or self.protects(entry):
            return True
        return self.keep_pgle and (is_profile_key(entry.key) or parse_any_key(entry.key).variant == PGLE)

    def protects(self, entry: EntryInfo) -> bool:
        """Whether the entry stays because it was used a short while ago."""
        if self.everything or self.keep_used_since is None:
            return False
        return entry.last_used >= self.keep_used_since

    @property
    def has_criterion(self) -> bool:
        """Whether any rule is set; without a rule nothing is deleted."""
        return self.has_rule or self.name_glob is not None

    @property
    def has_rule(self) -> bool:
        """Whether a rule other than the name is set."""
        rules = (self.max_size, self.max_entries, self.older_than, self.unused_for)
        return self.everything or self.old_versions or any(rule is not None for rule in rules)
