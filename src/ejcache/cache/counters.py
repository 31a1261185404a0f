"""Counters: what was looked up in the cache, what became of it, and why.

`left_out` and `left_out_seconds` are the compilations below a floor, `kept_here` and `kept_here_seconds` those that a
shared cache keeps on one host only; the seconds are those of compiling. `preload_loaded`, `preload_hits` and
`preload_unused` are executables that were loaded before anybody asked for them, `preload_bytes` is their serialised
size, and `preload_seconds` the time of loading that no hit had to wait for. `not_traced` is the functions that took the
lowered program of an earlier start.

`about` are lookups of the thin form, whose seconds are about right.

Counters are plain names with amounts, so that a store can keep them without knowing them, and so that one written by
a later version is kept and shown by an earlier one.
"""

from __future__ import annotations

from typing import Final

from ejcache.util.tally import Tally
from ejcache.util.words import Words

MISS_PREFIX: Final = "miss_"
SKIP_PREFIX: Final = "skip_"


class Miss(Words):
    """Why a lookup did not give an executable. Codes are append-only."""

    ABSENT = "absent"
    """No entry under this key."""
    CORRUPT = "corrupt"
    """The entry was damaged; it was quarantined."""
    FOREIGN = "foreign"
    """The index answered with another key's entry; it was quarantined."""
    VERSION = "version"
    """The entry is of a format that this version does not read."""
    REJECTED = "rejected"
    """The entry is intact, but XLA would not load it here."""
    SUSPECTED = "suspected"
    """The entry is intact, but two starts in a row ended while they loaded it; it is replaced."""
    FORCED = "forced"
    """EASYDEL_RECOMPILE_FORCE asks for a fresh compilation."""
    DISAGREED = "disagreed"
    """It could be loaded here, but not on every rank of its program."""
    CHECKED = "checked"
    """The hit was recompiled to check it."""
    ERROR = "error"
    """The storage failed."""
    DISABLED = "disabled"
    """The cache is switched off."""
    QUICK = "quick"
    """It compiled so quickly on this host before that shared storage was not read."""
    NO_DEVICES = "no_devices"
    """It is stored, but it was compiled for devices that this process does not have, so nothing loads it here."""
    RECALLED = "recalled"
    """An operator has recalled the entry."""


class Skip(Words):
    """Why a compilation was not stored, or not looked up at all. Codes are append-only."""

    DUPLICATE = "duplicate"
    """Somebody else stored it first."""
    OTHER_RANK = "other_rank"
    """Another rank of its program stores it in the same place."""
    QUICK = "quick"
    """It compiled in less than the minimum compile time."""
    SMALL = "small"
    """Its entry is below the minimum entry size."""
    LARGE = "large"
    """Its entry is larger than the whole limit."""
    READ_ONLY = "read_only"
    """The cache is read-only."""
    CALLBACK = "callback"
    """It calls back into this process, which this JAX cannot restore."""
    PARTITIONING = "partitioning"
    """It holds the address of a custom_partitioning function."""
    INSPECTION = "inspection"
    """It calls a Python function while it compiles, to show it a sharding."""
    PLATFORM = "platform"
    """This platform cannot serialise executables."""
    NO_KEY = "no_key"
    """No key could be made."""
    DISABLED = "disabled"
    """The cache is switched off."""
    ERROR = "error"
    """The storage failed."""
    FORBIDDEN = "forbidden"
    """It was not compiled, because the program forbids compilations."""
    RANKS_DIFFER = "ranks_differ"
    """Another rank compiles another program under its name."""
    HLO_PASS = "hlo_pass"  # noqa: S105 (a pass of the compiler)
    """The process has registered a pass over the HLO, which no key can name."""


class CacheTally(Tally):
    """A `Tally` that knows the names of this module."""

    def miss(self, reason: Miss) -> None:
        """Count a miss and its reason."""
        self.add(**{"misses": 1, MISS_PREFIX + reason: 1})

    def skip(self, reason: Skip) -> None:
        """Count a compilation that is not stored, and why."""
        self.add(**{SKIP_PREFIX + reason: 1})
