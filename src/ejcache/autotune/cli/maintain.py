"""`ejcache autotune pin`, `unpin`, `prune` and `clear`: which records stay, and which are deleted."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ejcache.autotune.cli.store import (
    Dir,
    Key,
    Keys,
    choose_records,
    find_record,
    named_layer,
    open_autotune,
    own_layers,
    record_fields,
    strongest,
)
from ejcache.autotune.recording import RECORDED
from ejcache.autotune.records.json_values import canonical_json
from ejcache.autotune.records.record import Source, Status, dated_after, encode_record, fastest_first, pinned
from ejcache.autotune.records.store import QUARANTINE, Found
from ejcache.cli import output
from ejcache.cli.listing import check_wanted
from ejcache.cli.maintain import confirm
from ejcache.cli.options import DryRun, Json, Name, OlderThan, Yes, age
from ejcache.cli.target import NotFoundError
from ejcache.errors import UsageError
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.autotune.records.record import Record
    from ejcache.autotune.records.store import AutotuneStore


def pin(
    key: Key,
    configuration: Annotated[
        str | None,
        typer.Argument(metavar="[JSON]", help="The configuration. Default: the one that the record has."),
    ] = None,
    directory: Dir = None,
    as_json: Json = False,
) -> None:
    """Fix the configuration of a call: measurements no longer change it.

    It is fixed in the store that --dir or the settings name.
    """
    with open_autotune(directory, write=True, must_exist=True) as store:
        record = find_record(store, key).record
        plain = record.configuration if configuration is None else _parsed(configuration)
        if doubt := _doubt(plain, record):
            output.warn(f"{doubt}; the program may fail or compute other results with this configuration")
        _report_pin(store, _pinned(store, record, plain), as_json=as_json)


def unpin(key: Key, directory: Dir = None, as_json: Json = False) -> None:
    """Let measurements decide again: the fastest candidate becomes the call's configuration."""
    with open_autotune(directory, write=True, must_exist=True) as store:
        record = find_record(store, key).record
        _report_pin(store, _unpinned(store, record) or record, as_json=as_json)


