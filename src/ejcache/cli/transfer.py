"""`ejcache push`, `pull`, `export` and `import`: entries copied from one cache to another, or through a file."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ejcache.cli import output
from ejcache.cli.listing import NotFoundError, check_different, command_settings, open_target
from ejcache.cli.options import Device, Dir, DryRun, File, Json, Name, NewerThan, Tuned, Url, UsedWithin, age
from ejcache.errors import EntryError, NotAStoreError, StoreUnavailableError, UsageError
from ejcache.maintenance.transfer import BundleWriter, CopyPlan, Selection, Transferred, read_bundle, transfer
from ejcache.util.files import open_regular
from ejcache.util.text import plural
from ejcache.util.threads import THREADS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import BinaryIO

    from ejcache.cli.listing import Target
    from ejcache.maintenance.transfer import EntryReader
    from ejcache.settings.table import Settings
    from ejcache.stores.base import Store


class Format(StrEnum):
    """The forms of another library in which tuned records are kept."""

    ejkernel = "ejkernel"


Kind = Annotated[
    Format | None, typer.Option("--format", help="Tuned records in the files of this library.", show_default=False)
]


def push(
    url: Url,
    directory: Dir = None,
    name: Name = None,
    newer_than: NewerThan = None,
    used_within: UsedWithin = None,
    tuned: Tuned = False,
    device: Device = None,
    kind: Kind = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> int:
    """Copy entries of the cache to another one, which is created if it does not exist.

    Only intact entries are copied, and only those that the other cache does not have. So an interrupted copy is
    continued by the same command. Exits with 1 if any entry could not be copied.

    With --tuned, tuned records are copied to another store, and each is merged with one that is there: the choice of
    the stronger source counts, and the measurements of both are kept. With --format ejkernel, they are written into
    ejkernel's files in the directory URL, and those without a key of ejkernel's are left out.
    """
    if tuned or kind is not None:
        from ejcache.cli.tuned_transfer import push_records, push_to_ejkernel

        _check_tuned(newer_than, used_within, dry_run and kind is not None)
        if kind is not None:
            return push_to_ejkernel(url, directory, name=name, device=device, as_json=as_json)
        return push_records(url, directory, name=name, device=device, dry_run=dry_run, as_json=as_json)
    selection = _selection(name, newer_than, used_within)
    settings = command_settings(directory)
    check_different(str(settings.cache_dir), url)
    with open_target(directory) as source:
        return _copy(source, url, settings, selection, dry_run=dry_run, as_json=as_json)


def pull(
    url: Url,
    directory: Dir = None,
    name: Name = None,
    newer_than: NewerThan = None,
    used_within: UsedWithin = None,
    tuned: Tuned = False,
    device: Device = None,
    kind: Kind = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> int:
    """Copy entries of another cache into the cache, which is created if it does not exist.

    Works as `push` does, in the other direction. The entries that were used last are copied last, so that they stay
    where the cache has a size limit.

    With --tuned, tuned records are copied. With --format ejkernel, URL is a file of ejkernel's or a directory of them;
    its entries rank below configurations that were measured here, because it is not known how they were found.
    """
    if tuned or kind is not None:
        from ejcache.cli.tuned_transfer import pull_from_ejkernel, pull_records

        _check_tuned(newer_than, used_within, kind is not None and (dry_run or name or device))
        if kind is not None:
            return pull_from_ejkernel(url, directory, as_json=as_json)
        return pull_records(url, directory, name=name, device=device, dry_run=dry_run, as_json=as_json)
    selection = _selection(name, newer_than, used_within)
    settings = command_settings(directory)
    here = str(settings.cache_dir)
    check_different(here, url)
    with open_target(url) as source:
        return _copy(source, here, settings, selection, dry_run=dry_run, as_json=as_json)


def export(
    file: File,
    directory: Dir = None,
    name: Name = None,
    newer_than: NewerThan = None,
    used_within: UsedWithin = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> int:
    """Write entries of the cache into one file, a bundle, for `ejcache import`. It is a tar archive.

    An existing file is replaced when the bundle is complete. Until then it is .FILE.<digest>.partial in the same
    directory, and the same command continues it if it was interrupted. Exits with 1 if any entry could not be copied.
    """
    selection = _selection(name, newer_than, used_within)
    path = _bundle_path(file)
    with open_target(directory) as source:
        if dry_run:
            with _planned(source, selection, ()) as plan:
                return _report(Transferred(), source.url, file, as_json=as_json, plan=plan)
        digest = hashlib.sha256(repr((source.url, selection)).encode()).hexdigest()[:12]
        with BundleWriter(path, partial=path.with_name(f".{path.name}.{digest}.partial")) as bundle:
            done = _carry(source, selection, bundle.keys, bundle.add, quiet=as_json)
            if not (done.failed or done.not_tried):
                bundle.finish()
    return _report(done, source.url, file, as_json=as_json)


def import_bundle(file: File, directory: Dir = None, as_json: Json = False) -> int:
    """Copy the entries of a bundle into the cache, which is created if it does not exist.

    Only intact entries are copied, and only those that the cache does not have. Exits with 1 if the bundle is damaged
    or cut off, or if any entry could not be copied; intact entries are copied all the same.
    """
    settings = command_settings(directory)
    url = str(settings.cache_dir)
    path = Path(file).expanduser()
    problems: list[str] = []
    try:
        bundle = os.fdopen(open_regular(path.resolve()), "rb")
    except OSError as exc:
        raise StoreUnavailableError(f"{file} cannot be read: {exc.strerror or exc}") from exc
    with (
        bundle,
        contextlib.closing(_open_for_writing(url, settings)) as target,
        output.progress("importing", None, quiet=as_json) as advance,
    ):
        done = transfer(
            _records(bundle, problems),
            write=lambda key, data: not target.contains(key) and target.put(key, data),
            advance=advance,
        )
    for problem in problems:
        output.warn(f"{file}: {problem}")
    return _report(done, file, url, as_json=as_json, complete=not problems)


def _check_tuned(newer_than: str | None, used_within: str | None, others: object) -> None:
    """Refuse options that tuned records do not have; raises UsageError."""
    if newer_than is not None or used_within is not None:
        raise UsageError("--newer-than and --used-within are for entries: leave them out for tuned records")
    if others:
        raise UsageError("--format ejkernel takes neither --dry-run nor, with pull, --name and --device")


def _bundle_path(file: str) -> Path:
    """The path of a bundle called `file`: of a symbolic link its target, so that the link stays a link.

    Raises:
        NotFoundError: its directory does not exist.
        UsageError: it is a directory, a device, a pipe or a socket, which a bundle must not replace.
    """
    try:
        path = Path(file).expanduser().resolve()
        mode = path.lstat().st_mode if os.path.lexists(path) else stat.S_IFREG
    except (OSError, RuntimeError, ValueError) as exc:
        raise UsageError(f"{file} cannot be written: {exc}") from exc
    in_memory = path.is_relative_to("/dev/shm")  # noqa: S108 (files below it are ordinary)
    special = path.is_relative_to("/proc") or (path.is_relative_to("/dev") and not in_memory)
    if special or not stat.S_ISREG(mode):
        raise UsageError(f"{file} cannot be written: {path} is not a regular file")
    if not path.parent.is_dir():
        raise NotFoundError(f"{file} cannot be written: the directory {path.parent} does not exist")
    return path


def _records(file: BinaryIO, problems: list[str]) -> Iterator[EntryReader]:
    try:
        for key, data in read_bundle(file):
            yield key, partial(bytes, data)
    except EntryError as exc:
        problems.append(str(exc))


def _copy(source: Target, url: str, settings: Settings, selection: Selection, *, dry_run: bool, as_json: bool) -> int:
    if dry_run:
        with _planned(source, selection, _keys_at(url, settings)) as plan:
            return _report(Transferred(), source.url, url, as_json=as_json, plan=plan)
    with contextlib.closing(_open_for_writing(url, settings)) as target:
        have = (info.key for info in target.entries())
        done = _carry(source, selection, have, target.put, quiet=as_json)
    return _report(done, source.url, url, as_json=as_json)


def _carry(
    source: Target, selection: Selection, have: Iterable[str], write: Callable[[str, bytes], bool], *, quiet: bool
) -> Transferred:
    store = _store_of(source)
    with (
        _planned(source, selection, have) as plan,
        output.progress("copying", plan.count, quiet=quiet) as advance,
    ):
        done = transfer(
            ((info.key, partial(store.peek, info.key)) for info in plan), write=write, threads=THREADS, advance=advance
        )
        done.already += plan.already
    return done


def _planned(source: Target, selection: Selection, have: Iterable[str]) -> CopyPlan:
    return CopyPlan(_store_of(source).entries(), have, selection=selection, now=time.time())


def _store_of(source: Target) -> Store:
    if source.store is None:
        raise NotAStoreError(f"{source.url} holds no entries of ejcache, and those of plain JAX have other keys")
    return source.store


def _keys_at(url: str, settings: Settings) -> Iterator[str]:
    """The keys at a location that may not exist yet; nothing is created."""
    from ejcache.stores.opening import inspect_location

    with contextlib.suppress(NotAStoreError):
        contents = inspect_location(url, settings=settings)
        with contextlib.closing(contents):
            store = contents.open(read_only=True)
            if store is not None:
                with store:
                    for info in store.entries():
                        yield info.key


def _open_for_writing(url: str, settings: Settings) -> Store:
    from ejcache.stores.opening import open_store

    # The size limit of the settings is meant for the cache that the settings name.
    limit = settings.store_limit if url == str(settings.cache_dir) else None
    return open_store(url, max_size=limit, settings=settings)


def _selection(name: str | None, newer_than: str | None, used_within: str | None) -> Selection:
    return Selection(
        name_glob=name,
        newer_than=age(newer_than, option="--newer-than"),
        used_within=age(used_within, option="--used-within"),
    )


def _report(
    done: Transferred, source: str, target: str, *, as_json: bool, complete: bool = True, plan: CopyPlan | None = None
) -> int:
    complete = complete and done.complete
    if as_json:
        fields: dict[str, Any] = {"from": source, "to": target, "dry_run": plan is not None, "complete": complete}
        fields |= {"copied_entries": done.copied, "copied_size": done.size, "already_entries": done.already}
        fields |= {"gone_entries": done.gone} | output.fields_of(done, "unknown_versions", "not_tried")
        for name, problems in (("damaged", done.damaged), ("failed", done.failed)):
            fields[name] = [{"key": key, "problem": problem} for key, problem in problems]
        if plan is not None:
            fields |= {"planned_entries": plan.entries, "planned_size": plan.size}
        output.print_json(fields)
    elif plan is not None:
        output.say(f"would copy {output.count_and_size(plan.entries, plan.size)} from {source} to {target}")
    elif complete and not (done.copied or done.already or done.gone or done.unknown_versions):
        output.say(f"nothing to copy: {source} holds no such entries")
    else:
        already = f"; {_entries(done.already)} already there" if done.already else ""
        output.say(f"copied {output.count_and_size(done.copied, done.size)} from {source} to {target}{already}")
        _print_left_out(done)
    return int(not complete)


def _print_left_out(done: Transferred) -> None:
    if done.unknown_versions:
        output.say(f"{_entries(done.unknown_versions)} of another format version were left alone")
    output.warn_of_each(done.damaged, "damaged and not copied")
    output.warn_of_each(done.failed, "could not be copied")
    if done.not_tried:
        output.warn(f"{_entries(done.not_tried)} were not tried after so many failures; run the command again")


def _entries(number: int) -> str:
    return plural(number, "entry", "entries")
