"""`ejcache stats`, `ls` and `show`. They change nothing, not even when an entry was last used."""

from __future__ import annotations

import heapq
import time
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

from ejcache import entry
from ejcache.cli import output
from ejcache.cli.listing import (
    Totals,
    by_program,
    check_wanted,
    choose,
    header_facts,
    identify_entry,
    list_entries,
    open_target,
    profile_fields,
    read_facts,
    read_header,
)
from ejcache.cli.options import Device, Dir, Json, Key, Limit, Name, Tuned, count, flag
from ejcache.errors import EntryError, NotFoundError, UsageError
from ejcache.keys.key import PGLE, parse_any_key
from ejcache.util.text import format_age, format_size, plural

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ejcache.cache.counters import Stats
    from ejcache.cli.listing import ListedEntry, Target


class Order(StrEnum):
    """The orders of `ls`."""

    size = "size"
    age = "age"
    used = "used"
    hits = "hits"
    name = "name"


_ORDERS: Final = {
    Order.size: lambda row: (row.is_jax, -row.info.size, row.info.key),
    Order.age: lambda row: (row.is_jax, row.info.created, row.info.key),
    Order.used: lambda row: (row.is_jax, -row.info.last_used, row.info.key),
    Order.hits: lambda row: (row.is_jax, -(row.info.hits or 0), row.info.key),
    Order.name: lambda row: (row.is_jax, row.parts.name, row.parts.platform, row.info.key),
}


def stats(
    directory: Dir = None,
    tuned: Tuned = False,
    as_json: Json = False,
    reset: Annotated[bool, flag("--reset", "Set the counters to zero. Entries stay.")] = False,
) -> int:
    """Show what the cache holds, its hits and misses with their reasons, and the time that it saved.

    The counters are kept with the cache. They cover all processes since the cache was created, or since the last
    --reset. With --tuned, the tuned records are counted by layer, operation, device and source, and the documents that
    could not be read.
    """
    from ejcache.cache.counters import Stats

    if tuned:
        from ejcache.cli.tuned.listing import count_records

        if reset:
            raise UsageError("--reset is for the counters of a cache: leave it out with --tuned")
        return count_records(directory, as_json=as_json)

    with open_target(directory, write=reset, may_be_empty=True) as target:
        if reset and target.store is not None:
            target.store.reset_counters()
            if not as_json:
                output.say(f"the counters of {target.url} are set to zero")
                return 0
        fields = _stored_fields(target)
        counted = Stats.of(target.store.counters() if target.store is not None else {})
        fields |= counted.to_dict()
    if as_json:
        output.print_json(fields)
        return 0
    lines = [["Cache", target.url], *_stored_lines(fields, has_store=target.store is not None or target.jax is None)]
    output.print_pairs(lines if target.store is None else [*lines, *_counter_lines(fields, counted)])
    return 0


def ls(
    directory: Dir = None,
    name: Name = None,
    sort: Annotated[
        Order,
        flag("--sort", "By size (largest first), age (oldest first), used (latest first), hits (most first) or name."),
    ] = Order.used,
    limit: Limit = None,
    tuned: Tuned = False,
    device: Device = None,
    as_json: Json = False,
) -> int:
    """List the entries: name, platform, variant, size, compile time in seconds, last use, and a key for `show`.

    A local cache also counts the hits of each entry, of all processes. What they saved is the compile time, that many
    times. Nobody counts the hits of an entry of a bucket.

    Variants of one program are listed together, the one compiled with a PGLE profile first.

    Entries that plain JAX wrote into the same directory or bucket come after those of ejcache. For a remote cache with
    more than 2,000 entries, compile times are shown only with --limit or --name.

    With --tuned, the tuned records are listed: the call, its configuration, how that was found, and how fast it is. A
    source with a question mark is unsure, and `tune --unsure` measures the call again. --name and --device select.
    """
    if tuned:
        from ejcache.cli.tuned.listing import list_records

        return list_records(directory, name=name, device=device, limit=limit, as_json=as_json)
    most = count(limit, option="--limit")
    totals = Totals()
    with open_target(directory, may_be_empty=True) as target:
        listed = list_entries(target, totals, name=name)
        rows = sorted(listed, key=_ORDERS[sort]) if most is None else heapq.nsmallest(most, listed, key=_ORDERS[sort])
        rows = by_program(rows)
        with output.progress("reading", len(rows), quiet=as_json) as advance:
            entries = [
                row.fields() | facts | _saved(row, facts)
                for row, facts in zip(rows, read_facts(rows, target, advance=advance), strict=True)
            ]
    if as_json:
        output.print_json({"url": target.url, **asdict(totals), "entries": entries})
        return 0
    if rows:
        _print_rows(rows, entries)
    hidden = totals.total_entries + totals.jax_entries - len(rows)
    output.say(f"{totals.words()} in {target.url}{f'; {hidden:,} not shown' if hidden else ''}")
    return 0


