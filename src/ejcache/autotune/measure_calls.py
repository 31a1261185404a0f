"""Recorded calls as calls: values again, with stand-ins for the arrays."""

from __future__ import annotations

from typing import Any

from ejcache.autotune.calls import imported
from ejcache.errors import EntryCorruptError

__all__ = ["arguments_of", "decode_value"]


def arguments_of(call: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """`(args, kwargs)` of a call; arrays are `jax.ShapeDtypeStruct`s.

    Raises:
        UsageError: something that it names cannot be imported.
        EntryCorruptError: a value is malformed.
    """
    args = tuple(decode_value(item) for item in call["args"])
    return args, {name: decode_value(item) for name, item in call["kwargs"].items()}


def decode_value(value: Any) -> Any:
    """What `encode_value` was given; raises as `arguments_of` does."""
    if not isinstance(value, dict):
        return value
    try:
        return _decoded(value)
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise EntryCorruptError(f"the recorded value {value!r} cannot be made again: {exc!r}") from exc


def _decoded(value: dict[str, Any]) -> Any:
    import jax
    import jax.numpy as jnp

    if "array" in value:
        return jax.ShapeDtypeStruct(tuple(value["shape"]), _dtype(value["array"]))
    if "scalar" in value:
        return _dtype(value["scalar"]).type(decode_value(value["value"]))
    if "float" in value:
        return float(value["float"])
    if "dtype" in value:
        return getattr(jnp, value["dtype"]) if value.get("class") else jnp.dtype(value["dtype"])
    if "enum" in value:
        return imported(value["enum"])[value["name"]]
    if "object" in value:
        return imported(value["object"])(**{name: decode_value(item) for name, item in value["fields"].items()})
    if "tuple" in value:
        return tuple(decode_value(item) for item in value["tuple"])
    if "list" in value:
        return [decode_value(item) for item in value["list"]]
    if "dict" in value:
        return {name: decode_value(item) for name, item in value["dict"].items()}
    return imported(value["import"])


def _dtype(name: str) -> Any:
    import jax
    import jax.numpy as jnp

    return jax.random.key(0).dtype if name.startswith("key<") else jnp.dtype(name)
