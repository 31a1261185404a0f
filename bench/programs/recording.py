"""A warm start of many programs: its CPU seconds, and what recording took of them, timed inside or by turns."""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

import ejcache
from ejcache.jax_integration.compilation import Compilation
from ejcache.jax_integration.seam import durations
from ejcache.journal.recorder import Recorder, recorder

spent = {"seconds": 0.0, "calls": 0}


_PARTS: list[tuple[Any, str, Any]] = [
    (Recorder, "add", lambda *_, **__: None),
    (Recorder, "write", lambda *_, **__: None),
    (Compilation, "spent", lambda _self, _phase, began: began),
    (durations, "take_durations", dict),
    (durations, "_note_duration", lambda *_, **__: None),
]
"""What records, and what takes its place where nothing is recorded."""


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

    HOW is `plain`; `watched`, so that what recording took in the main thread is in it; or a number of pairs of turns.
    """
    directory, programs, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if how == "watched":
        for owner, name, _ in _PARTS:
            timed(owner, name)
    cache = ejcache.enable(directory, min_compile_seconds=0)
    if how.isdigit():
        load(programs)  # the first turn also imports and warms up
        print(json.dumps({"pairs": pairs(programs, int(how)), "hits": cache.stats().hits}))
        return
    load(programs)
    recorder.write()
    seconds = spent["seconds"] - spent["calls"] * timer_cost()
    print(json.dumps({"cpu": time.process_time(), "hits": cache.stats().hits, "seconds": seconds}))


def load(programs: int) -> None:
    """Trace so many programs, and load them from the cache."""
    x = np.ones((16, 16), np.float32)
    for number in range(programs):
        jax.jit(lambda x, number=number: (x * number + 1) @ x)(x)


def pairs(programs: int, count: int) -> list[tuple[float, float]]:
    """CPU seconds in this user's code of loading all programs with recording and without, in turns in one process.

    Such a turn does what a warm start does after its imports, so that these, and what else differs between two
    processes, are in no difference.
    """
    functions = [getattr(owner, name) for owner, name, _ in _PARTS]
    found = []
    for number in range(count):
        took = {}
        for is_on in (True, False) if number % 2 else (False, True):
            for (owner, name, nothing), function in zip(_PARTS, functions, strict=True):
                setattr(owner, name, function if is_on else nothing)
            recorder.after_fork_in_child()
            jax.clear_caches()
            gc.collect()
            gc.disable()
            began = resource.getrusage(resource.RUSAGE_SELF).ru_utime
            load(programs)
            recorder.write()
            took[is_on] = resource.getrusage(resource.RUSAGE_SELF).ru_utime - began
            gc.enable()
        found.append((took[True], took[False]))
    return found


if __name__ == "__main__":
    main()
