"""Counts what became of each lookup and each compilation, and why; `Stats` shows the counts to programs and commands.

`left_out` and `left_out_seconds` are the compilations below a floor, `kept_here` and `kept_here_seconds` those that a
shared cache keeps on one host only; the seconds are those of compiling. `preload_loaded`, `preload_hits` and
`preload_unused` are executables that were loaded before anybody asked for them, `preload_bytes` is their serialised
size, and `preload_seconds` the time of loading that no hit had to wait for. `not_traced` is the functions that took the
lowered program of an earlier start.

`about` are lookups behind JAX's own cache, whose seconds are about right.

Counters are plain names with amounts, so that a store can keep them without knowing them, and so that one written by
a later version is kept and shown by an earlier one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ejcache.cache.compile_time import compile_time
from ejcache.errors import StoreError
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ejcache.cache.reading import CacheReader
    from ejcache.cache.reasons import Miss, Skip
    from ejcache.settings.table import Settings
    from ejcache.util.tally import Tally

_COUNTS: Final = ("hits", "misses", "stores", "errors", "corrupt")


class Stats(NamedTuple):
    """Counters at one moment.

    Attributes:
        hits: lookups that gave a loaded executable.
        misses: lookups that did not; `misses_by_reason` has the reasons.
        stores: entries written.
        errors: operations that the storage failed.
        corrupt: damaged entries that were met and quarantined.
        seconds_saved: compile time of the hits, less the time to get them.
        amounts: every counter by its name, those that this version does not know among them.
    """

    hits: int = 0
    misses: int = 0
    stores: int = 0
    errors: int = 0
    corrupt: int = 0
    seconds_saved: float = 0.0
    amounts: Mapping[str, float] = {}

    @classmethod
    def of(cls, amounts: Mapping[str, float]) -> Stats:
        """Return the statistics that counters of these amounts stand for."""
        counts = {name: int(amounts.get(name, 0)) for name in _COUNTS}
        return cls(**counts, seconds_saved=float(amounts.get("seconds_saved", 0.0)), amounts=dict(amounts))

    @property
    def requests(self) -> int:
        """Compilations that could have been answered by the cache."""
        return self.hits + self.misses

    @property
    def hit_rate(self) -> float:
        """Hits over requests, 0.0 to 1.0; 0.0 without requests."""
        return self.hits / self.requests if self.requests else 0.0

    @property
    def compile_seconds(self) -> float:
        """Seconds that the compilations of the misses took."""
        return float(self.amounts.get("compile_seconds", 0.0))

    @property
    def saved_of_total(self) -> str:
        """`1.2 of 1.4 s`: the compile time that the cache saved, and that of all that was asked of it.

        Where lookups behind JAX's own cache were counted, it is about that: it is not known what exactly a compilation
        took.
        """
        saved = max(0.0, self.seconds_saved)
        about = "about " if self.amounts.get("about") else ""
        return f"{about}{saved:.1f} of {saved + self.compile_seconds:.1f} s"

    def __repr__(self) -> str:
        return f"<Stats: {self}>"

    def __str__(self) -> str:
        counts = f"{plural(self.hits, 'hit')}, {plural(self.misses, 'miss', 'misses')}, {self.stores:,} stored"
        return f"saved {self.saved_of_total} of compiling: {counts}"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        rows = {
            "saved": self.saved_of_total,
            "hits": self.hits,
            "misses": ", ".join([str(self.misses), *(f"{n} {reason}" for reason, n in self.misses_by_reason.items())]),
            "stored": self.stores,
            "not stored": ", ".join(f"{n} {reason}" for reason, n in self.skipped.items()) or 0,
            "errors": self.errors,
        }
        from html import escape

        cells = "".join(f"<tr><th>{name}</th><td>{escape(str(value))}</td></tr>" for name, value in rows.items())
        return f"<table>{cells}</table>"

    @property
    def misses_by_reason(self) -> dict[str, int]:
        """Misses for each `Miss` reason that occurred."""
        return self._by_prefix(MISS_PREFIX)

    @property
    def skipped(self) -> dict[str, int]:
        """Compilations not stored for each `Skip` reason that occurred."""
        return self._by_prefix(SKIP_PREFIX)

    @property
    def tiers(self) -> dict[str, dict[str, int]]:
        """The requests to this host's copies (`local`) and to the bucket (`shared`), by kind; empty without copies."""
        tiers = {tier: self._by_prefix(f"{tier}_") for tier in ("local", "shared")}
        return {tier: counted for tier, counted in tiers.items() if counted}

    def _by_prefix(self, prefix: str) -> dict[str, int]:
        return {
            name.removeprefix(prefix): int(amount)
            for name, amount in sorted(self.amounts.items())
            if name.startswith(prefix) and amount
        }

    def to_dict(self) -> dict[str, object]:
        """Return stable snake_case fields, for machines."""

        def count(name: str) -> int:
            return int(self.amounts.get(name, 0))

        def seconds(name: str) -> float:
            return round(float(self.amounts.get(name, 0.0)), 6)

        return {
            "hits": self.hits,
            "misses": self.misses,
            "requests": self.requests,
            "hit_rate": round(self.hit_rate, 6),
            "stores": self.stores,
            "errors": self.errors,
            "corrupt": self.corrupt,
            "seconds_saved": round(self.seconds_saved, 6),
            "compile_seconds": round(self.compile_seconds, 6),
            "left_out": count("left_out"),
            "left_out_seconds": seconds("left_out_seconds"),
            "kept_here": count("kept_here"),
            "kept_here_seconds": seconds("kept_here_seconds"),
            "not_traced": count("not_traced"),
            "load_seconds": seconds("load_seconds"),
            "bytes_read": count("bytes_read"),
            "bytes_written": count("bytes_written"),
            "preload": {
                **{name: count(f"preload_{name}") for name in ("loaded", "hits", "unused", "bytes")},
                "seconds": seconds("preload_seconds"),
            },
            "checks_by_result": self._by_prefix("check_"),
            "misses_by_reason": self.misses_by_reason,
            "skipped": self.skipped,
            "tiers": self.tiers,
        }


