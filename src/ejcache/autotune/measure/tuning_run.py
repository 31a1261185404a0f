"""Compiles, runs and compares the candidates of one tuning, within its budgets of time."""

from __future__ import annotations

import contextlib
import math
import random
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.measure.checked_inputs import LONG_SHARE, SHARE, VariedInputs
from ejcache.autotune.measure.gradients import differentiable
from ejcache.autotune.measure.output_comparison import (
    DifferentResultError,
    check_results,
    has_nan,
    results_of,
    same_bits,
)
from ejcache.autotune.measure.trial import compile_trials, compile_with_gradient, error_line, first_run, run_once
from ejcache.autotune.measure.worker_thread import TookTooLongError, WorkerThread
from ejcache.autotune.records.crash_journal import CandidateJournal
from ejcache.autotune.records.record import Status
from ejcache.errors import UsageError
from ejcache.util.cores import cores

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from ejcache.autotune.measure.inputs import Inputs
    from ejcache.autotune.measure.output_comparison import Results
    from ejcache.autotune.measure.trial import Trial
    from ejcache.autotune.progress import Progress

    _Computed = list[Results]


_CHECK_SHARE: Final = 0.25
"""All candidates together may take this share of the budget to be compared on varied inputs, before one has won."""

_FEWEST_REPEATS: Final = 3
_MOST_REPEATS: Final = 14
"""A winner is compared again so often: a candidate may be right in the first runs only, or be wrong now and then."""

_SINGLE_SECONDS: Final = 0.1
"""A run that takes longer averages over disturbances itself."""

_GRACE_SECONDS: Final = 2.0
_left_running: Final[list[threading.Event]] = []
"""Runs that took too long and may still occupy the device."""


class DeviceBusyError(UsageError):
    """An earlier candidate still runs on the device, so that nothing can be measured."""


