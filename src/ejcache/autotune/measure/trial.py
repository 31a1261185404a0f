"""Holds what is known of a candidate while it is measured (`Trial`); compiles candidates in parallel, and runs one.

The caller may be tracing, and its mesh and tracers must not reach the candidates. The settings that decide how
candidates compile, such as the matmul precision, must reach them.

A call that runs on devices of other processes is refused. One process of a job measures alone, and a candidate with a
collective across processes would wait for the others, which do not run it. Its launch would stay in the communicator
after the timeout; the program's own collectives would pair with it, compute wrong values, and hang.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from ejcache.autotune.log import logger
from ejcache.autotune.measure import gradients
from ejcache.autotune.measure.output_comparison import DifferentResultError, outputs_text, results_of
from ejcache.autotune.measure.spanning import SpansProcessesError, equations_of, refuse_spanning, refuse_spanning_jaxpr
from ejcache.autotune.measure.worker_thread import TookTooLongError, WorkerThread
from ejcache.autotune.records.record import Candidate, CandidateOrigin, Status, Timing
from ejcache.util.threads import in_parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ejcache.autotune.measure.output_comparison import Results


_ERROR_LENGTH = 300
_TRACEBACK = "Traceback (most recent call last):"
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0001, 0.01
_MEMORY_WORDS = (
    "RESOURCE_EXHAUSTED",
    "MemoryError",
    "out of memory",
    "Out of memory",
    "OUT_OF_MEMORY",
    "Unable to allocate",
)


@dataclass(eq=False)
class Trial:
    """One candidate while it is being measured.

    Attributes:
        configuration: as the operation takes it.
        stored: the configuration as a JSON value.
        known: the result in an earlier record, which is not measured again.
        is_default: a winner must beat this candidate.
        transient: the failure may have had another cause than the candidate, such as a lack of memory.
        reason: of the failure, as `Candidate` has it.
        origin: why it is tried.
        compiled: the executable, once there is one.
        jaxpr: of the traced candidate.
        outputs: tree, shapes and data types of the results, also under a gradient, once the candidate is traced.
        warm: seconds of the executions of the warm-up.
        samples: seconds of one execution in each round, the best of the round's runs.
        runs: seconds of one execution in all runs of all rounds.
    """

    configuration: Any
    stored: Any
    known: Candidate | None = None
    is_default: bool = False
    status: Status = Status.OK
    error: str = ""
    transient: bool = False
    reason: str = ""
    origin: CandidateOrigin = CandidateOrigin.CONFIGS
    compiled: Any = None
    jaxpr: Any = None
    compile_seconds: float | None = None
    memory_bytes: int | None = None
    outputs: str = ""
    warm: list[float] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)
    runs: list[float] = field(default_factory=list)

    @property
    def works(self) -> bool:
        """True if it has a time, measured now or in an earlier record."""
        if self.known is not None:
            return self.known.status is Status.OK and self.known.seconds is not None
        return self.status is Status.OK and bool(self.warm)

    @property
    def tried(self) -> bool:
        """True if there is a result: a time or a failure."""
        return self.works or self.status is not Status.OK or self.known is not None

    @property
    def ready(self) -> bool:
        """True if it was warmed up in this process and has not failed since."""
        return self.status is Status.OK and bool(self.warm)

    @property
    def seconds(self) -> float:
        """The median; only for a candidate that works."""
        if self.known is not None and self.known.seconds is not None:
            return self.known.seconds.p50
        return median(self.samples) if self.samples else min(self.warm)

    @contextlib.contextmanager
    def failures(self, *, running: bool = False) -> Iterator[None]:
        """Remember an exception in this block as the candidate's failure.

        `SpansProcessesError` passes: it concerns all candidates, and a record must not remember it for one of them.

        Args:
            running: the candidate runs in this block. A compiler that lacks memory always does; a run may not.
        """
        try:
            yield
        except SpansProcessesError:
            raise
        except (Exception, SystemExit) as exc:
            late = isinstance(exc, TookTooLongError)
            self.status = Status.TIMEOUT if late else Status.FAILED
            self.error = error_line(exc)
            lacks_memory = isinstance(exc, MemoryError) or any(word in str(exc) for word in _MEMORY_WORDS)
            self.transient = late or (running and lacks_memory)
            self.reason = _reason(exc, running=running, lacks_memory=lacks_memory)

    def check_outputs(self, reference: Trial) -> None:
        """Raise `DifferentResultError` if the results have another tree, shape or data type than the reference's."""
        if reference.outputs and self.outputs != reference.outputs:
            raise DifferentResultError(f"its results are {self.outputs}, and the default's are {reference.outputs}")

    def candidate(self) -> Candidate:
        """Return the result for the record."""
        if self.known is not None:
            return self.known
        return Candidate(
            configuration=self.stored,
            status=self.status,
            seconds=Timing.of(self.runs or self.warm) if self.works else None,
            error=self.error,
            transient=self.transient,
            compile_seconds=None if self.compile_seconds is None else round(self.compile_seconds, 4),
            memory_bytes=self.memory_bytes,
            measured=time.time(),
            reason=self.reason,
            origin=CandidateOrigin.DEFAULT if self.is_default else self.origin,
        )


