"""Copies tuned records from one store to another."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from ejcache.autotune.records.record import dated_after
from ejcache.autotune.records.store import RecordLayer
from ejcache.cli import output
from ejcache.cli.chosen_cache import check_different
from ejcache.cli.tuned.records import named_layer, open_autotune, strongest
from ejcache.errors import NotFoundError, StoreError, StoreReadOnlyError, UsageError
from ejcache.stores.documents import open_documents
from ejcache.stores.location import Location
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ejcache.autotune.records.record import Record


def push_records(
    url: str,
    directory: str | None,
    *,
    name: str | None,
    device: str | None,
    unsure: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Copy the records to another store, which is created if it does not exist; unsure ones only with `unsure`.

    A record that the other store has already is merged with the copied one: the choice of the stronger source counts,
    and the measurements of both are kept. A package can ship the directory of such a store.

    Raises:
        NotFoundError: there is no such record.
    """
    with open_autotune(directory) as store:
        source = named_layer(store).documents.url
        check_different(source, url)
        records = [item.record for item in strongest(store.records(), name=name, device=device)]
    if not records:
        # A name with a typing error would look as if it were shipped.
        chosen = "".join(
            f" with {option} {value}" for option, value in (("--name", name), ("--device", device)) if value
        )
        raise NotFoundError(f"{source} has no tuned record{chosen}, so nothing was copied")
    if not unsure:
        records = sure_records(records)
    target = RecordLayer("target", open_documents(url, read_only=dry_run))
    return _copy(records, source, target, dry_run=dry_run, as_json=as_json)


def pull_records(
    url: str, directory: str | None, *, name: str | None, device: str | None, dry_run: bool, as_json: bool
) -> int:
    """Copy the records of another store into this one, as `push_records` does in the other direction."""
    records = _records_of(url, name=name, device=device)
    with open_autotune(directory, write=not dry_run, must_exist=False) as store:
        layer = named_layer(store)
        check_different(layer.documents.url, url)
        return _copy(records, url, layer, dry_run=dry_run, as_json=as_json)


def sure_records(records: list[Record]) -> list[Record]:
    """Leave out the records that are unsure, and say so: nobody measures again what was shipped."""
    say_left_out([record for record in records if record.unsure])
    return [record for record in records if not record.unsure]


def say_left_out(unsure: list[Record]) -> None:
    """Warn that these unsure records are not copied, if there are any."""
    if unsure:
        names = ", ".join(sorted({record.key.operation for record in unsure}))
        output.warn(
            f"{plural(len(unsure), 'unsure record')} left out, of {names}: `ejcache tuned tune PROGRAM` measures "
            "them again, and --unsure copies them nevertheless"
        )


def _records_of(url: str, *, name: str | None, device: str | None) -> list[Record]:
    path = existing_path(url)
    if path is not None and not path.is_dir():
        raise UsageError(f"{url} is not a directory, so it cannot be a store of tuned configurations")
    with open_autotune(url) as store:
        records = [
            item.record for item in strongest(store.records(layer=store.layers[0].name), name=name, device=device)
        ]
        failed = store.stats()["errors"] > 0
    if failed:
        raise StoreError(f"{url} cannot be read")
    if path is None and not records:
        # A prefix of a bucket exists only if there are objects below it.
        raise NotFoundError(f"there are no tuned configurations in {url}")
    return records


def existing_path(source: str) -> Path | None:
    """Return the path of a source on this machine, None if the source is remote. Raises NotFoundError."""
    location = Location.parse(source)
    if location.kind != "directory":
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


def _copy(records: list[Record], source: str, target: RecordLayer, *, dry_run: bool, as_json: bool) -> int:
    if not dry_run:
        outcome = merge_records(records, target)
        return report_merge(source, target, outcome, as_json=as_json)
    new = sum(target.documents.read(record.key.path) is None for record in records)
    url = target.documents.url
    if as_json:
        output.print_json({"from": source, "to": url, "dry_run": True, "planned_records": len(records), "new": new})
    else:
        output.say(f"would copy {plural(len(records), 'record')} from {source} to {url}, {new} of them new")
    return 0


def report_merge(
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
