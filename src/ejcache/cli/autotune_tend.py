"""`ejcache autotune run`, `pin`, `prune` and `rm`: what is measured, what is fixed, and what goes."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ejcache.cli import output
from ejcache.cli.autotune_place import AutotuneDir, find_record, kept_layers, named_layer, opened_store, record_fields
from ejcache.cli.options import Json, age
from ejcache.errors import StoreError, UsageError

if TYPE_CHECKING:
    from ejcache.autotune.key import RecordKey
    from ejcache.autotune.records import Record
    from ejcache.autotune.replay import Replayed
    from ejcache.autotune.store import AutotuneStore, Found

__all__ = ["pin", "prune", "recorded_key", "rm", "run"]


def run(
    recorded: Annotated[
        str | None,
        typer.Argument(metavar="RECORDED", help="Where calls were recorded; by default in the store itself."),
    ] = None,
    directory: AutotuneDir = None,
    operation: Annotated[str | None, typer.Option("--operation", metavar="NAME", help="Only this operation.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Measure again what is tuned already.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="At most this many.")] = None,
    as_json: Json = False,
) -> None:
    """Tune the calls that a program recorded with EJKERNEL_OPS_RECORD=1 or ejcache.autotune.record().

    It imports the modules that the recording names: run only what you trust. What is tuned already is passed over, so
    an interrupted run can be started again. Exits with 1 if a call could not be tuned.
    """
    from ejcache.autotune.recording import recorded_calls
    from ejcache.autotune.replay import Outcome, replay
    from ejcache.stores.documents import open_documents

    # The operations of a program are imported from where it is.
    if "" not in sys.path:
        sys.path.insert(0, "")
    with opened_store(directory, write=True) as store:
        place = store.layers[0].documents if recorded is None else open_documents(recorded, read_only=True)
        calls = [
            call
            for call in recorded_calls(place)
            if operation is None or (call.call is not None and call.call["operation"] == operation)
        ][:limit]
        done = []
        with output.progress("tuning", len(calls), quiet=as_json) as advance:
            for call in calls:
                result = replay(call, store, force=force)
                done.append(result)
                if not as_json:
                    output.say(_line(result))
                advance()
        url = named_layer(store).documents.url
    counts = {outcome.name.lower(): sum(item.outcome is outcome for item in done) for outcome in Outcome}
    if as_json:
        results = [
            {
                "path": item.path,
                "operation": item.operation,
                "outcome": item.outcome.name.lower(),
                "configuration": None if item.record is None else item.record.configuration,
                "problem": item.problem,
            }
            for item in done
        ]
        output.print_json({"url": url, **counts, "calls": results})
    elif not done:
        output.say(f"no recorded calls in {place.url}")
    else:
        output.say(", ".join(f"{number} {name}" for name, number in counts.items()))
    if counts["failed"]:
        raise typer.Exit(1)


def pin(
    key: Annotated[str, typer.Argument(metavar="KEY", help="What `ls` shows as the key, or the beginning of it.")],
    configuration: Annotated[
        str | None,
        typer.Argument(metavar="JSON", help="The configuration; by default the one that the record has."),
    ] = None,
    directory: AutotuneDir = None,
    unpin: Annotated[bool, typer.Option("--unpin", help="Let measurements decide again.")] = False,
    as_json: Json = False,
) -> None:
    """Fix the configuration of a call: no measurement replaces it.

    It is fixed in the place that --dir or the settings name. With --unpin the fastest candidate counts again.
    """
    from ejcache.autotune.store import Found

    with opened_store(directory, write=True) as store:
        record = find_record(store, key).record
        layer = named_layer(store)
        if unpin:
            changed = _unpinned(store, record)
        else:
            plain = record.configuration if configuration is None else _parsed(configuration)
            if odd := _unheard_of(plain, record):
                output.warn(
                    f"no configuration that was tried has {', '.join(odd)}; a program may not be able to use it"
                )
            changed = _pinned(store, record, plain)
    fields = record_fields(Found(changed, layer.name, changed.source))
    if as_json:
        output.print_json(fields)
    else:
        output.say(f"{record.key.text} runs with {json.dumps(changed.configuration)} ({changed.source.value})")


def prune(
    directory: AutotuneDir = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="AGE", help="Remove what was measured longer ago, such as 90d."),
    ] = None,
    old_environments: Annotated[
        bool,
        typer.Option("--old-environments", help="Remove a call's records of other environments than the newest one's."),
    ] = False,
    recorded: Annotated[bool, typer.Option("--recorded", help="Remove recorded calls.")] = False,
    quarantine: Annotated[bool, typer.Option("--quarantine", help="Remove damaged documents.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Say what would be removed; remove nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove records by age or environment; pinned ones stay. Also what interrupted writers left behind.

    With a bucket in the settings, the user's own directory is pruned, too.
    """
    from ejcache.autotune.layer import QUARANTINE
    from ejcache.autotune.recording import RECORDED
    from ejcache.autotune.records import Source

    seconds = age(older_than, option="--older-than")
    if not (seconds is not None or old_environments or recorded or quarantine):
        raise UsageError("prune needs --older-than, --old-environments, --recorded or --quarantine")
    with opened_store(directory, write=not dry_run) as store:
        layers = {layer.name: layer.documents for layer in kept_layers(store)}
        found = [item for item in store.records() if item.layer in layers and item.source is not Source.PINNED]
        doomed = [item for item in found if _is_doomed(item, found, seconds, old_environments)]
        places = [(layers[item.layer], item.record.key.path) for item in doomed]
        places += [
            (documents, path)
            for prefix, wanted in ((RECORDED, recorded), (QUARANTINE, quarantine))
            if wanted
            for documents in layers.values()
            for path in documents.list(prefix)
        ]
        removed = len(places) if dry_run else sum(documents.delete(path) for documents, path in places)
        swept = 0 if dry_run else sum(item.sweep() for item in layers.values() if hasattr(item, "sweep"))
        url = named_layer(store).documents.url
    paths = list(dict.fromkeys(path for _, path in places))
    texts = {item.record.key.path: item.record.key.text for item in doomed}
    if as_json:
        output.print_json({"url": url, "dry_run": dry_run, "removed": removed, "swept": swept, "paths": paths})
        return
    for path in paths:
        output.say(texts.get(path, path))
    output.say(f"{'would remove' if dry_run else 'removed'} {output.plural(removed, 'document')}")