class TuningRun:
    """Compiles and runs the candidates of one tuning, and knows how much time is left.

    Args:
        tuner: the settings, a `Tuner`.
        inputs: of the call.
        progress: the display.
        digest: of the key; without one there is no crash journal.
        count: of candidates.

    Raises:
        DeviceBusyError: an earlier candidate still runs on the device.

    Attributes:
        tuner: the settings.
        inputs: of the call.
        progress: the display.
        journal: remembers which candidate runs, in case it ends the process.
        thread: in which candidates are traced and run.
        gradient: whether gradients are computed; None before the first candidate is traced.
        spent: seconds for running candidates so far.
        hung: a candidate still runs in another thread.
        expected: what a candidate must compute, on the inputs and on each of the varied ones: the results of the
            default once it has run, or of most candidates once they have been compared with each other.
        reference_failed: why the default is not what the candidates were compared with; empty if it is.
        no_gradient: why the gradients of a differentiated call were not compared; empty if they were, or need not be.
    """

    def __init__(self, tuner: Any, inputs: Inputs, progress: Progress, *, digest: str = "", count: int = 1) -> None:
        import jax

        if any(not done.is_set() for done in _left_running):
            raise DeviceBusyError("a candidate that took too long still runs on the device, so nothing can be measured")
        self.tuner = tuner
        self.inputs = inputs
        self.progress = progress
        self.journal = CandidateJournal(digest)
        self.thread = WorkerThread()
        self.gradient: bool | None = None
        self.profiled = int(jax.config.jax_pgle_profiling_runs) if jax.config.jax_enable_pgle else 0
        self.spent = 0.0
        self.hung = False
        self.expected: _Computed | None = None
        self.reference_failed = ""
        self.no_gradient = ""
        self.order = random.Random(tuner.seed)  # noqa: S311 (not a secret)
        self._compiling = 0.0
        self._compile_deadline = math.inf
        self._count = max(1, count)
        self._arrays: list[Any] | None = None
        self.varied = VariedInputs(self)
        self._alike: list[tuple[_Computed, list[Trial]]] = []
        self._default: Trial | None = None
        self._build: Callable[[Any], Callable[..., Any]] | None = None
        self._gradients: list[tuple[Sequence[Any], Results]] | None = None

    def close(self) -> None:
        """Let the thread end, and release the arrays."""
        self.thread.close()
        self.journal.close()
        self._arrays = self.expected = None
        self.varied.sets = []
        self._alike = []
        self._gradients = None

    @property
    def pgle(self) -> bool:
        """True if JAX profiles the candidates and compiles them again with the profile, as it does in the program."""
        return self.profiled > 0

    @property
    def arrays(self) -> list[Any]:
        """The inputs."""
        if self._arrays is None:
            make = partial(self.inputs.concrete, seed=self.tuner.seed, initialisers=self.tuner.initialisers)
            self._arrays = self.thread.run(make)
        return self._arrays

    @property
    def ended(self) -> str:
        """The reason why nothing more may run, or an empty text."""
        if self.hung:
            return "a candidate that took too long still runs on the device"
        return f"the budget of {self.tuner.budget:g} s ended" if self.spent >= self.tuner.budget else ""

    def out_of_compile_time(self) -> bool:
        """True if the budget for compiling has ended."""
        return monotonic() >= self._compile_deadline

    @property
    def workers(self) -> int:
        """The number of candidates that may compile at the same time."""
        # If a process ended while several candidates compiled, each is now compiled alone, so that one can be named.
        return 1 if self.journal.suspicious else min(int(self.tuner.workers), cores())

    def compile_and_warm(
        self, trials: Sequence[Trial], build: Callable[[Any], Callable[..., Any]], reference: Trial | None = None
    ) -> None:
        """Compile the candidates and warm them up; one that fails, or differs from the reference, has the error."""
        self._build = build
        self.varied.ask_author()
        # The reference first, because the others are compared with it.
        trials = [trial for trial in trials if trial.status is Status.OK]
        trials.sort(key=lambda trial: trial is not reference)
        if not trials:
            return
        started = monotonic()
        self._compile_deadline = started + max(0.0, self.tuner.compile_budget - self._compiling)
        compile_trials(trials, build, self, reference)
        self._compiling += monotonic() - started
        for number, trial in enumerate(trials):
            self.progress.step("warm-up", number, len(trials))
            if trial.status is Status.OK and trial.compiled is not None and not self.ended:
                self._warm_up(trial, reference)
            if trial.status is not Status.OK:
                self.progress.candidate(trial.stored, None, trial.error)

    def settle(self) -> None:
        """Have those candidates fail, if no default has run, that compute something else than most of them do."""
        if self.expected is not None or not self._alike:
            return
        self.reference_failed = "there is no default that works, so the results were compared with each other only"
        # Most agree on the right result. Of as many, those that compute no NaN are right.
        ranks = [(len(trials), not has_nan(computed[0])) for computed, trials in self._alike]
        best = max(ranks)
        for (computed, trials), rank in zip(self._alike, ranks, strict=True):
            if rank == best and ranks.count(best) == 1 and (rank[1] or self._has_nan_inputs()):
                self.expected = computed
                continue
            for trial in trials:
                with trial.failures():
                    raise DifferentResultError("its results differ from other candidates', and no default works")

    def _has_nan_inputs(self) -> bool:
        return bool(self.thread.run(lambda: has_nan(results_of(self.arrays))))

    def still_right(self, trial: Trial) -> bool:
        """Compare the results of a candidate again and again: on more inputs, and for as long as is reasonable."""
        if self.hung or self.expected is None:
            return not self.hung
        if self._default is not None:
            self.varied.add_more(self._default, self.expected)
        started, sets = monotonic(), self.varied.sets
        right: dict[int, Results] = {}
        with trial.failures(running=True):
            for number in range(max(_MOST_REPEATS, 2 * len(sets))):
                place = number % len(sets)
                found = self.first_run(trial, sets[place])
                # What is the same, bit by bit, as what was right before is right.
                if place not in right or not same_bits(found, right[place]):
                    self.compare(found, self.expected[place], sets[place])
                    right[place] = found
                if number >= max(_FEWEST_REPEATS, len(sets)) and monotonic() - started > SHARE * self.tuner.budget:
                    break
        if trial.ready and self.inputs.differentiated and not self.gradient and differentiable(self.arrays):
            with trial.failures(running=True):
                self._compare_gradient(trial)
        return trial.ready

    def _compare_gradient(self, trial: Trial) -> None:
        """Raise `DifferentResultError`, or what its gradient raises, if that is not the default's."""
        assert self._build is not None  # noqa: S101 (for the type checker: the trial was compiled)
        if self._gradients is None:
            self._gradients = self._gradients_of_default(self._build)
        if not self._gradients:
            return
        twin = compile_with_gradient(trial, self._build, self)
        for arrays, expected in self._gradients:
            self.compare(self._gradient_run(twin, arrays), expected, arrays)

    def _gradients_of_default(self, build: Callable[[Any], Callable[..., Any]]) -> list[tuple[Sequence[Any], Results]]:
        """Return what the default computes with its gradient, from each of the inputs that this can be trusted on."""
        default = self._default
        if default is None:
            self.no_gradient = "there is no default that works"
            return []
        try:
            twin = compile_with_gradient(default, build, self)
            found = [(arrays, self._gradient_run(twin, arrays)) for arrays in self.varied.sets]
        except Exception as exc:
            if self.hung:
                raise
            self.no_gradient = f"the default has none: {error_line(exc)}"
            return []
        steady = [pair for pair in found if self.varied.is_steady(partial(self._gradient_run, twin), pair[1], pair[0])]
        # What is noise on all inputs is compared nevertheless: nothing else says whether it is right.
        return steady or found[:1]

    def _gradient_run(self, twin: Trial, arrays: Sequence[Any]) -> Results:
        _, results = self._run(twin, partial(first_run, twin, arrays, gradient=True))
        return results  # type: ignore[no-any-return]

    def repeats(self, seconds: float) -> int:
        """Count the executions of so many seconds that make up one sample."""
        return min(500, max(1, round(float(self.tuner.sample_seconds) / max(seconds, 1e-7))))

    def timed(self, trial: Trial, repeats: int) -> float:
        """Return seconds of one execution; raises what the candidate raises, and `TookTooLongError`."""
        return float(self._run(trial, partial(run_once, trial, self.arrays, repeats)))

    def sample(self, trial: Trial, *, like: float, twice: bool) -> None:
        """Add a sample.

        Args:
            trial: the candidate.
            like: seconds of an execution that decide how many a run has. They must be the same for all candidates
                that are compared: the fewer executions wait for one result, the longer each seems to take.
            twice: take the shorter of two runs, because a disturbance makes a run longer and never shorter. A run that
                is long enough to average over disturbances is the sample nevertheless.
        """
        count = 2 if twice and like < _SINGLE_SECONDS else 1
        with trial.failures(running=True):
            runs = [self.timed(trial, self.repeats(like)) for _ in range(count)]
            trial.runs += runs
            trial.samples.append(min(runs))

    def _warm_up(self, trial: Trial, reference: Trial | None) -> None:
        with trial.failures(running=True):
            first = self.first_run(trial, self.arrays)
            if not self.varied.sets:
                computed = [first, *self.varied.found_by(trial, first)]
            else:
                affordable = int(_CHECK_SHARE * self.tuner.budget / self._count / max(trial.warm[-1], 1e-6))
                computed = [first, *(self.first_run(trial, each) for each in self.varied.sets[1 : 1 + affordable])]
            if trial is reference:
                self.expected, self._default = computed, trial
            elif self.expected is not None:
                self._compare(computed, self.expected)
            else:
                self._note_alike(trial, computed)
        for _ in range(self.profiled):
            # JAX profiles these runs and then compiles again, so they are slower.
            if trial.ready and not self.ended:
                self._run_warm(trial)
                trial.warm = trial.warm[-1:]
        while trial.ready and len(trial.warm) < max(2, self.tuner.warmup) and not self.ended:
            if not self.pgle and min(trial.warm) > LONG_SHARE * self.tuner.budget:
                return
            self._run_warm(trial)
            if self.pgle and len(trial.warm) == 2:
                del trial.warm[0]
                return

    def doubts(self) -> list[str]:
        """Return why nobody can say that the winner computes what the default does."""
        found = []
        if self.expected is not None and has_nan(self.expected[0]) and not self._has_nan_inputs():
            found.append("the default computes NaN, where nothing can be compared")
        elif self.expected is not None and has_nan(self.expected[0]):
            found.append("the inputs of the measurement have NaN, and so have the default's results")
        if self.no_gradient:
            found.append(f"gradients were not compared: {self.no_gradient}")
        return found

    def compare(
        self, found: Results, right: Results, arrays: Sequence[Any], *, share: float = 1.0, least: float = 0.0
    ) -> None:
        """Raise `DifferentResultError` if what a candidate computes from these arrays is not right."""
        least = max(least, self.varied.tolerance_of(arrays))
        own = arrays is self.arrays
        check = False if own and self.varied.noisy and not callable(self.tuner.check) else self.tuner.check
        nan = self.varied.is_given(arrays)
        inputs = inexact(arrays)
        compare = partial(check_results, found, right, check=check, inputs=inputs, share=share, least=least, nan=nan)
        try:
            self.thread.run(compare, timeout=self.tuner.timeout)
        except DifferentResultError as exc:
            if own:
                raise
            hint = "on other inputs than the caller's; initialisers= says which ones the operation is meant for"
            raise DifferentResultError(f"{exc} ({hint})") from None

    def first_run(self, trial: Trial, arrays: Sequence[Any]) -> Results:
        """Run a candidate once, and return what it computes; raises what it raises."""
        seconds, results = self._run(trial, partial(first_run, trial, arrays, gradient=bool(self.gradient)))
        if arrays is self.arrays:
            trial.warm.append(seconds)
        return results  # type: ignore[no-any-return]

    def _compare(self, computed: _Computed, expected: _Computed) -> None:
        """Raise `DifferentResultError` if these results are not those."""
        for found, right, arrays in zip(computed, expected, self.varied.sets, strict=False):
            self.compare(found, right, arrays)

    def _note_alike(self, trial: Trial, computed: _Computed) -> None:
        """Put a candidate to those that have computed the same."""
        for other, trials in self._alike:
            if trials[0].outputs == trial.outputs:
                with contextlib.suppress(DifferentResultError):
                    # Both ways: where NaN is expected, any value is right.
                    self._compare(computed, other)
                    self._compare(other, computed)
                    trials.append(trial)
                    return
        self._alike.append((computed, [trial]))

    def _run_warm(self, trial: Trial) -> None:
        with trial.failures(running=True):
            trial.warm.append(self.timed(trial, 1))

    def _run(self, trial: Trial, function: Callable[[], Any]) -> Any:
        started = monotonic()
        try:
            with self.journal.running(trial.stored):
                return self.thread.run(function, timeout=self.tuner.timeout)
        except TookTooLongError as exc:
            if not exc.done.wait(min(_GRACE_SECONDS, self.tuner.timeout)):
                _left_running.append(exc.done)
                self.hung = True
            raise
        finally:
            self.spent += monotonic() - started


def inexact(arrays: Sequence[Any]) -> list[Any]:
    """Return the arrays of real or complex numbers."""
    import jax.numpy as jnp

    return [array for array in arrays if jnp.issubdtype(array.dtype, jnp.inexact)]
