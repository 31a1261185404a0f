"""python -m bench.programs.autotune_identical RACES: how often one of four equal programs wins against the default."""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp

from ejcache.autotune import Tuner
from ejcache.autotune.records.record_key import RecordKey

SIZE = 96


def compute() -> None:
    while True:
        sum(range(100_000))


def program(_: int) -> Any:
    return lambda x: jnp.tanh(x @ x) @ x


def main() -> None:
    races = int(sys.argv[1])
    busy = [multiprocessing.get_context("spawn").Process(target=compute, daemon=True) for _ in range(2)]
    for process in busy:
        process.start()
    x = jax.random.normal(jax.random.key(0), (SIZE, SIZE))
    false, seconds, unsure, began = [], [], 0, time.perf_counter()
    for race in range(races):
        key = RecordKey("identical", str(race), "cpu", {}, {})
        record = Tuner(seed=race).tune(program, (x,), {}, key=key, candidates=[0, 1, 2, 3], default=0)
        seconds.append(min(each.seconds.p50 for each in record.candidates if each.seconds is not None))
        unsure += bool(record.unsure)
        if record.configuration != 0:
            false.append(round(100 * float(record.measurement["gain"]), 1))
    for process in busy:
        process.kill()
    answer: dict[str, Any] = {"false": len(false), "gains": false, "unsure": unsure}
    answer["microseconds"] = 1e6 * sorted(seconds)[len(seconds) // 2]
    print(json.dumps(answer | {"seconds": (time.perf_counter() - began) / races}))


if __name__ == "__main__":
    main()
