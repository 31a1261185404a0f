"""`ejcache autotune run`, `pin`, `prune` and `rm`: what is measured, what is fixed, and what goes."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ejcache.cli import output
from ejcache.cli.autotune_place import AutotuneDir, find_record, opened_store, record_fields
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
        url = store.url
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

    With --unpin the fastest candidate counts again.
    """
    from ejcache.autotune.records import Source, Status, encode_record, pinned
    from ejcache.autotune.store import Found

    with opened_store(directory, write=True) as store:
        item = find_record(store, key)
        record = item.record
        if unpin:
            best = next((c for c in record.candidates if c.status is Status.OK), None)
            if record.source is not Source.PINNED or best is None:
                raise UsageError(f"{record.key.digest} is not pinned, or has no measurement to go back to")
            import dataclasses

            changed = dataclasses.replace(record, configuration=best.configuration, source=Source.TUNED)
        else:
            plain = record.configuration if configuration is None else _parsed(configuration)
            if odd := _unheard_of(plain, record):
                output.warn(
                    f"no configuration that was tried has {', '.join(odd)}; a program may not be able to use it"
                )
            changed = pinned(record, plain, now=time.time())
        # Not merged: what a person says goes before what is there, also where that is a stronger record.
        store.layers[0].documents.replace(record.key.path, encode_record(changed))
    fields = record_fields(Found(changed, item.layer, changed.source))
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
    """Remove records by age or environment; pinned ones stay. Also what interrupted writers left behind."""
    from ejcache.autotune.layer import QUARANTINE
    from ejcache.autotune.recording import RECORDED
    from ejcache.autotune.records import Source

    seconds = age(older_than, option="--older-than")
    if not (seconds is not None or old_environments or recorded or quarantine):
        raise UsageError("prune needs --older-than, --old-environments, --recorded or --quarantine")
    with opened_store(directory, write=not dry_run) as store:
        documents = store.layers[0].documents
        found = [item for item in store.records(layer=store.layers[0].name) if item.source is not Source.PINNED]
        doomed = {item.record.key.path: item for item in found if _is_doomed(item, found, seconds, old_environments)}
        paths = [*doomed]
        paths += [
            path
            for prefix, wanted in ((RECORDED, recorded), (QUARANTINE, quarantine))
            if wanted
            for path in documents.list(prefix)
        ]
        removed = len(paths) if dry_run else sum(documents.delete(path) for path in paths)
        swept = 0 if dry_run or not hasattr(documents, "sweep") else documents.sweep()
    if as_json:
        output.print_json({"url": store.url, "dry_run": dry_run, "removed": removed, "swept": swept, "paths": paths})
        return
    for path in paths:
        output.say(doomed[path].record.key.text if path in doomed else path)
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
    if as_json:
        output.print_json({"url": store.url, "removed": [item.record.key.digest for item in removed]})
    else:
        for item in removed:
            output.say(f"removed {item.record.key.text}")
    if len(removed) < len(items):
        raise StoreError("some records are in layers that cannot be written")


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
