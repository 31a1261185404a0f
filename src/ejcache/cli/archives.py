"""Copies entries and tuned records into one file, and from one: `ejcache push FILE.tar` and `pull FILE.tar`."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections import Counter
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ejcache import entry
from ejcache.autotune.records.record import decode_record, encode_record
from ejcache.bucket.object_names import ENTRIES, entry_name, key_of_name
from ejcache.cli import output
from ejcache.cli.chosen_cache import command_settings, open_cache
from ejcache.cli.copying import open_for_writing, planned, recalled_at, report, store_of
from ejcache.cli.tuned.records import named_layer, open_autotune, strongest
from ejcache.cli.tuned.transfer import merge_records, sure_records
from ejcache.errors import EntryError, EntryVersionError, NotFoundError, StoreUnavailableError, UsageError
from ejcache.keys.key import is_side_key, parse_any_key
from ejcache.maintenance.archive import ArchiveWriter, read_archive
from ejcache.maintenance.eviction_plan import EvictionPlan, EvictionPolicy
from ejcache.maintenance.stored_policy import policy_of
from ejcache.maintenance.transfer import TransferResult, transfer
from ejcache.util.files import open_regular
from ejcache.util.patterns import fits
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from ejcache.autotune.records.store import RecordLayer
    from ejcache.cli.chosen_cache import OpenCache
    from ejcache.maintenance.transfer import CopyPlan, EntryReader, Selection

UNCHANGED: Final = 3
"""The exit status of `push --if-changed` that has written nothing."""


def is_archive(place: str) -> bool:
    """Return true for the name of a tar file on this machine."""
    return place.endswith(".tar") and "://" not in place and not Path(place).is_dir()


def push_archive(
    file: str,
    directory: str | None,
    selection: Selection,
    *,
    tuned: bool,
    unsure: bool,
    device: str | None,
    max_size: int | None,
    if_changed: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Write the entries and the tuned records of a cache into a file; with `tuned`, no entries; see `push_records`.

    With `max_size`, what the cache would evict first is left out. With `if_changed`, a file that has everything
    already stays as it is, and the answer is `UNCHANGED`.
    """
    path = _path_of(file)
    documents = _tuned(directory, selection, device, unsure=unsure)
    with ExitStack() as stack:
        source = plan = None
        by_cost = False
        if not tuned:
            source = stack.enter_context(open_cache(directory, may_be_empty=True))
        if source is not None and source.store is not None:
            plan = planned(source, selection, ())
            by_cost = policy_of(source.limits or {}, evict=command_settings(directory).evict).by_cost
        left_out = _left_out(
            plan,
            None if max_size is None else max_size - sum(map(len, documents.values())),
            by_cost=by_cost,
        )
        where = source.url if source is not None else "the tuned records"
        beside: dict[str, Any] = {
            "total_records": len(documents),
            "left_out_entries": _entries_in(left_out),
            "written": False,
        }
        done = TransferResult()
        if if_changed and path.exists() and not _is_news(path, plan, left_out, documents):
            if as_json:
                report(done, where, file, as_json=True, beside=beside)
            else:
                output.say(f"{file} stays: it has all of {where}")
            return UNCHANGED
        if dry_run:
            return report(done, where, file, as_json=as_json, plan=plan, beside=beside)
        with ArchiveWriter(path) as archive:
            for name, data in sorted(documents.items()):
                archive.add(name, data)
            if plan is not None and source is not None:
                done = _carry(source, plan, left_out, archive, quiet=as_json)
            if not (done.failed or done.not_tried):
                archive.finish()
                beside["written"] = True
    if documents and not as_json:
        output.say(f"wrote {plural(len(documents), 'tuned record')} to {file}")
    return report(done, where, file, as_json=as_json, beside=beside)


def pull_archive(
    file: str, directory: str | None, *, name: str | None, tuned: bool, device: str | None, as_json: bool
) -> int:
    """Copy the intact entries and tuned records of a file; 1 if something is damaged or missing."""
    settings = command_settings(directory)
    url = str(settings.dir)
    try:
        opened = os.fdopen(open_regular(Path(file).expanduser().resolve()), "rb")
    except OSError as exc:
        raise StoreUnavailableError(f"{file} cannot be read: {exc.strerror or exc}") from exc
    with ExitStack() as stack:
        archive = stack.enter_context(opened)
        reader = _Reader(archive, directory, name=name, device=device, stack=stack)
        if tuned:
            done = TransferResult()
            for _ in reader.entries(wanted=False):
                pass
        else:
            target = stack.enter_context(closing(open_for_writing(url, settings)))
            advance = stack.enter_context(output.progress("copying", None, quiet=as_json))
            done = transfer(
                reader.entries(),
                write=lambda key, data: not target.contains(key) and target.put(key, data),
                recalls=recalled_at(url, target),
                advance=advance,
            )
    for problem in reader.problems:
        output.warn(f"{file}: {problem}")
    outcome = reader.outcome
    beside = {
        "total_records": sum(outcome.values()),
        "new_records": outcome["new"] + outcome["changed"],
    }
    if outcome and not as_json:
        output.say(f"copied {plural(beside['new_records'], 'tuned record')} from {file}")
    complete = not (reader.problems or outcome["failed"])
    return report(done, file, url, as_json=as_json, complete=complete, beside=beside)


