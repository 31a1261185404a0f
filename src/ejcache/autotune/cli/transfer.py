"""`ejcache autotune push`, `pull`, `import` and `export`, and the comparison of two stores."""

from __future__ import annotations

import json
from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ejcache.autotune.cli.store import Device, Dir, named_layer, open_autotune, record_fields, strongest
from ejcache.autotune.ejkernel.cache import export_to_ejkernel, read_file
from ejcache.autotune.records.record import dated_after
from ejcache.autotune.records.store import RecordLayer
from ejcache.autotune.records.tokamax import MAX_TABLE_BYTES, read_table
from ejcache.cli import output
from ejcache.cli.listing import NotFoundError
from ejcache.cli.options import DryRun, Json, Name, Url, argument
from ejcache.cli.transfer import check_different
from ejcache.errors import EjcacheError, StoreError, StoreReadOnlyError, UsageError
from ejcache.stores.documents import open_documents
from ejcache.stores.location import Location, LocationKind
from ejcache.util.files import write_atomically
from ejcache.util.text import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ejcache.autotune.records.record import Record
    from ejcache.autotune.records.store import Found
    from ejcache.stores.documents import Documents


_SCHEMA: Final = 1
"""Of the JSON file that `export` writes."""


class _ImportFormat(StrEnum):
    """Libraries whose tables can be read."""

    EJKERNEL = "ejkernel"
    TOKAMAX = "tokamax"


class _ExportFormat(StrEnum):
    """What can be written."""

    JSON = "json"
    EJKERNEL = "ejkernel"