def _reason(exc: BaseException, *, running: bool, lacks_memory: bool) -> str:
    if isinstance(exc, TookTooLongError):
        return "time-out"
    if isinstance(exc, DifferentResultError):
        return "wrong result"
    if lacks_memory:
        return "resources"
    return "run" if running else "compile"


def error_line(exc: BaseException) -> str:
    """Return the type and the first line of an exception, for a record.

    XLA puts the traceback of a host callback behind a first line that says nothing of its cause: then it is the last
    line of that.
    """
    lines = str(exc).strip().splitlines()
    said = lines[0] if lines else ""
    if said.endswith(_TRACEBACK):
        causes = [line for line in lines[1:] if line[:1].strip() and not line.startswith("At:")]
        said = f"{said.removesuffix(_TRACEBACK)} {causes[-1]}" if causes else said
    return f"{type(exc).__name__}: {said}"[:_ERROR_LENGTH]


def compile_trials(
    trials: Sequence[Trial], build: Callable[[Any], Callable[..., Any]], tuning: Any, reference: Trial | None
) -> None:
    """Make the executable of each trial. A trial that fails to compile, or not in time, has the error.

    Lowering runs Python code and is done in turns. Compiling is done in parallel, through the compilation cache if one
    is active, so that a second measurement compiles nothing. A trial whose results have another tree, shape or data
    type than those of `reference` fails. When the budget for compiling ends, the remaining trials have no executable.

    Raises:
        SpansProcessesError: a candidate runs on devices of other processes, so none may be executed.
    """
    # The arrays are made in the tuning's thread, so they must be there before that thread lowers with them.
    gradient = (
        tuning.tuner.gradient and gradients.differentiable(tuning.arrays)
        if tuning.gradient is None
        else tuning.gradient
    )
    lowered = _lower_all(trials, build, tuning, gradient=gradient)
    if gradient and tuning.gradient is None and not lowered:
        # No candidate has a gradient. The times of the forward pass still tell them apart.
        gradient = False
        for trial in trials:
            trial.status, trial.error = Status.OK, ""
        lowered = _lower_all(trials, build, tuning, gradient=False)
    if lowered:
        tuning.gradient = gradient
    for trial in trials:
        if reference is not None and id(trial) in lowered:
            with trial.failures():
                trial.check_outputs(reference)
    ready = [trial for trial in trials if id(trial) in lowered and trial.status is Status.OK]
    if tuning.pgle:
        # JAX profiles its own calls only, and not those of an executable that was made ahead of time.
        for trial in ready:
            trial.compiled = lowered[id(trial)]
    elif ready:
        done = in_parallel(lambda trial: _compile(trial, lowered[id(trial)], tuning), ready, threads=tuning.workers)
        for index, _ in enumerate(done):
            tuning.progress.step("compiled", index + 1, len(ready))
        for trial in ready:
            if reference is not None and trial.status is Status.OK and trial.compiled and reference.compiled:
                with trial.failures():
                    _check_shardings(trial.compiled, reference.compiled, lowered[id(trial)].out_info)


def compile_with_gradient(trial: Trial, build: Callable[[Any], Callable[..., Any]], tuning: Any) -> Trial:
    """Return the same candidate, compiled with its gradient; raises what that raises."""
    twin = Trial(trial.configuration, trial.stored)
    core = partial(_lowered, twin, build(trial.configuration), tuning, tuning.arrays, with_gradient=True)
    with tuning.journal.compiling(trial.stored):
        lowered = tuning.thread.run(core, timeout=tuning.tuner.timeout)
        twin.compiled = lowered if tuning.pgle else tuning.thread.run(lowered.compile, timeout=tuning.tuner.timeout)
    return twin


