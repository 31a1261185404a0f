"""`ejcache stats`, `ls` and `show`: looking, which changes nothing, recency included."""

from __future__ import annotations

import fnmatch
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ejcache.cli import output
from ejcache.cli.catalog import (
    JAX,
    OURS,
    Facts,
    Row,
    all_facts,
    by_program,
    check_wanted,
    facts,
    match_rows,
    profile_fields,
    rows_of,
    warn_of_several,
)
from ejcache.cli.opened import Opened, opened_place
from ejcache.cli.options import Dir, Json, count
from ejcache.units import format_age, format_size
from ejcache.upkeep.abilities import pinned_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ejcache.statistics import Stats

__all__ = ["ls", "show", "stats"]


class Order(StrEnum):
    """What `ls` sorts by."""

    size = "size"
    age = "age"
    used = "used"
    name = "name"


_ORDERS: Final = {
    Order.size: lambda row: (-row.info.size, row.info.key),
    Order.age: lambda row: (row.info.created, row.info.key),
    Order.used: lambda row: (-row.info.last_used, row.info.key),
    Order.name: lambda row: (row.parts.name, row.parts.platform, row.info.key),
}


def stats(
    directory: Dir = None,
    as_json: Json = False,
    reset: Annotated[bool, typer.Option("--reset", help="Start counting from zero; entries stay.")] = False,
) -> None:
    """Show what the cache holds and what it did: hits, misses and why, time saved.

    The counters are kept with the cache and cover all processes since it was made, or since the last --reset.
    """
    from ejcache.statistics import Stats

    with opened_place(directory, write=reset) as place:
        if reset and place.store is not None:
            place.store.reset_counters()
            if not as_json:
                output.say(f"the counters of {place.url} are set to zero")
                return
        rows = list(rows_of(place.store, place.jax))
        counted = Stats.of(place.store.counters() if place.store is not None else {})
        fields = _stats_fields(place, rows, counted)
    if as_json:
        output.print_json(fields)
    else:
        output.print_pairs(_stats_lines(place, fields, counted))


