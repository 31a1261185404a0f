"""A simulated machine under the real `Tuner`: candidates take planted times, on a clock that only they advance."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

NOISES = ("idle", "busy", "drift")


@dataclass
class Machine:
    """A machine on which each run takes a planted time, changed by noise.

    Attributes:
        seconds: of a run of a configuration.
        compile_seconds: of the compilation of each candidate.
        noise: `idle`, `busy` with bursts and spikes of other load, `drift` of the clock, or an empty text for none.
        seed: of the noise.
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

    def parts(self) -> dict[str, Any]:
        """What replaces the names of `ejcache.autotune.measure.tuning_run`, so that the tuner runs candidates here."""
        from ejcache.autotune.measure.output_comparison import Results

        def compiled(trials: Any, build: Any, tuning: Any, _: Any) -> None:
            for trial in trials:
                if tuning.out_of_compile_time():
                    return
                self.now += self.compile_seconds
                trial.compiled, trial.outputs = build(trial.configuration), "float32[4]"

        return {
            "compile_trials": compiled,
            "first_run": lambda trial, *_, **__: (self.run(trial.configuration), Results([], None)),
            "run_once": lambda trial, _, repeats: self.run(trial.configuration, repeats),
            "monotonic": lambda: self.now,
        }
