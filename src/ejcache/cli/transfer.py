"""`ejcache push`, `pull`, `export` and `import`: entries copied from one place to another."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ejcache.cli import output
from ejcache.cli.opened import chosen_settings, opened_place
from ejcache.cli.options import Dir, Json, age
from ejcache.errors import EntryError, NotAStoreError, StoreUnavailableError, UsageError
from ejcache.keys.key import is_side_key
from ejcache.units import format_size
from ejcache.upkeep.bundle import BundleWriter, count_records, read_bundle
from ejcache.upkeep.parallel import THREADS
from ejcache.upkeep.transfer import Selection, Transferred, transfer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import BinaryIO

    from ejcache.cli.opened import Opened
    from ejcache.settings import Settings
    from ejcache.stores.base import EntryInfo, Store
    from ejcache.upkeep.transfer import Carry

__all__ = ["export", "import_bundle", "pull", "push"]

Name = Annotated[
    str | None, typer.Option("--name", metavar="GLOB", help="Only entries whose name matches, such as 'jit_train*'.")
]
Newer = Annotated[
    str | None, typer.Option("--newer-than", metavar="AGE", help="Only what was made within this time, such as 14d.")
]
Used = Annotated[
    str | None, typer.Option("--used-within", metavar="AGE", help="Only what was used within this time, such as 14d.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Say what would be copied; copy nothing.")]
_SYSTEM: Final = ("/dev", "/proc")
"""Where what looks like a file is a device or a part of a process."""
_File = Annotated[str, typer.Argument(metavar="FILE", help="The bundle.")]
_Url = Annotated[str, typer.Argument(metavar="URL", help="The other cache: a directory or a URL.")]


def push(
    url: _Url,
    directory: Dir = None,
    name: Name = None,
    newer_than: Newer = None,
    used_within: Used = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Copy entries of the cache to another one, which is made if need be.

    Only intact entries are copied, and only those that are not there yet: done again after it was broken off, it goes
    on where it ended. Exits with 1 if anything that was meant has not arrived.
    """
    selection = _selection(name, newer_than, used_within)
    settings = chosen_settings(directory)
    _check_different(str(settings.cache_dir), url)
    with opened_place(directory) as place:
        _copy(place, url, settings, selection, dry_run=dry_run, as_json=as_json)


