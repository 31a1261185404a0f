"""Tuned records copied from one store to another, and into and out of ejkernel's files."""

from __future__ import annotations

import fnmatch
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.autotune.ejkernel.cache import export_to_ejkernel, read_file
from ejcache.autotune.records.record import dated_after
from ejcache.autotune.records.store import RecordLayer
from ejcache.cli import output
from ejcache.cli.chosen_cache import check_different
from ejcache.cli.tuned.records import named_layer, open_autotune, strongest
from ejcache.errors import EjcacheError, NotFoundError, StoreError, StoreReadOnlyError, UsageError
from ejcache.stores.documents import open_documents
from ejcache.stores.location import Location, LocationKind
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ejcache.autotune.records.record import Record
    from ejcache.autotune.records.rules import Rules
    from ejcache.stores.documents import Documents


_MAX_FILE_BYTES: Final = 256 << 20
"""A larger file is not one of ejkernel's."""


def push_records(
    url: str, directory: str | None, *, name: str | None, device: str | None, dry_run: bool, as_json: bool
) -> int:
    """Copy the records to another store, which is created if it does not exist.

    A record that the other store has already is merged with the copied one: the choice of the stronger source counts,
    and the measurements of both are kept. The rules of the operations replace those that are there. A package can ship
    the directory of such a store.

    Raises:
        NotFoundError: there is no such record.
    """
    with open_autotune(directory) as store:
        source = named_layer(store).documents.url
        check_different(source, url)
        records = [item.record for item in strongest(store.records(), name=name, device=device)]
        rules = rules_of(named_layer(store), name)
    if not records:
        # A name with a typing error would look as if it were shipped.
        chosen = "".join(
            f" with {option} {value}" for option, value in (("--name", name), ("--device", device)) if value
        )
        raise NotFoundError(f"{source} has no tuned record{chosen}, so nothing was copied")
    target = RecordLayer("target", open_documents(url, read_only=dry_run))
    return _copy(records, rules, source, target, dry_run=dry_run, as_json=as_json)


def pull_records(
    url: str, directory: str | None, *, name: str | None, device: str | None, dry_run: bool, as_json: bool
) -> int:
    """Copy the records of another store into this one, as `push_records` does in the other direction."""
    records, rules = _records_of(url, name=name, device=device)
    with open_autotune(directory, write=not dry_run, must_exist=False) as store:
        layer = named_layer(store)
        check_different(layer.documents.url, url)
        return _copy(records, rules, url, layer, dry_run=dry_run, as_json=as_json)


def push_to_ejkernel(to: str, directory: str | None, *, name: str | None, device: str | None, as_json: bool) -> int:
    """Merge the records that programs use into ejkernel's files in a directory; 1 if none could be written."""
    if "://" in to:
        raise UsageError(f"--format ejkernel: {to} is not a directory of this machine")
    with open_autotune(directory) as store:
        found = strongest(store.records(), name=name, device=device)
    files, left_out, failed = export_to_ejkernel(found, to)
    if as_json:
        output.print_json({"to": to, "files": dict(files), "left_out": left_out, "failures": failed})
    else:
        output.say(f"wrote {plural(sum(files.values()), 'record')} to {plural(len(files), 'file')} in {to}")
        if left_out:
            output.say(f"{plural(left_out, 'record')} left out, because ejkernel has no key for them")
    if failed:
        output.warn(f"{plural(failed, 'record')} could not be written to {to}")
    elif not files:
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
    return _report(place, layer, outcome, as_json=as_json, problems=problems)


def _files(place: str) -> Iterator[tuple[Documents, str]]:
    """The directory and the name of a file, or of each file in a directory."""
    path = _existing(place)
    if place.endswith(".json") if path is None else not path.is_dir():
        above, _, name = (place if path is None else str(path.resolve())).rpartition("/")
        yield open_documents(above, read_only=True), name
        return
    documents = open_documents(place if path is None else path.resolve(), read_only=True)
    for name in sorted(documents.list("")):
        if name.endswith(".json") and "/" not in name:
            yield documents, name


def rules_of(layer: RecordLayer, name: str | None) -> list[Rules]:
    """The rules of a layer, of the operations whose names a glob matches; of all without one."""
    return [rules for rules in layer.each_rules() if fnmatch.fnmatchcase(rules.operation, name or "*")]


def _records_of(url: str, *, name: str | None, device: str | None) -> tuple[list[Record], list[Rules]]:
    path = _existing(url)
    if path is not None and not path.is_dir():
        raise UsageError(f"{url} is not a directory, so it cannot be a store of tuned configurations")
    with open_autotune(url) as store:
        records = [
            item.record for item in strongest(store.records(layer=store.layers[0].name), name=name, device=device)
        ]
        rules = rules_of(store.layers[0], name)
        failed = store.stats()["errors"] > 0
    if failed:
        raise StoreError(f"{url} cannot be read")
    if path is None and not records:
        # A prefix of a bucket exists only if there are objects below it.
        raise NotFoundError(f"there are no tuned configurations in {url}")
    return records, rules


def _existing(source: str) -> Path | None:
    """The path of a source on this machine, None if the source is remote. Raises NotFoundError."""
    location = Location.parse(source)
    if location.kind is not LocationKind.DIRECTORY:
        return None
    path = Path(location.path)
    if not path.exists():
        raise NotFoundError(f"{source} does not exist")
    return path


def merge_records(records: Iterable[Record], target: RecordLayer, *, imported: bool = False) -> Counter[str]:
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


def _copy(
    records: list[Record], rules: list[Rules], source: str, target: RecordLayer, *, dry_run: bool, as_json: bool
) -> int:
    if not dry_run:
        outcome = merge_records(records, target)
        outcome["failed"] += sum(not target.publish_rules(each) for each in rules)
        return _report(source, target, outcome, as_json=as_json)
    new = sum(target.documents.read(record.key.path) is None for record in records)
    url = target.documents.url
    if as_json:
        output.print_json({"from": source, "to": url, "dry_run": True, "planned_records": len(records), "new": new})
    else:
        output.say(f"would copy {plural(len(records), 'record')} from {source} to {url}, {new} of them new")
    return 0


def _report(
    source: str, target: RecordLayer, outcome: Mapping[str, int], *, as_json: bool, problems: list[str] | None = None
) -> int:
    counts = {name: outcome.get(name, 0) for name in ("new", "changed", "same", "failed")}
    complete = not (counts["failed"] or problems)
    url = target.documents.url
    if as_json:
        fields = {"from": source, "to": url, "dry_run": False, "complete": complete, **counts}
        fields["failures"] = fields.pop("failed")
        output.print_json(fields if problems is None else fields | {"problems": problems})
    else:
        copied = plural(counts["new"] + counts["changed"], "record")
        already = f"; {plural(counts['same'], 'record')} already there" if counts["same"] else ""
        output.say(f"copied {copied} from {source} to {url}, {counts['new']} of them new{already}")
        if counts["failed"]:
            output.warn(f"{plural(counts['failed'], 'record')} could not be written to {url}")
    return int(not complete)
