"""Trying a candidate in a process of its own: one that crashes, or hangs where nothing can stop it, ends only that.

The process reads a call (as `calls.py` writes it) and a configuration from its standard input, makes the call once,
and says how it went. On an accelerator that one process takes for itself, such as a TPU, that works only from a
process that does not use it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any, Final

from ejcache.autotune.records import Status
from ejcache.settings import environment

__all__ = ["main", "screened"]

_MARK: Final = "EJCACHE-CANDIDATE "
_LENGTH: Final = 300


def screened(call: dict[str, Any], configuration: Any, *, timeout: float) -> tuple[Status, str]:
    """Whether a candidate works, tried in a fresh process.

    Args:
        call: `how`, `args` and `kwargs`.
        configuration: plain.
        timeout: seconds, start of the process included.
    """
    # A second process on a GPU finds no memory if each takes nearly all of it at once.
    env = {**environment(), "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "EJKERNEL_OPS_RECORD": "0"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "ejcache.autotune.isolated"],
            input=json.dumps({"call": call, "configuration": configuration, "path": sys.path}),
            env=env,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Status.TIMEOUT, f"it took longer than {timeout:g} s in a process of its own"
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            answer = json.loads(line.removeprefix(_MARK))
            return Status(answer["status"]), str(answer["error"])[:_LENGTH]
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        return Status.CRASHED, f"it ended its process with {name}"
    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return Status.CRASHED, f"it ended its process with status {done.returncode}: {last}"[:_LENGTH]


def main() -> None:
    """What the fresh process does."""
    from ejcache.autotune.replay import tunable

    given = json.loads(sys.stdin.read())
    sys.path[:] = given["path"]
    try:
        tunable(given["call"]).attempt(given["configuration"])
        answer = {"status": Status.OK.value, "error": ""}
    except Exception as exc:
        lines = str(exc).strip().splitlines()
        answer = {"status": Status.FAILED.value, "error": f"{type(exc).__name__}: {lines[0] if lines else ''}"}
    sys.stdout.write(f"{_MARK}{json.dumps(answer)}\n")


if __name__ == "__main__":
    main()
