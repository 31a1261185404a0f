"""`ejcache autotune`: the commands that look at tuned configurations, and the group that all of them are in."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ejcache.cli import autotune_exchange, autotune_tend, output
from ejcache.cli.autotune_place import AutotuneDir, find_record, named_layer, opened_store, record_fields, strongest
from ejcache.cli.options import Json  # noqa: TC001 (typer reads the annotations)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ejcache.autotune.records import Candidate, Record
    from ejcache.autotune.store import AutotuneStore, Found

__all__ = ["app"]

_BAR: int = 32

app = typer.Typer(
    help="Tuned configurations: list, explain, tune what was recorded, move between stores.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_Operation = Annotated[
    str | None, typer.Option("--operation", metavar="GLOB", help="Only operations whose name matches.")
]
_Device = Annotated[str | None, typer.Option("--device", metavar="GLOB", help="Only devices whose kind matches.")]
_Key = Annotated[str, typer.Argument(metavar="KEY", help="What `ls` shows as the key, or the beginning of it.")]


@app.command(short_help="List tuned configurations.")
def ls(
    directory: AutotuneDir = None,
    operation: _Operation = None,
    device: _Device = None,
    as_json: Json = False,
) -> None:
    """List tuned configurations: the operation, the call, how the configuration was found, and how fast it is.

    Of a call that several layers have a record of, the one that counts.
    """
    with opened_store(directory) as store:
        found = [item for item in strongest(store.records()) if _matches(item, operation, device)]
        url = named_layer(store).documents.url
    if as_json:
        output.print_json({"url": url, "total_records": len(found), "records": [record_fields(i) for i in found]})
        return
    if not found:
        output.say(f"there are no tuned configurations in {url}")
        return
    output.print_table(
        ("key", "operation", "device", "source", "ms", "gain", "tried", "call"),
        [
            (
                item.record.key.digest[:12],
                f"{item.record.key.operation}@{item.record.key.version}",
                item.record.key.device,
                item.source.value,
                _milliseconds(item.record),
                _gain(item.record),
                str(len(item.record.candidates)),
                item.record.key.text.split(" | ")[2],
            )
            for item in found
        ],
        right=("ms", "gain", "tried"),
        shrink=("call", "device", "operation"),
    )


@app.command(short_help="Show one record, with every candidate's timing.")
def show(key: _Key, directory: AutotuneDir = None, as_json: Json = False) -> None:
    """Show one record: the configuration, what else was tried and how fast it was, where and with what."""
    with opened_store(directory) as store:
        item = find_record(store, key)
    record = item.record
    if as_json:
        output.print_json(record_fields(item, full=True))
        return
    from ejcache.autotune.plain import canonical_json

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
            *((name, str(value)) for name, value in record.provenance.items() if value not in {"", None}),
        ]
    )
    if record.candidates:
        output.say()
        _print_chart(record)


@app.command(short_help="Say why a call runs with the configuration it does.")
def why(key: _Key, directory: AutotuneDir = None, as_json: Json = False) -> None:
    """Say which record counts for a call and why the others do not; for a recorded call without one, what is nearest.

    KEY is a record's, or that of a call that was recorded with EJKERNEL_OPS_RECORD=1.
    """
    from ejcache.autotune.choice import nearest
    from ejcache.autotune.key import differences

    with opened_store(directory) as store:
        wanted = _wanted(store, key)
        found = store.find_all(wanted)
        elsewhere = store.elsewhere(wanted)
        similar = [] if found else nearest(store, wanted, same_environment=False)[:3]
    fields: dict[str, Any] = {
        "key": wanted.digest,
        "text": wanted.text,
        "records": [record_fields(item) for item in found],
        "elsewhere": [
            record_fields(item) | {"differences": _pairs(differences(wanted, item.record.key))} for item in elsewhere
        ],
        "nearest": [
            record_fields(item) | {"differences": _pairs(differences(wanted, item.record.key))} for item in similar
        ],
    }
    if as_json:
        output.print_json(fields)
    else:
        _print_why(wanted.text, found, fields)
    if not found:
        raise typer.Exit(1)


@app.command(short_help="Compare two records, or two stores.")
def diff(
    one: Annotated[str, typer.Argument(metavar="KEY|URL", help="A record's key, or a store.")],
    other: Annotated[str, typer.Argument(metavar="KEY|URL", help="Another one.")],
    directory: AutotuneDir = None,
    as_json: Json = False,
) -> None:
    """Compare two records name by name, or two stores record by record. Exits with 1 if they differ."""
    if autotune_exchange.is_place(one) and autotune_exchange.is_place(other):
        fields = autotune_exchange.compare_stores(one, other)
    else:
        from ejcache.autotune.key import differences

        with opened_store(directory) as store:
            left, right = find_record(store, one).record, find_record(store, other).record
        fields = {"key": _pairs(differences(left.key, right.key)), "configuration": _configurations(left, right)}
    if as_json:
        output.print_json(fields)
    else:
        for name, changed in fields.items():
            for key, (here, there) in changed.items():
                output.say(f"{name} {key}: {here} -> {there}" if key else f"{name}: {here} -> {there}")
    if any(fields.values()):
        raise typer.Exit(1)


@app.command(short_help="Count what a store holds.")
def stats(directory: AutotuneDir = None, as_json: Json = False) -> None:
    """Count the records by layer, operation, device and source, and what could not be read."""
    with opened_store(directory) as store:
        found = list(store.records())
        counted = store.stats()
        layers = [{"name": layer.name, "url": layer.documents.url} for layer in store.layers]
    fields: dict[str, Any] = {
        "layers": [layer | {"records": sum(item.layer == layer["name"] for item in found)} for layer in layers],
        "total_records": len(found),
        "operations": _count(item.record.key.operation for item in found),
        "devices": _count(item.record.key.device for item in found),
        "sources": _count(item.source.value for item in found),
        "corrupt": counted["corrupt"],
        "unknown": counted["unknown"],
        "errors": counted["errors"],
    }
    if as_json:
        output.print_json(fields)
        return
    rows = [("records", str(len(found)))]
    rows += [(f"layer {layer['name']}", f"{layer['records']} in {layer['url']}") for layer in fields["layers"]]
    for title in ("operations", "devices", "sources"):
        rows += [(title[:-1], f"{name}: {number}") for name, number in fields[title].items()]
    rows += [(name, str(fields[name])) for name in ("corrupt", "unknown", "errors")]
    output.print_pairs(rows)


app.command("run", short_help="Tune what was recorded.")(autotune_tend.run)
app.command("pin", short_help="Fix a call's configuration.")(autotune_tend.pin)
app.command("prune", short_help="Remove records by age, version or environment.")(autotune_tend.prune)
app.command("rm", short_help="Remove records.")(autotune_tend.rm)
app.command("merge", short_help="Merge other stores into this one.")(autotune_exchange.merge)
app.command("import", short_help="Take in records or ejkernel's files.")(autotune_exchange.import_)
app.command("export", short_help="Write records, ejkernel's files, or a page.")(autotune_exchange.export)


def _matches(item: Found, operation: str | None, device: str | None) -> bool:
    key = item.record.key
    return (operation is None or fnmatch.fnmatchcase(key.operation, operation)) and (
        device is None or fnmatch.fnmatchcase(key.device, device)
    )


def _wanted(store: AutotuneStore, key: str) -> Any:
    from ejcache.errors import UsageError

    try:
        return find_record(store, key).record.key
    except UsageError:
        recorded = autotune_tend.recorded_key(store, key)
        if recorded is None:
            raise
        return recorded


def _pairs(changed: dict[str, tuple[Any, Any]]) -> dict[str, list[Any]]:
    return {name: list(values) for name, values in changed.items()}


def _configurations(left: Record, right: Record) -> dict[str, list[Any]]:
    return {} if left.configuration == right.configuration else {"": [left.configuration, right.configuration]}


def _print_why(text: str, found: Sequence[Found], fields: dict[str, Any]) -> None:
    output.say(text)
    for index, item in enumerate(found):
        verdict = "runs with" if index == 0 else "not used, because the one above is stronger or comes first:"
        output.say(f"  {verdict} {item.record.configuration} ({item.source.value}, {item.layer})")
    if not found:
        output.say("  has no record")
    for title, name in (("in another environment", "elsewhere"), ("near", "nearest")):
        for item in fields[name]:
            output.say(f"  {title}: {item['configuration']} ({item['source']}, {item['layer']})")
            for key, (here, there) in item["differences"].items():
                output.say(f"    {key}: {here} here, {there} there")


def _print_chart(record: Record) -> None:
    from ejcache.autotune.plain import canonical_json

    timed = [c for c in record.candidates if c.seconds is not None]
    slowest = max((c.seconds.p50 for c in timed if c.seconds is not None), default=0.0)
    chosen = canonical_json(record.configuration)
    output.print_table(
        ("", "candidate", "ms", "p20", "p80", "", "compile s"),
        [_chart_row(candidate, slowest, chosen=chosen, default=record.default) for candidate in record.candidates],
        right=("ms", "p20", "p80", "compile s"),
        shrink=("candidate",),
    )


def _chart_row(candidate: Candidate, slowest: float, *, chosen: str, default: Any) -> tuple[str, ...]:
    mark = "*" if candidate.digest == chosen else ("=" if candidate.configuration == default else "")
    compile_seconds = "" if candidate.compile_seconds is None else f"{candidate.compile_seconds:.2f}"
    timing = candidate.seconds
    if timing is None:
        return (mark, candidate.digest, candidate.status.value, "", "", candidate.error[:60], compile_seconds)
    bar = "█" * max(1, round(_BAR * timing.p50 / slowest)) if slowest else ""
    numbers = [f"{value * 1e3:.4g}" for value in (timing.p50, timing.p20, timing.p80)]
    return (mark, candidate.digest, *numbers, bar, compile_seconds)


def _milliseconds(record: Record) -> str:
    candidate = record.candidate(record.configuration)
    return "-" if candidate is None or candidate.seconds is None else f"{candidate.seconds.p50 * 1e3:.4g}"


def _gain(record: Record) -> str:
    gain = record.measurement.get("gain")
    return f"{100 * gain:.0f}%" if isinstance(gain, int | float) else "-"


def _count(names: Any) -> dict[str, int]:
    counted: dict[str, int] = {}
    for name in names:
        counted[name] = counted.get(name, 0) + 1
    return dict(sorted(counted.items(), key=lambda pair: (-pair[1], pair[0])))
