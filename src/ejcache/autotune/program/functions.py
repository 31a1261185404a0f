"""`tune`: tunes the operations that a function calls, and does not run the function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ejcache.autotune.measure.inputs import traced_function
from ejcache.autotune.recording import collect
from ejcache.autotune.replay import TunedCall, TuningOutcome, tuned_call

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.autotune.recording import CollectedCall

__all__ = ["tune"]


def tune(program: Callable[..., Any], /, *args: Any, **kwargs: Any) -> list[TunedCall]:
    """Tune the operations that `program(*args, **kwargs)` would call. The program is traced and does not run.

        ejcache.autotune.tune(jax.jit(train_step), state, batch)

    A call that has a tuned record already is not measured again, unless its record is unsure. So a program that was
    interrupted continues where it was. The others are measured one after the other, each under the settings of JAX
    that it has in the program, and their records are published. Functions that are traced from then on use them.

    Args:
        program: a function, or what `jax.jit` made of one. Pass what you will call: `jax.jit` decides which arguments
            are static. It is traced again even if it was traced before. A `jax.stages.Traced` or `Lowered` will not do:
            it has the program that the function became, without the functions that it called.
        *args: of the call. Arrays may be `jax.ShapeDtypeStruct`s.
        **kwargs: of the call.

    Returns:
        One `TunedCall` for each operation and kind of call. One whose candidates fail, or that cannot be measured, has
        the outcome `failed` and a `problem`; it does not keep the others from being measured.

    Raises:
        UsageError: `program` is not a function.
        Exception: an error of the program while it is traced.
    """
    with collect() as calls:
        traced_function(program, args, kwargs)
    done = [_tuned(call) for call in calls.values()]
    for store in {id(call.store): call.store for call in calls.values()}.values():
        # Functions that are traced from now on choose again.
        store.reload()
    return done


def _tuned(call: CollectedCall) -> TunedCall:
    request = call.request
    key = request.key
    if request.unhashable:
        problem = f"it has no key of its own, because {request.unhashable[0]}"
        return TunedCall(key.path, key.operation, TuningOutcome.FAILED, problem=problem)
    try:
        return tuned_call(key.path, key, call.measured, call.store, unsure=True)
    except Exception as exc:
        # A call that cannot be measured must not end the tuning of the others.
        return TunedCall(key.path, key.operation, TuningOutcome.FAILED, problem=f"{type(exc).__name__}: {exc}")
