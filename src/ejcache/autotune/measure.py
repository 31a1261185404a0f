"""`Tuner`: measures what configurations cost, by running them.

What is timed is always the execution of a compiled executable on concrete inputs, also when the caller is itself being
traced: everything happens in a thread that traces nothing, and the caller's program gets nothing added to it.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.choice import ABSENT
from ejcache.autotune.decide import Verdict, fewest_rounds, gains, hopeless, median, timing, verdict
from ejcache.autotune.isolated import screened
from ejcache.autotune.measure_compile import Trial, compile_trials, run_once
from ejcache.autotune.measure_device import device_of, provenance
from ejcache.autotune.measure_inputs import split_arguments
from ejcache.autotune.measure_spans import refuse_spanning
from ejcache.autotune.measure_thread import CleanThread, TookTooLongError
from ejcache.autotune.plain import canonical_json, to_plain
from ejcache.autotune.progress import progress_for
from ejcache.autotune.records import Record, Source, Status, fastest_first
from ejcache.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ejcache.autotune.key import RecordKey
    from ejcache.autotune.measure_inputs import Inputs
    from ejcache.autotune.progress import Progress
    from ejcache.autotune.records import Timing

__all__ = ["Tuner", "attempt"]

_LOOKS: Final = (8, 15, 25, 40, 60, 100)
"""Rounds after which the samples are looked at: a clear case ends early, a noisy machine gets more of them."""


@dataclass(frozen=True)
class Tuner:
    """How to measure.

    Attributes:
        warmup: executions before the first that counts.
        rounds: samples of each candidate at most; clear cases end earlier.
        sample_seconds: a sample is as many executions as take this long, and the shorter of two such runs.
        min_gain: the share of the default's time that a winner must save.
        confirm: a winner must win again, against the default alone, in samples of their own.
        timeout: seconds that compiling, or one sample, of a candidate may take.
        budget: seconds that timing may take, from the first round on. After that no further round is begun, except
            for a candidate that promises to win: it and the default go on until they have the seven rounds that a
            verdict takes, and as many to confirm it. Compiling is not part of it.
        workers: candidates that compile at the same time.
        gradient: time the function and its gradient, rather than the function alone.
        seed: of the inputs that are made and of the order within each round.
        initialisers: how to make inputs, by the argument's name; see `Inputs.concrete`.
        isolate: try each candidate in a process of its own first, so that one that crashes ends only that.
    """

    warmup: int = 2
    rounds: int = 100
    sample_seconds: float = 0.001
    min_gain: float = 0.03
    confirm: bool = True
    timeout: float = 120.0
    budget: float = 60.0
    workers: int = 4
    gradient: bool = False
    seed: int = 0
    initialisers: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    isolate: bool = False

    def measure(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Timing:
        """Seconds that one execution of `function` takes; arguments may be tracers or `jax.ShapeDtypeStruct`s.

        Raises:
            Exception: what compiling or running it raises.
            TimeoutError: it took longer than `timeout`.
            SpansProcessesError: it runs on devices of other processes, which one process cannot measure alone.
        """
        inputs = split_arguments(args, kwargs)
        refuse_spanning(inputs.leaves, name="the function")
        bench = _Bench(self, inputs, progress_for("measure"))
        try:
            trial = Trial(configuration=None, plain=None)
            bench.prepare([trial], lambda _: function)
            if trial.status is not Status.OK:
                raise trial.cause or TimeoutError(trial.error)
            bench.race([trial], None)
            if not trial.samples:
                raise trial.cause or TimeoutError(trial.error)
            return timing(trial.samples)
        finally:
            bench.close()

    def tune(
        self,
        build: Callable[[Any], Callable[..., Any]],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        key: RecordKey,
        candidates: Iterable[Any],
        default: Any = ABSENT,
        known: Record | None = None,
        names: Sequence[str] = (),
        call: dict[str, Any] | None = None,
    ) -> Record | None:
        """Measure the candidates and choose.

        Args:
            build: makes the function to time from a configuration.
            args: of the call; arrays may be tracers or stand-ins.
            kwargs: of the call.
            key: what the record is for.
            candidates: the configurations.
            default: what a winner must beat; if none is given, or it fails, the fastest wins.
            known: an earlier record of the call; what is in it is not measured again.
            names: of the positional arguments.
            call: how another process makes the call; needed for `isolate`.

        Returns:
            A record with every candidate's timing or error, or None if none of them works.

        Raises:
            SpansProcessesError: the call runs on devices of other processes, which one process cannot measure alone.
        """
        inputs = split_arguments(args, kwargs, names)
        refuse_spanning(inputs.leaves, name=key.operation)
        trials = _trials(candidates, default, known)
        progress = progress_for(key.operation)
        bench = _Bench(self, inputs, progress)
        try:
            fresh = [trial for trial in trials if trial.known is None]
            if self.isolate:
                bench.screen(fresh, call)
            bench.prepare(fresh, build)
            result = _Contest(bench, trials, build).result()
            if result is None:
                return None
            winner, evidence = result
            reference = next((trial for trial in trials if trial.is_default), None)
            return Record(
                key=key,
                configuration=winner.plain,
                source=Source.PGLE if bench.pgle else Source.TUNED,
                default=None if reference is None else reference.plain,
                candidates=fastest_first(trial.candidate() for trial in trials),
                measurement={
                    "mode": bench.mode,
                    "min_gain": self.min_gain,
                    "warmup": self.warmup,
                    "seed": self.seed,
                    "measured": len(fresh),
                    "seconds": round(time.monotonic() - bench.started, 3),
                    **evidence,
                },
                provenance=provenance(device_of(inputs.leaves)),
                created=time.time(),
            )
        finally:
            progress.close()
            bench.close()


def attempt(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    tuner: Tuner,
    names: Sequence[str] = (),
) -> None:
    """Make the call once, on inputs as `tuner` makes them for arguments of these names; raises what it raises."""
    import jax

    inputs = split_arguments(args, kwargs, names)
    arrays = inputs.concrete(seed=tuner.seed, initialisers=tuner.initialisers)

    def core(*leaves: Any) -> Any:
        call_args, call_kwargs = inputs.rebuild(leaves)
        return function(*call_args, **call_kwargs)

    jax.block_until_ready(jax.jit(core)(*arrays))


def _trials(candidates: Iterable[Any], default: Any, known: Record | None) -> list[Trial]:
    trials: dict[str, Trial] = {}
    listed = list(candidates)
    for configuration in listed if default is ABSENT else [default, *listed]:
        plain = to_plain(configuration)
        held = None if known is None else known.candidate(plain)
        trials.setdefault(canonical_json(plain), Trial(configuration, plain, known=held))
    if default is not ABSENT:
        trials[canonical_json(to_plain(default))].is_default = True
    return list(trials.values())


class _Bench:
    """The thread, the inputs and the clock of one tuning."""

    def __init__(self, tuner: Tuner, inputs: Inputs, progress: Progress) -> None:
        import jax

        self.tuner = tuner
        self.inputs = inputs
        self.progress = progress
        self.thread = CleanThread()
        self.started = time.monotonic()
        self._raced: float | None = None
        self.mode = "forward"
        self.profiled = int(jax.config.jax_pgle_profiling_runs) if jax.config.jax_enable_pgle else 0
        self._arrays: list[Any] | None = None
        self._order = random.Random(tuner.seed)  # noqa: S311 (an order, no secret)

    def close(self) -> None:
        self.thread.close()
        self._arrays = None

    @property
    def pgle(self) -> bool:
        """Whether JAX profiles what is measured and compiles it once more, as it will in the program."""
        return self.profiled > 0

    @property
    def arrays(self) -> list[Any]:
        if self._arrays is None:
            make = lambda: self.inputs.concrete(seed=self.tuner.seed, initialisers=self.tuner.initialisers)  # noqa: E731
            self._arrays = self.thread.run(make)
        return self._arrays

    def screen(self, trials: list[Trial], call: dict[str, Any] | None) -> None:
        """Try each in a process of its own; what does not work there is not tried here."""
        if call is None:
            # Rather no result than the crash that the caller wanted to be kept from.
            raise UsageError("this operation cannot be called in a process of its own")
        for index, trial in enumerate(trials):
            self.progress.step("isolated", index, len(trials))
            trial.status, trial.error = screened(call, trial.plain, timeout=self.tuner.timeout)

    def prepare(self, trials: Sequence[Trial], build: Callable[[Any], Callable[..., Any]]) -> None:
        """Compile them, and run each once; those that fail say so."""
        trials = [trial for trial in trials if trial.status is Status.OK]
        if not trials:
            return
        self.mode = compile_trials(trials, build, self)
        for trial in trials:
            if trial.status is not Status.OK:
                self.progress.candidate(trial.plain, None, trial.error)
                continue
            try:
                for _ in range(max(self.tuner.warmup, self.profiled + 2 if self.pgle else 1)):
                    trial.warm_seconds = self._timed(trial, 1)
            except TookTooLongError as exc:
                trial.fail(exc, Status.TIMEOUT)
            except Exception as exc:
                trial.fail(exc, Status.FAILED)

    def race(self, trials: Sequence[Trial], reference: Trial | None) -> None:
        """Add interleaved samples until it is clear whether one beats the reference, or time or rounds are out."""
        alive = [trial for trial in trials if trial.status is Status.OK]
        if not alive:
            return
        # The same number for all: a longer sample is more likely to be interrupted, and would look slower for that.
        first = reference if reference in alive else min(alive, key=lambda trial: trial.warm_seconds)
        repeats = min(500, max(1, math.ceil(self.tuner.sample_seconds / max(first.warm_seconds, 1e-7))))
        if self._raced is None:
            self._raced = time.monotonic()
        out_of_time = self._raced + self.tuner.budget
        rounds = 0
        for look in [*(n for n in _LOOKS if n < self.tuner.rounds), self.tuner.rounds]:
            while rounds < look:
                rounds += 1
                self.progress.step("round", rounds, self.tuner.rounds)
                self._order.shuffle(alive)
                for trial in list(alive):
                    self._sample(trial, repeats)
                alive = [trial for trial in alive if trial.status is Status.OK]
                if time.monotonic() >= out_of_time:
                    alive = self._promising(alive, reference)
                    if not alive or rounds >= fewest_rounds():
                        return
            if not alive or self._clear(alive, reference):
                return
            best = min(alive, key=lambda trial: median(trial.samples))
            self.progress.best(best.plain, median(best.samples))
            alive = [trial for trial in alive if trial is reference or not hopeless(trial.samples, best.samples)]

    def _promising(self, alive: list[Trial], reference: Trial | None) -> list[Trial]:
        """The fastest that may yet beat the reference, and the reference; nothing if none may."""
        if reference is None or reference not in alive:
            return []
        rivals = [
            trial
            for trial in alive
            if trial is not reference and median(gains(trial.samples, reference.samples)) >= self.tuner.min_gain
        ]
        return [min(rivals, key=lambda trial: median(trial.samples)), reference] if rivals else []

    def _clear(self, alive: list[Trial], reference: Trial | None) -> bool:
        if reference is None or reference.status is not Status.OK:
            return False
        rivals = sorted((t for t in alive if t is not reference), key=lambda trial: median(trial.samples))
        verdicts = [verdict(gains(trial.samples, reference.samples), min_gain=self.tuner.min_gain) for trial in rivals]
        return not verdicts or verdicts[0] is Verdict.BETTER or all(v is Verdict.NOT_BETTER for v in verdicts)

    def _sample(self, trial: Trial, repeats: int) -> None:
        try:
            # What disturbs a run only ever makes it longer.
            trial.samples.append(min(self._timed(trial, repeats), self._timed(trial, repeats)))
        except TookTooLongError as exc:
            trial.fail(exc, Status.TIMEOUT)
        except Exception as exc:
            trial.fail(exc, Status.FAILED)

    def _timed(self, trial: Trial, repeats: int) -> float:
        arrays = self.arrays
        return self.thread.run(lambda: run_once(trial, arrays, repeats), timeout=self.tuner.timeout)


class _Contest:
    """From samples to a winner."""

    def __init__(self, bench: _Bench, trials: list[Trial], build: Callable[[Any], Callable[..., Any]]) -> None:
        self.bench = bench
        self.trials = trials
        self.build = build
        self.default = next((trial for trial in trials if trial.is_default), None)

    def result(self) -> tuple[Trial, dict[str, Any]] | None:
        fresh = [trial for trial in self.trials if trial.known is None]
        self.bench.race(fresh, self.default if self.default in fresh else None)
        for trial in fresh:
            if trial.samples:
                self.bench.progress.candidate(trial.plain, median(trial.samples))
        working = sorted((trial for trial in self.trials if trial.works), key=lambda trial: trial.seconds)
        if not working:
            return None
        if self.default is None or not self.default.works:
            return working[0], {"rounds": len(working[0].samples), "confirmed": False}
        for rival in working:
            if rival is self.default:
                break
            gain = self._gain(rival)
            if gain is not None:
                return rival, {
                    "rounds": len(rival.samples),
                    "gain": round(gain, 4),
                    "confirmed": self.bench.tuner.confirm,
                }
        return self.default, {"rounds": len(self.default.samples), "gain": 0.0, "confirmed": False}

    def _gain(self, rival: Trial) -> float | None:
        """The share of the default's time that the rival saves, or None if that is not certain enough."""
        default = self.default
        assert default is not None  # noqa: S101 (said to the type checker)
        tuner = self.bench.tuner
        if rival.samples and default.samples:
            saved = gains(rival.samples, default.samples)
            if verdict(saved, min_gain=tuner.min_gain) is not Verdict.BETTER:
                return None
            gain = median(saved)
        else:
            # One of them was measured at another time, perhaps on a busier machine: only a new race can tell.
            gain = 1.0 - rival.seconds / default.seconds
            if gain < tuner.min_gain:
                return None
            if rival.known is not None and default.known is not None:
                return gain
        if tuner.confirm or not (rival.samples and default.samples):
            again = [rival.again(), default.again()]
            self.bench.prepare([trial for trial in again if trial.compiled is None], self.build)
            self.bench.race(again, again[1])
            if not (again[0].samples and again[1].samples):
                return None
            saved = gains(again[0].samples, again[1].samples)
            if verdict(saved, min_gain=tuner.min_gain) is not Verdict.BETTER:
                return None
            gain = median(saved)
        return gain
