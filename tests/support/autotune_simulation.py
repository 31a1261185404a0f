"""A simulated machine under the real `Tuner`: candidates take planted times, and a clock that only they advance."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from autotune_helpers import key

from ejcache.autotune import Tuner
from ejcache.autotune.measure import bench as bench_module
from ejcache.autotune.measure.results import Results

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pytest

    from ejcache.autotune.records.record import Record

X = jnp.ones(4)


@dataclass
class Machine:
    """A machine on which each run takes a planted time, changed by noise.

    Attributes:
        seconds: of a run of a configuration.
        compile_seconds: of the compilation of each candidate.
        noise: `idle`, `busy`, `drift`, or an empty text for none.
        now: seconds since the start.
        runs: how many runs each configuration had, by its text.
    """

    seconds: Callable[[Any], float]
    compile_seconds: float = 0.0
    noise: str = ""
    seed: int = 0
    now: float = 0.0
    runs: dict[str, int] = field(default_factory=dict)
    _until: float = 0.0
    _burst: float = 1.0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._phase = self._random.uniform(0, 2 * math.pi)

    def run(self, configuration: Any, repeats: int = 1) -> float:
        """Run; seconds of one execution."""
        text = str(configuration)
        self.runs[text] = self.runs.get(text, 0) + 1
        planted = self.seconds(configuration)
        # A disturbance is an event in time: it stretches the run as a whole.
        took = planted * repeats * self._factor()
        self.now += took
        return took / repeats

    def _factor(self) -> float:
        if not self.noise:
            return 1.0
        r = self._random
        if self.noise == "busy":
            factor = r.lognormvariate(0, 0.1) * (r.uniform(1.5, 6) if r.random() < 0.15 else 1)
            while self.now >= self._until:
                self._burst = 1.0 if self._burst > 1 else r.uniform(1.1, 1.6)
                self._until += r.expovariate(1 / 0.05)
            return factor * self._burst
        factor = r.lognormvariate(0, 0.01) * (r.uniform(1.2, 2) if r.random() < 0.01 else 1)
        return factor * (1 + 0.3 * math.sin(self._phase + 3 * self.now)) if self.noise == "drift" else factor

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Have the tuner run candidates here."""

        def compiled(trials, build, bench, reference):
            for trial in trials:
                if bench.out_of_compile_time():
                    return
                self.now += self.compile_seconds
                trial.compiled, trial.outputs = build(trial.configuration), "float32[4]"

        def first(trial, arrays, *, gradient):
            return self.run(trial.configuration), Results([], None)

        patch.setattr(bench_module, "compile_trials", compiled)
        patch.setattr(bench_module, "first_run", first)
        patch.setattr(bench_module, "run_once", lambda trial, arrays, repeats: self.run(trial.configuration, repeats))
        patch.setattr(bench_module, "monotonic", lambda: self.now)

    def tune(self, candidates: list[Any], tuner: Tuner | None = None, **options: Any) -> Record:
        """Tune; the first candidate is the default."""
        return (tuner or Tuner()).tune(
            lambda _: lambda x: x,
            (X,),
            {},
            key=key(),
            candidates=candidates,
            default=options.pop("default", candidates[0]),
            **options,
        )


def planted(times: Mapping[Any, float]) -> Machine:
    """A machine without noise on which each candidate takes the given seconds."""
    return Machine(times.__getitem__)
