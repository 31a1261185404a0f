"""What may stay in a store, and the rules that remove the rest; `plan` has their order."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from ejcache.errors import SettingError
from ejcache.keys.key import PGLE, is_profile_key
from ejcache.upkeep.names import describe_key

if TYPE_CHECKING:
    from ejcache.stores.base import EntryInfo

__all__ = ["Policy", "Reason"]


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
        keep_used_since: so do entries that were used then or later, in seconds since the epoch; None for no such rule.
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
    keep_used_since: float | None = None
    keep_pgle: bool = False

    def __post_init__(self) -> None:
        for name in ("max_size", "max_entries", "older_than", "unused_for"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise SettingError(name, value, "0 or more")

    def keeps(self, entry: EntryInfo) -> bool:
        """Whether the entry stays whatever the rules say."""
        if entry.key in self.keep or self.protects(entry):
            return True
        return self.keep_pgle and (is_profile_key(entry.key) or describe_key(entry.key).variant == PGLE)

    def protects(self, entry: EntryInfo) -> bool:
        """Whether the entry stays because it was used lately."""
        return self.keep_used_since is not None and entry.last_used >= self.keep_used_since

    @property
    def has_criterion(self) -> bool:
        """Whether any rule is set; without one nothing is ever removed."""
        return self.has_rule or self.name_glob is not None

    @property
    def has_rule(self) -> bool:
        """Whether a rule other than the name is set."""
        rules = (self.max_size, self.max_entries, self.older_than, self.unused_for)
        return self.old_versions or any(rule is not None for rule in rules)
