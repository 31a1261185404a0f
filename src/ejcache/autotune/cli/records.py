"""The commands of `ejcache autotune` that look at records, and that keep or delete them.

`ejcache autotune ls`, `show`, `why`, `diff` and `stats`.

`ejcache autotune pin`, `unpin`, `prune` and `clear`: which records stay, and which are deleted.
"""

from __future__ import annotations

import fnmatch
import json
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ejcache.autotune.cli.store import (
    Device,
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
from ejcache.autotune.cli.transfer import compare_stores, is_location
from ejcache.autotune.cli.tune import recorded_key
from ejcache.autotune.recording import RECORDED
from ejcache.autotune.records.json_values import canonical_json
from ejcache.autotune.records.record import (
    Source,
    Status,
    differences,
    encode_record,
    pinned,
    unpinned,
)
from ejcache.autotune.records.store import QUARANTINE, Found
from ejcache.cli import output
from ejcache.cli.listing import NotFoundError, check_wanted
from ejcache.cli.maintain import confirm
from ejcache.cli.options import DryRun, Json, Limit, Name, OlderThan, Yes, age, argument, count, flag
from ejcache.errors import EjcacheError, UsageError
from ejcache.util.text import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ejcache.autotune.records.record import Candidate, Record, RecordKey
    from ejcache.autotune.records.store import AutotuneStore


_BAR: Final = 32
_COLUMNS: Final = ("key", "operation", "device", "configuration", "source", "ms", "gain", "tried", "call")
_LARGEST_GAIN: Final = 1e6


def ls(
    directory: Dir = None,
    name: Name = None,
    device: Device = None,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """List the records: the operation, the call, its configuration, how that was found, and how fast it is.

    A source with a question mark is unsure; `show` says why, and `run --unsure` measures the call again.

    If several layers have a record of a call, the one that programs use is listed.
    """
    with open_autotune(directory) as store:
        found = strongest(store.records(), name=name, device=device)
        url = named_layer(store).documents.url
    shown = found[: count(limit, option="--limit")]
    if as_json:
        records = [record_fields(item) for item in shown]
        output.print_json({"url": url, "total_records": len(found), "records": records})
        return
    rows = [_row(item) for item in shown]
    if rows:
        output.print_table(
            _COLUMNS,
            rows,
            right=("ms", "gain", "tried"),
            shrink=("call", "configuration", "device", "operation"),
            drop=("tried", "device", "gain", "source", "ms", "call"),
        )
    hidden = f"; {len(found) - len(shown):,} not shown" if len(shown) < len(found) else ""
    output.say(f"{plural(len(found), 'record')} in {url}{hidden}")


def _row(item: Found) -> list[str]:
    return [
        item.record.key.digest[:12],
        f"{item.record.key.operation}@{item.record.key.version}",
        item.record.key.device,
        canonical_json(item.record.configuration),
        _source(item),
        _milliseconds(item.record),
        _gain(item.record),
        str(len(item.record.candidates)),
        item.record.key.text.split(" | ")[2],
    ]


def report_rows(directory: str | None) -> list[Sequence[str]]:
    """The records for `ejcache report`, the heading first; nothing if there are none, or they cannot be read."""
    with suppress(EjcacheError), open_autotune(directory) as store:
        found = strongest(store.records())
        return [_COLUMNS, *map(_row, found)] if found else []
    return []


def show(key: Key, directory: Dir = None, as_json: Json = False) -> None:
    """Show one record: its configuration, the candidates and their timings, and where it was measured.

    The configuration that programs use is marked with *, the default one with =.
    """
    with open_autotune(directory) as store:
        item = find_record(store, key)
    record = item.record
    if as_json:
        output.print_json(record_fields(item, full=True))
        return
    output.print_pairs(
        [
            ("operation", f"{record.key.operation}@{record.key.version}"),
            ("key", record.key.digest),
            ("call", record.key.text),
            ("configuration", canonical_json(record.configuration)),
            ("source", item.source.value),
            ("layer", item.layer),
            ("gain", _gain(record)),
            ("created", output.moment(record.created)),
            *((name, str(value)) for name, value in record.measurement.items() if name != "gain"),
            *((name, str(value)) for name, value in record.provenance.items() if value not in ("", None)),
        ]
    )
    if record.candidates:
        output.say()
        _print_candidates(record)


def stats(directory: Dir = None, as_json: Json = False) -> None:
    """Count the records by layer, operation, device and source, and the documents that could not be read."""
    counted: dict[str, Counter[str]] = {name: Counter() for name in ("layers", "operations", "devices", "sources")}
    with open_autotune(directory) as store:
        for item in store.records():
            key = item.record.key
            names = {"layers": item.layer, "operations": key.operation, "devices": key.device}
            for title, name in (names | {"sources": item.source.value}).items():
                counted[title][name] += 1
        problems = store.stats()
        layers = [
            {"name": layer.name, "url": layer.documents.url, "records": counted["layers"][layer.name]}
            for layer in store.all_layers()
        ]
    fields: dict[str, Any] = {"layers": layers, "total_records": counted["layers"].total()}
    for title in ("operations", "devices", "sources"):
        fields[title] = dict(sorted(counted[title].items(), key=lambda pair: (-pair[1], pair[0])))
    fields |= {name: problems[name] for name in ("corrupt", "unknown", "errors", "broken_packages")}
    if as_json:
        output.print_json(fields)
        return
    rows = [("records", f"{fields['total_records']:,}")]
    rows += [(f"layer {layer['name']}", f"{layer['records']} in {layer['url']}") for layer in layers]
    for title in ("operations", "devices", "sources"):
        rows += [(title[:-1], f"{name}: {number}") for name, number in fields[title].items()]
    rows += [(name, str(fields[name])) for name in ("corrupt", "unknown", "errors", "broken_packages")]
    output.print_pairs(rows)


def why(key: Key, directory: Dir = None, as_json: Json = False) -> None:
    """Say which record a call uses, and why it does not use the others.

    KEY names a record, or a call that was recorded with EJCACHE_AUTOTUNE_RECORD=1. For a call without a record, the
    records of the most similar calls are shown, and the exit status is 1.
    """

    def compared(items: Sequence[Found]) -> list[dict[str, Any]]:
        return [record_fields(item) | {"differences": _pairs(differences(wanted, item.record.key))} for item in items]

    with open_autotune(directory) as store:
        wanted = _key_of(store, key)
        found = store.find_all(wanted)
        fields: dict[str, Any] = {
            "key": wanted.digest,
            "text": wanted.text,
            "records": [record_fields(item) for item in found],
            "elsewhere": compared(store.other_environments(wanted)),
            "nearest": compared([] if found else store.nearest(wanted, same_environment=False)[:3]),
        }
    if as_json:
        output.print_json(fields)
    else:
        _print_why(fields)
    if not found:
        raise typer.Exit(1)


def diff(
    one: Annotated[str, argument("KEY|URL", "A record's key, or a store.")],
    other: Annotated[str, argument("KEY|URL", "The key or store to compare it with.")],
    directory: Dir = None,
    as_json: Json = False,
) -> None:
    """Compare two records name by name, or two stores record by record. Exits with 1 if they differ."""
    if is_location(one) and is_location(other):
        fields = compare_stores(one, other)
    else:
        with open_autotune(directory) as store:
            left, right = find_record(store, one).record, find_record(store, other).record
        same = left.configuration == right.configuration
        fields = {
            "key": _pairs(differences(left.key, right.key)),
            "configuration": {} if same else {"": [left.configuration, right.configuration]},
        }
    if as_json:
        output.print_json(fields)
    else:
        for name, changed in fields.items():
            for key, (here, there) in changed.items():
                output.say(f"{name} {key}: {here} -> {there}" if key else f"{name}: {here} -> {there}")
    if any(fields.values()):
        raise typer.Exit(1)


def _key_of(store: AutotuneStore, key: str) -> RecordKey:
    try:
        return find_record(store, key).record.key
    except NotFoundError:
        recorded = recorded_key(store, key)
        if recorded is None:
            raise
        return recorded


def _pairs(changed: dict[str, tuple[Any, Any]]) -> dict[str, list[Any]]:
    return {name: list(values) for name, values in changed.items()}


def _print_why(fields: dict[str, Any]) -> None:
    output.say(fields["text"])
    for index, item in enumerate(fields["records"]):
        verdict = "runs with" if index == 0 else "not used, because its source or its layer comes after the one above:"
        output.say(f"  {verdict} {item['configuration']} ({item['source']}, {item['layer']})")
    if not fields["records"]:
        output.say("  has no record")
    for title, name in (("in another environment", "elsewhere"), ("similar", "nearest")):
        for item in fields[name]:
            output.say(f"  {title}: {item['configuration']} ({item['source']}, {item['layer']})")
            for key, (here, there) in item["differences"].items():
                output.say(f"    {key}: {here} here, {there} there")


def _print_candidates(record: Record) -> None:
    timed = [c for c in record.candidates if c.seconds is not None]
    slowest = max((c.seconds.p50 for c in timed if c.seconds is not None), default=0.0)
    chosen = canonical_json(record.configuration)
    output.print_table(
        ("", "candidate", "ms", "p20", "p80", "compile s", "timing"),
        [_candidate_row(candidate, slowest, chosen=chosen, default=record.default) for candidate in record.candidates],
        right=("ms", "p20", "p80", "compile s"),
        shrink=("timing", "candidate"),
        drop=("p20", "p80", "compile s"),
    )


def _candidate_row(candidate: Candidate, slowest: float, *, chosen: str, default: Any) -> tuple[str, ...]:
    mark = "*" if candidate.digest == chosen else ("=" if candidate.configuration == default else "")
    compile_seconds = "" if candidate.compile_seconds is None else f"{candidate.compile_seconds:.2f}"
    timing = candidate.seconds
    if timing is None:
        return (mark, candidate.digest, candidate.status.value, "", "", compile_seconds, candidate.error[:60])
    bar = "█" * max(1, round(_BAR * timing.p50 / slowest)) if slowest else ""
    numbers = [f"{value * 1e3:.4g}" for value in (timing.p50, timing.p20, timing.p80)]
    return (mark, candidate.digest, *numbers, compile_seconds, bar)


def _source(item: Found) -> str:
    if not item.record.works:
        return "failed"
    return f"{item.source.value}?" if item.record.unsure else item.source.value


def _milliseconds(record: Record) -> str:
    candidate = record.candidate(record.configuration)
    return "-" if candidate is None or candidate.seconds is None else f"{candidate.seconds.p50 * 1e3:.4g}"


def _gain(record: Record) -> str:
    gain = record.measurement.get("gain")
    # The number of a foreign record may be larger than a float can be.
    return f"{100 * gain:.0f}%" if isinstance(gain, int | float) and abs(gain) < _LARGEST_GAIN else "-"


def pin(
    key: Key,
    configuration: Annotated[
        str | None, argument("[JSON]", "The configuration. Default: the one that the record has.")
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
    """Let measurements decide again: the call has the configuration again that it had before the pin."""
    with open_autotune(directory, write=True, must_exist=True) as store:
        record = find_record(store, key).record
        _report_pin(store, _unpinned(store, record) or record, as_json=as_json)


def prune(
    directory: Dir = None,
    older_than: OlderThan = None,
    name: Name = None,
    old_versions: Annotated[
        bool, flag("--old-versions", "Remove a call's records of another JAX, jaxlib or host than the newest.")
    ] = False,
    recorded: Annotated[bool, flag("--recorded", "Remove recorded calls.")] = False,
    quarantine: Annotated[bool, flag("--quarantine", "Delete quarantined documents.")] = False,
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
    for layer, found in fixed:
        if (changed := unpinned(found, now=time.time())) is None:
            raise NotFoundError(f"{record.key.digest} has no measurement to return to; `clear` removes the record")
        layer.documents.replace(record.key.path, encode_record(changed))
    return changed


def _doubt(plain: Any, record: Record) -> str:
    """The reason why a configuration may not work, or an empty text."""
    tried = record.candidate(plain)
    if tried is not None:
        return "" if tried.status is Status.OK else f"this candidate {tried.status.value}: {tried.error}"
    if not record.candidates or plain in (record.configuration, record.default):
        return ""
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
