"""`ejcache stats`: what a cache holds, its hits and its misses."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

from ejcache.cache.stats import Stats
from ejcache.cli import output
from ejcache.cli.chosen_cache import open_cache
from ejcache.cli.fields import TableField, any_text, field_lines, number_text, share_of_parts
from ejcache.cli.listing import Totals, list_entries
from ejcache.cli.options import Dir, Json, flag
from ejcache.keys.key import PGLE
from ejcache.util.units import duration, format_size, plural

if TYPE_CHECKING:
    from ejcache.cli.chosen_cache import OpenCache
    from ejcache.cli.fields import Fields


def _size(size: int, row: Fields) -> str:
    if row["max_size"] <= 0:
        return format_size(size)
    return f"{format_size(size)} / {format_size(row['max_size'])} ({100 * size / row['max_size']:.1f}%)"


def _beside(size: int, row: Fields) -> str:
    beside = plural(row["side_objects"], "text, profile or record", "texts, profiles and records")
    return f"{format_size(size)} in {beside}" if row["side_objects"] else ""


def _overhead(size: int, _: Fields) -> str:
    return f"at most {format_size(size)} more for blocks, directories and the order of eviction" if size else ""


def _of_requests(number: int, row: Fields) -> str:
    return output.share(number, row["requests"]) if row["requests"] else ""


def _ahead(preload: Fields, _: Fields) -> str:
    loaded = preload["loaded"]
    used = output.share(preload["hits"], loaded)
    return f"{loaded:,}, used {used}, {duration(preload['seconds'])}" if loaded else ""


def _not_kept(number: int, seconds: float) -> str:
    return f"{number:,} ({duration(seconds)} of compiling)" if number else ""


def _hits_of_tier(counts: Fields, _: Fields) -> str:
    looked = counts.get("hits", 0) + counts.get("misses", 0)
    return f"hits {output.share(counts.get('hits', 0), looked)}" if looked else ""


STORED: Final = (
    TableField("Cache", "url"),
    TableField("Recalled", "recalled", any_text),
    TableField("Turned off", "turned_off", any_text),
    TableField("Entries", "total_entries", lambda number, _: f"{number:,}"),
    TableField(
        "  with a profile",
        "pgle_entries",
        lambda number, row: output.share(number, row["total_entries"]) if number else "",
    ),
    TableField("Size", "total_size", _size),
    TableField("  beside entries", "side_size", _beside),
    TableField("  on disk", "overhead_size", _overhead),
)
"""What a cache holds."""
COUNTED: Final = (
    TableField("Saved", "saved", lambda saved, _: f"{saved} of compiling"),
    TableField("Requests", "requests", lambda number, _: f"{number:,}"),
    TableField("  hits", "hits", _of_requests),
    TableField("  misses", "misses", _of_requests),
    TableField("    ", "misses_by_reason", share_of_parts, has_parts=True),
    TableField("Stored", "stores", lambda number, _: f"{number:,}"),
    TableField("Not stored", "skipped", lambda parts, _: number_text(sum(parts.values()), parts)),
    TableField("  ", "skipped", share_of_parts, has_parts=True),
    TableField("Loaded ahead", "preload", _ahead),
    TableField("Below a floor", "left_out", lambda number, row: _not_kept(number, row["left_out_seconds"])),
    TableField("For one host", "kept_here", lambda number, row: _not_kept(number, row["kept_here_seconds"])),
    TableField("Tier ", "tiers", _hits_of_tier, has_parts=True),
    TableField("Damaged", "corrupt", number_text),
    TableField("Errors", "errors", number_text),
    TableField("Time compiling", "compile_seconds", lambda seconds, _: duration(seconds)),
    TableField("Time loading", "load_seconds", lambda seconds, _: duration(seconds)),
    TableField("Read", "bytes_read", lambda number, _: format_size(number)),
    TableField("Written", "bytes_written", lambda number, _: format_size(number)),
)
"""What was counted in a cache."""


def stats(
    directory: Dir = None,
    as_json: Json = False,
    reset: Annotated[bool, flag("--reset", "Set the counters to zero; entries stay.")] = False,
) -> int:
    """Show what the cache contains, the hits, the misses with their reasons, and the time that the cache saved.

    The counters are kept with the cache. They cover the processes that may write to the cache, since the cache was
    created or since the last --reset.
    """
    with open_cache(directory, write=reset, may_be_empty=True) as cache:
        if reset and cache.store is not None:
            cache.store.reset_counters()
            if not as_json:
                output.say(f"the counters of {cache.url} are set to zero")
                return 0
        fields = _stored_fields(cache)
        counted = Stats.of(cache.store.counters() if cache.store is not None else {})
        fields |= counted.to_dict()
    if as_json:
        output.print_json(fields)
        return 0
    shown = STORED if cache.store is None else (*STORED, *COUNTED)
    output.print_pairs(field_lines(shown, fields | {"saved": counted.saved_of_total}))
    return 0


def _stored_fields(cache: OpenCache) -> dict[str, Any]:
    totals, optimised = Totals(), 0
    for row in list_entries(cache, totals):
        optimised += row.parts.variant == PGLE
    number = totals.total_entries + totals.side_objects
    overhead = cache.store.overhead(number) if cache.store is not None else 0
    counts = {
        "max_size": cache.max_size,
        "pgle_entries": optimised,
        "turned_off": cache.turned_off or None,
    }
    counts["recalled"] = cache.recalled.removeprefix("recalled: ") or None
    return {"url": cache.url, **asdict(totals), "overhead_size": overhead, **counts}
