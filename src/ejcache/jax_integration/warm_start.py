"""Compiles a program and stores it, before a run needs it (`warm`)."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jax
import jax.numpy as jnp

from ejcache.cache.reasons import Skip
from ejcache.errors import UsageError
from ejcache.history.causes import why_not_stored
from ejcache.jax_integration.activate import active, enable_by_default
from ejcache.jax_integration.devices.targets import current_target
from ejcache.jax_integration.no_compile_blocks import AlreadyStoredError, storing_only
from ejcache.jax_integration.seam import key_parts
from ejcache.jax_integration.shape_grammar import Arguments, ArrayShape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ejcache.cache.stats import Stats


HIT = "hit"
COMPILED = "compiled"
NOT_STORED = "not_stored"


class WarmedProgram(NamedTuple):
    """What became of one program.

    Attributes:
        program: its name, `jit_train_step`.
        outcome: `hit`, the cache had it, and nothing was compiled; `compiled`, it is in the cache now; or
            `not_stored`, so that the run will compile it.
        reason: why it was not stored, or was stored on this host only, in words; otherwise empty.
        seconds: what compiling or loading took.
        size: bytes of the entry that was stored; 0 if none was.
        peak: bytes of a device's memory that a run needs, if it was compiled for a target; otherwise 0.
        memory: bytes that a device of the target has; 0 if that is not known.
    """

    program: str
    outcome: str
    reason: str
    seconds: float
    size: int = 0
    peak: int = 0
    memory: int = 0


def warm(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> WarmedProgram:
    """Compile `function` for these arguments and store the result, without running it, unless the cache has it.

    A run that calls the function with such arguments then loads it:

        x = jax.ShapeDtypeStruct((32, 128), jnp.float32)
        ejcache.warm(train_step, state_shapes, x, mode="fast")

    Args:
        function: a jitted function, or one that `jax.jit` takes; or what `jax.export.deserialize` returns, which a run
            calls by `jax.jit(exported.call)`. Its shapes are known: without arguments, it is compiled for these.
        args: its positional arguments. In place of arrays, also within PyTrees, `jax.ShapeDtypeStruct` is enough, with
            a `sharding` where the run's array is placed or committed. `jax.eval_shape` gives the shapes of a whole
            training state. Static arguments and Python numbers are passed as they are.
        kwargs: its keyword arguments, likewise.

    The first call in a process enables the cache for the process as `@ejit` does. Call it in the contexts of the run,
    such as its mesh: they are part of the program. What JAX puts into `jit` within `function` is part of the program,
    too; what the run compiles beside it (`jnp.ones(3)` outside of any `jit`) is not.

    In a block of `ejcache.target`, it is compiled for the devices of the target, which this process need not have.

    Raises what tracing, lowering and compiling raise. In a program that spans processes, every rank must call it. While
    it compiles, other threads of the process should not: the outcome is taken from the counters of the process.
    """
    if hasattr(function, "mlir_module_serialized"):
        function, args, kwargs = _calling(function, args, kwargs)
    jitted: Any = function if hasattr(function, "lower") else jax.jit(function)
    enable_by_default()
    current = current_target()
    with _no_callbacks(current is not None), jax.default_device(current[1][0]) if current else contextlib.nullcontext():
        lowered = jitted.lower(*args, **kwargs)
        lowered = getattr(lowered, "lowered", lowered)  # that of Equinox's filter_jit holds JAX's
    name = key_parts.module_name(lowered.compiler_ir("stablehlo"))
    cache = active()
    if cache is None:
        return _announce(WarmedProgram(name, NOT_STORED, why_not_stored(Skip.DISABLED), 0.0))
    before = cache.stats()
    began = time.monotonic()
    with storing_only(current[0].memory if current else 0) as storing, _no_callbacks(current is not None):
        try:
            lowered.compile()
            after = cache.stats()
            outcome = _outcome(before, after)
            size = int(after.amounts.get("bytes_written", 0) - before.amounts.get("bytes_written", 0))
        except AlreadyStoredError:
            outcome, size = (HIT, ""), 0
    return _announce(WarmedProgram(name, *outcome, time.monotonic() - began, size, storing.peak, storing.memory))


@contextlib.contextmanager
def _no_callbacks(for_target: bool) -> Iterator[None]:  # noqa: FBT001 (private)
    """Say in one sentence what JAX does not compile for absent devices, and what their compiler says of memory."""
    try:
        yield
    except (TypeError, RuntimeError) as exc:
        text = str(exc)
        if for_target and ("compile(): incompatible" in text or "Unknown backend" in text):
            raise UsageError(
                "it calls Python functions of its process (jax.debug.print, io_callback, pure_callback), which this "
                "JAX does not compile for devices that it does not have; leave them out where you warm"
            ) from exc
        if for_target and (found := re.search(r"\(([\d.]+\w+)\) exceeds available HBM \(([\d.]+\w+)\)", text)):
            raise UsageError(f"does not fit: {found[1]} of {found[2]} on each device") from exc
        raise


@contextlib.contextmanager
def on_each_program(listener: Callable[[WarmedProgram], None]) -> Iterator[None]:
    """Call `listener`, in this block, with the outcome of each `warm` in this process."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


