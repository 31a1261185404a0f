"""Looks through tracers for the axes over which `jax.vmap` maps a call.

A tracer under `jax.vmap` has the shape of one element. The number of elements is in the tracer that it wraps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jax._src import core
from jax._src.interpreters import batching

if TYPE_CHECKING:
    from collections.abc import Iterable


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