def push(url: Url, directory: Dir = None, name: Name = None, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Copy the records to another store, which is created if it does not exist.

    A record that the other store has already is merged with the copied one: the choice of the stronger source counts,
    and the measurements of both are kept. EJCACHE_AUTOTUNE_SEEDS accepts the directory of such a store.
    """
    with open_autotune(directory) as store:
        source = named_layer(store).documents.url
        check_different(source, url)
        records = [item.record for item in strongest(store.records(), name=name)]
    target = RecordLayer("target", open_documents(url, read_only=dry_run))
    _copy(records, source, target, dry_run=dry_run, as_json=as_json)


def pull(url: Url, directory: Dir = None, name: Name = None, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Copy the records of another store into this one.

    Works as `push` does, in the other direction.
    """
    records = _records_of(url, name=name)
    with open_autotune(directory, write=not dry_run, must_exist=False) as store:
        layer = named_layer(store)
        check_different(layer.documents.url, url)
        _copy(records, url, layer, dry_run=dry_run, as_json=as_json)


def import_files(
    files: Annotated[list[str], argument("FILE...", "The files, or directories that contain them.")],
    directory: Dir = None,
    kind: Annotated[
        _ImportFormat, typer.Option("--format", help="The library whose files these are.")
    ] = _ImportFormat.EJKERNEL,
    as_json: Json = False,
) -> None:
    """Take in the tables of ejkernel or tokamax.

    ejkernel has one `<operation>.json` for each operation, tokamax one in a directory for each device, or the JSON of
    one autotuning. The entries rank below configurations that were measured here, because it is not known how they were
    found. Exits with 1 if a file or an entry could not be read.
    """
    records: list[Record] = []
    problems: list[str] = []
    tokamax = kind is _ImportFormat.TOKAMAX
    for documents, name in _sources(files, nested=tokamax):
        try:
            data = documents.read(name, max_size=MAX_TABLE_BYTES) or b""
            # The directory of one of tokamax's files is named after the device.
            device = f"{documents.url}/{name}".split("/")[-2]
            found, failures = read_table(data, device, name) if tokamax else read_file(data, name)
        except EjcacheError as exc:
            problems.append(f"{name}: {exc}")
            continue
        records += found
        problems += [f"{name}: {failure}" for failure in failures]
    with open_autotune(directory, write=True) as store:
        layer = named_layer(store)
        outcome = _merge(records, layer, imported=True)
    for problem in problems:
        output.warn(problem)
    _report(", ".join(files), layer, outcome, as_json=as_json, problems=problems)


def _sources(files: Iterable[str], *, nested: bool) -> Iterator[tuple[Documents, str]]:
    """The directory and the name of each file that is named or is in a named directory, also deeper if `nested`."""
    for file in files:
        path = _existing(file)
        if file.endswith(".json") if path is None else not path.is_dir():
            place, _, name = (file if path is None else str(path.resolve())).rpartition("/")
            yield open_documents(place, read_only=True), name
            continue
        documents = open_documents(file if path is None else path.resolve(), read_only=True)
        for name in sorted(documents.list("")):
            if name.endswith(".json") and (nested or "/" not in name):
                yield documents, name


def export(
    to: Annotated[str, argument("PLACE", "The JSON file, or the directory for ejkernel's files.")],
    directory: Dir = None,
    name: Name = None,
    device: Device = None,
    kind: Annotated[
        _ExportFormat | None,
        typer.Option(
            "--format", help="The form. Default: json for a FILE.json, or else ejkernel's.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the records into one JSON file, or into ejkernel's files.

    The JSON file has all of each record that programs use, in the fields of `autotune show --json`; the tables of other
    libraries are written from it, see examples/tuned_tables.py. ejkernel's files are merged with those in the
    directory, and records for which ejkernel has no key are left out. `push` copies all records to another store.
    """
    if "://" in to:
        raise UsageError(f"{to} is not a place on this machine; `push` copies records to a bucket")
    with open_autotune(directory) as store:
        found = strongest(store.records(), name=name, device=device)
    if kind is _ExportFormat.EJKERNEL or (kind is None and not to.endswith(".json")):
        _export_ejkernel(found, to, as_json=as_json)
        return
    body = {"schema": _SCHEMA, "records": [record_fields(item, full=True) for item in found]}
    try:
        write_atomically(Path(to), json.dumps(body, indent=1).encode() + b"\n", mode=0o644)
    except OSError as exc:
        raise StoreError(f"{to} cannot be written: {exc}") from exc
    if as_json:
        output.print_json({"to": to, "files": {Path(to).name: len(found)}, "left_out": 0, "failed": 0})
    else:
        output.say(f"wrote {plural(len(found), 'record')} to {to}")


def _export_ejkernel(found: Sequence[Found], to: str, *, as_json: bool) -> None:
    files, left_out, failed = export_to_ejkernel(found, to)
    if as_json:
        output.print_json({"to": to, "files": dict(files), "left_out": left_out, "failed": failed})
    else:
        written = plural(sum(files.values()), "record")
        output.say(f"wrote {written} to {plural(len(files), 'file')} in {to}")
        if left_out:
            output.say(f"{plural(left_out, 'record')} left out, because ejkernel has no key for them")
    if failed:
        output.warn(f"{plural(failed, 'record')} could not be written to {to}")
        raise typer.Exit(1)


def is_location(text: str) -> bool:
    """Whether an argument names a store rather than a record."""
    return "://" in text or "/" in text or Path(text).is_dir()


def compare_stores(one: str, other: str) -> dict[str, dict[str, list[Any]]]:
    """The keys at which two stores differ: both configurations, None for no record."""
    stores = [{record.key.text: record.configuration for record in _records_of(url)} for url in (one, other)]
    pairs = {key: [store.get(key) for store in stores] for key in sorted({*stores[0], *stores[1]})}
    return {"record": {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}}


def _records_of(url: str, *, name: str | None = None) -> list[Record]:
    path = _existing(url)
    if path is not None and not path.is_dir():
        raise UsageError(f"{url} is not a directory, so it cannot be a store of tuned configurations")
    with open_autotune(url) as store:
        records = [item.record for item in strongest(store.records(layer=store.layers[0].name), name=name)]
        failed = store.stats()["errors"] > 0
    if failed:
        raise StoreError(f"{url} cannot be read")
    if path is None and not records:
        # A prefix of a bucket exists only if there are objects below it.
        raise NotFoundError(f"there are no tuned configurations in {url}")
    return records


def _existing(source: str) -> Path | None:
    """The path of a source on this machine, None if the source is remote. Raises NotFoundError."""
    location = Location.parse(source)
    if location.kind is not LocationKind.DIRECTORY:
        return None
    path = Path(location.path)
    if not path.exists():
        raise NotFoundError(f"{source} does not exist")
    return path


def _merge(records: Iterable[Record], target: RecordLayer, *, imported: bool = False) -> Counter[str]:
    """Publish records in a layer, each merged with an existing one of its key.

    Args:
        records: what to publish.
        target: the layer.
        imported: a person takes the records from files now, so they replace what was imported earlier.

    Returns:
        How many records were `new`, `changed`, `same`, and `failed`.

    Raises:
        StoreReadOnlyError: the layer cannot be written.
    """
    if not target.writable:
        raise StoreReadOnlyError(f"{target.documents.url} cannot be written")
    outcome: Counter[str] = Counter()
    for record in records:
        if imported and (held := target.read(record.key)) is not None:
            if record.repeats(held):
                outcome["same"] += 1
                continue
            record = dated_after(record, [held])  # noqa: PLW2901
        before = target.documents.read(record.key.path)
        if not target.publish(record):
            outcome["failed"] += 1
        elif before is None:
            outcome["new"] += 1
        else:
            outcome["same" if target.documents.read(record.key.path) == before else "changed"] += 1
    return outcome


def _copy(records: list[Record], source: str, target: RecordLayer, *, dry_run: bool, as_json: bool) -> None:
    if not dry_run:
        _report(source, target, _merge(records, target), as_json=as_json)
        return
    new = sum(target.documents.read(record.key.path) is None for record in records)
    url = target.documents.url
    if as_json:
        output.print_json({"from": source, "to": url, "dry_run": True, "planned_records": len(records), "new": new})
    else:
        output.say(f"would copy {plural(len(records), 'record')} from {source} to {url}, {new} of them new")


def _report(
    source: str, target: RecordLayer, outcome: Mapping[str, int], *, as_json: bool, problems: list[str] | None = None
) -> None:
    counts = {name: outcome.get(name, 0) for name in ("new", "changed", "same", "failed")}
    complete = not (counts["failed"] or problems)
    url = target.documents.url
    if as_json:
        fields = {"from": source, "to": url, "dry_run": False, "complete": complete, **counts}
        output.print_json(fields if problems is None else fields | {"problems": problems})
    else:
        copied = plural(counts["new"] + counts["changed"], "record")
        already = f"; {plural(counts['same'], 'record')} already there" if counts["same"] else ""
        output.say(f"copied {copied} from {source} to {url}, {counts['new']} of them new{already}")
        if counts["failed"]:
            output.warn(f"{plural(counts['failed'], 'record')} could not be written to {url}")
    if not complete:
        raise typer.Exit(1)
