"""tokamax's tables: a JSON file for each device and operation, and its JSON of one autotuning.

    <device>/<operation>.json := {"<JSON of the arguments>": tried, …}
    AutotuningResult          := {"device_kind": text, "data": [[bound, tried], …], "tokamax_version": text}
    bound                     := {"op": {"__type": class, …}, "arguments": {…}}
    tried                     := {"<JSON of a configuration>": times, …}
    times                     := {"compile_time_ms": …, "lower_time_ms": …, "evaluation_times_ms": […],
                                  "metadata": {…}, "peak_memory_mb": … | null}

Sources (openxla/tokamax, commit 783ea957): tokamax/_src/autotuning/cache.py for the files and their names,
autotuning/api.py for the result, benchmarking.py for the times. tokamax runs with the configuration that has the
smallest median. A record of such an entry has the call {"tokamax": {"arguments": {…}, "op": {…}}}; a file does not say
`op`.
"""

from __future__ import annotations

import json
import re
import statistics
import time
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.records.json_values import canonical_json, finite, parse_json
from ejcache.autotune.records.key import RecordKey
from ejcache.autotune.records.record import Candidate, Record, Source, Status, Timing, fastest_first
from ejcache.autotune.tables.expressions import fields_of_record
from ejcache.errors import MALFORMED, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ejcache.autotune.records.store import Found
    from ejcache.autotune.tables.expressions import Expression

__all__ = ["MAX_TABLE_BYTES", "changed_table", "read_table", "result_of", "table_entries"]

MAX_TABLE_BYTES: Final = 256 * 2**20
_CALL: Final = "tokamax"
_VERSION: Final = "1"


def read_table(data: bytes, *, device: str, operation: str) -> tuple[list[Record], list[str]]:
    """The records in a file of tokamax's, or in its JSON of one autotuning.

    Their source is IMPORTED: the times are tokamax's, and were not compared as ours are.

    Args:
        data: the file.
        device: of a file: the name of its directory.
        operation: of a file: its name without `.json`.

    Returns:
        The records, and a line for each entry that cannot be read.

    Raises:
        UsageError: the data has neither form.
    """
    try:
        body = parse_json(data, max_size=MAX_TABLE_BYTES)
    except ValueError as exc:
        raise UsageError(f"it is not JSON: {exc}") from exc
    if not isinstance(body, dict):
        raise UsageError("it is not a JSON object")
    records, problems = [], []
    for number, (of, device_kind, call, times) in enumerate(_entries(body, device, operation)):
        try:
            key = RecordKey(of(), _VERSION, device_kind, {}, {_CALL: call()})
            records.append(_record(key, times, str(body.get("tokamax_version", ""))))
        except MALFORMED as exc:
            problems.append(f"entry {number + 1} is not one of tokamax's: {exc!r}"[:300])
    return records, problems


def _entries(body: dict[str, Any], device: str, operation: str) -> Iterable[tuple[Any, str, Any, Any]]:
    """(operation, device, call, times) of each entry; the first and the third are functions that may raise."""
    if isinstance(body.get("data"), list) and isinstance(body.get("device_kind"), str):
        for entry in body["data"]:
            pair = entry if isinstance(entry, list) and len(entry) == 2 else [{}, {}]
            bound = pair[0]
            yield (
                lambda bound=bound: _snake_case(bound["op"]["__type"]),
                body["device_kind"],
                lambda bound=bound: {"arguments": dict(bound["arguments"]), "op": dict(bound["op"])},
                pair[1],
            )
        return
    for text, times in body.items():
        yield lambda: operation, device, lambda text=text: {"arguments": _object(text)}, times


def _object(text: str) -> dict[str, Any]:
    found = parse_json(text.encode(), max_size=MAX_TABLE_BYTES)
    if not isinstance(found, dict):
        raise TypeError(f"{text[:80]} is not a JSON object")
    return found


def _snake_case(path: str) -> str:
    """The name of an operation's file: the class without its module, in lower case with underscores."""
    return re.sub(r"(?!^)([A-Z])", r"_\1", path.rpartition(".")[2]).lower()


def _record(key: RecordKey, times: Any, version: str) -> Record:
    now = time.time()
    candidates = fastest_first(_candidate(_object(text), found, now) for text, found in times.items())
    if not candidates or candidates[0].status is not Status.OK:
        raise ValueError("it has no configuration that works")
    # tokamax compares the medians of all executions, and the first of our candidates has the smallest one.
    provenance = {"tokamax_version": version} if version else {}
    return Record(
        key, candidates[0].configuration, Source.IMPORTED, candidates=candidates, provenance=provenance, created=now
    )


def _candidate(configuration: Any, times: Any, now: float) -> Candidate:
    if not isinstance(times, dict):
        # tokamax keeps the errors of candidates, too, unless its JSON was written without them.
        return Candidate(configuration, Status.FAILED, error=str(times)[:300], measured=now)
    seconds = sorted(finite(value) / 1e3 for value in times["evaluation_times_ms"])
    memory = times.get("peak_memory_mb")
    return Candidate(
        configuration,
        Status.OK,
        Timing(_quantile(seconds, 0.2), statistics.median(seconds), _quantile(seconds, 0.8), len(seconds)),
        compile_seconds=(finite(times["compile_time_ms"]) + finite(times["lower_time_ms"])) / 1e3,
        memory_bytes=None if memory is None else round(finite(memory) * 1e6),
        measured=now,
    )


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[round(share * (len(ordered) - 1))]


