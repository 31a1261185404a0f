"""python -m bench.programs.reuse SIZE WORK: one step of `SIZE` blocks after WORK seconds of other work.

With the variable `WORD` the step may be reused. The answer has how often it was traced; the processor time
of the main thread from the call until its key was made, how much of it went into the question whether the step can be
reused, and into imports; the seconds of each phase, as `bench.programs.start_up` has them; and when this process ended
by the machine's monotonic clock.
"""

from __future__ import annotations

import time

began = time.perf_counter()

import _frozen_importlib  # noqa: E402 (all imports are timed; importlib's own, whatever Python has not loaded yet)
import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from typing import Any  # noqa: E402

import jax  # noqa: E402

import ejcache  # noqa: E402
from bench.phases import Phases  # noqa: E402
from bench.programs.start import blocks  # noqa: E402


def main() -> None:
    size, work = int(sys.argv[1]), float(sys.argv[2])
    traced: list[None] = []

    def train_step(state: Any, tokens: Any) -> Any:
        traced.append(None)
        return blocks.train_step(state, tokens)

    phases = Phases()
    phases.watch_loads()
    phases.listen()
    arguments = blocks.arguments(size)
    imported = time.perf_counter()
    ejcache.enable("cache", min_compile_seconds=0)
    step = ejcache.ejit(train_step, reuse_lowering=os.environ.get("WORD") or None)
    phases.watch_compiler()
    enabled = time.perf_counter()
    jax.devices()
    backend = time.perf_counter()
    until = backend + work
    while time.perf_counter() < until:
        sum(range(10_000))
    spent = _watch_reuse(phases)
    worked, processor = time.perf_counter(), time.thread_time()
    jax.block_until_ready(step(*arguments))
    done = time.perf_counter()
    parts = {
        "import": imported - began,
        "enable": enabled - imported,
        "backend": backend - enabled,
        "own work": worked - backend,
        **phases.main,
        "run": done - worked - sum(phases.main.values()),
    }
    print(
        json.dumps(
            {
                "traced": len(traced),
                "processor": spent["until"] - processor,
                "question": spent["question"],
                "imports": spent["imports"],
                "first": done - worked,
                "phases": parts,
                "behind": phases.behind,
                "ended": time.monotonic(),
            }
        ),
        flush=True,
    )


def _watch_reuse(phases: Phases) -> dict[str, float]:
    """What is filled in when the first key has been made: the thread's processor time, and what it spent on what."""
    from jax._src import compiler

    found: dict[str, float] = {}
    if os.environ.get("WORD"):
        from ejcache.reuse.calls import ReusingCalls

        phases.watch(ReusingCalls, "_ask", "question")
        phases.watch(ReusingCalls, "_answer", "read and build")
    phases.watch(_frozen_importlib, "_find_and_load", "imports")
    make_key = compiler._get_cache_key  # where JAX makes a key

    def make(*arguments: Any, **named: Any) -> Any:
        key = make_key(*arguments, **named)
        if not found:
            found.update(until=time.thread_time(), **{name: phases.processor[name] for name in ("question", "imports")})
        return key

    compiler._get_cache_key = make
    return found


if __name__ == "__main__":
    main()
