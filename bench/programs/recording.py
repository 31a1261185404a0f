"""A warm start of many programs: its CPU seconds with and without recording, or those that recording took."""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

import ejcache
from ejcache.cache.recorder import Recorder, recorder
from ejcache.jax_integration.compilation_state import Compilation
from ejcache.jax_integration.seam import durations

spent = {"seconds": 0.0, "calls": 0}


_PARTS: list[tuple[Any, str]] = [
    (Recorder, "add"),
    (Recorder, "write"),
    (Compilation, "spent"),
    (durations, "take_durations"),
    (durations, "_note"),
]


def timed(owner: Any, name: str) -> None:
    """Add what a function takes, in CPU time of its thread, to `spent`."""
    function = getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> Any:
        began = time.thread_time()
        try:
            return function(*arguments, **named)
        finally:
            spent["seconds"] += time.thread_time() - began
            spent["calls"] += 1

    setattr(owner, name, call)


def timer_cost() -> float:
    """CPU seconds that `timed` itself adds to each call."""
    before, empty = dict(spent), SimpleNamespace(call=lambda: None)
    timed(empty, "call")
    for _ in range(5_000):
        empty.call()
    cost = (spent["seconds"] - before["seconds"]) / 5_000
    spent.update(before)
    return cost


def main() -> None:
    """`recording DIRECTORY PROGRAMS HOW`: print a JSON object.

    HOW is `plain`, `watched`, so that what recording took in the main thread is in it, or `without` recording.
    """
    directory, programs, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if how == "watched":
        for owner, name in _PARTS:
            timed(owner, name)
    elif how == "without":
        for owner, name in _PARTS:
            setattr(owner, name, lambda *_, **__: {})
    cache = ejcache.enable(directory, min_compile_seconds=0)
    x = np.ones((16, 16), np.float32)
    for number in range(programs):
        jax.jit(lambda x, number=number: (x * number + 1) @ x)(x)
    recorder.write()
    seconds = spent["seconds"] - spent["calls"] * timer_cost()
    found = {"cpu": time.process_time(), "hits": cache.stats().hits, "seconds": seconds}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
