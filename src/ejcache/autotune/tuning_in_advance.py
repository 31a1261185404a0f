"""Tunes calls before the job: those that a program recorded (`replay`), or those that it would make (`tune`).

A call that has a tuned record is skipped, so that an interrupted run can be resumed.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ejcache.autotune.call_documents import arguments_of
from ejcache.autotune.calls_ahead import each_call
from ejcache.autotune.ejkernel.chain import InvocationCall
from ejcache.autotune.ejkernel.install import install
from ejcache.autotune.measure.inputs import split_arguments
from ejcache.autotune.operation import Autotuned
from ejcache.autotune.records.json_values import canonical_json
from ejcache.autotune.records.record import Source
from ejcache.autotune.tuning_blocks import forward_only
from ejcache.errors import EntryError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ejcache.autotune.call import Call
    from ejcache.autotune.call_documents import RecordedNames
    from ejcache.autotune.records.record import Record
    from ejcache.autotune.records.store import AutotuneStore


class TuningOutcome(StrEnum):
    """The result of tuning a call."""

    TUNED = "tuned"
    ALREADY = "already tuned"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TunedCall:
    """One call that was to be tuned.

    Attributes:
        path: of the document that recorded it, or of its record.
        operation: its name.
        outcome: the result.
        record: of the call, if there is one.
        problem: the reason for a failure.
    """

    path: str
    operation: str
    outcome: TuningOutcome
    record: Record | None = None
    problem: str = ""


def replay(
    path: str,
    body: dict[str, Any] | EntryError,
    store: AutotuneStore,
    names: RecordedNames,
    *,
    force: bool = False,
    unsure: bool = False,
) -> TunedCall:
    """Tune one recorded call on this machine and publish the record.

    Args:
        path: of its document.
        body: the document, or what is wrong with it.
        store: takes the record.
        names: imports what the call names, as far as the caller trusts it.
        force: measure the call even if it has a tuned record.
        unsure: measure the call also if its record is unsure.
    """
    if isinstance(body, EntryError):
        return TunedCall(path, "", TuningOutcome.FAILED, problem=str(body))
    operation, described = body["operation"], body.get("call")
    # A call that was measured without its gradient has the recorded key only in this mode.
    is_forward = isinstance(described, dict) and described.get("mode") == "forward"
    try:
        with forward_only() if is_forward else contextlib.nullcontext():
            return tuned_call(path, _call_of(body, names), store, force=force, unsure=unsure)
    except Exception as exc:
        # A call that cannot be replayed must not end the tuning of the others.
        return TunedCall(path, operation, TuningOutcome.FAILED, problem=f"{type(exc).__name__}: {exc}")


def tuned_call(path: str, call: Call, store: AutotuneStore, *, force: bool = False, unsure: bool = False) -> TunedCall:
    """Measure a call unless it has a tuned record, and publish the record; see `replay`.

    `path` is for the result. Errors of the measurement pass.
    """
    operation = call.key.operation
    if call.unhashable:
        raise UsageError(f"it has no key of its own, because {call.unhashable[0]}")
    found = store.find(call.key)
    again = force or found is None or not found.record.works or (unsure and bool(found.record.unsure))
    if found is not None and found.source.rank <= Source.TUNED.rank and not again:
        return TunedCall(path, operation, TuningOutcome.ALREADY, found.record)
    record = call.measured()
    published = store.publish(record)
    if not record.works:
        return TunedCall(path, operation, TuningOutcome.FAILED, problem=f"every candidate failed: {record.failures()}")
    if not published:
        return TunedCall(path, operation, TuningOutcome.FAILED, record, "it could not be stored")
    return TunedCall(path, operation, TuningOutcome.TUNED, record)


def _call_of(body: dict[str, Any], names: RecordedNames) -> Call:
    """Return the recorded call bound to its operation; raises `UsageError` or `EntryCorruptError`."""
    call = _bound(body["how"], body, names)
    described = body.get("call", call.key.call)
    if call.key.operation != body["operation"] or canonical_json(dict(call.key.call)) != canonical_json(described):
        # The program that recorded the call would not find its record.
        raise UsageError(f"what was recorded as {body.get('key', body['operation'])} is now {call.key.text}")
    return call


def _bound(how: dict[str, Any], body: dict[str, Any], names: RecordedNames) -> Call:
    # The operation comes first: no argument is made for a call of an object that is not an operation.
    if how.get("kind") == "autotuned":
        operation = names.find(str(how["object"]))
        if not isinstance(operation, Autotuned):
            raise UsageError(f"{how['object']} is not autotuned any more")
        return operation.bound(*arguments_of(body, names))
    if how.get("kind") == "ejkernel":
        kernel, executor = _recorded_kernel(how, names)
        return _recorded_invocation(kernel, executor, *arguments_of(body, names))
    raise UsageError(f"a call of kind {how.get('kind')!r} cannot be replayed")


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
    done: dict[tuple[int, str], TunedCall] = {}
    stores: dict[int, AutotuneStore] = {}

    def tune_once(call: Call) -> None:
        store = call.store()
        stores[id(store)] = store
        place = id(store), call.key.digest
        if place not in done:
            done[place] = _tuned(call, store)

    with each_call(tune_once):
        _trace(program, args, kwargs)
    for store in stores.values():
        # Functions that are traced from now on choose again.
        store.reload()
    return list(done.values())


def _tuned(call: Call, store: AutotuneStore) -> TunedCall:
    key = call.key
    try:
        return tuned_call(key.path, call, store, unsure=True)
    except Exception as exc:
        # A call that cannot be measured must not end the tuning of the others.
        return TunedCall(key.path, key.operation, TuningOutcome.FAILED, problem=f"{type(exc).__name__}: {exc}")


def _recorded_kernel(how: dict[str, Any], names: RecordedNames) -> tuple[Any, Any]:
    """Return the kernel and the executor of a recorded call.

    Raises:
        UsageError: `names` does not find them, or they are not a kernel and an executor of ejkernel's.
    """
    kernel, executor = names.find(str(how["kernel"])), names.find(str(how["executor"]))
    core, execution = sys.modules.get("ejkernel.ops.core.kernel"), sys.modules.get("ejkernel.ops.execution.executor")
    if core is None or not (isinstance(kernel, type) and issubclass(kernel, core.Kernel)):
        raise UsageError(f"{how['kernel']} is not a kernel of ejkernel's")
    if execution is None or not isinstance(executor, execution.Executor):
        raise UsageError(f"{how['executor']} is not an executor of ejkernel's")
    return kernel(), executor


def _recorded_invocation(kernel: Any, executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> InvocationCall:
    """Return a recorded call, ready to be measured."""
    install()
    inv = sys.modules["ejkernel.ops.core.kernel"].Invocation(op_id=kernel.op_id, args=args, kwargs=kwargs)
    return InvocationCall(executor.chooser, inv, kernel)


def _trace(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Trace a call of `function` and drop the result; errors of the function pass.

    What `jax.jit` made is traced as it says. Of another function, arrays are traced, and all other arguments stay.

    Raises:
        UsageError: it is not a function.
    """
    import jax

    stages = jax.stages
    if not callable(function) or isinstance(function, stages.Traced | stages.Lowered | stages.Compiled):
        raise UsageError(
            f"a function and its arguments are needed, and this is a {type(function).__qualname__}. A program that was "
            "traced or lowered has no functions any more: pass the function itself, as in tune(jax.jit(f), x)"
        )
    if hasattr(function, "trace") and hasattr(function, "lower"):
        function.trace(*args, **kwargs)
        return
    inputs = split_arguments(args, kwargs)

    def core(*arrays: Any) -> Any:
        call_args, call_kwargs = inputs.rebuild(arrays)
        function(*call_args, **call_kwargs)

    arrays = [leaf for leaf, is_dynamic in zip(inputs.leaves, inputs.dynamic, strict=True) if is_dynamic]
    jax.eval_shape(core, *arrays)
