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

import re
import time
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.records.json_values import finite, parse_json
from ejcache.autotune.records.record import Candidate, Record, RecordKey, Source, Status, Timing, fastest_first
from ejcache.errors import MALFORMED, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable


MAX_TABLE_BYTES: Final = 256 * 2**20
_CALL: Final = "tokamax"
_VERSION: Final = "1"


def read_table(data: bytes, device: str, name: str) -> tuple[list[Record], list[str]]:
    """The records in a file of tokamax's, or in its JSON of one autotuning.

    Their source is IMPORTED: the times are tokamax's, and were not compared as ours are.

    Args:
        data: the file.
        device: of a file: the name of its directory.
        name: of a file; it begins with the operation.

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
    operation = name.rpartition("/")[2].removesuffix(".json")
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
    seconds = [finite(value) / 1e3 for value in times["evaluation_times_ms"]]
    memory = times.get("peak_memory_mb")
    return Candidate(
        configuration,
        Status.OK,
        Timing.of(seconds),
        compile_seconds=(finite(times["compile_time_ms"]) + finite(times["lower_time_ms"])) / 1e3,
        memory_bytes=None if memory is None else round(finite(memory) * 1e6),
        measured=now,
    )
