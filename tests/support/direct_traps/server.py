"""A process that has imported JAX, but made no backend, and forks a child for each request.

    python -m direct_traps.server HISTORY [MODULE…]

A request is a line of JSON, and so is its answer. Importing JAX takes longer than all else that a trap does.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.metadata
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

TIMEOUT: Final = 120.0
PREPARED: Final = ("ejcache", "diskcache", "sqlite3", "zstandard", "filelock", "fsspec", "jax", "jaxlib", "numpy")
"""What one child has imported of these is imported before the next one is forked."""
HISTORIES: Final = {
    "plain": (),
    # What other programs import before theirs: it fills tables of JAX, and takes other ways through the same modules.
    "other": ("decimal", "sqlite3", "xml.dom.minidom", "concurrent.futures.process", "jax.scipy.stats", "optax"),
}


def main() -> None:
    history, *libraries = sys.argv[1:]
    for name in (*HISTORIES[history], *libraries, "jax", "jax.numpy", "numpy", "direct_traps.child", "ejcache"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    list(importlib.metadata.entry_points())  # JAX looks for plug-ins in each child; what is read of the disk is kept
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps({"threads": len(list(Path("/proc/self/task").iterdir()))}), file=answers, flush=True)
    for line in sys.stdin:
        answer = _answer(json.loads(line))
        print(json.dumps(answer), file=answers, flush=True)
        for name in answer.pop("imported", ()):
            if name.startswith(PREPARED) and name not in sys.modules:
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        from direct_traps.child import run_child

        run_child(request, writing)
        os._exit(0)
    os.close(writing)
    text, late = _read(reading)
    os.close(reading)
    if late:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    try:
        answer: dict[str, Any] = json.loads(text)
    except ValueError:
        code = os.waitstatus_to_exitcode(status)
        return {"failed": f"no answer in {TIMEOUT:.0f} s" if late else f"the process ended with {code}"}
    return answer


def _read(descriptor: int) -> tuple[bytes, bool]:
    """All that the child writes, and whether it took too long."""
    text, deadline = b"", time.monotonic() + TIMEOUT
    while True:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return text, True
        read = os.read(descriptor, 1 << 16)
        if not read:
            return text, False
        text += read


if __name__ == "__main__":
    main()