class _Reader:
    """What a file holds: entries one after the other, and between them tuned records, copied at once."""

    def __init__(
        self, file: BinaryIO, directory: str | None, *, name: str | None, device: str | None, stack: ExitStack
    ) -> None:
        self.problems: list[str] = []
        self.outcome: Counter[str] = Counter()
        self._file = file
        self._directory = directory
        self._name, self._device = name, device
        self._stack = stack
        self._layer: RecordLayer | None = None

    def entries(self, *, wanted: bool = True) -> Iterator[EntryReader]:
        """Yield the entries if they are wanted, and merge the records."""
        try:
            for name, data in read_archive(self._file):
                if not name.startswith(ENTRIES):
                    self._merge(name, data)
                elif wanted and (key := key_of_name(name)) is not None and fits(parse_any_key(key).name, self._name):
                    yield key, partial(bytes, data)
        except EntryError as exc:
            self.problems.append(str(exc))

    def _merge(self, name: str, data: bytes) -> None:
        try:
            record = decode_record(data, path=name)
        except EntryError as exc:
            self.problems.append(f"{name[:200]}: {exc}")
            return
        if fits(record.key.operation, self._name) and fits(record.key.device, self._device):
            self.outcome += merge_records([record], self._target())

    def _target(self) -> RecordLayer:
        if self._layer is None:
            self._layer = named_layer(self._stack.enter_context(open_autotune(self._directory, write=True)))
        return self._layer


def _path_of(file: str) -> Path:
    """Return the path of a file to write.

    Raises:
        NotFoundError: its directory does not exist.
        UsageError: it is a symbolic link, which somebody may have put there to have its target replaced; or a
            directory, a device, a pipe or a socket, which no archive must replace.
    """
    try:
        given = Path(file).expanduser()
        link = given.readlink() if given.is_symlink() else None
        path = given if link else given.resolve()
        mode = path.lstat().st_mode if os.path.lexists(path) else stat.S_IFREG
    except (OSError, RuntimeError, ValueError) as exc:
        raise UsageError(f"{file} cannot be written: {exc}") from exc
    if link:
        raise UsageError(f"{file} cannot be written: it is a symbolic link to {link}; name that file")
    in_memory = path.is_relative_to("/dev/shm")  # noqa: S108 (files below it are ordinary)
    special = path.is_relative_to("/proc") or (path.is_relative_to("/dev") and not in_memory)
    if special or not stat.S_ISREG(mode):
        raise UsageError(f"{file} cannot be written: {path} is not a regular file")
    if not path.parent.is_dir():
        raise NotFoundError(f"{file} cannot be written: the directory {path.parent} does not exist")
    return path


def _tuned(directory: str | None, selection: Selection, device: str | None, *, unsure: bool) -> dict[str, bytes]:
    """Return the records of the store that the command changes, by their paths."""
    with open_autotune(directory, must_exist=False) as store:
        chosen = strongest(store.records(layer=named_layer(store).name), name=selection.name_glob, device=device)
    records = [item.record for item in chosen]
    return {each.key.path: encode_record(each) for each in (records if unsure else sure_records(records))}


def _left_out(plan: CopyPlan | None, limit: int | None, *, by_cost: bool) -> frozenset[str]:
    """Return the keys that do not fit: those that a cache with this limit would evict first."""
    if plan is None or limit is None:
        return frozenset()
    policy = EvictionPolicy(max_size=max(0, limit), by_cost=by_cost)
    return frozenset(deletion.entry.key for deletion in EvictionPlan(plan, now=time.time(), policy=policy))


def _entries_in(keys: frozenset[str]) -> int:
    return sum(not is_side_key(key) for key in keys)


def _is_news(path: Path, plan: CopyPlan | None, left_out: frozenset[str], documents: dict[str, bytes]) -> bool:
    """True if there is an entry or a record that the file does not have, or if anything in the file is damaged.

    Texts and profiles alone do not count: they change with each run.
    """
    held: dict[str, str] = {}
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            for name, data in read_archive(file):
                _check(name, data)
                held[name] = "" if name.startswith(ENTRIES) else hashlib.sha256(data).hexdigest()
    except (OSError, EntryError):
        return True
    if any(held.get(name) != hashlib.sha256(data).hexdigest() for name, data in documents.items()):
        return True
    keys = (info.key for info in plan or () if info.key not in left_out and not is_side_key(info.key))
    return any(entry_name(key) not in held for key in keys)


def _check(name: str, data: bytes) -> None:
    """Raise EntryError for an entry or a record that is damaged; one of a later version is not known to be."""
    with contextlib.suppress(EntryVersionError):
        if name.startswith(ENTRIES):
            entry.verify(data, key=key_of_name(name))
        else:
            decode_record(data, path=name)


def _carry(
    source: OpenCache, plan: CopyPlan, left_out: frozenset[str], archive: ArchiveWriter, *, quiet: bool
) -> TransferResult:
    store = store_of(source)

    def write(key: str, data: bytes) -> bool:
        archive.add(entry_name(key), data)
        return True

    with output.progress("copying", plan.count, quiet=quiet) as advance:
        readers = ((info.key, partial(store.peek, info.key)) for info in plan if info.key not in left_out)
        return transfer(readers, write=write, advance=advance)