def _lower_all(
    trials: Sequence[Trial], build: Callable[[Any], Callable[..., Any]], tuning: Any, *, gradient: bool
) -> dict[int, Any]:
    """Return by the identity of a trial what can be compiled."""
    lowered: dict[int, Any] = {}
    arrays = tuning.arrays
    for trial in trials:
        if tuning.out_of_compile_time():
            break
        started = time.perf_counter()
        with trial.failures(), tuning.journal.compiling(trial.stored):
            lowered[id(trial)] = tuning.thread.run(
                partial(_lowered, trial, build(trial.configuration), tuning, arrays, with_gradient=gradient),
                timeout=tuning.tuner.timeout,
            )
            trial.compile_seconds = time.perf_counter() - started
    return lowered


def _lowered(
    trial: Trial, function: Callable[..., Any], tuning: Any, arrays: Sequence[Any], *, with_gradient: bool
) -> Any:
    import jax

    def core(*leaves: Any) -> Any:
        results = tuning.inputs.call(function, leaves)
        trial.outputs = outputs_text(results)
        return results

    jitted = jax.jit(gradients.with_gradient(core, arrays) if with_gradient else core)
    traced = jitted.trace(*arrays)
    refuse_spanning_jaxpr(traced.jaxpr, name="a candidate")
    trial.jaxpr = traced.jaxpr
    if any(any(equation.params.get("donated_invars", ())) for equation in equations_of(traced.jaxpr)):
        # Measured within another program, where that means nothing, it would destroy the caller's arrays later.
        trial.outputs += ", with arguments that it destroys (donate_argnums)"
    if tuning.pgle:
        return jitted
    return traced.lower()


def _compile(trial: Trial, lowered: Any, tuning: Any) -> None:
    if tuning.out_of_compile_time():
        return
    thread = WorkerThread()
    started = time.perf_counter()
    with trial.failures(), contextlib.closing(thread), tuning.journal.compiling(trial.stored):
        compiled = thread.run(lowered.compile, timeout=tuning.tuner.timeout)
        # A jaxpr can hide its mesh from `refuse_spanning_jaxpr`. The executable names its devices.
        refuse_spanning(_shardings(compiled), name="a candidate")
        trial.compiled = compiled
        trial.compile_seconds = (trial.compile_seconds or 0.0) + time.perf_counter() - started
        trial.memory_bytes = _memory(compiled)


def _check_shardings(compiled: Any, other: Any, outputs: Any) -> None:
    """Raise `DifferentResultError` if results lie on devices in another way than those of the reference."""
    import jax

    both = [jax.tree_util.tree_leaves(each.output_shardings) for each in (compiled, other)]
    shapes = jax.tree_util.tree_leaves(outputs)
    for one, right, like in zip(*both, shapes, strict=False):
        if len(one.device_set | right.device_set) > 1 and not one.is_equivalent_to(right, len(like.shape)):
            raise DifferentResultError(f"a result is sharded as {one}, and the default's as {right}")


def _shardings(compiled: Any) -> list[Any]:
    import jax

    return list(jax.tree_util.tree_leaves((compiled.input_shardings, compiled.output_shardings)))


def _memory(compiled: Any) -> int | None:
    try:
        analysis = compiled.memory_analysis()
        return None if analysis is None else int(analysis.temp_size_in_bytes)
    except Exception as exc:
        # Some backends have no memory analysis, and each raises another error.
        logger.debug("the memory of a candidate is not known: %r", exc)
        return None


def first_run(trial: Trial, arrays: Sequence[Any], *, gradient: bool) -> tuple[float, Results]:
    """Run the candidate once; the seconds, and a copy of the results on the host."""
    import jax

    started = time.perf_counter()
    out = trial.compiled(*arrays)
    _await(jax.tree_util.tree_leaves(out))
    jax.block_until_ready(out)
    seconds = time.perf_counter() - started
    return seconds, results_of(*out) if gradient else results_of(out)


def _await(arrays: Sequence[Any]) -> None:
    """Wait for arrays that may never be computed.

    A daemon thread that still waits when the interpreter ends must wait in Python: in JAX's own wait, which looks for
    signals from time to time, it would abort the process.
    """
    pause = _SHORTEST_PAUSE
    states = [array.is_ready for array in arrays if hasattr(array, "is_ready")]  # random keys have none
    while not all(is_ready() for is_ready in states):
        time.sleep(pause)
        pause = min(1.5 * pause, _LONGEST_PAUSE)


def run_once(trial: Trial, arrays: Sequence[Any], repeats: int) -> float:
    """Run the candidate `repeats` times and wait for the results; the seconds of one execution."""
    import jax

    compiled = trial.compiled
    started = time.perf_counter()
    for _ in range(repeats):
        out = compiled(*arrays)
    jax.block_until_ready(out)
    return (time.perf_counter() - started) / repeats
