"""What JAX does from a call to XLA, seen and asked: shape evaluation, mapped axes, lowered programs, compilations.

Tells whether `jax.eval_shape` is evaluating, whose program is never run.

`jax.eval_shape` traces as `jax.jit` does and shares its traces. While it evaluates, a context keeps its traces apart,
so that `jax.jit` does not reuse one in which nothing was measured.

Looks through tracers for the axes over which `jax.vmap` maps a call.

A tracer under `jax.vmap` has the shape of one element. The number of elements is in the tracer that it wraps.

Sees each compilation before it begins, also those of programs that ask no cache.

`jax._src.compiler.backend_compile_and_load` is where JAX gives a module to XLA, with and without a cache;
`compile_or_get_cached` is where it looks for an executable, once it has lowered a function.

Read for this: jax 0.10.2 and 0.12.0.1, `compiler.py`.

What is done with lowered programs beside compiling them as JAX asks: a part of the seam.

Read for this: jax 0.10.2 and 0.12.0.1, `interpreters/pxla.py` (`MeshComputation.compile`, `_cached_compilation`) and
`interpreters/mlir.py`.
"""

from __future__ import annotations

import copy
import functools
import io
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
from jax._src import compiler as jax_compiler
from jax._src import core
from jax._src.interpreters import batching, mlir
from jax._src.lib.mlir import ir

from ejcache.jax_integration.seam.patch import module_name, without_our_frames
from ejcache.util.log import warn_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager


_lock = threading.Lock()
_context: Any = None


def evaluates_shapes() -> bool:
    """Whether this thread is inside `jax.eval_shape`."""
    return _context is not None and bool(_context.value)


def watch_shape_evaluation() -> None:
    """From now on `evaluates_shapes` is right. A second call does nothing."""
    global _context
    with _lock:
        if _context is not None:
            return
        context = jax.make_user_context(default_value=False)
        original = jax.eval_shape

        @functools.wraps(original)
        def eval_shape(*args: Any, **kwargs: Any) -> Any:
            with context(True):
                return original(*args, **kwargs)

        _context = context
        jax.eval_shape = eval_shape


@dataclass(frozen=True)
class MappedAxis:
    """One `jax.vmap` around a call.

    Attributes:
        size: the number of elements.
        mapped: for each value of the call, whether it has an element for each of them.
        name: of the axis, None without one.
    """

    size: int
    mapped: tuple[bool, ...]
    name: Any = field(default=None, compare=False)


def mapped_axes(values: Iterable[Any]) -> tuple[MappedAxis, ...]:
    """The axes over which `jax.vmap` maps at least one of the values, outermost first.

    A function that `jax.jit` traces within `jax.vmap` is traced for one element, and its values show no axis.
    """
    if core.trace_ctx.is_top_level():
        return ()
    tags = [_tags(value) for value in values]
    axes = []
    trace: Any = core.trace_ctx.trace
    while trace is not None:
        if isinstance(trace, batching.BatchTrace):
            mapped = tuple(any(tag is trace.tag for tag in held) for held in tags)
            if any(mapped):
                axis = trace.axis_data
                name = None if axis.name is core.no_axis_name else axis.name
                axes.append(MappedAxis(int(axis.size), mapped, name))
        trace = getattr(trace, "parent_trace", None)
    return tuple(reversed(axes))


def _tags(value: Any) -> list[Any]:
    """The tags of the traces that batch this value."""
    found = []
    while isinstance(value, core.Tracer):
        if isinstance(value, batching.BatchTracer):
            if isinstance(value.batch_dim, int):
                found.append(value._trace.tag)
            value = value.val
        else:
            # The value of a tracer of a derivative is its primal.
            value = getattr(value, "primal", None)
    return found


def before_each_compilation(call: Callable[[str], None]) -> None:
    """From now on, call `call` with the name of each program before XLA compiles it; what it raises, JAX raises.

    There is one such function in a process, and a second call with the same one does nothing. It stays: taking it out
    could take out what another library has put around it.
    """
    original = getattr(jax_compiler, "backend_compile_and_load", None)
    if original is None:
        warn_once(
            "no backend_compile_and_load",
            "ejcache: compilations without a cache cannot be forbidden, because this version of JAX compiles elsewhere",
        )
        return
    if call in _watching:
        return

    @functools.wraps(original)
    def compile_after_call(backend: Any, module: Any, *arguments: Any, **named: Any) -> Any:
        call(module_name(module))
        return original(backend, module, *arguments, **named)

    jax_compiler.backend_compile_and_load = without_our_frames(compile_after_call)
    _watching.append(call)  # afterwards: a thread that finds it there is watched


def around_each_compilation(context: Callable[[], AbstractContextManager[None]]) -> None:
    """From now on, JAX gets each executable in such a context: when it is loaded or compiled, after it was lowered.

    There is one such context in a process; a second call with the same one does nothing.
    """
    if context in _around:
        return
    original = jax_compiler.compile_or_get_cached

    @functools.wraps(original)
    def compile_in_context(*arguments: Any, **named: Any) -> Any:
        with context():
            return original(*arguments, **named)

    jax_compiler.compile_or_get_cached = without_our_frames(compile_in_context)
    _around.append(context)


_watching: list[Callable[[str], None]] = []
_around: list[Callable[[], AbstractContextManager[None]]] = []


def ask_for_keys(lowered: Any) -> None:
    """Have JAX begin to compile a `jax.stages.Lowered`, whether or not it was compiled; the hook for keys raises."""
    lowering = copy.copy(lowered._lowering)
    # JAX remembers executables by this name, too.
    lowering._executable, lowering._name = None, f"the key of {lowering._name}"
    lowering.compile()


def module_bytes(module: Any) -> bytes:
    """A module as bytes, which `module_of` reads in any thread."""
    output = io.BytesIO()
    module.operation.write_bytecode(output)
    return output.getvalue()


def module_of(data: bytes) -> Any:
    """The module in these bytes."""
    with mlir.make_ir_context():
        return ir.Module.parse(data)


def with_overrides(options: Any, overrides: dict[str, bool]) -> Any:
    """A copy of compile options in which XLA's options of these names have these values; no key is made of it."""
    copied = copy.deepcopy(options)
    copied.env_option_overrides = [*copied.env_option_overrides, *overrides.items()]
    return copied


def autotune_directory(options: Any) -> str:
    """Where XLA finds what was autotuned before; empty if nowhere."""
    return str(getattr(options.executable_build_options.debug_options, "xla_gpu_per_fusion_autotune_cache_dir", ""))
