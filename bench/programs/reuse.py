"""python -m bench.programs.reuse SIZE WORK: one step of `SIZE` blocks after WORK seconds of other work.

The answer has what went by from the call until its key was made, in seconds and in processor time of the thread, and
how often the step was traced. `EJCACHE_REUSE_LOWERING` says whether it may be reused.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import jax

import ejcache
from bench.programs.start import blocks


def main() -> None:
    from jax._src import compiler

    size, work = int(sys.argv[1]), float(sys.argv[2])
    traced: list[None] = []
    made: dict[str, tuple[float, float]] = {}

    def train_step(state: Any, tokens: Any) -> Any:
        traced.append(None)
        return blocks.train_step(state, tokens)

    ejcache.enable("cache", min_compile_seconds=0)
    step, (state, tokens) = ejcache.ejit(train_step), blocks.arguments(size)
    jax.devices()
    until = time.perf_counter() + work
    while time.perf_counter() < until:
        sum(range(10_000))
    make_key = compiler._get_cache_key  # where JAX makes a key

    def make(*arguments: Any, **named: Any) -> Any:
        key = make_key(*arguments, **named)
        made.setdefault("key", (time.perf_counter(), time.thread_time()))
        return key

    compiler._get_cache_key = make
    began = time.perf_counter(), time.thread_time()
    jax.block_until_ready(step(state, tokens))
    answer = {
        "traced": len(traced),
        "seconds": made["key"][0] - began[0],
        "processor": made["key"][1] - began[1],
        "first": time.perf_counter() - began[0],
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
