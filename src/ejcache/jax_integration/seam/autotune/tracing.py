"""Tells a tuned operation how its call is traced: by jax.eval_shape, under jax.vmap, or to be differentiated.

Whether `jax.eval_shape` is evaluating, whose program is never run. It traces as `jax.jit` does and shares its traces.
While it evaluates, a context keeps its traces apart: `jax.jit` must not reuse one in which nothing was measured.

Whether the call is differentiated: a tracer of a derivative may wrap, or be wrapped by, one of `jax.vmap`.

Over which axes `jax.vmap` maps the call: a tracer under `jax.vmap` has the shape of one element, and the number of
elements is in the tracer that it wraps.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import jax

from ejcache.jax_integration.seam.parts import Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


PART: Final = Part(
    "tuning that knows jax.vmap, derivatives and jax.eval_shape",
    {
        "jax._src.config": ("config_ext", "trace_context"),
        "jax._src.core": ("Tracer", "no_axis_name", "trace_ctx"),
        "jax._src.interpreters.ad": ("JVPTracer",),
        "jax._src.interpreters.batching": ("BatchTrace", "BatchTracer"),
    },
)
jax_config = PART.module("jax._src.config")
core = PART.module("jax._src.core")
ad = PART.module("jax._src.interpreters.ad")
batching = PART.module("jax._src.interpreters.batching")
_lock = threading.RLock()
_context: Any = None


class _ContextOfMesh:
    """What `jax.make_user_context` makes, for JAX before 0.7: a value that keeps traces apart.

    JAX compares traces by the meshes that are entered, and does nothing else with that tuple.
    """

    def __init__(self, default: Any) -> None:
        self._default = default
        self._here = threading.local()

    @property
    def value(self) -> Any:
        return getattr(self._here, "value", self._default)

    @contextlib.contextmanager
    def __call__(self, value: Any) -> Iterator[None]:
        holder = jax_config.mesh_context_manager
        before, meshes = self.value, holder.get_local()
        self._here.value = value
        holder.set_local((holder.value, value))
        try:
            yield
        finally:
            self._here.value = before
            holder.set_local(meshes)


def user_context(default: Any) -> Any:
    """Return a context of this thread: `context(value)` is a block, whose traces JAX does not reuse under others."""
    own = getattr(jax, "make_user_context", None)
    return _ContextOfMesh(default) if own is None else own(default)


def evaluates_shapes() -> bool:
    """True if this thread is inside `jax.eval_shape`."""
    return _context is not None and bool(_context.value)


def watch_shape_evaluation() -> None:
    """Watch, so that from now on `evaluates_shapes` is right. A second call does nothing."""
    global _context
    with _lock:
        if _context is not None:
            return
        context = user_context(False)
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
    """Return the axes over which `jax.vmap` maps at least one of the values, outermost first.

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


def traces_nothing() -> bool:
    """True if no function is traced in this thread."""
    return bool(core.trace_ctx.is_top_level())


def is_differentiated(values: Iterable[Any]) -> bool:
    """True if one of the values is being differentiated, as far as its tracers show.

    Within a function that `jax.jit`, `scan` or `jax.checkpoint` traces for itself, they do not.
    """
    if core.trace_ctx.is_top_level():
        return False
    return any(isinstance(held, ad.JVPTracer | ad.LinearizeTracer) for value in values for held in _wrapped(value))


def _tags(value: Any) -> list[Any]:
    """Return the tags of the traces that batch this value."""
    tracers = [held for held in _wrapped(value) if isinstance(held, batching.BatchTracer)]
    return [tracer._trace.tag for tracer in tracers if isinstance(tracer.batch_dim, int)]


def _wrapped(value: Any) -> Iterator[Any]:
    """Yield a tracer and those that it wraps, one in the other."""
    while isinstance(value, core.Tracer):
        yield value
        # The value of a tracer of a derivative is its primal.
        value = value.val if isinstance(value, batching.BatchTracer) else getattr(value, "primal", None)


def trace_fingerprint() -> Any:
    """Return a hashable value that is equal for two calls only if JAX would reuse the trace of one for the other."""
    return jax_config.trace_context()
