"""`ejcache prune` and `clear`: which entries stay in the cache and which are deleted."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

from ejcache.cli import output
from ejcache.cli.confirming import confirm
from ejcache.cli.listing import ListedEntry, check_wanted, choose, identify_entry, list_entries, open_target
from ejcache.cli.options import Dir, DryRun, Json, Keys, Name, OlderThan, Tuned, Yes, age, count, flag, option, size
from ejcache.errors import NotAStoreError, UsageError
from ejcache.keys.key import is_side_key, parse_any_key
from ejcache.util.text import format_size, plural

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ejcache.cli.listing import Target
    from ejcache.maintenance.eviction import EvictionPass, EvictionReport
    from ejcache.maintenance.plan import EvictionPlan, EvictionPolicy
    from ejcache.stores.base import Store
    from ejcache.stores.plain_jax import JaxEntries

_CRITERIA = "--max-size, --max-entries, --older-than, --unused-for, --name or --old-versions"
_SHOWN: Final = 200
"""Rows of a table in a terminal or in the log of a cron job."""
_COPIES_STAY: Final = (
    "Hosts go on using their own copies. To invalidate those, set EJCACHE_NAMESPACE to another text in every job, or "
    "remove EJCACHE_LOCAL_DIR on every host."
)

OldVersions = Annotated[
    bool, flag("--old-versions", "Remove what another JAX, jaxlib or host made than the newest one.")
]
Keep = Annotated[
    list[str] | None, option("--keep", "GLOB", "Keep what has such a name, such as 'jit_train*'; may be repeated.")
]


Recorded = Annotated[bool, flag("--recorded", "Remove recorded calls, which `tune` would measure.")]
Quarantined = Annotated[bool, flag("--quarantine", "With --tuned: delete quarantined documents.")]
KeepPgle = Annotated[bool, flag("--keep-pgle", "Keep PGLE profiles, and the entries that were compiled with one.")]


def prune(
    directory: Dir = None,
    max_size: Annotated[str | None, option("--max-size", "SIZE", "Bytes that may stay, such as 10GB or 10GiB.")] = None,
    max_entries: Annotated[str | None, option("--max-entries", "N", "Number of entries that may stay.")] = None,
    older_than: OlderThan = None,
    unused_for: Annotated[str | None, option("--unused-for", "AGE", "Remove what was last used longer ago.")] = None,
    name: Name = None,
    old_versions: OldVersions = False,
    keep: Keep = None,
    keep_pgle: KeepPgle = False,
    jax: Annotated[bool, flag("--jax", "Prune the entries that plain JAX wrote, instead of those of ejcache.")] = False,
    tuned: Tuned = False,
    recorded: Recorded = False,
    quarantine: Quarantined = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """Remove the entries that a rule names, and the least recently used ones beyond a limit.

    Each rule removes entries independently of the others. --name restricts all rules to matching entries; alone, it
    removes the matching entries. A plain entry is removed before the one of its program that was compiled with a PGLE
    profile. A directory that only plain JAX has written to is pruned as with --jax.

    Jobs may use a bucket while it is pruned: entries created or used in the last five minutes stay. Without rules, the
    limits that `config set` stored with the cache are applied. On a terminal, it asks before it removes more than half
    of the entries or of the bytes, unless --yes is given.

    With --tuned, --older-than, --old-versions and --name remove tuned records; pinned ones stay.
    """
    entries_only = {
        "--max-size": max_size, "--max-entries": max_entries, "--unused-for": unused_for,
        "--keep-pgle": keep_pgle, "--jax": jax,
    }  # fmt: skip
    if not (tuned or recorded or quarantine):
        policy = _policy(max_size, max_entries, older_than, unused_for, name, old_versions, keep, keep_pgle)
        return _prune_entries(directory, policy, jax=jax, dry_run=dry_run, yes=yes, as_json=as_json)
    from ejcache.cli.tuned.changes import prune_records

    if given := [text for text, value in entries_only.items() if value]:
        raise UsageError(f"{', '.join(given)} cannot be given for tuned records: prune entries without --tuned")
    rules: dict[str, Any] = {"older_than": older_than, "name": name, "old_versions": old_versions, "keep": keep or ()}
    return prune_records(directory, **rules, recorded=recorded, quarantine=quarantine, dry_run=dry_run, as_json=as_json)


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
    from ejcache.maintenance.plan import EvictionPolicy
    from ejcache.settings.resolve import resolve

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


def _prune_entries(
    directory: str | None, given: EvictionPolicy, *, jax: bool, dry_run: bool, yes: bool, as_json: bool
) -> int:
    from ejcache.cli.orders import compare_orders, print_orders
    from ejcache.maintenance.eviction import EvictionPass

    with open_target(directory, write=not dry_run) as target:
        store, policy = _to_prune(target, given, jax=jax)
        with EvictionPass(store, policy, dry_run=dry_run) as eviction:
            planned = eviction.plan
            if not as_json:
                _print_planned(planned)
                most = planned.entries > planned.left or planned.size > planned.left_size
                if most and sys.stdin.isatty() and not (yes or dry_run):
                    goes = output.count_and_size(planned.entries, planned.size)
                    left = output.count_and_size(planned.left, planned.left_size)
                    confirm(f"Remove {goes} from {target.url}? {left} would stay.", yes=False, as_json=False)
            report = _run(eviction, quiet=as_json or dry_run)
            orders = compare_orders(target, policy, quiet=as_json) if dry_run and store is target.store else []
            if as_json:
                output.print_json(_plan_fields(target, planned, report) | {"orders": orders})
            else:
                print_orders(orders)
                _print_pruned(target, report)
    return int(report.failures > 0)


def clear(
    keys: Keys = None,
    directory: Dir = None,
    tuned: Tuned = False,
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """Remove all entries of ejcache, or those that are named. Entries of plain JAX stay.

    Asks before it removes all, unless --yes is given. If several hosts share the cache, each of them goes on using its
    own copies. To invalidate those, set EJCACHE_NAMESPACE to another text, or remove EJCACHE_LOCAL_DIR on every host.

    With --tuned, or if the first KEY names no entry but a tuned record, records are removed, pinned ones too, and their
    calls are measured again. Exits with 1 if something stays.
    """
    for wanted in keys or ():
        check_wanted(wanted)
    from ejcache.cli.either import entries_or_records

    def of_records() -> int:
        from ejcache.cli.tuned.changes import clear_records

        return clear_records(keys, directory, yes=yes, as_json=as_json)

    of_entries = partial(_clear_entries, keys, directory, yes=yes, as_json=as_json)
    if not keys:
        return of_records() if tuned else of_entries()
    return entries_or_records(of_entries, of_records, key=keys[0], directory=directory, tuned=tuned)


def _clear_entries(keys: list[str] | None, directory: str | None, *, yes: bool, as_json: bool) -> int:
    from ejcache.maintenance.eviction import EvictionPass
    from ejcache.maintenance.plan import EvictionPolicy

    with open_target(directory, write=True) as target:
        if target.store is None:
            raise NotAStoreError(f"{target.url} holds no entries of ejcache")
        only = frozenset(_named(target, keys)) if keys else None
        with EvictionPass(target.store, EvictionPolicy(everything=True, only=only)) as eviction:
            if eviction.plan.count and not keys:
                what = output.count_and_size(eviction.plan.entries, eviction.plan.size)
                confirm(f"Remove {what} from {target.url}?", yes=yes, as_json=as_json)
            report = _run(eviction, quiet=as_json)
    if as_json:
        output.print_json({"url": target.url, **_report_fields(report)})
    elif not report.planned:
        output.say(f"nothing to remove: {target.url} holds no entries of ejcache")
    else:
        _print_pruned(target, report)
        if target.shared:
            output.say(_COPIES_STAY)
    return int(report.failures > 0)


def _named(target: Target, wanted: Iterable[str]) -> list[str]:
    """The keys of the entries that `wanted` name."""
    found: dict[str, None] = {}
    for text in wanted:
        own = (row for row in list_entries(target) if not row.is_jax)
        chosen = choose(own, text, identify_entry, where=target.url, all_of_a_name=True)
        found |= dict.fromkeys(row.info.key for row in chosen)
    return list(found)


def _to_prune(target: Target, given: EvictionPolicy, *, jax: bool) -> tuple[Store | JaxEntries, EvictionPolicy]:
    """What is pruned, and the policy: that of the options, or else the limits that are stored with the cache."""
    from ejcache.maintenance.plan import policy_of

    stored = policy_of(target.limits or {}, evict="cost" if given.by_cost else "lru")
    policy = given if given.has_criterion else stored
    if not policy.has_criterion:
        raise UsageError(f"prune needs a rule that says what to remove: give {_CRITERIA}")
    if jax and target.jax is None:
        raise UsageError(f"--jax: {target.url} holds no entries of plain JAX")
    store = target.jax if jax or target.store is None else target.store
    if store is None:
        raise NotAStoreError(f"{target.url} holds no entries that could be pruned")
    return store, replace(policy, keep=given.keep, keep_pgle=given.keep_pgle, by_cost=stored.by_cost)


def _run(eviction: EvictionPass, *, quiet: bool) -> EvictionReport:
    with output.progress("removing", eviction.plan.count, quiet=quiet) as advance:
        return eviction.run(advance=advance)


def _plan_fields(target: Target, planned: EvictionPlan, report: EvictionReport) -> dict[str, Any]:
    return {
        "url": target.url,
        "planned_entries": planned.entries,
        "planned_side_objects": planned.count - planned.entries,
        "planned_size": planned.size,
        **_report_fields(report),
        "left_entries": report.left,
        "left_size": report.left_size,
        "in_use_entries": report.in_use,
        "planned": [
            output.fields_of(deletion.entry, "key", "size", "last_used") | {"reason": deletion.reason}
            for deletion in planned
        ],
    }


def _report_fields(report: EvictionReport) -> dict[str, Any]:
    return {
        "dry_run": report.dry_run,
        "removed_entries": 0 if report.dry_run else report.removed,
        "removed_size": 0 if report.dry_run else report.freed,
        "failed": [{"key": key, "problem": problem} for key, problem in report.failed],
        "failures": report.failures,
    }


def _print_planned(planned: EvictionPlan) -> None:
    now = time.time()
    rows = []
    for deletion in islice((each for each in planned if not is_side_key(each.entry.key)), _SHOWN):
        entry = deletion.entry
        row = ListedEntry(entry, parse_any_key(entry.key))
        ages = [output.ago(moment, now=now) for moment in (entry.created, entry.last_used)]
        rows.append([row.parts.name, format_size(entry.size), *ages, deletion.reason.replace("_", " "), row.short])
    if rows:
        columns = ["name", "size", "created", "last used", "rule", "key"]
        output.print_table(columns, rows, right=("size", "created", "last used"), whole=("key",))
    if len(rows) < planned.entries:
        output.say(f"and {planned.entries - len(rows):,} more; --json lists them all")


def _print_pruned(target: Target, report: EvictionReport) -> None:
    done = "would remove" if report.dry_run else "removed"
    removed = output.count_and_size(report.removed, report.freed)
    left = output.count_and_size(report.left, report.left_size)
    output.say(f"{done} {removed} from {target.url}; {left} {'stays' if report.left == 1 else 'stay'}")
    if report.in_use:
        number = plural(report.in_use, "entry", "entries")
        output.say(f"{number} in use: created or used within five minutes")
    output.warn_of_each(report.failed, "could not be removed")
    if report.failures > len(report.failed):
        output.warn(f"and {report.failures - len(report.failed):,} more could not be removed")
    for problem in report.problems:
        output.warn(problem)