def _saved(row: ListedEntry, facts: dict[str, Any]) -> dict[str, float | None]:
    hits, seconds = row.info.hits, facts["compile_seconds"]
    return {"seconds_saved": None if hits is None or seconds is None else hits * seconds}


def profile_text(profile: dict[str, Any]) -> str:
    """A profile as `ls` shows it: its digest, and what it was measured with."""
    parts = [str(profile["digest"])[:8]]
    if profile.get("runs"):
        parts.append(plural(profile["runs"], "run"))
    if profile.get("percentile"):
        parts.append(f"p{profile['percentile']}")
    if profile.get("devices"):
        parts.append(plural(profile["devices"], "device"))
    return ", ".join(parts)


def _print_rows(rows: Sequence[ListedEntry], entries: Sequence[dict[str, Any]]) -> None:
    now = time.time()
    lines = []
    before = None
    for row, fields in zip(rows, entries, strict=True):
        branch = "└ " if row.program is not None and row.program == before else ""
        before = row.program
        lines.append(
            {
                "kind": row.kind,
                "name": f"{branch}{row.parts.name}",
                "platform": row.parts.platform or "-",
                "variant": row.parts.variant or "-",
                "profile": profile_text(fields["profile"]) if fields["profile"] else "-",
                "size": format_size(row.info.size),
                "compile s": output.seconds(fields["compile_seconds"]),
                "hits": "-" if fields["hits"] is None else f"{fields['hits']:,}",
                "saved s": output.seconds(fields["seconds_saved"]),
                "last used": output.ago(row.info.last_used, now=now),
                "key": row.short,
            }
        )
    uniform = {"kind": "ejcache", "variant": "plain", "profile": "-", "hits": "-", "saved s": "-"}
    columns = [name for name in lines[0] if any(line[name] != uniform.get(name) for line in lines)]
    cells = [[line[name] for name in columns] for line in lines]
    output.print_table(
        columns,
        cells,
        right=("size", "compile s", "hits", "saved s", "last used"),
        whole=("key",),
    )


def _stored_fields(target: Target) -> dict[str, Any]:
    totals, optimised = Totals(), 0
    for row in list_entries(target, totals):
        optimised += row.parts.variant == PGLE
    counts = {"max_size": target.max_size, "pgle_entries": optimised}
    return {"url": target.url, **asdict(totals), **counts}


def _stored_lines(fields: dict[str, Any], *, has_store: bool) -> list[list[str]]:
    lines = []
    if has_store:
        lines.append(["Entries", f"{fields['total_entries']:,}"])
        if fields["pgle_entries"]:
            lines.append(["  with a profile", output.share(fields["pgle_entries"], fields["total_entries"])])
        size = format_size(fields["total_size"])
        if fields["max_size"] > 0:
            size += f" / {format_size(fields['max_size'])} ({100 * fields['total_size'] / fields['max_size']:.1f}%)"
        lines.append(["Size", size])
        if fields["side_objects"]:
            beside = plural(fields["side_objects"], "text, profile or record", "texts, profiles and records")
            lines.append(["  beside entries", f"{format_size(fields['side_size'])} in {beside}"])
    if fields["jax_entries"]:
        lines.append(["Plain JAX", f"{fields['jax_entries']:,} ({format_size(fields['jax_size'])})"])
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
    """A line for each part: its number, and its share of all of them."""
    whole = sum(parts.values())
    return [[f"{indent}{name}", output.share(number, whole)] for name, number in parts.items()]


def _duration(value: float) -> str:
    return f"{value:,.1f} s" + (f" ({format_age(value)})" if value >= 120 else "")


def show(key: Key, directory: Dir = None, tuned: Tuned = False, as_json: Json = False) -> int:
    """Show one entry: its header, the components of its key, and whether it is intact.

    Of a program with several variants, the one compiled with a PGLE profile is shown and the others are listed. Exits
    with 1 if the entry is damaged, if there is none, or if KEY matches several programs.

    With --tuned, or if KEY names no entry but a tuned record: its configuration, the candidates and their timings, and
    where it was measured. The configuration that programs use is marked with *, the default one with =.
    """
    check_wanted(key)
    from ejcache.cli.either import entries_or_records

    def of_records() -> int:
        from ejcache.cli.tuned.listing import show_record

        return show_record(key, directory, as_json=as_json)

    of_entries = partial(_show_entry, key, directory, as_json=as_json)
    return entries_or_records(of_entries, of_records, key=key, directory=directory, tuned=tuned)


