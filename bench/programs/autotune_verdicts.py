"""python -m bench.programs.autotune_verdicts TRIALS: how often each rule chooses right, on simulated machines."""

from __future__ import annotations

import json
import math
import random
import statistics
import sys
from typing import Any
from unittest import mock

import jax.numpy as jnp

from bench.outcome import OURS
from ejcache.autotune import Tuner
from ejcache.autotune.measure import bench as bench_module
from ejcache.autotune.measure.results import Results
from ejcache.autotune.records.key import RecordKey

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
NOISES = ("idle", "busy", "drift")


class Machine:
    """Runs of planted times: idle, with bursts and spikes of other load, or with a clock that drifts."""

    def __init__(self, times: list[float], noise: str, seed: int) -> None:
        self.times, self.noise, self.seed, self.now = times, noise, seed, 0.0
        self._random = random.Random(seed)
        self._phase = self._random.uniform(0, 2 * math.pi)
        self._until, self._burst = 0.0, 1.0

    def run(self, candidate: int, repeats: int = 1) -> float:
        took = self.times[candidate] * UNIT * repeats * self._factor()
        self.now += took
        return took / repeats

    def _factor(self) -> float:
        r = self._random
        if self.noise == "busy":
            factor = r.lognormvariate(0, 0.1) * (r.uniform(1.5, 6) if r.random() < 0.15 else 1)
            while self.now >= self._until:
                self._burst = 1.0 if self._burst > 1 else r.uniform(1.1, 1.6)
                self._until += r.expovariate(1 / 0.05)
            return factor * self._burst
        factor = r.lognormvariate(0, 0.01) * (r.uniform(1.2, 2) if r.random() < 0.01 else 1)
        return factor * (1 + 0.3 * math.sin(self._phase + 3 * self.now)) if self.noise == "drift" else factor


def ours(machine: Machine, count: int) -> int:
    def compiled(trials: Any, build: Any, *_: Any) -> None:
        for trial in trials:
            trial.compiled, trial.outputs = build(trial.configuration), "float32[4]"

    simulated: dict[str, Any] = {
        "compile_trials": compiled,
        "first_run": lambda trial, *_, **__: (machine.run(trial.configuration), Results([], None)),
        "run_once": lambda trial, _, repeats: machine.run(trial.configuration, repeats),
        "monotonic": lambda: machine.now,
    }
    with mock.patch.multiple(bench_module, **simulated):
        record = Tuner(seed=machine.seed).tune(
            lambda _: lambda x: x, (X,), {}, key=KEY, candidates=list(range(count)), default=0
        )
    return int(record.configuration)


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
    trials = int(sys.argv[1])
    answer: dict[str, dict[str, dict[str, Any]]] = {}
    for name, (times, right) in CELLS.items():
        for noise in NOISES:
            cell = answer[f"{name}, {noise}"] = {}
            for who, rule in RULES.items():
                chosen, seconds = 0, []
                for seed in range(trials):
                    # Seeds that were not used when the rule was made.
                    machine = Machine(times, noise, 500_000 + seed)
                    chosen += rule(machine, len(times)) == right
                    seconds.append(machine.now)
                cell[who] = {"right": chosen, "seconds": statistics.median(seconds)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