def ls(
    directory: Dir = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="GLOB", help="Only entries whose name matches, such as 'jit_train*'."),
    ] = None,
    sort: Annotated[
        Order,
        typer.Option("--sort", help="By size (largest first), age (oldest first), used (latest first) or name."),
    ] = Order.used,
    limit: Annotated[
        str | None, typer.Option("--limit", metavar="N", help="At most this many.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """List the entries: name, platform, variant, size, compile time in seconds, last use, and a key for `show`.

    Variants of one program come together, the optimised one first, with the profile that it was compiled with.

    Entries that plain JAX wrote into the same directory or bucket come after ours. Of a remote cache, compile times
    are shown for 2,000 entries at most: give --limit or --name.
    """
    most = count(limit, option="--limit")
    with opened_place(directory) as place:
        rows = list(rows_of(place.store, place.jax))
        if name is not None:
            rows = [row for row in rows if fnmatch.fnmatchcase(row.parts.name, name)]
        rows.sort(key=_ORDERS[sort])
        rows.sort(key=lambda row: row.kind != OURS)
        rows = by_program(rows)
        shown = rows if most is None else rows[:most]
        with output.progress("reading", len(shown), quiet=as_json) as advance:
            read = all_facts(shown, place.store, place.jax, remote=place.shared, advance=advance)
    if as_json:
        output.print_json(
            {
                "url": place.url,
                "total_entries": len(rows),
                "total_size": sum(row.info.size for row in rows),
                "entries": [
                    row.fields() | {"compile_seconds": facts.compile_seconds, "profile": facts.profile}
                    for row, facts in zip(shown, read, strict=True)
                ],
            }
        )
        return
    if shown:
        _print_rows(shown, read)
    hidden = f", {len(rows) - len(shown):,} not shown" if len(shown) < len(rows) else ""
    output.say(f"{_sum(rows)} in {place.url}{hidden}")


def show(
    key: Annotated[
        str, typer.Argument(metavar="KEY|PREFIX|NAME", help="A key, what `ls` shows of it, or an entry's name.")
    ],
    directory: Dir = None,
    as_json: Json = False,
) -> None:
    """Show what one entry says of itself, the components of its key, and whether it is intact.

    Of a program with several variants it is the optimised one, and the others are listed.
    """
    check_wanted(key)
    with opened_place(directory) as place:
        listed = list(rows_of(place.store, place.jax))
        match = match_rows(listed, key)
        if not match.rows:
            output.warn(f"no entry of {place.url} has a key or name like {key!r}")
            raise typer.Exit(1)
        if match.ambiguous:
            warn_of_several(match, key)
            raise typer.Exit(1)
        row = by_program(match.rows)[0]
        fields = _entry_fields(place, row)
        fields["variants"] = [
            other.fields() | {"profile": facts(other, place.store, None).profile}
            for other in by_program(listed)
            if row.program is not None and other.program == row.program
        ]
    if as_json:
        output.print_json(fields)
    else:
        _print_entry(fields)
    if fields["problem"]:
        raise typer.Exit(1)


def _print_rows(rows: Sequence[Row], read: Sequence[Facts]) -> None:
    now = time.time()
    mixed = len({row.kind for row in rows}) > 1
    columns = ["name", "platform", "variant", "size", "compile s", "last used", "key"]
    lines = [
        [
            row.parts.name,
            row.parts.platform or "-",
            row.parts.variant or "-",
            format_size(row.info.size),
            output.seconds(facts.compile_seconds),
            output.ago(row.info.last_used, now=now),
            row.short,
        ]
        for row, facts in zip(rows, read, strict=True)
    ]
    if any(facts.profile for facts in read):
        columns.insert(3, "profile")
        for facts, line in zip(read, lines, strict=True):
            line.insert(3, _profile_text(facts.profile) if facts.profile else "-")
    for before, row, line in zip(rows, rows[1:], lines[1:], strict=False):
        if row.program is not None and row.program == before.program:
            line[0] = f"└ {line[0]}"
    if mixed or any(row.kind == JAX for row in rows):
        columns.insert(0, "kind")
        for row, line in zip(rows, lines, strict=True):
            line.insert(0, row.kind)
    output.print_table(columns, lines, right=("size", "compile s", "last used"), shrink=("name",))


def _profile_text(profile: dict[str, Any]) -> str:
    parts = [str(profile["digest"])[:8]]
    if profile.get("runs"):
        parts.append(output.plural(profile["runs"], "run", "runs"))
    if profile.get("percentile"):
        parts.append(f"p{profile['percentile']}")
    if profile.get("devices"):
        parts.append(output.plural(profile["devices"], "device", "devices"))
    return ", ".join(parts)


def _sum(rows: Sequence[Row]) -> str:
    return f"{output.plural(len(rows), 'entry', 'entries')}, {format_size(sum(row.info.size for row in rows))}"


def _stats_fields(place: Opened, rows: Sequence[Row], counted: Stats) -> dict[str, Any]:
    ours = [row for row in rows if row.kind == OURS]
    plain_jax = [row for row in rows if row.kind == JAX]
    return {
        "url": place.url,
        "entries": len(ours),
        "size": sum(row.info.size for row in ours),
        "max_size": place.max_size,
        "pinned_entries": len(pinned_keys(place.store) & {row.info.key for row in ours}),
        "pgle_entries": sum(row.parts.variant == "pgle" for row in ours),
        "jax_entries": len(plain_jax),
        "jax_size": sum(row.info.size for row in plain_jax),
        **counted.to_dict(),
    }


def _stats_lines(place: Opened, fields: dict[str, Any], counted: Stats) -> list[list[str]]:
    size = format_size(fields["size"])
    if place.max_size > 0:
        size += f" / {format_size(place.max_size)} ({100 * fields['size'] / place.max_size:.1f}%)"
    lines = [["Cache", place.url]]
    if place.store is not None:
        lines.append(["Entries", f"{fields['entries']:,}"])
        if fields["pgle_entries"]:
            lines.append(["  with a profile", output.share(fields["pgle_entries"], fields["entries"])])
        if fields["pinned_entries"]:
            lines.append(["  pinned", output.share(fields["pinned_entries"], fields["entries"])])
        lines.append(["Size", size])
    if fields["jax_entries"]:
        lines.append(["Plain JAX", f"{fields['jax_entries']:,} ({format_size(fields['jax_size'])})"])
    if place.store is None:
        return lines
    lines += [["Requests", f"{counted.requests:,}"]]
    if counted.requests:
        lines += [
            ["  hits", output.share(counted.hits, counted.requests)],
            ["  misses", output.share(counted.misses, counted.requests)],
            *(
                [f"    {reason}", output.share(amount, counted.misses)]
                for reason, amount in counted.misses_by_reason.items()
            ),
        ]
    lines.append(["Stored", f"{counted.stores:,}"])
    skipped = counted.skipped
    if skipped:
        total = sum(skipped.values())
        lines.append(["Not stored", f"{total:,}"])
        lines += [[f"  {reason}", output.share(amount, total)] for reason, amount in skipped.items()]
    for tier, asked in counted.tiers.items():
        looked = asked.get("hits", 0) + asked.get("misses", 0)
        if looked:
            lines.append([f"{tier.capitalize()} tier", f"hits {output.share(asked.get('hits', 0), looked)}"])
    for name, amount in (("Damaged", counted.corrupt), ("Errors", counted.errors)):
        if amount:
            lines.append([name, f"{amount:,}"])
    lines += [
        ["Time saved", _duration(counted.seconds_saved)],
        ["Time compiling", _duration(fields["compile_seconds"])],
        ["Time loading", _duration(fields["load_seconds"])],
        ["Read", format_size(fields["bytes_read"])],
        ["Written", format_size(fields["bytes_written"])],
    ]
    return lines


def _duration(value: float) -> str:
    return f"{value:,.1f} s" + (f" ({format_age(value)})" if value >= 120 else "")


def _entry_fields(place: Opened, row: Row) -> dict[str, Any]:
    from ejcache import entry
    from ejcache.cli.catalog import read_header
    from ejcache.errors import EntryError

    fields: dict[str, Any] = row.fields() | {"url": place.url, "problem": ""}
    fields["pinned"] = row.info.key in pinned_keys(place.store)
    if row.kind == JAX or place.store is None:
        try:
            fields["compile_seconds"] = place.jax.compile_seconds(row.info.key) if place.jax is not None else None
        except EntryError as exc:
            fields["problem"] = str(exc)
        return fields
    try:
        entry.decode(place.store.peek(row.info.key) or b"", key=row.info.key)
    except EntryError as exc:
        fields["problem"] = str(exc)
    header = read_header(place.store, row.info.key)
    if header is not None:
        fields |= {
            "created": header.created or row.info.created,
            "payload": header.kind,
            "codec": header.codec,
            "raw_size": header.raw_size,
            "compile_seconds": header.compile_seconds,
            "jax": header.jax,
            "jaxlib": header.jaxlib,
            "profile_digest": header.profile_digest,
            "profile": profile_fields(header),
            "components": dict(header.components),
            "metadata": dict(header.extra),
        }
        for name, value in (("name", header.name), ("platform", header.platform), ("logical_key", header.logical_key)):
            fields[name] = value or fields[name]
    return fields


def _print_entry(fields: dict[str, Any]) -> None:
    now = time.time()
    size = format_size(fields["size"])
    if fields.get("raw_size"):
        size += f" ({format_size(fields['raw_size'])} uncompressed)"
    lines = [["Key", fields["key"]], ["Kind", fields["kind"]]]
    for label, name in (("Name", "name"), ("Platform", "platform"), ("Variant", "variant")):
        lines.append([label, fields[name] or "-"])
    lines.append(["Size", size])
    if fields.get("compile_seconds") is not None:
        lines.append(["Compile time", f"{fields['compile_seconds']:.2f} s"])
    for label, name in (("Created", "created"), ("Last used", "last_used")):
        lines.append([label, f"{output.moment(fields[name])} ({output.ago(fields[name], now=now)})"])
    for label, name in (
        ("JAX", "jax"),
        ("jaxlib", "jaxlib"),
        ("Program", "logical_key"),
        ("Environment", "environment"),
        ("Profile", "profile_digest"),
    ):
        if fields.get(name):
            lines.append([label, str(fields[name])])
    if fields.get("profile"):
        lines.append(["  made from", _profile_text(fields["profile"]).partition(", ")[2] or "-"])
    others = [other for other in fields["variants"] if other["key"] != fields["key"]]
    for other in others:
        made = f"{format_size(other['size'])}, made {output.ago(other['created'], now=now)}"
        lines.append([f"Also {other['variant']}", f"{made}: {other['key']}"])
    if fields["pinned"]:
        lines.append(["Pinned", "yes"])
    lines.append(["Intact", f"no: {fields['problem']}" if fields["problem"] else "yes"])
    for title in ("components", "metadata"):
        if fields.get(title):
            lines += [[""], [title.capitalize()]]
            lines += [[f"  {name}", str(value)] for name, value in sorted(fields[title].items())]
    output.print_pairs(lines)
