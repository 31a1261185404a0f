"""Processes that try or measure calls for this one: `worker` has the protocol.

A candidate that crashes or hangs in such a process ends only that process. If an accelerator belongs to one process at
a time, as a TPU does, this works only in a program that does not use the accelerator itself.
"""

from __future__ import annotations

import select
import sys
import tempfile
from pathlib import Path
from typing import IO, Any, Final

from ejcache.autotune.records.record import Status
from ejcache.errors import UsageError
from ejcache.settings.child_environment import child_environment
from ejcache.settings.environment import environment_variable
from ejcache.util.worker_processes import WorkerProcess, how_it_ended

PROGRAM: Final = "ejcache.autotune.worker"
_START_SECONDS: Final = 120.0
_VARIABLE: Final = "EJCACHE_AUTOTUNE_CANDIDATE"
_LENGTH: Final = 300


def worker_environment(changes: dict[str, str]) -> dict[str, str]:
    """Return the environment of a worker: this one's with these changes. It records no calls."""
    return child_environment({"EJCACHE_AUTOTUNE_RECORD": "0", **changes})


def tries_candidate() -> bool:
    """True if this process, or one that started it, only tries a candidate for another one.

    It imports the program's file, which may call operations meanwhile. If these were measured, each such process would
    start others.
    """
    return environment_variable(_VARIABLE) is not None


def screened(call: dict[str, Any], configuration: Any, *, timeout: float) -> tuple[Status, str]:
    """Say whether a candidate works, tried in a new process, and the error if it does not.

    Args:
        call: `how`, `args` and `kwargs`.
        configuration: a JSON value.
        timeout: seconds for compiling and running it. The start of the process, which takes long on a busy machine,
            does not count.

    Raises:
        UsageError: the process cannot make the call, whatever the candidate is.
    """
    # A second process on a GPU would find no memory, because JAX takes nearly all of it at the start.
    environment = worker_environment({"XLA_PYTHON_CLIENT_PREALLOCATE": "false", _VARIABLE: "1"})
    # Not the working directory, which "" stands for, but what the call's own modules were imported from.
    path = list(dict.fromkeys([*filter(None, sys.path), *_places_of_names(call)]))
    with tempfile.TemporaryFile() as errors:
        worker = WorkerProcess(PROGRAM, environment=environment, errors=errors)
        try:
            worker.send(do="try", path=path, call=call, configuration=configuration)
            return _result(worker, timeout, errors)
        finally:
            worker.kill()


def _result(worker: WorkerProcess, timeout: float, errors: IO[bytes]) -> tuple[Status, str]:
    wait = _START_SECONDS
    while select.select([worker], [], [], wait)[0]:
        answers = worker.read()
        if answers is None:
            return Status.CRASHED, _crash(worker.end(), errors)
        for answer in answers:
            wait = timeout
            if "error" not in answer:
                continue
            if answer["status"] is None:
                raise UsageError(
                    f"the call cannot be made in a process of its own: {answer['error']} (such a process imports the "
                    'program\'s file, so the program itself belongs behind `if __name__ == "__main__":`)'
                )
            return Status(answer["status"]), str(answer["error"])[:_LENGTH]
    return Status.TIMEOUT, f"it took longer than {timeout:g} s in a process of its own"


def _crash(status: int, errors: IO[bytes]) -> str:
    if status < 0:
        return f"it ended its process with {how_it_ended(status)}"
    errors.seek(0)
    last = (errors.read().decode(errors="replace").strip().splitlines() or ["it wrote no error"])[-1]
    return f"it ended its process with status {status}: {last}"[:_LENGTH]


def _places_of_names(call: Any) -> list[str]:
    """Return the directories from which the loaded modules were imported that a call names as `module:name`."""
    if isinstance(call, dict | list):
        items = call.values() if isinstance(call, dict) else call
        return [place for item in items for place in _places_of_names(item)]
    name = call.rpartition(":")[0].partition(".")[0] if isinstance(call, str) else ""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if not file:
        return []
    return [str(Path(file).parent.parent if hasattr(module, "__path__") else Path(file).parent)]