def _show_entry(key: str, directory: str | None, *, as_json: bool) -> int:
    with open_target(directory) as target:
        found = _variants(target, key)
        row = next((row for row in found if row.info.key == key), found[0])
        fields = row.fields() | {"url": target.url, "problem": ""}
        fields |= _entry_fields(target, row, fields)
        fields["variants"] = [
            other.fields() | {"profile": header_facts(other, target)["profile"]}
            for other in found
            if row.program is not None
        ]
    if as_json:
        output.print_json(fields)
    else:
        _print_entry(fields)
    return int(bool(fields["problem"]))


def _variants(target: Target, key: str) -> list[ListedEntry]:
    """The variants of the program that `key` names, found in one listing."""
    parts = parse_any_key(key)
    wanted = f"{parts.logical}-{parts.environment}" if parts.logical else key
    found = by_program(choose(list_entries(target), wanted, identify_entry, where=target.url))
    if parts.logical and all(row.info.key != key for row in found):
        raise NotFoundError(f"nothing in {target.url} has the key {key!r}")
    return found


def _entry_fields(target: Target, row: ListedEntry, listed: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    try:
        if target.jax is not None and row.is_jax:
            fields["compile_seconds"] = target.jax.compile_seconds(row.info.key)
        elif target.store is not None:
            entry.decode(target.store.peek(row.info.key) or b"", key=row.info.key)
    except EntryError as exc:
        fields["problem"] = str(exc)
    header = None if row.is_jax or target.store is None else read_header(target.store, row.info.key)
    if header is not None:
        noted = output.fields_of(header, "codec", "raw_size", "compile_seconds", "jax", "jaxlib", "profile_digest")
        named = output.fields_of(header, "name", "platform", "logical_key")
        fields |= noted | {name: value or listed[name] for name, value in named.items()}
        fields |= {
            "created": header.created or row.info.created,
            "payload": header.kind,
            "profile": profile_fields(header),
            "components": dict(header.components),
            "metadata": dict(header.extra),
        }
    return fields


def _print_entry(fields: dict[str, Any]) -> None:
    """What a person reads comes first, digests last."""
    sections = (
        [["Name", fields["name"] or "-"], *_state_lines(fields)],
        _metadata_lines(fields.get("metadata") or {}),
        _digest_lines(fields),
    )
    lines: list[list[str]] = []
    for section in filter(None, sections):
        lines += [[""], *section] if lines else section
    output.print_pairs(lines)


def _state_lines(fields: dict[str, Any]) -> list[list[str]]:
    now = time.time()
    size = format_size(fields["size"])
    if fields.get("raw_size"):
        size += f" ({format_size(fields['raw_size'])} uncompressed)"
    lines = [[name.capitalize(), fields[name] or "-"] for name in ("platform", "variant", "kind")]
    lines.append(["Size", size])
    if fields.get("compile_seconds") is not None:
        lines.append(["Compile time", f"{fields['compile_seconds']:.2f} s"])
    for label, name in (("Created", "created"), ("Last used", "last_used")):
        lines.append([label, f"{output.moment(fields[name])} ({output.ago(fields[name], now=now)})"])
    lines += [[label, str(fields[name])] for label, name in (("JAX", "jax"), ("jaxlib", "jaxlib")) if fields.get(name)]
    if fields.get("profile"):
        lines.append(["Measured with", profile_text(fields["profile"]).partition(", ")[2] or "-"])
    lines.append(["Intact", f"no: {fields['problem']}" if fields["problem"] else "yes"])
    for other in fields["variants"]:
        if other["key"] != fields["key"]:
            made = f"{format_size(other['size'])}, created {output.ago(other['created'], now=now)}"
            lines.append([f"Also {other['variant']}", f"{made}: {other['key']}"])
    return lines


def _metadata_lines(metadata: dict[str, Any]) -> list[list[str]]:
    """What the writer noted. An object has a line for each of its values."""
    lines = []
    for name, value in sorted(metadata.items()):
        if isinstance(value, dict):
            lines += [[f"  {name}.{inner}", str(each) or "-"] for inner, each in sorted(value.items())]
        else:
            lines.append([f"  {name}", str(value)])
    return [["Metadata"], *lines] if lines else []


def _digest_lines(fields: dict[str, Any]) -> list[list[str]]:
    named = (("Program", "logical_key"), ("Environment", "environment_digest"), ("Profile", "profile_digest"))
    lines = [["Key", fields["key"]], *([label, str(fields[name])] for label, name in named if fields.get(name))]
    components = fields.get("components") or {}
    if components:
        lines += [["Components"], *([f"  {name}", str(value) or "-"] for name, value in sorted(components.items()))]
    return lines
