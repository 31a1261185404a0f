"""Refuses to measure a call that runs on devices of other processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ejcache.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


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
