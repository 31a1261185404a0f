"""Holds what all commands that copy entries need: the source, the target and its recalls, the plan, and the report."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ejcache.cache.opening import worth_by
from ejcache.cli import output
from ejcache.errors import EntryError, NotAStoreError, StoreUnavailableError
from ejcache.maintenance.stored_policy import read_limits, read_limits_of_directory, recalls_of
from ejcache.maintenance.transfer import CopyPlan
from ejcache.stores.location import Location
from ejcache.stores.opening import open_store
from ejcache.stores.shared.store import SharedStore
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ejcache.cli.chosen_cache import OpenCache
    from ejcache.maintenance.recalls import Recalls
    from ejcache.maintenance.transfer import Selection, TransferResult
    from ejcache.settings.table import Settings
    from ejcache.stores.base import Store


def planned(source: OpenCache, selection: Selection, have: Iterable[str]) -> CopyPlan:
    """Return the entries of a cache to copy to a place that has the keys `have`."""
    return CopyPlan(store_of(source).entries(), have, selection=selection, now=time.time())


def store_of(source: OpenCache) -> Store:
    """Return the store to copy from; raises NotAStoreError if no program has stored an entry there."""
    if source.store is None:
        raise NotAStoreError(f"{source.url} holds no entries of ejcache")
    return source.store


def open_for_writing(url: str, settings: Settings) -> Store:
    """Return the store to copy to, which is created if it does not exist."""
    # The size limit of the settings is meant for the cache that the settings name.
    limit = settings.store_limit if url == str(settings.dir) else None
    store = open_store(url, max_size=limit, settings=settings, worth=worth_by(settings))
    if isinstance(store, SharedStore):
        store.bucket.breaker = store.root.breaker = None  # it would say how a program goes on without the storage
    return store


def recalled_at(url: str, target: Store) -> Recalls:
    """Return what the target has recalled.

    Raises:
        StoreUnavailableError: that cannot be read, so nobody knows what is to be left out.
    """
    try:
        if isinstance(target, SharedStore):
            return recalls_of(read_limits(target.root) or {})
        return recalls_of(read_limits_of_directory(Location.parse(url)))
    except EntryError as exc:
        raise StoreUnavailableError(f"what is recalled of {url} cannot be read: {exc}") from exc


def report(
    done: TransferResult,
    source: str,
    target: str,
    *,
    as_json: bool,
    plan: CopyPlan | None = None,
    complete: bool = True,
    beside: Mapping[str, Any] | None = None,
) -> int:
    """Print what was copied, or with `plan` what would be; 1 if something is missing.

    Args:
        done: the entries that were copied.
        source: where they come from.
        target: where they go.
        as_json: print JSON, with the fields `beside`.
        plan: of a dry run.
        complete: nothing but entries is missing.
        beside: further fields for JSON.
    """
    complete = complete and done.complete
    if as_json:
        fields: dict[str, Any] = {"from": source, "to": target, "dry_run": plan is not None, "complete": complete}
        fields |= {"copied_entries": done.copied, "copied_size": done.size, "already_entries": done.already}
        fields |= {"gone_entries": done.gone} | output.fields_of(done, "unknown_versions", "recalled", "not_tried")
        for name, problems in (("damaged", done.damaged), ("failed", done.failed)):
            fields[name] = [{"key": key, "problem": problem} for key, problem in problems]
        if plan is not None:
            fields |= {"planned_entries": plan.entries, "planned_size": plan.size}
        output.print_json(fields | dict(beside or {}))
    elif plan is not None:
        output.say(f"would copy {output.count_and_size(plan.entries, plan.size)} from {source} to {target}")
    elif complete and not (done.copied or done.already or done.gone or done.unknown_versions or done.recalled):
        output.say(f"nothing to copy: {source} holds no such entries")
    else:
        already = f"; {_entries(done.already)} already there" if done.already else ""
        output.say(f"copied {output.count_and_size(done.copied, done.size)} from {source} to {target}{already}")
        _print_left_out(done)
    return int(not complete)


def _print_left_out(done: TransferResult) -> None:
    if done.unknown_versions:
        output.say(f"left {_entries(done.unknown_versions)} of another format version alone")
    if done.recalled:
        output.say(f"{_entries(done.recalled)} recalled there, and not copied")
    output.warn_of_each(done.damaged, "damaged and not copied")
    output.warn_of_each(done.failed, "could not be copied")
    if done.not_tried:
        output.warn(f"{_entries(done.not_tried)} were not tried after so many failures; run the command again")


def _entries(number: int) -> str:
    return plural(number, "entry", "entries")
