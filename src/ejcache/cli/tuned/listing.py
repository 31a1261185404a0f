"""Prints tuned records: `ejcache tuned ls`, `show`, `stats` and `why`."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.records.json_values import canonical_json
from ejcache.autotune.records.record_key import differences
from ejcache.cli import output
from ejcache.cli.fields import TableField, any_text, field_lines, print_rows
from ejcache.cli.options import Device, Json, Kernel, Limit, RecordKey, TunedDir, count
from ejcache.cli.selection import check_wanted
from ejcache.cli.tuned.records import choose_records, named_layer, open_autotune, record_fields, recorded_key, strongest
from ejcache.errors import EjcacheError, NotFoundError
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ejcache.autotune.records.record import Candidate, Record
    from ejcache.autotune.records.record_key import RecordKey as CallKey
    from ejcache.autotune.records.store import AutotuneStore, Found
    from ejcache.cli.fields import Fields


_BAR: Final = 32
_NEAR: Final = 10


def _source(source: str, row: Fields) -> str:
    return "failed" if not row["works"] else f"{source}?" if row["unsure"] else source


def _gain(gain: Any) -> str:
    # The number of a foreign record may be larger than a float can be.
    return f"{100 * gain:.0f}%" if isinstance(gain, int | float) and abs(gain) < _LARGEST_GAIN else "-"


RECORD: Final = {
    field.heading: field
    for field in (
        TableField("key", "key", lambda key, _: key[:12], is_whole=True),
        TableField("operation", "operation", lambda name, row: f"{name}@{row['version']}"),
        TableField("device", "device"),
        TableField("configuration", "configuration", lambda configuration, _: canonical_json(configuration)),
        TableField("source", "source", _source),
        TableField(
            "ms", "seconds", lambda seconds, _: "-" if seconds is None else f"{seconds * 1e3:.4g}", is_right=True
        ),
        TableField("gain", "gain", lambda gain, _: _gain(gain), is_right=True),
        TableField("tried", "total_candidates", lambda number, _: str(number), is_right=True),
        TableField("call", "text", lambda text, _: text.split(" | ")[2]),
    )
}
"""The fields of tuned records that have a column, by its heading."""
SHOWN: Final = (
    RECORD["operation"],
    TableField("key", "key"),
    TableField("call", "text"),
    RECORD["configuration"],
    TableField("source", "source"),
    TableField("layer", "layer"),
    RECORD["gain"],
    TableField("created", "created", lambda created, _: output.moment(created)),
    TableField("", "measurement", lambda value, _: str(value), has_parts=True),
    TableField("", "provenance", any_text, has_parts=True),
)
"""The lines of one record."""
COUNTED: Final = (
    TableField("records", "total_records", lambda number, _: f"{number:,}"),
    TableField("layer ", "layers", lambda layer, _: f"{layer['total_records']} in {layer['url']}", has_parts=True),
    *(TableField(f"{title[:-1]} ", title, any_text, has_parts=True) for title in ("operations", "devices", "sources")),
    *(TableField(name, name, any_text) for name in ("corrupt", "unknown", "errors", "broken_packages")),
)
"""How many records there are, and documents that could not be read."""
_LEAST: Final = ("tried", "gain", "device", "call")
_LARGEST_GAIN: Final = 1e6


def ls(
    directory: TunedDir = None,
    name: Kernel = None,
    device: Device = None,
    limit: Limit = None,
    as_json: Json = False,
) -> int:
    """List the records: the kernel, the call, the configuration, its source (how it was found), and its time.

    A question mark behind the source means that the configuration is unsure, because its measurement was too short.
    `tuned tune PROGRAM` measures the call again.
    """
    with open_autotune(directory) as store:
        found = strongest(store.records(), name=name, device=device)
        url = named_layer(store).documents.url
        places = {layer.name: layer.documents.url for layer in store.layers}
    held_in = list(dict.fromkeys(places.get(item.layer, url) for item in found)) or [url]
    shown = found[: count(limit, option="--limit")]
    records = [record_fields(item) for item in shown]
    if as_json:
        output.print_json({"url": url, "total_records": len(found), "records": records})
        return 0
    print_rows(RECORD, [*RECORD], records, least=_LEAST)
    hidden = f"; {len(found) - len(shown):,} not shown" if len(shown) < len(found) else ""
    output.say(f"{plural(len(found), 'record')} in {', '.join(held_in)}{hidden}")
    return 0


def report_rows(directory: str | None) -> list[Sequence[str]]:
    """Return the records for `ejcache report`, the heading first; nothing if there are none, or they cannot be read."""
    with suppress(EjcacheError), open_autotune(directory) as store:
        found = strongest(store.records())
        rows = [record_fields(item) for item in found]
        texts = [[field.text(row[field.name], row) for field in RECORD.values()] for row in rows]
        return [[*RECORD], *texts] if found else []
    return []


def show(key: RecordKey, directory: TunedDir = None, as_json: Json = False) -> int:
    """Show one record, or those of a kernel: the configuration, the candidates with their times, and the device.

    The configuration that programs use is marked with *, and the default configuration, if it is another one, with =.
    """
    with open_autotune(directory) as store:
        items = choose_records(store, key, all_of_a_name=True)
    if as_json:
        fields = [record_fields(item, full=True) for item in items]
        output.print_json(fields[0] if len(fields) == 1 else {"records": fields})
        return 0
    for number, item in enumerate(items):
        if number:
            output.say()
        _print_record(item)
    return 0


def _print_record(item: Found) -> None:
    record, fields = item.record, record_fields(item, full=True)
    fields["measurement"].pop("gain", None)
    output.print_pairs(field_lines(SHOWN, fields))
    if record.candidates:
        output.say()
        _print_candidates(record)


def stats(directory: TunedDir = None, as_json: Json = False) -> int:
    """Count the records by place, kernel, device and source, and the files that could not be read."""
    counted: dict[str, Counter[str]] = {name: Counter() for name in ("layers", "operations", "devices", "sources")}
    with open_autotune(directory) as store:
        for item in store.records():
            key = item.record.key
            names = {"layers": item.layer, "operations": key.operation, "devices": key.device}
            for title, name in (names | {"sources": item.source.value}).items():
                counted[title][name] += 1
        problems = store.stats()
        layers = [
            {"name": layer.name, "url": layer.documents.url, "total_records": counted["layers"][layer.name]}
            for layer in store.all_layers()
        ]
    fields: dict[str, Any] = {"layers": layers, "total_records": counted["layers"].total()}
    for title in ("operations", "devices", "sources"):
        fields[title] = dict(sorted(counted[title].items(), key=lambda pair: (-pair[1], pair[0])))
    fields |= {name: problems[name] for name in ("corrupt", "unknown", "errors", "broken_packages")}
    if as_json:
        output.print_json(fields)
        return 0
    output.print_pairs(field_lines(COUNTED, fields | {"layers": {layer["name"]: layer for layer in layers}}))
    return 0


def why(key: RecordKey, directory: TunedDir = None, as_json: Json = False) -> int:
    """Print which record a call uses, and why it does not use the others.

    KEY names a record, a kernel, or a call that was recorded with EJCACHE_AUTOTUNE_RECORD=1. If a call has no record,
    the records of the most similar calls are shown, and the exit status is 1.
    """
    check_wanted(key)

    def compared(wanted: CallKey, items: Sequence[Found]) -> list[dict[str, Any]]:
        return [record_fields(item) | {"differences": _pairs(differences(wanted, item.record.key))} for item in items]

    calls = []
    with open_autotune(directory) as store:
        for wanted in _keys_of(store, key):
            found = store.find_all(wanted)
            calls.append(
                {
                    "key": wanted.digest,
                    "text": wanted.text,
                    "records": [record_fields(item) for item in found],
                    "near": compared(wanted, store.near(wanted, same_call=bool(found))[:_NEAR]),
                }
            )
    if as_json:
        output.print_json(calls[0] if len(calls) == 1 else {"calls": calls})
    else:
        for fields in calls:
            _print_why(fields)
    return int(not all(fields["records"] for fields in calls))


def _keys_of(store: AutotuneStore, key: str) -> list[CallKey]:
    try:
        return [item.record.key for item in choose_records(store, key, all_of_a_name=True)]
    except NotFoundError:
        recorded = recorded_key(store, key)
        if recorded is None:
            raise
        return [recorded]


def _pairs(changed: dict[str, tuple[Any, Any]]) -> dict[str, list[Any]]:
    return {name: list(values) for name, values in changed.items()}


def _print_why(fields: dict[str, Any]) -> None:
    output.say(fields["text"])
    for index, item in enumerate(fields["records"]):
        use = "runs with" if index == 0 else "not used, because its source or its layer comes after the one above:"
        output.say(f"  {use} {item['configuration']} ({item['source']}, {item['layer']})")
    if not fields["records"]:
        output.say("  has no record")
    for item in fields["near"]:
        output.say(f"  near: {item['configuration']} ({item['source']}, {item['layer']})")
        for key, (here, there) in item["differences"].items():
            output.say(f"    {key}: {here} here, {there} there")


def _print_candidates(record: Record) -> None:
    timed = [c for c in record.candidates if c.seconds is not None]
    slowest = max((c.seconds.p50 for c in timed if c.seconds is not None), default=0.0)
    chosen = canonical_json(record.configuration)
    output.print_table(
        ("", "candidate", "from", "ms", "p20", "p80", "compile s", "timing"),
        [_candidate_row(candidate, slowest, chosen=chosen, default=record.default) for candidate in record.candidates],
        right=("ms", "p20", "p80", "compile s"),
    )


def _candidate_row(candidate: Candidate, slowest: float, *, chosen: str, default: Any) -> tuple[str, ...]:
    mark = "*" if candidate.digest == chosen else ("=" if candidate.configuration == default else "")
    compile_seconds = "" if candidate.compile_seconds is None else f"{candidate.compile_seconds:.2f}"
    begin, timing = (mark, candidate.digest, candidate.origin or ""), candidate.seconds
    if timing is None:
        return (*begin, candidate.status.value, "", "", compile_seconds, candidate.error[:60])
    bar = "█" * max(1, round(_BAR * timing.p50 / slowest)) if slowest else ""
    numbers = [f"{value * 1e3:.4g}" for value in (timing.p50, timing.p20, timing.p80)]
    return (*begin, *numbers, compile_seconds, bar)
