"""A process that tries or measures calls on one device: `python -m ejcache.autotune.worker`.

It answers lines of JSON with lines of JSON; see `util.worker_processes`. Its parents are `workers` and `device_pool`.

    {"do": "devices"}                                                      → {"platform": text, "devices": [number, …]}
    {"do": "try", "path": sys.path, "call": {…}, "configuration": …}       → {"begun": true} when the call is made, and
                                                                             {"status": text | null, "error": text}
    {"do": "setup", "path": sys.path, "modules": [name, …] | null, "directory": URL | null, "device": index | null,
     "force": bool, "unsure": bool}                                        → {"ready": true} or {"error": text}
    {"do": "tune", "path": text, "call": {…} | null, "problem": text}      → {"outcome": name, "operation": text,
                                                                              "problem": text, "record": text | null,
                                                                              "last": bool}

A status of null says that the call cannot be made with any candidate. The last answer comes before the input ends if a
candidate still runs on the device: no process measures beside that.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from ejcache.autotune.call_documents import RecordedNames
from ejcache.autotune.measure.device import local_devices, measure_on
from ejcache.autotune.measure.trial import error_line
from ejcache.autotune.recording import RecordedCall
from ejcache.autotune.records.record import Status, encode_record
from ejcache.autotune.records.store import AutotuneStore
from ejcache.autotune.replay import replay, tunable
from ejcache.errors import EjcacheError
from ejcache.util.worker_processes import answering

if TYPE_CHECKING:
    from collections.abc import Iterator


def main() -> None:
    """Answer each line of standard input."""
    with answering() as answer:
        session: _Session | None = None
        for line in sys.stdin:
            request = json.loads(line)
            match request["do"]:
                case "devices":
                    platform, devices = local_devices()
                    answer(platform=platform, devices=devices)
                case "try":
                    for fields in _try(request):
                        answer(**fields)
                case "setup":
                    try:
                        session = _Session(request)
                    except EjcacheError as exc:
                        answer(error=str(exc))
                        return
                    answer(ready=True)
                case "tune" if session is not None:
                    fields = session.tune(request)
                    answer(**fields)
                    if fields["last"]:
                        break
        if session is not None:
            session.store.close()


def _try(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    sys.path[:] = request["path"]
    status: Status | None = None
    error = ""
    try:
        # The parent process made this call, so all of its names are trusted.
        call = tunable(request["call"], RecordedNames(None))
        status = Status.FAILED
        yield {"begun": True}
        call.attempt(request["configuration"])
        status = Status.OK
    except (Exception, SystemExit) as exc:
        error = error_line(exc)
    yield {"status": status, "error": error}


class _Session:
    """What measures recorded calls, as the setup says."""

    def __init__(self, setup: dict[str, Any]) -> None:
        sys.path[:] = setup["path"]
        self.names = RecordedNames(setup["modules"])
        directory = setup["directory"]
        self.store = AutotuneStore(directory, seeds=() if directory is not None else None)
        self.options = {"force": setup["force"], "unsure": setup["unsure"]}
        if setup["device"] is not None:
            measure_on(setup["device"])

    def tune(self, task: dict[str, Any]) -> dict[str, Any]:
        recorded = RecordedCall(task["path"], task["call"], task["problem"])
        done = replay(recorded, self.store, self.names, **self.options)
        return {
            "outcome": done.outcome.name,
            "operation": done.operation,
            "problem": done.problem,
            "record": None if done.record is None else encode_record(done.record).decode(),
            "last": done.record is not None and bool(done.record.measurement.get("interrupted")),
        }


if __name__ == "__main__":
    main()
