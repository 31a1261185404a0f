"""`ejcache recall`: takes entries back, here and from every host that has copies of them."""

from __future__ import annotations

import contextlib
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from ejcache.bucket.files import FileBucket
from ejcache.cli import output
from ejcache.cli.chosen_cache import open_cache
from ejcache.cli.listing import list_entries
from ejcache.cli.options import Dir, Json, Keys, Replace, Yes, confirm, flag, option
from ejcache.cli.selection import check_wanted, choose, identify_entry
from ejcache.errors import EntryError, NotAStoreError, SettingError, StoreUnavailableError, UsageError
from ejcache.maintenance.recalling import Recaller
from ejcache.maintenance.recalls import Rule
from ejcache.stores.location import Location
from ejcache.stores.shared.store import SharedStore
from ejcache.util.units import parse_age, plural
from ejcache.util.writer import user_and_host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ejcache.bucket.base import Bucket
    from ejcache.cli.chosen_cache import OpenCache
    from ejcache.maintenance.recalling import RecallReport

_ACCEPTED_TIME: Final = "a time such as 2026-11-27T18:30, in UTC, or an age such as 2h"
_MOST_TEXT: Final = 160

_BEFORE: Final = option(
    "--before", "TIME", "Recall what was stored before this time, as 2026-11-27T18:30 (UTC) or as an age, such as 2h."
)
_BY: Final = option(
    "--by", "WRITER", "Recall what a writer has stored: HOST, USER@, USER@HOST, or the writer that `ls KEY` shows."
)


def recall(
    keys: Keys = None,
    before: Annotated[str | None, _BEFORE] = None,
    by: Annotated[str | None, _BY] = None,
    everything: Annotated[bool, flag("--all", "Recall everything that is stored now.")] = False,
    directory: Dir = None,
    replace: Replace = False,
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """Take entries back: remove them from the cache, and tell every host not to load them.

    A process that can read the cache knows of the recall within a minute. If it has loaded a recalled entry, it logs
    one line, and keeps the program until it ends. A program that is compiled later is stored again.

    In a cache that hosts share, --all begins a new place for entries, with a random name. A host that knows of the
    recall uses only this place. So nothing comes back that somebody has written to the old place, or writes there
    later. Only --all helps against a writer who puts a false name or time into an entry. --all empties a cache of one
    host.

    Each entry contains the name of its writer and the time at which it was stored. --by recalls what a writer
    has stored so far. --before recalls what was stored before TIME. It also removes each entry for which the storage
    itself has noted such a time. If a host uploads an entry later whose own name or time is recalled, no process that
    knows of the recall loads it. With KEY, an entry is recalled by the digest of its bytes.

    If a recall was interrupted, it is in force, and the same command removes the rest. --all asks before it removes,
    unless --yes is given. The policy is the file of a cache that says what is recalled. A damaged policy is not
    changed, unless --replace is given. Tuned records stay.
    """
    _check(keys, before, by, everything=everything)
    for wanted in keys or ():
        check_wanted(wanted)
    rule = None if keys else _rule(before, by)
    with open_cache(directory, write=True) as cache:
        if cache.store is None:
            raise NotAStoreError(f"{cache.url} holds no entries of ejcache")
        if everything:
            confirm(f"Recall everything that is stored in {cache.url}?", yes=yes, as_json=as_json)
        with _documents(cache) as objects, output.progress("removing", None, quiet=as_json) as advance:
            try:
                report = _recall(cache, objects, keys or [], rule, advance, replace=replace)
            except EntryError as exc:
                raise StoreUnavailableError(f"what is stored with {cache.url} cannot be read: {exc}") from exc
    if as_json:
        output.print_json({"url": cache.url, **output.fields_of(report, "at", "removed", "absent")})
    else:
        removed = plural(len(report.removed), "entry", "entries")
        output.say(f"recalled from {cache.url}: {removed} removed; within a minute every process knows of it")
        for key in report.absent:
            output.warn(f"{key} is gone already; hosts may have copies, which --before recalls")
    return int(bool(report.absent))


def _check(keys: list[str] | None, before: str | None, by: str | None, *, everything: bool) -> None:
    if sum((bool(keys), before is not None, by is not None, everything)) != 1:
        raise UsageError("recall needs to know what: give keys, --before, --by or --all, and only one of them")
    if by is not None and not (by.strip() and len(by) <= _MOST_TEXT):
        raise SettingError("--by", by, "HOST, USER@, USER@HOST, or the writer that `ls KEY` shows")


def _rule(before: str | None, by: str | None) -> Rule:
    moment = None if before is None else _moment(before)
    return Rule(0.0, by=(by or "").strip(), before=moment, recalled_by=user_and_host())


def _moment(text: str) -> float:
    """Return seconds since 1970 of a time, or of an age."""
    if re.fullmatch(r"\s*\d+(\.\d+)?\s*[smhdw]\s*", text):
        return max(0.0, time.time() - parse_age(text, setting="--before"))
    with contextlib.suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(text.strip())
        seconds = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
        if seconds >= 0:
            return seconds
    raise SettingError("--before", text, _ACCEPTED_TIME)


@contextlib.contextmanager
def _documents(cache: OpenCache) -> Iterator[Bucket]:
    """Yield the objects among which the policy of the cache is."""
    if isinstance(cache.store, SharedStore):
        yield cache.store.root
        return
    with FileBucket(Path(Location.parse(cache.url).path), local=True, documents=True) as files:
        yield files


def _recall(
    cache: OpenCache,
    objects: Bucket,
    keys: list[str],
    rule: Rule | None,
    advance: Callable[[], None],
    *,
    replace: bool,
) -> RecallReport:
    if cache.store is None:
        raise NotAStoreError(f"{cache.url} holds no entries of ejcache")
    directory = None if isinstance(cache.store, SharedStore) else Path(Location.parse(cache.url).path)
    recaller = Recaller(
        store=cache.store, objects=objects, directory=directory, replace_damaged=replace, advance=advance
    )
    if rule is not None:
        return recaller.by_rule(rule)
    found: dict[str, None] = {}
    for text in keys:
        chosen = choose(list_entries(cache), text, identify_entry, where=cache.url, all_of_a_name=True)
        found |= dict.fromkeys(row.info.key for row in chosen)
    return recaller.entries(found)
