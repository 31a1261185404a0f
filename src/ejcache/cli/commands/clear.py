"""`ejcache clear`: removes all entries, or those that are named."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from ejcache.cli import output
from ejcache.cli.chosen_cache import open_cache
from ejcache.cli.commands.prune import print_deleted, report_fields, run_pass
from ejcache.cli.confirmation import confirm
from ejcache.cli.listing import list_entries
from ejcache.cli.options import Dir, Json, Keys, Tuned, Yes
from ejcache.cli.selection import check_wanted, choose, identify_entry
from ejcache.errors import NotAStoreError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ejcache.cli.chosen_cache import OpenCache


_COPIES_STAY: Final = "Hosts go on using their own copies; `ejcache recall --all` takes those back, too."


def clear(
    keys: Keys = None,
    directory: Dir = None,
    tuned: Tuned = False,
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """Remove all entries of ejcache, or those that are named. Entries of plain JAX stay.

    Asks before it removes all, unless --yes is given. If several hosts share the cache, each of them goes on using its
    own copies, which `recall` takes back, too.

    With --tuned, or if the first KEY names no entry but a tuned record, records are removed, pinned ones too, and their
    calls are measured again. Exits with 1 if something stays.
    """
    for wanted in keys or ():
        check_wanted(wanted)
    from ejcache.cli.entry_or_tuned import entries_or_records

    def of_records() -> int:
        from ejcache.cli.tuned.removal_and_pins import clear_records

        return clear_records(keys, directory, yes=yes, as_json=as_json)

    of_entries = partial(_clear_entries, keys, directory, yes=yes, as_json=as_json)
    if not keys:
        return of_records() if tuned else of_entries()
    return entries_or_records(of_entries, of_records, key=keys[0], directory=directory, tuned=tuned)


def _clear_entries(keys: list[str] | None, directory: str | None, *, yes: bool, as_json: bool) -> int:
    from ejcache.maintenance.eviction import EvictionPass
    from ejcache.maintenance.eviction_plan import EvictionPolicy

    with open_cache(directory, write=True) as cache:
        if cache.store is None:
            raise NotAStoreError(f"{cache.url} holds no entries of ejcache")
        only = frozenset(_keys_of_names(cache, keys)) if keys else None
        with EvictionPass(cache.store, EvictionPolicy(everything=True, only=only)) as eviction:
            if eviction.plan.count and not keys:
                what = output.count_and_size(eviction.plan.entries, eviction.plan.size)
                confirm(f"Remove {what} from {cache.url}?", yes=yes, as_json=as_json)
            report = run_pass(eviction, quiet=as_json)
    if as_json:
        output.print_json({"url": cache.url, **report_fields(report)})
    elif not report.planned:
        output.say(f"nothing to remove: {cache.url} holds no entries of ejcache")
    else:
        print_deleted(cache, report)
        if cache.shared:
            output.say(_COPIES_STAY)
    return int(report.failures > 0)


def _keys_of_names(cache: OpenCache, wanted: Iterable[str]) -> list[str]:
    """Return the keys of the entries that `wanted` name."""
    found: dict[str, None] = {}
    for text in wanted:
        own = list_entries(cache)
        chosen = choose(own, text, identify_entry, where=cache.url, all_of_a_name=True)
        found |= dict.fromkeys(row.info.key for row in chosen)
    return list(found)
