"""Copies tuned records into ejkernel's files, and out of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ejcache.autotune.ejkernel.cache import export_to_ejkernel, legacy_key, read_file
from ejcache.cli import output
from ejcache.cli.tuned.records import named_layer, open_autotune, strongest
from ejcache.cli.tuned.transfer import existing_path, merge_records, report_merge, say_left_out
from ejcache.errors import EjcacheError, UsageError
from ejcache.stores.documents import open_documents
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.autotune.records.record import Record
    from ejcache.autotune.records.store import Found
    from ejcache.stores.documents import Documents

_MAX_FILE_BYTES: Final = 256 << 20
"""A larger file is not one of ejkernel's."""


def push_to_ejkernel(
    to: str, directory: str | None, *, name: str | None, device: str | None, unsure: bool, as_json: bool
) -> int:
    """Merge the records that programs use into ejkernel's files in a directory; unsure ones only with `unsure`.

    Returns:
        0; 1 if no record was written, or one could not be.
    """
    if "://" in to:
        raise UsageError(f"--format ejkernel: {to} is not a directory of this machine")
    with open_autotune(directory) as store:
        found = strongest(store.records(), name=name, device=device)
    stay: list[Record] = []
    copied: list[Found] = []
    for item in found:
        if unsure or not item.record.unsure or legacy_key(item.record) is None:
            copied.append(item)
        else:
            stay.append(item.record)
    say_left_out(stay)
    files, left_out, failed = export_to_ejkernel(copied, to)
    if as_json:
        output.print_json({"to": to, "files": dict(files), "left_out": left_out, "failures": failed})
    else:
        output.say(f"wrote {plural(sum(files.values()), 'record')} to {plural(len(files), 'file')} in {to}")
        if left_out:
            output.say(f"{plural(left_out, 'record')} left out, because ejkernel has no key for them")
    if failed:
        output.warn(f"{plural(failed, 'record')} could not be written to {to}")
    elif not files and not stay:
        output.warn("no record is one of ejkernel's operations: ejkernel has keys for these alone")
    return int(failed > 0 or not files)


def pull_from_ejkernel(place: str, directory: str | None, *, as_json: bool) -> int:
    """Take in ejkernel's files, one `<operation>.json` for each operation; 1 if a file or an entry cannot be read.

    The entries rank below configurations that were measured here, because it is not known how they were found.
    """
    records: list[Record] = []
    problems: list[str] = []
    for documents, name in _files(place):
        try:
            found, failures = read_file(documents.read(name, max_size=_MAX_FILE_BYTES) or b"", name)
        except EjcacheError as exc:
            problems.append(f"{name}: {exc}")
            continue
        records += found
        problems += [f"{name}: {failure}" for failure in failures]
    with open_autotune(directory, write=True) as store:
        layer = named_layer(store)
        outcome = merge_records(records, layer, imported=True)
    for problem in problems:
        output.warn(problem)
    return report_merge(place, layer, outcome, as_json=as_json, problems=problems)


def _files(place: str) -> Iterator[tuple[Documents, str]]:
    """Yield the directory and the name of a file, or of each file in a directory."""
    path = existing_path(place)
    if place.endswith(".json") if path is None else not path.is_dir():
        above, _, name = (place if path is None else str(path.resolve())).rpartition("/")
        yield open_documents(above, read_only=True), name
        return
    documents = open_documents(place if path is None else path.resolve(), read_only=True)
    for name in sorted(documents.list("")):
        if name.endswith(".json") and "/" not in name:
            yield documents, name
