"""python -m bench.programs.autotune_verdicts TRIALS NOISE: how often each rule chooses right, on simulated machines."""

from __future__ import annotations

import json
import statistics
import sys
from functools import partial
from typing import Any
from unittest import mock

import jax.numpy as jnp

from bench.noise import Machine
from bench.outcome import OURS
from ejcache.autotune import Tuner
from ejcache.autotune.measure import tuning_run
from ejcache.autotune.records.record_key import RecordKey

UNIT = 0.001
CELLS: dict[str, tuple[list[float], int]] = {
    "30 % faster": ([1, 0.7], 1),
    "10 % faster": ([1, 0.9], 1),
    "5 % faster": ([1, 0.95], 1),
    "nothing faster": ([1, 1], 0),
    "1 of 11 faster": ([1, *(1.05 + 0.02 * n for n in range(9)), 0.9], 10),
    "rivals 1 % apart": ([1, 0.8, 0.808, 0.816, 0.832], 1),
    "none of 11 faster": ([1, *(1.03 + 0.02 * n for n in range(10))], 0),
}


def ours(machine: Machine, count: int) -> int:
    with mock.patch.multiple(tuning_run, **machine.parts()):
        record = Tuner(seed=machine.seed).tune(
            lambda _: lambda x: x, (X,), {}, key=KEY, candidates=list(range(count)), default=0
        )
    return int(record.configuration)


def _planted(times: list[float], candidate: int) -> float:
    return times[candidate] * UNIT


def least(count: int, measure: Any) -> int:
    times = [measure(candidate) for candidate in range(count)]
    return times.index(min(times))


def triton(machine: Machine, count: int) -> int:
    """The median of as many runs as fit into 100 ms, after 25 ms of warm-up."""

    def runs(candidate: int, seconds: float) -> list[float]:
        end, found = machine.now + seconds, []
        while machine.now < end:
            found.append(machine.run(candidate))
        return found

    return least(count, lambda c: (runs(c, 0.025), statistics.median(runs(c, 0.1)))[1])


def tokamax(machine: Machine, count: int) -> int:
    """The median of five runs, after one."""
    return least(count, lambda c: (machine.run(c), statistics.median(machine.run(c) for _ in range(5)))[1])


def best_of_10(machine: Machine, count: int) -> int:
    return least(count, lambda c: (machine.run(c), min(machine.run(c) for _ in range(10)))[1])


X = jnp.ones(4)
KEY = RecordKey("planted", "1", "cpu")
RULES = {OURS: ours, "Triton's rule": triton, "tokamax's rule": tokamax, "best of 10": best_of_10}


def main() -> None:
    trials, noise = int(sys.argv[1]), sys.argv[2]
    answer: dict[str, dict[str, dict[str, Any]]] = {}
    for name, (times, right) in CELLS.items():
        # Where something is faster, a choice within two per cent of the best one is right.
        good = {right, *(n for n, time in enumerate(times) if right and time <= 1.02 * times[right])}
        cell = answer[f"{name}, {noise}"] = {}
        for who, rule in RULES.items():
            chosen, seconds = 0, []
            for seed in range(trials):
                # Seeds that were not used when the rule was made.
                machine = Machine(partial(_planted, times), noise=noise, seed=500_000 + seed)
                chosen += rule(machine, len(times)) in good
                seconds.append(machine.now)
            cell[who] = {"right": chosen, "seconds": statistics.median(seconds)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
