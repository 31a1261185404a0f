"""Holds the functions of `import ejcache` that look at a cache or clean it up: `stats`, `entries`, `why`, `prune` ….

Every function takes the directory or URL of a cache, as `dir`. Without it, the function works on the cache that
`ejcache.enable` has enabled in this process, or if there is none, on the one that `ejcache config` shows as `dir`. That
cache need not exist yet: it counts as empty. These functions may be called from any thread and while other processes
use the cache. They import JAX only if `ejcache.enable` has done so.
"""

from __future__ import annotations

import contextlib
import functools
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ejcache.cache.compilation_cache import cache_in_use
from ejcache.cache.stats import Stats
from ejcache.errors import NotAStoreError, SettingError, StoreError, UsageError
from ejcache.keys.key import is_side_key
from ejcache.settings.resolve import settings_in_use
from ejcache.stores.location import one_spelling
from ejcache.util.threads import THREADS
from ejcache.util.units import parse_age, parse_limit

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    from ejcache.bucket.base import Bucket
    from ejcache.history.causes import Cause
    from ejcache.history.known_entries import KnownEntries
    from ejcache.journal.line import ProgramRecord
    from ejcache.maintenance.audit import Audit
    from ejcache.maintenance.eviction import EvictionReport
    from ejcache.maintenance.eviction_plan import EvictionPolicy
    from ejcache.settings.table import Settings
    from ejcache.stores.base import EntryInfo, Store

    Url = str | os.PathLike[str]


def current_settings() -> Settings:
    """Return the settings that the next compilation will use, and where each came from:
    `current_settings()["max_size"]`.
    """
    return settings_in_use()


def stats(dir: Url | None = None, *, whole_store: bool = False) -> Stats:
    """Return the counters of a cache: hits, misses, and the time that it saved.

    Args:
        dir: a cache; its counters are those of all processes that have ever used it. Without it, those of this process.
        whole_store: without `dir`, too, the counters of all processes.

    Raises:
        UsageError: `dir` is not the URL of a cache.
        NotAStoreError: there is no cache at `dir`.
        StoreError: the cache cannot be read.
    """
    cache = cache_in_use()
    if dir is None and not whole_store:
        return cache.stats() if cache is not None else Stats()
    if dir is None and cache is not None:
        return cache.stats(whole_store=True)
    with _open_store_at(dir) as opened:
        return Stats.of(opened.store.counters()) if opened.store is not None else Stats()


def entries(dir: Url | None = None) -> Iterator[EntryInfo]:
    """Yield the entries, in no particular order, each with its key, its size and the times of its creation and last
    use.

    The listing is streamed: the iterator raises errors, and holds the cache open until it is exhausted or closed.
    Entries that another process adds or removes meanwhile may or may not appear. What this process has not finished
    uploading is not listed; `ejcache.active().flush(timeout=60)` waits for it.

    Args:
        dir: a cache.

    Raises:
        UsageError: `dir` is not the URL of a cache.
        NotAStoreError: there is no cache at `dir`.
        StoreError: the cache cannot be listed.
    """
    with _open_store_at(dir) as opened:
        if opened.store is not None:
            yield from (info for info in opened.store.entries() if not is_side_key(info.key))


