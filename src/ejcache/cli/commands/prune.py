"""`ejcache prune`: deletes the entries that a rule names, those beyond a limit, or all."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

from ejcache.cli import output
from ejcache.cli.chosen_cache import open_cache
from ejcache.cli.fields import ENTRY, print_rows
from ejcache.cli.listing import ListedEntry, list_entries, read_facts
from ejcache.cli.options import Dir, DryRun, Json, Keys, Name, OlderThan, Yes, age, confirm, count, flag, option, size
from ejcache.cli.selection import check_wanted, choose, identify_entry
from ejcache.errors import NotAStoreError, UsageError
from ejcache.keys.key import is_side_key, parse_any_key
from ejcache.maintenance.eviction import EvictionPass
from ejcache.maintenance.eviction_plan import EvictionPlan, EvictionPolicy
from ejcache.maintenance.stored_policy import policy_of
from ejcache.settings.resolve import resolve
from ejcache.stores.worth import worth_of_use
from ejcache.util.units import format_size, plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ejcache.cli.chosen_cache import OpenCache
    from ejcache.maintenance.eviction import EvictionReport
    from ejcache.stores.base import Store

_COPIES_STAY: Final = "Hosts go on using their own copies; `ejcache recall --all` takes those back, too."
_CRITERIA: Final = "--max-size, --max-entries, --older-than, --unused-for, --name or --old-versions"
_SHOWN: Final = 200
"""Rows of a table in a terminal or in the log of a cron job."""

OldVersions = Annotated[
    bool, flag("--old-versions", "Remove entries whose versions differ from the newest entry of their platform.")
]
Keep = Annotated[
    list[str] | None,
    option("--keep", "GLOB", "Keep entries whose name matches, such as 'jit_train*'; may be repeated."),
]


Everything = Annotated[bool, flag("--all", "Remove all entries, or those that KEY names.")]
KeepPgle = Annotated[bool, flag("--keep-pgle", "Keep PGLE profiles, and the entries that were compiled with one.")]


def prune(
    keys: Keys = None,
    everything: Everything = False,
    directory: Dir = None,
    max_size: Annotated[
        str | None, option("--max-size", "SIZE", "How many bytes may stay, such as 10GB or 10GiB.")
    ] = None,
    max_entries: Annotated[str | None, option("--max-entries", "N", "How many entries may stay.")] = None,
    older_than: OlderThan = None,
    unused_for: Annotated[
        str | None, option("--unused-for", "AGE", "Remove what was last used longer ago than this.")
    ] = None,
    name: Name = None,
    old_versions: OldVersions = False,
    keep: Keep = None,
    keep_pgle: KeepPgle = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """Remove the entries that a rule selects, and then others until the limits hold.

    --name restricts all rules and limits to matching entries; alone, it removes the matching entries. A limit first
    removes the least recently used entries, unless evict is cost. An evict that is stored with the cache counts before
    the setting. If a program has an entry that was compiled with a PGLE profile and one that was not, a limit removes
    the one without the profile first. Files of JAX's own cache stay.

    Jobs may use a shared cache while it is pruned: without --all, entries stay that were created or used in the last
    five minutes. Without rules and limits, `prune` applies the limits that `config set` stored with the cache. On a
    terminal, `prune` asks before it removes more than half of the entries or of the bytes, unless --yes is given.

    With --all, every entry is removed, or with KEY those that KEY names. `prune --all` asks before it removes
    everything, unless --yes is given. With KEY, it asks only on a terminal. If several hosts share the cache, each
    host keeps copies of the entries that it uses, and goes on using them. `recall` takes the copies back, too.
    """
    for wanted in keys or ():
        check_wanted(wanted)
    policy = _policy(max_size, max_entries, older_than, unused_for, name, old_versions, keep, keep_pgle)
    if everything:
        if policy != _policy(None, None, None, None, None, False, None, False):
            raise UsageError(f"prune --all removes everything: leave out {_CRITERIA}, --keep and --keep-pgle")
        return _remove_all(directory, keys or (), dry_run=dry_run, yes=yes, as_json=as_json)
    if keys:
        raise UsageError(f"prune {keys[0]}: add --all, which removes what KEY names")
    return _prune_entries(directory, policy, dry_run=dry_run, yes=yes, as_json=as_json)


def _remove_all(directory: str | None, keys: Sequence[str], *, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Remove all entries of ejcache, or those that `keys` name."""
    with open_cache(directory, write=not dry_run) as cache:
        if cache.store is None:
            raise NotAStoreError(f"{cache.url} holds no entries of ejcache")
        only = frozenset(_keys_of_names(cache, keys)) if keys else None
        eviction = EvictionPass(cache.store, EvictionPolicy(everything=True, only=only), dry_run=dry_run)
        planned = eviction.plan
        is_asked = not keys or (sys.stdin.isatty() and not as_json)
        if planned.count and is_asked and not dry_run:
            what = output.count_and_size(planned.entries, planned.size)
            confirm(f"Remove {what} from {cache.url}?", yes=yes, as_json=as_json)
        report = run_pass(eviction, quiet=as_json or dry_run)
        if as_json:
            output.print_json(_plan_fields(cache, planned, report))
            return int(report.failures > 0)
    if not report.planned:
        output.say(f"nothing to remove: {cache.url} holds no entries of ejcache")
    else:
        print_deleted(cache, report)
        if cache.shared and not dry_run:
            output.say(_COPIES_STAY)
    return int(report.failures > 0)


