"""Which calls run on devices of other processes, and are therefore not measured.

One process of a job measures alone. A candidate with a collective across processes would wait there for partners that
never come, and after it was given up its launch would still be in the communicator: the collectives of the program
itself would pair with it, give wrong values, and leave the job hanging.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ejcache.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["SpansProcessesError", "refuse_spanning", "refuse_spanning_jaxpr"]


class SpansProcessesError(UsageError):
    """What was to be measured runs on devices of other processes too."""


def refuse_spanning(values: Iterable[Any], *, name: str) -> None:
    """Raise unless all arrays, shardings, meshes and devices among `values` are of this process alone.

    Args:
        values: anything; what is none of these passes.
        name: of what has them, for the message.

    Raises:
        SpansProcessesError: one is not.
    """
    if any(_spans(value) for value in values):
        raise SpansProcessesError(f"{name} runs on devices of other processes and is not measured")


def refuse_spanning_jaxpr(closed: Any, *, name: str) -> None:
    """`refuse_spanning` of everything that a jaxpr, or one inside of it, names."""
    refuse_spanning(_named_in(closed), name=name)


def _named_in(closed: Any) -> Iterator[Any]:
    pending, seen = [closed], set()
    while pending:
        value = pending.pop()
        # A JAX of one release closes an inner jaxpr over its constants and the next one does not.
        inner = getattr(value, "jaxpr", value)
        if hasattr(inner, "eqns"):
            if id(inner) not in seen:
                seen.add(id(inner))
                yield from getattr(value, "consts", ())
                pending += [held for equation in inner.eqns for held in equation.params.values()]
        elif isinstance(value, list | tuple):
            pending += value
        else:
            yield value


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
