"""`ejcache push` and `pull`: copy entries to another cache or file, and from one."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Annotated

from ejcache.cli import output
from ejcache.cli.archives import is_archive, pull_archive, push_archive
from ejcache.cli.chosen_cache import check_different, command_settings, open_cache
from ejcache.cli.commands.config import share_cache
from ejcache.cli.copying import open_for_writing, planned, recalled_at, report, store_of
from ejcache.cli.options import (
    Dir,
    DryRun,
    Json,
    Name,
    NewerThan,
    Readable,
    Url,
    UsedWithin,
    age,
    flag,
    option,
    size,
)
from ejcache.errors import NotAStoreError, UsageError
from ejcache.maintenance.transfer import Selection, TransferResult, transfer
from ejcache.stores.contents import inspect_location
from ejcache.util.threads import THREADS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ejcache.cli.chosen_cache import OpenCache
    from ejcache.maintenance.recalls import Recalls
    from ejcache.settings.table import Settings


MaxSize = Annotated[str | None, option("--max-size", "SIZE", "The largest size of FILE.tar, such as 1GB.")]
IfChanged = Annotated[bool, flag("--if-changed", "Write FILE.tar only if it lacks an entry or a tuned record.")]


def push(
    url: Url,
    directory: Dir = None,
    name: Name = None,
    newer_than: NewerThan = None,
    used_within: UsedWithin = None,
    max_size: MaxSize = None,
    if_changed: IfChanged = False,
    dry_run: DryRun = False,
    readable: Readable = False,
    as_json: Json = False,
) -> int:
    """Copy entries of the cache to another cache, which is created if it does not exist.

    `push` copies the intact entries that the other cache neither has nor has recalled. So the same command continues
    after an interruption. Exits with 1 if an entry could not be copied.

    FILE.tar gets the entries and the tuned records. An existing FILE.tar is replaced when the new one is complete.
    --max-size leaves out the entries that the cache would evict first. With --if-changed, FILE.tar stays as it is if it
    has all entries and tuned records, and the exit status is 3.
    """
    if is_archive(url):
        selection, limit = _selection(name, newer_than, used_within), size(max_size, option="--max-size")
        return push_archive(
            url, directory, selection, tuned=False, unsure=True, device=None,
            max_size=limit, if_changed=if_changed, dry_run=dry_run, as_json=as_json,
        )  # fmt: skip
    if max_size is not None or if_changed:
        raise UsageError("--max-size and --if-changed are for a file, FILE.tar")
    selection = _selection(name, newer_than, used_within)
    settings = command_settings(directory)
    check_different(str(settings.dir), url)
    with open_cache(directory) as source:
        if readable and not dry_run:
            share_cache(command_settings(url), "readers")
        return _copy(source, url, settings, selection, dry_run=dry_run, as_json=as_json)


def pull(
    url: Url,
    directory: Dir = None,
    name: Name = None,
    newer_than: NewerThan = None,
    used_within: UsedWithin = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> int:
    """Copy entries of another cache into the cache, which is created if it does not exist.

    Works as `push` does, in the other direction. The entries that were used last are copied last, so that they stay if
    the cache has a size limit.

    FILE.tar contains entries and tuned records. Damaged ones are reported, and the others are copied. If FILE.tar is
    cut off, what stands before the end is copied. With FILE.tar, `pull` refuses
    --newer-than, --used-within and --dry-run.
    """
    if is_archive(url):
        if newer_than is not None or used_within is not None or dry_run:
            raise UsageError(
                "a file does not say when an entry was used: leave out --newer-than, --used-within, --dry-run"
            )
        return pull_archive(url, directory, name=name, tuned=False, device=None, as_json=as_json)
    selection = _selection(name, newer_than, used_within)
    settings = command_settings(directory)
    here = str(settings.dir)
    check_different(here, url)
    with open_cache(url) as source:
        return _copy(source, here, settings, selection, dry_run=dry_run, as_json=as_json)


def _copy(
    source: OpenCache, url: str, settings: Settings, selection: Selection, *, dry_run: bool, as_json: bool
) -> int:
    if dry_run:
        plan = planned(source, selection, _keys_at(url, settings))
        return report(TransferResult(), source.url, url, as_json=as_json, plan=plan)
    with contextlib.closing(open_for_writing(url, settings)) as target:
        have = (info.key for info in target.entries())
        done = _carry(source, selection, have, target.put, recalled_at(url, target), quiet=as_json)
    return report(done, source.url, url, as_json=as_json)


def _carry(
    source: OpenCache,
    selection: Selection,
    have: Iterable[str],
    write: Callable[[str, bytes], bool],
    recalls: Recalls,
    *,
    quiet: bool,
) -> TransferResult:
    store = store_of(source)
    plan = planned(source, selection, have)
    with output.progress("copying", plan.count, quiet=quiet) as advance:
        done = transfer(
            ((info.key, partial(store.peek, info.key)) for info in plan),
            write=write,
            recalls=recalls,
            threads=THREADS,
            advance=advance,
        )
        done.already += plan.already
    return done


def _keys_at(url: str, settings: Settings) -> Iterator[str]:
    """Yield the keys at a location that may not exist yet; nothing is created."""
    with contextlib.suppress(NotAStoreError):
        contents = inspect_location(url, settings=settings)
        with contextlib.closing(contents):
            store = contents.open(read_only=True)
            if store is not None:
                with store:
                    for info in store.entries():
                        yield info.key


def _selection(name: str | None, newer_than: str | None, used_within: str | None) -> Selection:
    return Selection(
        name_glob=name,
        newer_than=age(newer_than, option="--newer-than"),
        used_within=age(used_within, option="--used-within"),
    )