def table_entries(
    found: Iterable[Found], *, name: str | None = None, key: Expression | None = None, value: Expression | None = None
) -> tuple[dict[tuple[str, str], dict[str, Any]], list[str]]:
    """The entries of tokamax's files.

    Args:
        found: records. Without a template, those that came from tokamax; others are left out.
        name: of the operation's file; by default the operation.
        key: of a template: the arguments as tokamax names and writes them, an object.
        value: of a template: the configuration, an object; by default the one of the record.

    Returns:
        By (directory of the device, operation): the entries of a file. And a line for each record that is left out.
    """
    files: dict[tuple[str, str], dict[str, Any]] = {}
    order: dict[tuple[str, str, str], tuple[int, float]] = {}
    problems: list[str] = []
    for item in found:
        record = item.record
        try:
            arguments, configuration = _templated(record, key, value)
        except UsageError as exc:
            problems.append(f"{record.key.digest[:12]} {record.key.operation}: {exc}")
            continue
        place = (record.key.device.lower().replace(" ", "_"), name or record.key.operation)
        text = _compact(arguments)
        rank = (item.source.rank, -record.created)
        if order.get((*place, text), rank) >= rank:
            order[*place, text] = rank
            files.setdefault(place, {})[text] = {_compact(configuration): _times(record)}
    return files, problems


def _templated(record: Record, key: Expression | None, value: Expression | None) -> tuple[Any, Any]:
    if not record.works:
        raise UsageError("no configuration works")
    fields = fields_of_record(record)
    if key is not None:
        arguments = key.value(fields)
    elif isinstance(record.key.call.get(_CALL), dict):
        arguments = record.key.call[_CALL].get("arguments")
    else:
        raise UsageError("it is not of tokamax; a template says what its arguments are there")
    configuration = record.configuration if value is None else value.value(fields)
    if not isinstance(arguments, dict) or not isinstance(configuration, dict):
        raise UsageError("the arguments and the configuration of tokamax are objects")
    return arguments, configuration


def changed_table(old: bytes | None, entries: Mapping[str, Any]) -> bytes:
    """A file with these entries and the other ones that it had.

    Raises:
        UsageError: the file that exists is not one of tokamax's.
    """
    held: dict[str, Any] = {}
    if old is not None:
        try:
            held = parse_json(old, max_size=MAX_TABLE_BYTES)
            same = {canonical_json(_object(text)): text for text in held}
        except (AttributeError, TypeError, ValueError) as exc:
            raise UsageError(f"it is not a file of tokamax's: {exc}") from exc
        for text in entries:
            # tokamax compares arguments, and not their texts.
            held.pop(same.get(canonical_json(_object(text)), ""), None)
    body = dict(sorted((held | dict(entries)).items()))
    return json.dumps(body, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def result_of(found: Iterable[Found], version: str) -> tuple[bytes, list[str]]:
    """The JSON that `tokamax.AutotuningResult.loads` reads, and a line for each record that is left out.

    Only records that came from such a JSON say the class of their operation.

    Args:
        found: records of one device.
        version: of tokamax, for the JSON.

    Raises:
        UsageError: the records are of several devices, or of none.
    """
    data, problems, devices = [], [], set()
    for item in found:
        record, call = item.record, item.record.key.call.get(_CALL)
        if not record.works or not isinstance(call, dict) or "op" not in call:
            problems.append(
                f"{record.key.digest[:12]} {record.key.operation}: it is not from tokamax's JSON of an autotuning"
            )
            continue
        devices.add(record.key.device)
        version = str(record.provenance.get("tokamax_version") or version)
        bound = {"op": call["op"], "arguments": call["arguments"]}
        data.append([bound, {_compact(record.configuration): _times(record)}])
    if len(devices) != 1:
        raise UsageError(
            f"an autotuning of tokamax is of one device, and these are of {len(devices)}; --device picks one"
        )
    body = {"device_kind": devices.pop(), "data": data, "tokamax_version": version}
    return json.dumps(body, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n", problems


def _times(record: Record) -> dict[str, Any]:
    """The times of the chosen configuration alone: tokamax would prefer any other one with a smaller median."""
    candidate = record.candidate(record.configuration)
    seconds = None if candidate is None else candidate.seconds
    memory = None if candidate is None else candidate.memory_bytes
    return {
        "compile_time_ms": _milliseconds((None if candidate is None else candidate.compile_seconds) or 0.0),
        "lower_time_ms": 0.0,
        "evaluation_times_ms": []
        if seconds is None
        else [_milliseconds(part) for part in (seconds.p20, seconds.p50, seconds.p80)],
        "metadata": {},
        "peak_memory_mb": None if memory is None else memory / 1e6,
    }


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1e3, 9)


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