def rm(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="What `ls` shows as keys.")],
    directory: AutotuneDir = None,
    as_json: Json = False,
) -> None:
    """Remove records from every layer that can be written, so that the calls are measured anew."""
    with opened_store(directory, write=True) as store:
        items = [find_record(store, key) for key in keys]
        removed = [item for item in items if store.delete(item.record.key)]
        failed = any(layer.counters["errors"] for layer in kept_layers(store))
        url = named_layer(store).documents.url
    if as_json:
        output.print_json({"url": url, "removed": [item.record.key.digest for item in removed]})
    else:
        for item in removed:
            output.say(f"removed {item.record.key.text}")
    if failed or len(removed) < len(items):
        raise StoreError("some records are in layers that cannot be written, or gave no answer")


def _line(result: Replayed) -> str:
    chosen = "" if result.record is None else f" {json.dumps(result.record.configuration)}"
    problem = f": {result.problem}" if result.problem else ""
    return f"{result.operation or result.path}: {result.outcome}{chosen}{problem}"


def recorded_key(store: AutotuneStore, key: str) -> RecordKey | None:
    """The key of the recorded call whose digest begins with `key`, or None."""
    from ejcache.autotune.key import RecordKey
    from ejcache.autotune.recording import recorded_calls

    for layer in store.layers:
        for recorded in recorded_calls(layer.documents):
            call = recorded.call
            if call is not None and (str(call.get("digest", "")).startswith(key) or call["operation"] == key):
                return RecordKey(
                    call["operation"],
                    str(call.get("version", "")),
                    str(call.get("device", "")),
                    call.get("environment", {}),
                    call.get("call", {}),
                )
    return None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as exc:
        raise UsageError(f"the configuration {text!r} is no JSON: {exc}") from exc


def _pinned(store: AutotuneStore, record: Record, plain: Any) -> Record:
    from ejcache.autotune.records import Source, encode_record, pinned

    changed = pinned(record, plain, now=time.time())
    named = named_layer(store)
    # Not merged: what a person says goes before what is there, also where that is a stronger record.
    named.documents.replace(record.key.path, encode_record(changed))
    for layer in kept_layers(store):
        held = None if layer is named else layer.read(record.key)
        if held is not None and held.source is Source.PINNED:
            # An older pin of this user's, which would count before it.
            layer.documents.delete(record.key.path)
    return changed


def _unpinned(store: AutotuneStore, record: Record) -> Record:
    from ejcache.autotune.records import Source, Status, encode_record, fastest_first

    held = [(layer, layer.read(record.key)) for layer in kept_layers(store)]
    fixed = [(layer, found) for layer, found in held if found is not None and found.source is Source.PINNED]
    tried = [candidate for _, found in held if found is not None for candidate in found.candidates]
    best = next((candidate for candidate in fastest_first(tried) if candidate.status is Status.OK), None)
    if not fixed or best is None:
        raise UsageError(f"{record.key.digest} is not pinned, or has no measurement to go back to")
    for layer, found in fixed:
        changed = dataclasses.replace(found, configuration=best.configuration, source=Source.TUNED)
        layer.documents.replace(record.key.path, encode_record(changed))
    return changed


def _unheard_of(plain: Any, record: Record) -> list[str]:
    """Names in a (plain) configuration that none in the record has: most likely a typing error."""
    tried = [record.configuration, record.default, *(candidate.configuration for candidate in record.candidates)]
    known = {name for configuration in tried if isinstance(configuration, dict) for name in configuration}
    return sorted(set(plain) - known) if isinstance(plain, dict) and known else []


def _is_doomed(item: Found, found: list[Found], seconds: float | None, old_environments: bool) -> bool:
    record = item.record
    if seconds is not None and time.time() - record.created > seconds:
        return True
    return old_environments and any(
        other.record.key.call_digest == record.key.call_digest and other.record.created > record.created
        for other in found
    )