def stats_of_process(cache: CacheReader) -> Stats:
    """Return the counters of this process."""
    cache.count_tiers()
    return Stats.of(cache.tally.totals())


def stats_of_store(cache: CacheReader, settings: Settings) -> Stats:
    """Return the counters of all processes since the store was made."""
    cache.flush()
    store = cache.opened(settings)
    try:
        return Stats.of(store.counters()) if store is not None else Stats()
    except StoreError as exc:
        cache.report_failure("read the counters", exc, settings)
        return Stats()


MISS_PREFIX: Final = "miss_"
SKIP_PREFIX: Final = "skip_"


def amounts_of_miss(reason: Miss) -> dict[str, float]:
    """Return what a miss adds to the counters."""
    return {"misses": 1, MISS_PREFIX + reason: 1}


def add_skip(tally: Tally, reason: Skip) -> None:
    """Count a compilation that is not stored, and why."""
    tally.add(**{SKIP_PREFIX + reason: 1})


def count_miss(cache: CacheReader, reason: Miss, *, compile_seconds: float = 0.0) -> None:
    """Count a miss, and the seconds that this thread has just compiled."""
    cache.tally.add(**amounts_of_miss(reason), **_amounts_of_compilation(compile_seconds))
    cache.flush_if_due()


def count_compilation(cache: CacheReader, seconds: float) -> None:
    """Count the seconds that this thread has just compiled, except what other threads compiled at the same time."""
    cache.tally.add(**_amounts_of_compilation(seconds))


def _amounts_of_compilation(seconds: float) -> dict[str, float]:
    if not seconds:
        return {}
    saved, compiled = compile_time.miss(seconds)
    return {"seconds_saved": saved, "compile_seconds": compiled}


def count_skip(cache: CacheReader, reason: Skip) -> None:
    """Count a compilation that was not stored, or not looked up, for this reason."""
    add_skip(cache.tally, reason)
    cache.flush_if_due()


def count_check(cache: CacheReader, result: str) -> None:
    """Count a stored executable that was compared with a fresh one, and the result."""
    cache.tally.add(**{"checks": 1, f"check_{result}": 1})
    cache.flush_if_due()