def _keys_of_names(cache: OpenCache, wanted: Iterable[str]) -> list[str]:
    """Return the keys of the entries that `wanted` name."""
    found: dict[str, None] = {}
    for text in wanted:
        chosen = choose(list_entries(cache), text, identify_entry, where=cache.url, all_of_a_name=True)
        found |= dict.fromkeys(row.info.key for row in chosen)
    return list(found)


def _policy(
    max_size: str | None,
    max_entries: str | None,
    older_than: str | None,
    unused_for: str | None,
    name: str | None,
    old_versions: bool,
    keep: list[str] | None,
    keep_pgle: bool,
) -> EvictionPolicy:
    return EvictionPolicy(
        max_size=size(max_size, option="--max-size"),
        max_entries=count(max_entries, option="--max-entries"),
        older_than=age(older_than, option="--older-than"),
        unused_for=age(unused_for, option="--unused-for"),
        name_glob=name,
        old_versions=old_versions,
        keep=tuple(keep or ()),
        keep_pgle=keep_pgle,
        by_cost=resolve().evict == "cost",
    )


def _prune_entries(directory: str | None, given: EvictionPolicy, *, dry_run: bool, yes: bool, as_json: bool) -> int:
    with open_cache(directory, write=not dry_run) as cache:
        store, policy = _to_prune(cache, given)
        eviction = EvictionPass(store, policy, dry_run=dry_run)
        planned = eviction.plan
        if not as_json:
            _print_planned(planned)
            most = planned.entries > planned.left or planned.size > planned.left_size
            if most and sys.stdin.isatty() and not (yes or dry_run):
                goes = output.count_and_size(planned.entries, planned.size)
                left = output.count_and_size(planned.left, planned.left_size)
                confirm(f"Remove {goes} from {cache.url}? {left} would stay.", yes=False, as_json=False)
        report = run_pass(eviction, quiet=as_json or dry_run)
        orders = compare_orders(cache, policy, quiet=as_json) if dry_run else []
        if as_json:
            output.print_json(_plan_fields(cache, planned, report) | {"orders": orders})
        else:
            print_orders(orders)
            print_deleted(cache, report)
    return int(report.failures > 0)


def _to_prune(cache: OpenCache, given: EvictionPolicy) -> tuple[Store, EvictionPolicy]:
    """Choose the entries to prune, and the policy: that of the options, or else the limits stored with the cache."""
    stored = policy_of(cache.limits or {}, evict="cost" if given.by_cost else "lru")
    policy = given if given.has_criterion else stored
    if not policy.has_criterion:
        raise UsageError(f"prune needs a rule that says what to remove: give {_CRITERIA}, or --all")
    if cache.store is None:
        raise NotAStoreError(f"{cache.url} holds no entries that could be pruned")
    return cache.store, replace(policy, keep=given.keep, keep_pgle=given.keep_pgle, by_cost=stored.by_cost)


def run_pass(eviction: EvictionPass, *, quiet: bool) -> EvictionReport:
    with output.progress("removing", eviction.plan.count, quiet=quiet) as advance:
        return eviction.run(advance=advance)


def _plan_fields(cache: OpenCache, planned: EvictionPlan, report: EvictionReport) -> dict[str, Any]:
    return {
        "url": cache.url,
        "planned_entries": planned.entries,
        "planned_side_objects": planned.count - planned.entries,
        "planned_size": planned.size,
        **report_fields(report),
        "left_entries": report.left,
        "left_size": report.left_size,
        "in_use_entries": report.in_use,
        "planned": [
            output.fields_of(deletion.entry, "key", "size", "last_used") | {"reason": deletion.reason}
            for deletion in planned
        ],
    }


def report_fields(report: EvictionReport) -> dict[str, Any]:
    return {
        "dry_run": report.dry_run,
        "removed_entries": 0 if report.dry_run else report.removed,
        "removed_size": 0 if report.dry_run else report.freed,
        "failed": [{"key": key, "problem": problem} for key, problem in report.failed],
        "failures": report.failures,
    }


def _print_planned(planned: EvictionPlan) -> None:
    shown = islice((each for each in planned if not is_side_key(each.entry.key)), _SHOWN)
    rows = [ListedEntry(each.entry, parse_any_key(each.entry.key)).fields() | {"reason": each.reason} for each in shown]
    print_rows(ENTRY, ("name", "size", "created", "last used", "rule", "key"), rows)
    if len(rows) < planned.entries:
        output.say(f"and {planned.entries - len(rows):,} more; --json lists them all")


def print_deleted(cache: OpenCache, report: EvictionReport) -> None:
    done = "would remove" if report.dry_run else "removed"
    removed = output.count_and_size(report.removed, report.freed)
    left = output.count_and_size(report.left, report.left_size)
    output.say(f"{done} {removed} from {cache.url}; {left} {'stays' if report.left == 1 else 'stay'}")
    if report.in_use:
        number = plural(report.in_use, "entry", "entries")
        output.say(f"{number} in use: created or used within five minutes")
    output.warn_of_each(report.failed, "could not be removed")
    if report.failures > len(report.failed):
        output.warn(f"and {report.failures - len(report.failed):,} more could not be removed")
    for problem in report.problems:
        output.warn(problem)


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