def pull(
    url: _Url,
    directory: Dir = None,
    name: Name = None,
    newer_than: Newer = None,
    used_within: Used = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Copy entries of another cache into the cache, which is made if need be.

    As `push`, the other way. Where the cache has a limit, what was used last comes last, and stays.
    """
    selection = _selection(name, newer_than, used_within)
    settings = chosen_settings(directory)
    here = str(settings.cache_dir)
    _check_different(here, url)
    with opened_place(url) as place:
        _copy(place, here, settings, selection, dry_run=dry_run, as_json=as_json)


def export(
    file: _File,
    directory: Dir = None,
    name: Name = None,
    newer_than: Newer = None,
    used_within: Used = None,
    as_json: Json = False,
) -> None:
    """Write entries of the cache into one file, a bundle, for `ejcache import`.

    A file that is there is replaced when the bundle is whole. Broken off, it is taken up where it ended: until then it
    is .FILE.<digest>.partial beside it. Exits with 1 if an entry that was meant is not in it.
    """
    selection = _selection(name, newer_than, used_within)
    path = _place_for(file)
    with opened_place(directory) as place:
        digest = hashlib.sha256(repr((place.url, selection)).encode()).hexdigest()[:12]
        with BundleWriter(path, partial=path.with_name(f".{path.name}.{digest}.partial")) as bundle:
            done = _carry(place, selection, bundle.keys, bundle.add, quiet=as_json)
            if not (done.failed or done.not_tried):
                bundle.finish()
    _report(done, place.url, file, as_json=as_json)


def _place_for(file: str) -> Path:
    """Where a bundle called `file` is put: of a link the target, or replacing the link would leave the target as it is.

    Raises:
        UsageError: what stands there is no file. Moving the bundle there would take a device or a pipe away from all
            who use it.
    """
    try:
        path = Path(file).expanduser().resolve()
        mode = path.lstat().st_mode if os.path.lexists(path) else stat.S_IFREG
    except (OSError, RuntimeError, ValueError) as exc:
        raise UsageError(f"{file} cannot be written: {exc}") from exc
    if stat.S_ISDIR(mode) or not path.parent.is_dir():
        raise UsageError(f"{file} cannot be written: it is a directory, or its directory does not exist")
    if not stat.S_ISREG(mode) or any(path.is_relative_to(place) for place in _SYSTEM):
        raise UsageError(f"{file} cannot be written: {path} is no place for a file; name a regular file")
    return path


def import_bundle(file: _File, directory: Dir = None, as_json: Json = False) -> None:
    """Copy the entries of a bundle into the cache, which is made if need be.

    Only intact entries are copied, and only those that are not there yet. Exits with 1 if the bundle is damaged or cut
    off, or if an entry of it is not in the cache; what is intact is.
    """
    settings = chosen_settings(directory)
    url = str(settings.cache_dir)
    path = Path(file).expanduser()
    problems: list[str] = []
    try:
        opened = path.open("rb")
    except OSError as exc:
        raise StoreUnavailableError(f"{file} cannot be read: {exc.strerror or exc}") from exc
    with opened, contextlib.closing(_opened_for_writing(url, settings)) as target:
        have = {info.key for info in target.entries()}
        with output.progress("importing", count_records(opened), quiet=as_json) as advance:
            done = transfer(
                _records(opened, problems),
                write=lambda key, data: key not in have and target.put(key, data),
                advance=advance,
            )
    for problem in problems:
        output.warn(f"{file}: {problem}")
    _report(done, file, url, as_json=as_json, complete=not problems)


def _records(file: BinaryIO, problems: list[str]) -> Iterator[Carry]:
    def give(data: bytes) -> bytes:
        return data

    try:
        for record in read_bundle(file):
            yield record.key, partial(give, record.data)
    except EntryError as exc:
        problems.append(str(exc))


def _copy(place: Opened, url: str, settings: Settings, selection: Selection, *, dry_run: bool, as_json: bool) -> None:
    if dry_run:
        chosen = _chosen(place, selection, _keys_at(url, settings))
        fields = {"entries": _entries_in(chosen), "size": sum(info.size for info in chosen)}
        if as_json:
            output.print_json({"from": place.url, "to": url, "dry_run": True, **fields})
        else:
            output.say(f"would copy {_counted(**fields)} from {place.url} to {url}")
        return
    with contextlib.closing(_opened_for_writing(url, settings)) as target:
        have = {info.key for info in target.entries()}
        done = _carry(place, selection, have, target.put, quiet=as_json)
    _report(done, place.url, url, as_json=as_json)


def _carry(
    place: Opened, selection: Selection, have: set[str], write: Callable[[str, bytes], bool], *, quiet: bool
) -> Transferred:
    chosen = _chosen(place, selection, frozenset())
    missing = [info for info in chosen if info.key not in have]
    store = _store_of(place)
    with output.progress("copying", len(missing), quiet=quiet) as advance:
        done = transfer(
            ((info.key, partial(store.peek, info.key)) for info in missing),
            write=write,
            threads=THREADS,
            advance=advance,
        )
    done.already += _entries_in(chosen) - _entries_in(missing)
    return done


def _chosen(place: Opened, selection: Selection, have: frozenset[str]) -> Sequence[EntryInfo]:
    chosen = selection.of(_store_of(place).entries(), now=time.time())
    return [info for info in chosen if info.key not in have]


def _entries_in(chosen: Sequence[EntryInfo]) -> int:
    return sum(not is_side_key(info.key) for info in chosen)


def _store_of(place: Opened) -> Store:
    if place.store is None:
        raise NotAStoreError(f"{place.url} holds no entry of ours, and those of plain JAX have other keys")
    return place.store


def _keys_at(url: str, settings: Settings) -> frozenset[str]:
    """The keys that are at a place that may not be one yet; nothing is made."""
    from ejcache.stores.places import find_place

    with contextlib.suppress(NotAStoreError):
        place = find_place(url, settings=settings)
        with contextlib.closing(place):
            store = place.open(read_only=True)
            if store is not None:
                with store:
                    return frozenset(info.key for info in store.entries())
    return frozenset()


def _opened_for_writing(url: str, settings: Settings) -> Store:
    from ejcache.stores.opening import open_store

    # The limit that is set is that of the cache that is set, and of no other place.
    limit = settings.max_size if url == str(settings.cache_dir) and settings.max_size > 0 else -1
    return open_store(url, max_size=limit, settings=settings)


def _selection(name: str | None, newer_than: str | None, used_within: str | None) -> Selection:
    return Selection(
        name_glob=name,
        newer_than=age(newer_than, option="--newer-than"),
        used_within=age(used_within, option="--used-within"),
    )


def _check_different(one: str, other: str) -> None:
    from ejcache.stores.opening import check_url, local_path

    if (local_path(one) or check_url(one)) == (local_path(other) or check_url(other)):
        raise UsageError(f"{other} is the cache itself: name another one, or say with --dir which is the first")


def _counted(entries: int, size: int) -> str:
    return f"{output.plural(entries, 'entry', 'entries')} ({format_size(size)})"


def _report(done: Transferred, source: str, target: str, *, as_json: bool, complete: bool = True) -> None:
    complete = complete and done.complete
    if as_json:
        output.print_json(
            {
                "from": source,
                "to": target,
                "dry_run": False,
                "complete": complete,
                "copied_entries": done.copied,
                "copied_size": done.size,
                "already_entries": done.already,
                "gone_entries": done.gone,
                "unknown_versions": done.unknown_versions,
                "not_tried": done.not_tried,
                "damaged": [{"key": key, "problem": problem} for key, problem in done.damaged],
                "failed": [{"key": key, "problem": problem} for key, problem in done.failed],
            }
        )
    else:
        already = f"; {output.plural(done.already, 'entry', 'entries')} already there" if done.already else ""
        output.say(f"copied {_counted(done.copied, done.size)} from {source} to {target}{already}")
        if done.unknown_versions:
            output.say(f"{_entries(done.unknown_versions)} of another format version, left alone")
        for what, problems in (("is damaged and was not copied", done.damaged), ("could not be copied", done.failed)):
            for key, problem in problems:
                output.warn(f"{key} {what}: {problem}")
        if done.not_tried:
            output.warn(f"{_entries(done.not_tried)} were not tried after so many failures; run the command again")
    if not complete:
        raise typer.Exit(1)


def _entries(number: int) -> str:
    return output.plural(number, "entry", "entries")