def prune(
    directory: Dir = None,
    older_than: OlderThan = None,
    name: Name = None,
    old_versions: Annotated[
        bool,
        typer.Option("--old-versions", help="Remove a call's records of another JAX, jaxlib or host than the newest."),
    ] = False,
    recorded: Annotated[bool, typer.Option("--recorded", help="Remove recorded calls.")] = False,
    quarantine: Annotated[bool, typer.Option("--quarantine", help="Delete quarantined documents.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Remove the records that a rule names, and files that interrupted writers left.

    Each rule removes records independently of the others. --name restricts --older-than and --old-versions to matching
    operations; alone, it removes the matching records. Pinned records stay. If the settings name a bucket, the user's
    own directory is pruned as well.
    """
    seconds = age(older_than, option="--older-than")
    if not (seconds is not None or old_versions or name is not None or recorded or quarantine):
        raise UsageError(
            "prune needs a rule that says what to remove: give --older-than, --old-versions, --name, --recorded or "
            "--quarantine"
        )
    with open_autotune(directory, write=not dry_run, must_exist=True) as store:
        layers = {layer.name: layer.documents for layer in own_layers(store)}
        by_name = name is not None and not (seconds is not None or old_versions or recorded or quarantine)
        records = list(_to_remove(store, name, seconds=seconds, old_versions=old_versions, by_name=by_name))
        documents = [(item.layer, item.record.key.path) for item in records]
        prefixes = [prefix for prefix, wanted in ((RECORDED, recorded), (QUARANTINE, quarantine)) if wanted]
        documents += [(place, path) for prefix in prefixes for place in layers for path in layers[place].list(prefix)]
        removed = swept = 0
        if not dry_run:
            removed = sum(layers[layer].delete(path) for layer, path in documents)
            swept = sum(place.sweep() for place in layers.values())
        url = named_layer(store).documents.url
    texts = {item.record.key.path: item.record.key.text for item in records}
    paths = list(dict.fromkeys(path for _, path in documents))
    if as_json:
        planned = [{"path": path, "text": texts.get(path, "")} for path in paths]
        fields = {"url": url, "dry_run": dry_run, "planned_documents": len(documents), "removed_documents": removed}
        output.print_json(fields | {"swept_files": swept, "planned": planned})
        return
    for path in paths:
        output.say(texts.get(path, path))
    number = plural(len(documents) if dry_run else removed, "document")
    output.say(f"{'would remove' if dry_run else 'removed'} {number} from {url}")


def clear(
    keys: Keys = None,
    directory: Dir = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove all records, or those that are named, pinned ones too. Their calls are measured again.

    Asks before it removes all, unless --yes is given. Records are removed from every layer that can be written. Exits
    with 1 if a record stays.
    """
    for wanted in keys or ():
        check_wanted(wanted)
    with open_autotune(directory, write=True, must_exist=True) as store:
        url = named_layer(store).documents.url
        if keys:
            items = [item for text in keys for item in choose_records(store, text, all_of_a_name=True)]
        else:
            own = {layer.name for layer in own_layers(store)}
            items = strongest(item for item in store.records() if item.layer in own)
            if items:
                confirm(f"Remove {plural(len(items), 'record')} from {url}?", yes=yes, as_json=as_json)
        removed = [item.record.key for item in items if store.delete(item.record.key)]
        failed = any(layer.counters["errors"] for layer in own_layers(store))
    if as_json:
        fields = {"url": url, "dry_run": False, "removed_records": len(removed)}
        output.print_json(fields | {"removed": [key.digest for key in removed]})
    else:
        for key in removed:
            output.say(f"removed {key.text}")
        output.say(f"removed {plural(len(removed), 'record')} from {url}")
    if failed or len(removed) < len(items):
        output.warn("some records stay: they are in layers that cannot be written, or the storage failed")
        raise typer.Exit(1)


def _report_pin(store: AutotuneStore, record: Record, *, as_json: bool) -> None:
    if as_json:
        output.print_json(record_fields(Found(record, named_layer(store).name, record.source)))
    else:
        output.say(f"{record.key.text} runs with {json.dumps(record.configuration)} ({record.source.value})")


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"the configuration {text!r} is not JSON: {exc}") from exc


def _pinned(store: AutotuneStore, record: Record, plain: Any) -> Record:
    changed = pinned(record, plain, now=time.time())
    named = named_layer(store)
    # Not merged: a person's choice replaces the stored record, even one of a stronger source.
    named.documents.replace(record.key.path, encode_record(changed))
    for layer in own_layers(store):
        held = None if layer is named else layer.read(record.key)
        if held is not None and held.source is Source.PINNED:
            # An older pin in the user's directory, which would be found first.
            layer.documents.delete(record.key.path)
    return changed


def _unpinned(store: AutotuneStore, record: Record) -> Record | None:
    """The record without its pin; None if it is not pinned."""
    held = [(layer, found) for layer in own_layers(store) if (found := layer.read(record.key)) is not None]
    fixed = [(layer, found) for layer, found in held if found.source is Source.PINNED]
    if not fixed:
        return None
    tried = [candidate for _, found in held for candidate in found.candidates]
    best = next((candidate for candidate in fastest_first(tried) if candidate.status is Status.OK), None)
    if best is None:
        raise NotFoundError(f"{record.key.digest} has no measurement to return to; `clear` removes the record")
    for layer, found in fixed:
        changed = dataclasses.replace(found, configuration=best.configuration, source=Source.TUNED, created=time.time())
        changed = dated_after(changed, [found])
        layer.documents.replace(record.key.path, encode_record(changed))
    return changed


def _doubt(plain: Any, record: Record) -> str:
    """The reason why a configuration may not work, or an empty text."""
    tried = record.candidate(plain)
    if tried is not None:
        return "" if tried.status is Status.OK else f"this candidate {tried.status.value}: {tried.error}"
    known = [record.configuration, record.default, *(candidate.configuration for candidate in record.candidates)]
    if plain in known or not record.candidates:
        return ""
    names = {name for configuration in known if isinstance(configuration, dict) for name in configuration}
    if isinstance(plain, dict) and names and (odd := sorted(set(plain) - names)):
        return f"no candidate has {', '.join(odd)}"
    return f"{canonical_json(plain)} is not among the candidates that were measured"


def _to_remove(
    store: AutotuneStore, name: str | None, *, seconds: float | None, old_versions: bool, by_name: bool
) -> Iterator[Found]:
    own = {layer.name for layer in own_layers(store)}
    found = [item for item in store.records() if item.layer in own and item.source is not Source.PINNED]
    newest: dict[str, float] = {}
    for item in found:
        call = item.record.key.call_digest
        newest[call] = max(newest.get(call, item.record.created), item.record.created)
    now = time.time()
    for item in found:
        record = item.record
        too_old = seconds is not None and now - record.created > seconds
        old_version = old_versions and record.created < newest[record.key.call_digest]
        matches = name is None or fnmatch.fnmatchcase(record.key.operation, name)
        if matches and (by_name or too_old or old_version):
            yield item
