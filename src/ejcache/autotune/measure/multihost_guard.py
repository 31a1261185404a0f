"""Refuses to measure calls that run on devices of other processes.

One process of a job measures alone. A candidate with a collective across processes would wait for the others, which do
not run it. Its launch would stay in the communicator after the timeout. The program's own collectives would then pair
with it, compute wrong values, and hang.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ejcache.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["SpansProcessesError", "refuse_spanning", "refuse_spanning_jaxpr"]


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
    """`refuse_spanning` for all values that a jaxpr and the jaxprs inside it name."""
    refuse_spanning(_named_in(closed), name=name)


def _named_in(closed: Any) -> Iterator[Any]:
    pending, seen = [closed], set()
    while pending:
        value = pending.pop()
        # Some releases of JAX close an inner jaxpr over its constants, and others do not.
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