def why(
    what: str | None = None, *, dir: Url | None = None, last: int = 1, since: float | str | None = None
) -> list[Cause]:
    """Return why programs were compiled rather than loaded: a cause for each miss, the latest first.

    Args:
        what: the name of a function, or a key or its beginning; by default, any.
        dir: only misses of this cache; by default, of every cache that this user has used on this host.
        last: how many misses to explain.
        since: only misses of this long ago or less, in seconds or as `"2h"`.

    Returns:
        An empty list if this host remembers no such miss. `cause.sentence` says what changed, from what to what;
        `cause.text` is the whole sentence. If the cache of a miss cannot be read, `note` says so, and the miss is
        compared with what this host has compiled.

    Raises:
        UsageError: `last` is less than 1, or `since` is not a duration.
    """
    from ejcache.history.why import causes_of  # a room that no hit needs

    if last < 1:
        raise SettingError("last", last, "a whole number, 1 or more")
    age = _seconds(since, "since")
    after = 0.0 if age is None else time.time() - age
    wanted = one_spelling(dir) if dir is not None else None

    def is_within(place: str, moment: float) -> bool:
        return moment >= after and (wanted is None or one_spelling(place) == wanted)

    with contextlib.ExitStack() as stack:
        known = functools.cache(functools.partial(_open_entries, stack=stack))
        found = causes_of(what, is_within, lambda record: known(record.url), most=last, named=_named)
    return [each for _, each in found]


def prune(
    dir: Url | None = None,
    *,
    max_size: int | str | None = None,
    max_entries: int | None = None,
    older_than: float | str | None = None,
    unused_for: float | str | None = None,
    name: str | None = None,
    old_versions: bool = False,
    keep: str | Iterable[str] = (),
    keep_pgle: bool = False,
    dry_run: bool = False,
) -> EvictionReport:
    """Remove the entries that a rule names, and the least recently used ones beyond a limit.

    Each rule removes by itself, as with the command `ejcache prune`. In a shared cache, entries stay that were created
    or used in the last five minutes, and without any rule, the limits apply that `ejcache config set` has stored with
    the cache.

    Args:
        dir: a cache.
        max_size: bytes that may stay, as a number from 1,000 on, as `"10GB"`, or 0.
        max_entries: number of entries that may stay.
        older_than: remove entries created longer ago than this, in seconds or as `"14d"`.
        unused_for: remove entries last used longer ago than this, in seconds or as `"14d"`.
        name: a shell pattern (`"jit_eval*"`) that narrows all rules to entries of such names; alone, it removes them.
        old_versions: remove entries with other versions or native libraries than the newest entry of their platform.
        keep: shell patterns; entries with such a name stay.
        keep_pgle: keep entries that were compiled with a profile, and the profiles.
        dry_run: remove nothing, only report.

    Returns:
        What was removed. An entry that the storage refuses to delete is in `failed`, and the others are removed.

    Raises:
        UsageError: no rule was given, a value is not acceptable, or `dir` is not the URL of a cache.
        NotAStoreError: there is no cache at `dir`.
        StoreError: the cache cannot be listed.
    """
    from ejcache.maintenance.eviction import EvictionReport, run_pass  # the door to a command
    from ejcache.maintenance.eviction_plan import EvictionPolicy  # the door to a command

    asked = EvictionPolicy(
        max_size=None if max_size is None else parse_limit(max_size, setting="max_size"),
        max_entries=max_entries,
        older_than=_seconds(older_than, "older_than"),
        unused_for=_seconds(unused_for, "unused_for"),
        name_glob=name,
        old_versions=old_versions,
        keep=(keep,) if isinstance(keep, str) else tuple(keep),
        keep_pgle=keep_pgle,
        by_cost=current_settings().evict == "cost",
    )
    with _open_store_at(dir, write=not dry_run) as opened:
        policy = opened.completed(asked)
        if not policy.has_criterion:
            raise UsageError("prune removes nothing without a rule: pass max_size, older_than, name or another one")
        return (
            EvictionReport(dry_run=dry_run) if opened.store is None else run_pass(opened.store, policy, dry_run=dry_run)
        )


def clear(dir: Url | None = None) -> EvictionReport:
    """Remove all entries. Files that plain JAX has written in the same directory stay.

    Other hosts keep their local copies of a shared cache's entries and go on using them: to ignore all entries stored
    so far, change the setting `namespace` in every job.

    Raises:
        UsageError: `dir` is not the URL of a cache.
        NotAStoreError: there is no cache at `dir`.
        StoreError: the cache cannot be listed.
    """
    from ejcache.maintenance.eviction import EvictionPass, EvictionReport  # the door to a command
    from ejcache.maintenance.eviction_plan import EvictionPolicy  # the door to a command

    with _open_store_at(dir, write=True) as opened:
        if opened.store is None:
            return EvictionReport()
        return EvictionPass(opened.store, EvictionPolicy(everything=True)).run()


