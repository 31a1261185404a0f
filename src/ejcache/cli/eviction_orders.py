"""What each order of eviction would remove, for `ejcache prune --dry-run`."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ejcache.cli import output
from ejcache.cli.listing import list_entries, read_facts
from ejcache.maintenance.eviction_plan import EvictionPlan
from ejcache.stores.base import worth_of_use
from ejcache.util.units import format_size, plural

if TYPE_CHECKING:
    from ejcache.cli.chosen_cache import OpenCache
    from ejcache.maintenance.eviction_plan import EvictionPolicy


def compare_orders(cache: OpenCache, policy: EvictionPolicy, *, quiet: bool) -> list[dict[str, Any]]:
    """List what a limit would remove in each order: entries, bytes, and the seconds that compiling them again takes.

    Entries are read of which the store does not know what they are worth.
    """
    if cache.store is None or (policy.max_size is None and policy.max_entries is None):
        return []
    rows = list(list_entries(cache))
    seconds = {row.info.key: row.info.worth for row in rows}
    unknown = [row for row in rows if row.info.worth is None]
    with output.progress("reading", len(unknown), quiet=quiet) as advance:
        for row, fact in zip(unknown, read_facts(unknown, cache, advance=advance), strict=True):
            seconds[row.info.key] = fact["compile_seconds"] or 0.0
    infos = [row.info._replace(worth=worth_of_use(seconds[row.info.key] or 0.0)) for row in rows]
    answer = []
    for name, by_cost in (("lru", False), ("cost", True)):
        plan = EvictionPlan(infos, now=time.time(), policy=replace(policy, by_cost=by_cost))
        again = sum(seconds.get(deletion.entry.key) or 0.0 for deletion in plan)
        sizes = {"planned_entries": plan.entries, "planned_size": plan.size, "compile_seconds": again}
        answer.append({"order": name, "chosen": by_cost is policy.by_cost, **sizes})
    return answer


def print_orders(orders: list[dict[str, Any]]) -> None:
    """Print what a limit would remove in each order, a line each."""
    for each in orders:
        chosen = "" if each["chosen"] else f" (evict={each['order']})"
        number = plural(each["planned_entries"], "entry", "entries")
        again = f"{output.seconds(each['compile_seconds'])} s to compile again"
        output.say(f"in the order {each['order']}{chosen}: {number}, {format_size(each['planned_size'])}, {again}")
