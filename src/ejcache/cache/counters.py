"""Counters: what was looked up in the cache, what became of it, and why. A hit counts with names alone (`policy`).

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

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ejcache.cache.compile_time import compile_time

if TYPE_CHECKING:
    from ejcache.cache.policy import CachePolicy, Miss
    from ejcache.util.tally import Tally

MISS_PREFIX: Final = "miss_"
SKIP_PREFIX: Final = "skip_"


class Skip(StrEnum):
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


def add_miss(tally: Tally, reason: Miss) -> None:
    """Count a miss and its reason."""
    tally.add(**{"misses": 1, MISS_PREFIX + reason: 1})


def add_skip(tally: Tally, reason: Skip) -> None:
    """Count a compilation that is not stored, and why."""
    tally.add(**{SKIP_PREFIX + reason: 1})


def count_miss(cache: CachePolicy, reason: Miss, *, compile_seconds: float = 0.0) -> None:
    """Count a miss, and the seconds that this thread has just compiled."""
    add_miss(cache.tally, reason)
    count_compilation(cache, compile_seconds)
    cache.flush_if_due()


def count_compilation(cache: CachePolicy, seconds: float) -> None:
    """Count the seconds that this thread has just compiled, except what other threads compiled at the same time."""
    if seconds:
        saved, compiled = compile_time.miss(seconds)
        cache.tally.add(seconds_saved=saved, compile_seconds=compiled)


def count_skip(cache: CachePolicy, reason: Skip) -> None:
    """Count a compilation that was not stored, or not looked up, for this reason."""
    add_skip(cache.tally, reason)
    cache.flush_if_due()


def count_check(cache: CachePolicy, result: str) -> None:
    """Count a stored executable that was compared with a fresh one, and the result."""
    cache.tally.add(**{"checks": 1, f"check_{result}": 1})
    cache.flush_if_due()
