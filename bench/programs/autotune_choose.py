"""python -m bench.programs.autotune_choose TRIALS: a default against a planted candidate, on a busy machine."""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ejcache.autotune import Tuner
from ejcache.autotune.records.record_key import RecordKey

if TYPE_CHECKING:
    from collections.abc import Iterator

STEPS = 200


def disturb() -> None:
    """Work for a while, sleep for a while, without end."""
    generator = np.random.default_rng()
    while True:
        end = time.monotonic() + generator.uniform(0.001, 0.05)
        while time.monotonic() < end:
            pass
        time.sleep(generator.uniform(0.001, 0.05))


@contextmanager
def busy_machine(processes: int) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    started = [context.Process(target=disturb, daemon=True) for _ in range(processes)]
    for process in started:
        process.start()
    try:
        yield
    finally:
        for process in started:
            process.kill()


def trial(steps: int, seed: int) -> tuple[bool, float]:
    """Whether the planted candidate was chosen over the default of STEPS steps, and the seconds that took."""
    x = jnp.asarray(np.random.default_rng(seed).standard_normal((48, 48), dtype=np.float32))

    def build(n: int) -> Any:
        return lambda x: x + 0 * jax.lax.fori_loop(0, n, lambda _, y: jnp.tanh(y @ x), x)

    began = time.monotonic()
    record = Tuner(seed=seed).tune(
        build, (x,), {}, key=RecordKey("planted", "1", "cpu"), candidates=[STEPS, steps], default=STEPS
    )
    return record.configuration == steps, time.monotonic() - began


def main() -> None:
    trials = int(sys.argv[1])
    answer: dict[str, Any] = {}
    with busy_machine(2):
        for name, share in (("30 %", 0.7), ("1 %", 0.99)):
            found = [trial(round(STEPS * share), seed) for seed in range(trials)]
            answer[name] = {"chosen": sum(chosen for chosen, _ in found), "seconds": [took for _, took in found]}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
