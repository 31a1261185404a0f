"""Tries a candidate in a process of its own, so that a candidate that crashes or hangs ends only that process.

The process reads a call (as `call_documents` writes it) and a configuration from its standard input, makes the call
once and writes the result. If an accelerator belongs to one process at a time, as a TPU does, this works only in a
program that does not use the accelerator itself.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from ejcache.autotune.records.record import Status
from ejcache.errors import UsageError
from ejcache.settings.environment import child_environment, environment_variable

__all__ = ["ANSWER", "TOOK_TOO_LONG", "screened", "tries_candidate"]

ANSWER: Final = "EJCACHE-CANDIDATE "
"""How the line of the result begins. A candidate may write other lines."""
TOOK_TOO_LONG: Final = "Timeout ("
"""How the text begins that `faulthandler` writes when it ends the process."""
_START_SECONDS: Final = 120.0
_VARIABLE: Final = "EJCACHE_AUTOTUNE_CANDIDATE"
_PROGRAM: Final = "ejcache.autotune.candidate_process"
_LENGTH: Final = 300


def tries_candidate() -> bool:
    """Whether this process, or one that started it, only tries a candidate for another one.

    It imports the program's file, which may call operations meanwhile. If these were measured, each such process would
    start others.
    """
    return environment_variable(_VARIABLE) is not None


def screened(call: dict[str, Any], configuration: Any, *, timeout: float) -> tuple[Status, str]:
    """Whether a candidate works, tried in a new process, and the error if it does not.

    Args:
        call: `how`, `args` and `kwargs`.
        configuration: a JSON value.
        timeout: seconds for compiling and running it. The start of the process, which takes long on a busy machine,
            does not count.

    Raises:
        UsageError: the process cannot make the call, whatever the candidate is.
    """
    import signal
    import subprocess

    from ejcache.util.worker_processes import python_of_ours

    # A second process on a GPU would find no memory, because JAX takes nearly all of it at the start.
    changes = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "EJCACHE_AUTOTUNE_RECORD": "0"}
    env = child_environment(changes | {_VARIABLE: "1"})
    # Not the working directory, which "" stands for, but what the call's own modules were imported from.
    path = list(dict.fromkeys([*filter(None, sys.path), *_places_of_names(call)]))
    try:
        done = subprocess.run(
            python_of_ours("-m", _PROGRAM),
            input=json.dumps({"call": call, "configuration": configuration, "path": path, "timeout": timeout}),
            env=env,
            capture_output=True,
            text=True,
            timeout=timeout + _START_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Status.TIMEOUT, f"it took longer than {timeout:g} s in a process of its own"
    if TOOK_TOO_LONG in done.stderr:
        return Status.TIMEOUT, f"it took longer than {timeout:g} s in a process of its own"
    for line in done.stdout.splitlines():
        if line.startswith(ANSWER):
            answer = json.loads(line.removeprefix(ANSWER))
            if answer["status"] is None:
                raise UsageError(
                    f"the call cannot be made in a process of its own: {answer['error']} (such a process imports the "
                    'program\'s file, so the program itself belongs behind `if __name__ == "__main__":`)'
                )
            return Status(answer["status"]), str(answer["error"])[:_LENGTH]
    if done.returncode < 0:
        return Status.CRASHED, f"it ended its process with {signal.Signals(-done.returncode).name}"
    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return Status.CRASHED, f"it ended its process with status {done.returncode}: {last}"[:_LENGTH]


def _places_of_names(call: Any) -> list[str]:
    """The directories from which the loaded modules were imported that a call names as `module:name`."""
    if isinstance(call, dict | list):
        items = call.values() if isinstance(call, dict) else call
        return [place for item in items for place in _places_of_names(item)]
    name = call.rpartition(":")[0].partition(".")[0] if isinstance(call, str) else ""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if not file:
        return []
    return [str(Path(file).parent.parent if hasattr(module, "__path__") else Path(file).parent)]
