"""Candidates as executables: lowered one after the other, compiled side by side."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ejcache.autotune.decide import median, timing
from ejcache.autotune.measure_spans import SpansProcessesError, refuse_spanning, refuse_spanning_jaxpr
from ejcache.autotune.measure_thread import CleanThread, TookTooLongError
from ejcache.autotune.records import Candidate, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Trial", "compile_trials", "run_once"]

_ERROR_LENGTH = 300


@dataclass(eq=False)
class Trial:
    """One candidate while it is being measured.

    Attributes:
        configuration: as the operation takes it.
        plain: as a record has it.
        known: what an earlier record says of it; then it is not measured.
        is_default: it is what a winner must beat.
        compiled: what to call, once it is compiled.
        samples: seconds of one execution each.
        warm_seconds: of the last execution before the first that counts.
    """

    configuration: Any
    plain: Any
    known: Candidate | None = None
    is_default: bool = False
    status: Status = Status.OK
    error: str = ""
    cause: Exception | None = None
    compiled: Callable[..., Any] | None = None
    compile_seconds: float | None = None
    memory_bytes: int | None = None
    samples: list[float] = field(default_factory=list)
    warm_seconds: float = 0.0

    @property
    def works(self) -> bool:
        """It has a time, of now or of an earlier record."""
        if self.known is not None:
            return self.known.status is Status.OK and self.known.seconds is not None
        return self.status is Status.OK and bool(self.samples)

    @property
    def seconds(self) -> float:
        """The median; only of one that works."""
        if self.known is not None and self.known.seconds is not None:
            return self.known.seconds.p50
        return median(self.samples)

    def fail(self, exc: Exception, status: Status) -> None:
        """Remember why it is out."""
        self.status, self.cause = status, exc
        lines = str(exc).strip().splitlines()
        self.error = f"{type(exc).__name__}: {lines[0] if lines else ''}"[:_ERROR_LENGTH]

    def again(self) -> Trial:
        """The same candidate with no samples; compiled, if it is here."""
        return Trial(
            self.configuration,
            self.plain,
            is_default=self.is_default,
            compiled=self.compiled,
            warm_seconds=self.warm_seconds,
        )

    def candidate(self) -> Candidate:
        """What the record keeps."""
        if self.known is not None:
            return self.known
        works = self.status is Status.OK and bool(self.samples)
        return Candidate(
            configuration=self.plain,
            status=self.status,
            seconds=timing(self.samples) if works else None,
            error=self.error,
            compile_seconds=None if self.compile_seconds is None else round(self.compile_seconds, 4),
            memory_bytes=self.memory_bytes,
            measured=time.time(),
        )


def compile_trials(trials: Sequence[Trial], build: Callable[[Any], Callable[..., Any]], bench: Any) -> str:
    """Make each trial's executable; what cannot be compiled, or not in time, says so.

    Lowering runs Python and is done in turns; compiling does not and is done side by side, through the compilation
    cache where one is active, so that measuring again compiles nothing.

    Returns:
        What was compiled: `forward`, or `forward and backward`.

    Raises:
        SpansProcessesError: a candidate runs on devices of other processes; then none may be executed.
    """
    arrays, inputs = bench.arrays, bench.inputs
    gradient = bench.tuner.gradient and _differentiable(arrays)
    lowered: dict[int, Any] = {}

    def lower(trial: Trial, *, with_gradient: bool) -> Any:
        import jax

        function = build(trial.configuration)

        def core(*leaves: Any) -> Any:
            args, kwargs = inputs.rebuild(leaves)
            return function(*args, **kwargs)

        jitted = jax.jit(_with_gradient(core, arrays) if with_gradient else core)
        traced = jitted.trace(*arrays)
        refuse_spanning_jaxpr(traced.jaxpr, name="a candidate")
        return jitted if bench.pgle else traced.lower()

    def attempt(trial: Trial, *, with_gradient: bool) -> None:
        started = time.perf_counter()
        try:
            lowered[id(trial)] = bench.thread.run(
                lambda: lower(trial, with_gradient=with_gradient), timeout=bench.tuner.timeout
            )
            trial.compile_seconds = time.perf_counter() - started
        except TookTooLongError as exc:
            trial.fail(exc, Status.TIMEOUT)
        except SpansProcessesError:
            # Not this candidate's failure, which a record would remember: nothing can be said of any of them.
            raise
        except Exception as exc:
            trial.fail(exc, Status.FAILED)

    for trial in trials:
        attempt(trial, with_gradient=gradient)
    if gradient and not lowered:
        # Nothing here has a gradient; the forward pass still says something.
        gradient = False
        for trial in trials:
            trial.status, trial.error, trial.cause = Status.OK, "", None
            attempt(trial, with_gradient=False)
    ready = [trial for trial in trials if id(trial) in lowered]
    if bench.pgle:
        # The profile is taken by JAX's own calls, which an executable made ahead of time would go around.
        for trial in ready:
            trial.compiled = lowered[id(trial)]
    elif ready:
        with ThreadPoolExecutor(min(bench.tuner.workers, len(ready)), "ejcache-autotune") as pool:
            done = [pool.submit(_compile, trial, lowered[id(trial)], bench.tuner.timeout) for trial in ready]
            for index, future in enumerate(done):
                future.result()
                bench.progress.step("compiled", index + 1, len(ready))
        for trial in ready:
            if isinstance(trial.cause, SpansProcessesError):
                raise trial.cause
    return "forward and backward" if gradient else "forward"


def _compile(trial: Trial, lowered: Any, timeout: float) -> None:
    thread = CleanThread()
    started = time.perf_counter()
    try:
        compiled = thread.run(lowered.compile, timeout=timeout)
        # A jaxpr may hide a mesh where nobody looks; what was compiled knows its devices.
        refuse_spanning(_shardings(compiled), name="a candidate")
    except TookTooLongError as exc:
        trial.fail(exc, Status.TIMEOUT)
    except Exception as exc:
        trial.fail(exc, Status.FAILED)
    else:
        trial.compiled = compiled
        trial.compile_seconds = (trial.compile_seconds or 0.0) + time.perf_counter() - started
        trial.memory_bytes = _memory(compiled)
    finally:
        thread.close()


def _shardings(compiled: Any) -> list[Any]:
    import jax

    return list(jax.tree_util.tree_leaves((compiled.input_shardings, compiled.output_shardings)))


def _memory(compiled: Any) -> int | None:
    try:
        analysis = compiled.memory_analysis()
        return None if analysis is None else int(analysis.temp_size_in_bytes)
    except Exception:
        # Not every backend has it, and each says so in its own way; it is only evidence.
        return None


def run_once(trial: Trial, arrays: Sequence[Any], repeats: int) -> float:
    """Seconds of one of `repeats` executions, all of them finished."""
    import jax

    compiled = trial.compiled
    if compiled is None:
        raise RuntimeError("the candidate is not compiled")
    started = time.perf_counter()
    for _ in range(repeats):
        out = compiled(*arrays)
    jax.block_until_ready(out)
    return (time.perf_counter() - started) / repeats


def _differentiable(arrays: Sequence[Any]) -> bool:
    import jax.numpy as jnp

    return any(jnp.issubdtype(array.dtype, jnp.inexact) for array in arrays)


def _with_gradient(core: Callable[..., Any], arrays: Sequence[Any]) -> Callable[..., Any]:
    import jax
    import jax.numpy as jnp

    inexact = [jnp.issubdtype(array.dtype, jnp.inexact) for array in arrays]

    def both(*leaves: Any) -> Any:
        def loss(moving: list[Any]) -> Any:
            rest = iter(moving)
            out = core(*(next(rest) if moves else leaf for leaf, moves in zip(leaves, inexact, strict=True)))
            parts = [
                jnp.sum(jnp.abs(leaf) if jnp.iscomplexobj(leaf) else leaf).astype(jnp.float32)
                for leaf in jax.tree_util.tree_leaves(out)
                if jnp.issubdtype(leaf.dtype, jnp.inexact)
            ]
            if not parts:
                raise TypeError("no output has a gradient")
            return sum(parts[1:], parts[0])

        return jax.value_and_grad(loss)([leaf for leaf, moves in zip(leaves, inexact, strict=True) if moves])

    return both