def verify(dir: Url | None = None, *, fix: bool = False) -> Audit:
    """Read and check every entry, and check the structure of the cache.

    Args:
        dir: a cache.
        fix: quarantine damaged entries, so that the next compilation replaces them, and repair the structure.

    Returns:
        The number of entries, and what is wrong: `verify().clean` is true if nothing is, or all of it was repaired.

    Raises:
        UsageError: `dir` is not the URL of a cache.
        NotAStoreError: there is no cache at `dir`.
        StoreError: the cache cannot be listed, or with `fix` not be written.
    """
    from ejcache.maintenance.audit import Audit, audit, audit_structure  # the door to a command

    with _open_store_at(dir, write=fix) as opened:
        if opened.store is None:
            return Audit()
        seen = audit(opened.store, opened.store.entries(), fix=fix, threads=THREADS if opened.bucket is not None else 1)
        seen.findings += audit_structure(opened.store, fix=fix).findings
        return seen


@dataclass(frozen=True, slots=True)
class _OpenedCache:
    """A cache that is open for the time of one call; `store` is None if it does not exist yet."""

    store: Store | None
    bucket: Bucket | None = None

    def completed(self, asked: EvictionPolicy) -> EvictionPolicy:
        """Return `asked`, or without a rule the limits that are stored with a shared cache, and the order stored with
        it.
        """
        from ejcache.maintenance.stored_policy import policy_of, read_limits  # the door to a command

        stored = read_limits(self.bucket) or {} if self.bucket is not None else {}
        policy = policy_of(stored, evict="cost" if asked.by_cost else "lru")
        return replace(asked, by_cost=policy.by_cost) if asked.has_criterion else policy


def _open_entries(url: str, stack: contextlib.ExitStack) -> KnownEntries | Exception | None:
    """Return the entries of a cache, open until `stack` ends; None if it has none; or the error of opening it."""
    from ejcache.history.known_entries import KnownEntries  # a room that no hit needs

    try:
        opened = stack.enter_context(_open_store_at(url))
    except (StoreError, UsageError) as exc:
        return exc
    return KnownEntries(opened.store) if opened.store is not None else None


@contextlib.contextmanager
def _open_store_at(url: Url | None, *, write: bool = False) -> Iterator[_OpenedCache]:
    from ejcache.maintenance.eviction import ScannedStore  # the door to a command
    from ejcache.stores.contents import inspect_location  # the door to a command
    from ejcache.stores.shared.store import SharedStore  # the door to a command

    settings = current_settings()
    try:
        contents = inspect_location(_url(settings) if url is None else url, settings=settings)
    except NotAStoreError:
        if url is not None:
            raise
        yield _OpenedCache(None)
        return
    with contextlib.ExitStack() as stack:
        stack.callback(contents.close)
        store = contents.open(max_size=settings.store_limit, read_only=not write)
        if store is not None:
            stack.enter_context(store)
        listed = ScannedStore(store) if isinstance(store, SharedStore) else store
        yield _OpenedCache(listed, contents.bucket)


def _seconds(age: float | str | None, setting: str) -> float | None:
    return parse_age(age, setting=setting) if isinstance(age, str) else age


def _url(settings: Settings) -> str:
    cache = cache_in_use()
    if cache is not None:
        cache.flush()
        return cache.url
    if settings.dir is None:
        raise UsageError(f"{settings['dir'].source} names no cache: pass the URL of one")
    return settings.dir


def _named(records: Iterable[ProgramRecord], what: str) -> list[ProgramRecord]:
    return [each for each in records if each.name in (what, f"jit_{what}") or each.key.startswith(what)]
