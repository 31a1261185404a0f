"""`ejcache ls`: lists the entries of a cache, or shows one. It does not even change when one was last used."""

from __future__ import annotations

import heapq
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

from ejcache.cli import output
from ejcache.cli.chosen_cache import open_cache
from ejcache.cli.completion import keys_beginning
from ejcache.cli.fields import ENTRY, print_rows
from ejcache.cli.listing import Totals, by_program, list_entries, read_facts
from ejcache.cli.one_entry import show_entry
from ejcache.cli.options import Dir, Json, Limit, Name, argument, count, flag
from ejcache.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ejcache.cli.listing import ListedEntry


class Order(StrEnum):
    """The orders of `ls`."""

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


_COLUMNS: Final = (
    "name", "platform", "variant", "profile", "size", "compile s", "last used", "key",
)  # fmt: skip
_LEAST: Final = ("platform", "last used", "compile s")


def ls(
    key: Annotated[
        str | None,
        argument("[KEY]", "A key, the beginning of one, or the name of a function.", autocompletion=keys_beginning),
    ] = None,
    directory: Dir = None,
    name: Name = None,
    sort: Annotated[
        Order,
        flag("--sort", "Sort by size (largest first), age (oldest first), used (latest first) or name."),
    ] = Order.used,
    limit: Limit = None,
    as_json: Json = False,
) -> int:
    """List the entries: name, platform, size, compile time in seconds, last use, and a short key.

    One program can have several entries, its variants: one that was compiled with a PGLE profile, and others that were
    not. They are listed together, the one with the profile first. The columns variant and profile are left out if all
    entries are of the variant plain.

    The compile times of a cache that hosts share are shown only if at most 2,000 entries are listed: use --limit or
    --name.

    With KEY, one entry is shown: its header, the components of its key, and whether it is intact. If its program has
    other variants, they are listed below. If KEY names several variants, the one with the PGLE profile is shown. If KEY
    is a name that several programs have, each of them is listed with its arguments. Exits with 1 if the entry is
    damaged, if there is none, or if KEY is the beginning of the keys of several programs.
    """
    if key is not None:
        if name is not None or limit is not None:
            raise UsageError("ls KEY shows one entry: leave out --name and --limit")
        return show_entry(key, directory, as_json=as_json)
    most = count(limit, option="--limit")
    totals = Totals()
    with open_cache(directory, may_be_empty=True) as cache:
        listed = list_entries(cache, totals, name=name)
        rows = sorted(listed, key=_ORDERS[sort]) if most is None else heapq.nsmallest(most, listed, key=_ORDERS[sort])
        rows = by_program(rows)
        with output.progress("reading", len(rows), quiet=as_json) as advance:
            entries = [
                row.fields() | facts for row, facts in zip(rows, read_facts(rows, cache, advance=advance), strict=True)
            ]
    if as_json:
        output.print_json({"url": cache.url, **asdict(totals), "entries": entries})
        return 0
    print_rows(ENTRY, _COLUMNS, _with_branches(rows, entries), least=_LEAST)
    hidden = totals.total_entries - len(rows)
    output.say(f"{totals.words()} in {cache.url}{f'; {hidden:,} not shown' if hidden else ''}")
    return 0


def _with_branches(rows: Sequence[ListedEntry], entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the fields, in which a variant of the program above it is marked."""
    before = [None, *(row.program for row in rows)]
    marks = (row.program is not None and row.program == above for row, above in zip(rows, before, strict=False))
    return [{**fields, "is_variant": mark} for fields, mark in zip(entries, marks, strict=True)]
