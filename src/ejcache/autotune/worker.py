"""A process that tries or measures calls on one device: `python -m ejcache.autotune.worker`.

It answers lines of JSON with lines of JSON; see `util.worker_processes`. Its parents are `workers` and `replay`.

    {"do": "devices"}                                                → {"platform": text, "devices": [number, …]}
    {"do": "try", "path": sys.path, "call": {…}, "configuration": …} → {"begun": true} when the call is made, and
                                                                       {"status": text | null, "error": text}
    {"do": "tune", "pool": {…}, "device": index | null, "call": {…}} → {"outcome": name, "operation": text,
                                                                       "problem": text, "record": text | null,
                                                                       "last": bool}, or {"error": text}

A status of null says that the call cannot be made with any candidate. `pool` has the fields of a `DevicePool`, and the
`call` of `tune` those of a `RecordedCall`. After the last answer a candidate still runs on the device: no process
measures beside that.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

from ejcache.autotune.call_documents import RecordedNames
from ejcache.autotune.measure.device import local_devices, measure_on
from ejcache.autotune.measure.trial import error_line
from ejcache.autotune.recording import RecordedCall
from ejcache.autotune.records.record import Status, encode_record
from ejcache.autotune.records.store import AutotuneStore
from ejcache.autotune.replay import DevicePool, tunable
from ejcache.errors import EjcacheError
from ejcache.util.worker_processes import answering

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def main() -> None:
    """Answer each line of standard input."""
    answers: dict[str, Callable[..., Iterator[dict[str, Any]]]] = {"devices": _devices, "try": _try, "tune": _tune}
    with answering() as answer:
        for line in sys.stdin:
            request = json.loads(line)
            for fields in answers[request.pop("do")](**request):
                answer(**fields)


def _devices() -> Iterator[dict[str, Any]]:
    platform, devices = local_devices()
    yield {"platform": platform, "devices": devices}


def _try(path: list[str], call: dict[str, Any], configuration: Any) -> Iterator[dict[str, Any]]:
    sys.path[:] = path
    status: Status | None = None
    error = ""
    try:
        # The parent process made this call, so all of its names are trusted.
        bound = tunable(call, RecordedNames(None))
        status = Status.FAILED
        yield {"begun": True}
        bound.attempt(configuration)
        status = Status.OK
    except (Exception, SystemExit) as exc:
        error = error_line(exc)
    yield {"status": status, "error": error}


def _tune(pool: dict[str, Any], device: int | None, call: dict[str, Any]) -> Iterator[dict[str, Any]]:
    sys.path[:] = pool["path"]
    directory = pool["directory"]
    if device is not None:
        measure_on(device)
    try:
        with contextlib.closing(AutotuneStore(directory, seeds=() if directory is not None else None)) as store:
            (done,) = DevicePool(**pool).tune_here([RecordedCall(**call)], store)
    except EjcacheError as exc:
        yield {"error": str(exc)}
        return
    yield {
        "outcome": done.outcome.name,
        "operation": done.operation,
        "problem": done.problem,
        "record": None if done.record is None else encode_record(done.record).decode(),
        "last": done.record is not None and bool(done.record.measurement.get("interrupted")),
    }


if __name__ == "__main__":
    main()