_listeners: Final[list[Callable[[WarmedProgram], None]]] = []


def _announce(warmed: WarmedProgram) -> WarmedProgram:
    for listener in _listeners:
        listener(warmed)
    return warmed


def platform() -> str:
    """Return the platform that JAX compiles for."""
    return str(jax.default_backend())


def abstract_call(call: Arguments) -> Arguments:
    """Return the arguments for `warm`: a `jax.ShapeDtypeStruct` in place of each shape.

    Raises:
        UsageError: there is no such type or device.
    """
    args, kwargs = call
    return tuple(map(_abstract, args)), {name: _abstract(value) for name, value in kwargs.items()}


def _abstract(value: Any) -> Any:
    if not isinstance(value, ArrayShape):
        return value
    try:
        dtype = jnp.dtype(value.dtype)
    except TypeError as exc:
        raise UsageError(f"there is no type {value.dtype} of arrays") from exc
    sharding = None
    if value.device is not None:
        current = current_target()
        devices = current[1] if current else jax.devices()
        if value.device >= len(devices):
            raise UsageError(f"there is no device {value.device}; JAX sees {len(devices)}")
        sharding = jax.sharding.SingleDeviceSharding(devices[value.device])
    return jax.ShapeDtypeStruct(value.shape, dtype, sharding=sharding)


def _outcome(before: Stats, after: Stats) -> tuple[str, str]:
    """Return the outcome of the one lookup between two moments, and its reason."""
    if after.hits > before.hits:
        return HIT, ""
    if after.stores > before.stores:
        stays = after.amounts.get("kept_here", 0) > before.amounts.get("kept_here", 0)
        return COMPILED, "on this host only: it compiles too quickly for other hosts to ask for it" if stays else ""
    new = [reason for reason, number in after.skipped.items() if number > before.skipped.get(reason, 0)]
    if Skip.DUPLICATE in new or Skip.OTHER_RANK in new:
        return COMPILED, ""
    return NOT_STORED, why_not_stored(new[0]) if new else "this process had compiled it already"


def _calling(exported: Any, args: Any, kwargs: Any) -> tuple[Callable[..., Any], Any, Any]:
    """Return the function that calls what `jax.export` made, and its arguments.

    Raises:
        UsageError: its sizes are symbols, and no arguments say for which sizes to compile it.
    """
    if not (args or kwargs):
        if any(not isinstance(size, int) for aval in exported.in_avals for size in aval.shape):
            avals = ", ".join(map(str, exported.in_avals))
            raise UsageError(f"{exported.fun_name} was exported for {avals}: say for which shapes to compile it")
        shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in exported.in_avals]
        args, kwargs = jax.tree.unflatten(exported.in_tree, shapes)
    return exported.call, args, kwargs


def read_exported(path: str) -> Any:
    """Return the function that `Exported.serialize` wrote into a file, as `jax.export.deserialize` gives it.

    Raises:
        UsageError: there is no such file, or this JAX cannot read it.
    """
    from jax import export

    try:
        data = Path(path).read_bytes()
    except OSError as exc:
        raise UsageError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    try:
        return export.deserialize(bytearray(data))
    except Exception as exc:
        raise UsageError(f"{path} holds no function that jax.export of this JAX reads: {exc}") from exc
