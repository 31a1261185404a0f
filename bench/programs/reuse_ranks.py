"""python -m bench.programs.reuse_ranks BLOCKS: one rank of a job that makes one step, and the seconds that it takes.

`RANK` and `WORLD_SIZE` say which rank this is, `MASTER_ADDR` and `MASTER_PORT` where the job meets. Of rank 1, `LATE`
is the seconds that it comes later than the others to the step, `DIES` kills it there, and `WITHOUT` leaves it without
ejcache. `WORD` is that of the step, without which it is not reused. `INSIDE` lets each trace run a program of all
ranks. The clock begins when all ranks have met; the first line says when that was, by the machine's monotonic clock.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
import traceback
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import ejcache
from bench.programs.start import blocks


def main() -> None:
    from jax._src import distributed

    rank, size, is_odd = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["RANK"] == "1"
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}", size, rank)
    jit: Any = jax.jit
    if not (os.environ.get("WITHOUT") and is_odd):
        ejcache.enable("cache", min_compile_seconds=0)
        jit = functools.partial(ejcache.ejit, reuse_lowering=os.environ.get("WORD") or None)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    rows, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    ones = _placed(np.ones(len(jax.devices()), np.float32), rows)
    traced: list[None] = []

    def train_step(state: Any, tokens: Any) -> Any:
        traced.append(None)
        if os.environ.get("INSIDE"):
            with jax.ensure_compile_time_eval():
                assert float(jax.numpy.sum(ones).addressable_data(0)) == len(jax.devices())
        return blocks.train_step(state, tokens)

    step = jit(train_step)
    state, tokens = blocks.arguments(int(sys.argv[1]))
    state = jax.tree.map(lambda leaf: _placed(np.asarray(leaf), whole), state)
    tokens = _placed(np.concatenate([tokens] * size), rows)
    distributed.global_state.client.wait_at_barrier("begin", 120_000)  # a program of all ranks would connect them
    began = time.monotonic()
    print(json.dumps({"began": began}), flush=True)
    if is_odd and os.environ.get("DIES"):
        os.kill(os.getpid(), signal.SIGKILL)
    if is_odd:
        time.sleep(float(os.environ.get("LATE", "0")))
    try:
        _, loss = step(state, tokens)
        jax.block_until_ready(loss)
        ended = time.monotonic()
        print(json.dumps({"seconds": ended - began, "traced": len(traced), "loss": float(loss)}), flush=True)
    except Exception:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # rank 0 has the service, and waits for all others before it ends: that is not measured


def _placed(array: Any, sharding: Any) -> Any:
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


if __name__ == "__main__":
    main()
