"""A process that measures recorded calls on one device: `python -m ejcache.autotune.program.worker`.

The first request is the setup; each other one is a recorded call. It answers each with one line; see
`util.worker_processes`.

    setup  := {"path": sys.path, "modules": [name, …] | null, "directory": URL | null, "device": index | null,
               "force": bool, "unsure": bool}             answer := {"ready": true} or {"error": text}
    call   := {"path": text, "call": {…} | null, "problem": text}
    answer := {"outcome": name, "operation": text, "problem": text, "record": text | null,
               "last": bool}

The last answer comes before the input ends if a candidate still runs on the device: no process measures beside that.

With the argument `devices` it writes {"platform": text, "devices": [number, …]} instead, and ends.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from ejcache.autotune.call_documents import RecordedNames
from ejcache.autotune.measure.device import local_devices, measure_on
from ejcache.autotune.recording import RecordedCall
from ejcache.autotune.records.record import encode_record
from ejcache.autotune.records.store import AutotuneStore
from ejcache.autotune.replay import replay
from ejcache.errors import EjcacheError
from ejcache.util.worker_processes import answering

if TYPE_CHECKING:
    from ejcache.autotune.replay import TunedCall

__all__ = ["main"]


def main() -> None:
    """Answer each line of standard input."""
    with answering() as answer:
        if sys.argv[1:] == ["devices"]:
            platform, devices = local_devices()
            answer(platform=platform, devices=devices)
            return
        setup = json.loads(sys.stdin.readline())
        sys.path[:] = setup["path"]
        try:
            names = RecordedNames(setup["modules"])
            directory = setup["directory"]
            store = AutotuneStore(directory, seeds=() if directory is not None else None)
            if setup["device"] is not None:
                measure_on(setup["device"])
        except EjcacheError as exc:
            answer(error=str(exc))
            return
        answer(ready=True)
        for line in sys.stdin:
            task = json.loads(line)
            recorded = RecordedCall(task["path"], task["call"], task["problem"])
            done = replay(recorded, store, names, force=setup["force"], unsure=setup["unsure"])
            last = done.record is not None and bool(done.record.measurement.get("interrupted"))
            answer(**_fields(done), last=last)
            if last:
                break
        store.close()


def _fields(done: TunedCall) -> dict[str, Any]:
    return {
        "outcome": done.outcome.name,
        "operation": done.operation,
        "problem": done.problem,
        "record": None if done.record is None else encode_record(done.record).decode(),
    }


if __name__ == "__main__":
    main()
