"""Lowers candidates one after the other, compiles them in parallel, and runs them in a thread of their own.

The caller may be tracing, and its mesh and tracers must not reach the candidates. The settings that decide how
candidates compile, such as the matmul precision, must reach them.

A call that runs on devices of other processes is refused. One process of a job measures alone, and a candidate with a
collective across processes would wait for the others, which do not run it. Its launch would stay in the communicator
after the timeout; the program's own collectives would pair with it, compute wrong values, and hang.
"""

from __future__ import annotations

import contextlib
import contextvars
import queue
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from ejcache.autotune.log import logger
from ejcache.autotune.measure import gradients
from ejcache.autotune.measure.output_comparison import DifferentResultError, outputs_text, results_of
from ejcache.autotune.records.record import Candidate, CandidateOrigin, Status, Timing
from ejcache.errors import UsageError
from ejcache.util.threads import in_parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ejcache.autotune.measure.output_comparison import Results


T = TypeVar("T")


class TookTooLongError(Exception):
    """A call did not end in time. The measurement catches this error.

    Attributes:
        done: set when the call ends in its thread after all.
    """

    def __init__(self, message: str, done: threading.Event) -> None:
        super().__init__(message)
        self.done = done


class WorkerThread:
    """Runs calls one after the other in a daemon thread, with the context variables and settings of its creator.

    A call that takes too long cannot be stopped. The next call gets a new thread.
    """

    def __init__(self) -> None:
        from ejcache.jax_integration.seam.autotune.tracing import local_trace_settings  # JAX itself

        self._context = contextvars.copy_context()
        self._settings = local_trace_settings()
        self._tasks: queue.SimpleQueue[Any] | None = None

    def run(self, function: Callable[[], T], *, timeout: float | None = None) -> T:
        """Return the result of `function`, or its exception.

        Raises:
            TookTooLongError: it did not end within `timeout` seconds.
        """
        if self._tasks is None:
            self._tasks = queue.SimpleQueue()
            threading.Thread(target=self._work, args=(self._tasks,), name="ejcache-autotune", daemon=True).start()
        answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        done = threading.Event()
        self._tasks.put((function, answers, done))
        try:
            good, answer = answers.get(timeout=timeout)
        except queue.Empty:
            self.close()
            raise TookTooLongError(f"it took longer than {timeout:g} s", done) from None
        if good:
            return answer  # type: ignore[no-any-return]  # the queue has no type
        raise answer

    def close(self) -> None:
        """Let the thread end after its last call."""
        if self._tasks is not None:
            self._tasks.put(None)
            self._tasks = None

    def _work(self, tasks: queue.SimpleQueue[Any]) -> None:
        while (task := tasks.get()) is not None:
            function, answers, done = task
            try:
                # Each call has a copy of the context, because a call that took too long still uses its own.
                answers.put((True, self._context.copy().run(self._call, function)))
            except BaseException as exc:
                answers.put((False, exc))
            done.set()
            del task, function, answers, done

    def _call(self, function: Callable[[], T]) -> T:
        from ejcache.jax_integration.seam.autotune.tracing import set_locally  # JAX itself

        # Here, where an error reaches who waits for the answer.
        set_locally(self._settings)
        return function()


class SpansProcessesError(UsageError):
    """A call runs on devices of other processes, so this process cannot measure it."""


def refuse_spanning(values: Iterable[Any], *, name: str) -> None:
    """Raise if an array, sharding, mesh or device among `values` includes a device of another process.

    Args:
        values: any values; others than these pass.
        name: of the operation, for the message.

    Raises:
        SpansProcessesError: one includes such a device.
    """
    if any(_spans(value) for value in values):
        raise SpansProcessesError(f"{name} runs on devices of other processes and is not measured")


def refuse_spanning_jaxpr(closed: Any, *, name: str) -> None:
    """Call `refuse_spanning` for all values that a jaxpr and the jaxprs inside it name."""
    named: list[Any] = []
    for value in _within(closed):
        named += getattr(value, "consts", ()) if _is_jaxpr(value) else [value]
    refuse_spanning(named, name=name)


def equations_of(closed: Any) -> Iterator[Any]:
    """Yield each equation of a jaxpr and of the jaxprs inside of it."""
    for value in _within(closed):
        if _is_jaxpr(value):
            yield from getattr(value, "jaxpr", value).eqns


def _within(closed: Any) -> Iterator[Any]:
    """Yield a jaxpr, each jaxpr inside of it once, and what else their equations name."""
    pending, seen = [closed], set()
    while pending:
        value = pending.pop()
        if _is_jaxpr(value):
            # Some releases of JAX close an inner jaxpr over its constants, and others do not.
            inner = getattr(value, "jaxpr", value)
            if id(inner) not in seen:
                seen.add(id(inner))
                yield value
                pending += [held for equation in inner.eqns for held in equation.params.values()]
        elif isinstance(value, list | tuple):
            pending += value
        else:
            yield value


def _is_jaxpr(value: Any) -> bool:
    return hasattr(getattr(value, "jaxpr", value), "eqns")


def _spans(value: Any) -> bool:
    import jax

    if isinstance(value, jax.core.Tracer):
        return False
    if isinstance(value, jax.Array | jax.ShapeDtypeStruct):
        value = value.sharding
    if isinstance(value, jax.sharding.NamedSharding):
        value = value.mesh
    if isinstance(value, jax.sharding.Mesh):
        return any(_spans(device) for device in value.devices.flat)
    if isinstance(value, jax.sharding.Sharding):
        return not value.is_fully_addressable
    return isinstance(value, jax.Device) and value.process_index != jax.process_index()


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
