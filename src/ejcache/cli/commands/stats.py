"""`ejcache stats`: what a cache holds, its hits and its misses."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from ejcache.cli import output
from ejcache.cli.chosen_cache import open_cache
from ejcache.cli.listing import Totals, list_entries
from ejcache.cli.options import Dir, Json, flag
from ejcache.keys.key import PGLE
from ejcache.util.units import format_age, format_size, plural

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ejcache.cache.stats import Stats
    from ejcache.cli.chosen_cache import OpenCache


def stats(
    directory: Dir = None,
    as_json: Json = False,
    reset: Annotated[bool, flag("--reset", "Set the counters to zero. Entries stay.")] = False,
) -> int:
    """Show what the cache holds, its hits and misses with their reasons, and the time that it saved.

    The counters are kept with the cache. They cover all processes since the cache was created, or since the last
    --reset.
    """
    from ejcache.cache.stats import Stats

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
    lines = [["Cache", cache.url], *_stored_lines(fields)]
    if cache.recalled:
        lines.insert(1, ["Recalled", cache.recalled.removeprefix("recalled: ")])
    if cache.turned_off:
        lines.insert(1, ["Turned off", cache.turned_off])
    output.print_pairs(lines if cache.store is None else [*lines, *_counter_lines(fields, counted)])
    return 0


def _stored_fields(cache: OpenCache) -> dict[str, Any]:
    totals, optimised = Totals(), 0
    for row in list_entries(cache, totals):
        optimised += row.parts.variant == PGLE
    counts = {"max_size": cache.max_size, "pgle_entries": optimised, "turned_off": cache.turned_off or None}
    counts["recalled"] = cache.recalled.removeprefix("recalled: ") or None
    return {"url": cache.url, **asdict(totals), **counts}


def _stored_lines(fields: dict[str, Any]) -> list[list[str]]:
    lines = [["Entries", f"{fields['total_entries']:,}"]]
    if fields["pgle_entries"]:
        lines.append(["  with a profile", output.share(fields["pgle_entries"], fields["total_entries"])])
    size = format_size(fields["total_size"])
    if fields["max_size"] > 0:
        size += f" / {format_size(fields['max_size'])} ({100 * fields['total_size'] / fields['max_size']:.1f}%)"
    lines.append(["Size", size])
    if fields["side_objects"]:
        beside = plural(fields["side_objects"], "text, profile or record", "texts, profiles and records")
        lines.append(["  beside entries", f"{format_size(fields['side_size'])} in {beside}"])
    return lines


def _counter_lines(fields: dict[str, Any], counted: Stats) -> list[list[str]]:
    lines = [["Saved", f"{counted.saved_of_total} of compiling"], ["Requests", f"{counted.requests:,}"]]
    if counted.requests:
        lines.append(["  hits", output.share(counted.hits, counted.requests)])
        lines.append(["  misses", output.share(counted.misses, counted.requests)])
        lines += _shares("    ", counted.misses_by_reason)
    lines.append(["Stored", f"{counted.stores:,}"])
    if counted.skipped:
        lines += [["Not stored", f"{sum(counted.skipped.values()):,}"], *_shares("  ", counted.skipped)]
    ahead = counted.amounts.get("preload_loaded", 0)
    if ahead:
        used, saved = counted.amounts.get("preload_hits", 0), counted.amounts.get("preload_seconds", 0.0)
        lines.append(["Loaded ahead", f"{ahead:,.0f}, used {output.share(int(used), int(ahead))}, {_duration(saved)}"])
    for name, what in (("Below a floor", "left_out"), ("For one host", "kept_here")):
        if fields[what]:
            lines.append([name, f"{fields[what]:,} ({_duration(fields[f'{what}_seconds'])} of compiling)"])
    for tier, counts in counted.tiers.items():
        looked = counts.get("hits", 0) + counts.get("misses", 0)
        if looked:
            lines.append([f"{tier.capitalize()} tier", f"hits {output.share(counts.get('hits', 0), looked)}"])
    lines += [[name, f"{n:,}"] for name, n in (("Damaged", counted.corrupt), ("Errors", counted.errors)) if n]
    return [
        *lines,
        ["Time compiling", _duration(fields["compile_seconds"])],
        ["Time loading", _duration(fields["load_seconds"])],
        ["Read", format_size(fields["bytes_read"])],
        ["Written", format_size(fields["bytes_written"])],
    ]


def _shares(indent: str, parts: Mapping[str, int]) -> list[list[str]]:
    """Return a line for each part: its number, and its share of all of them."""
    whole = sum(parts.values())
    return [[f"{indent}{name}", output.share(number, whole)] for name, number in parts.items()]


def _duration(value: float) -> str:
    return f"{value:,.1f} s" + (f" ({format_age(value)})" if value >= 120 else "")
