"""Says of what kind a value is, for keys, recorded calls and configurations: an array, a node, a named tuple, …"""

from __future__ import annotations

import dataclasses
import enum
import types
from argparse import Namespace
from collections.abc import Mapping
from typing import Any, Final

MAIN_MODULES: Final = frozenset({"__main__", "__mp_main__", "__ejcache_main__"})
"""Names of the module made from the program's own file: in the program, under `multiprocessing`, and in a replay."""

_DTYPE_MODULES: Final = frozenset({"numpy", "ml_dtypes", "jax.numpy", "jax._src.numpy.scalar_types"})


def module_name(value: Any) -> str:
    """Return the module of a class or function, under a name that is the same in every process that has it."""
    return "__main__" if value.__module__ in MAIN_MODULES else str(value.__module__)


def dtype_name(value: Any) -> str | None:
    """Return `float32` for a numpy dtype or a numpy or JAX scalar class; None for any other value.

    `jnp.float32` and `jnp.bfloat16` are instances of one class, so the class alone does not tell them apart.
    """
    dtype = getattr(value, "dtype", None) if isinstance(value, type) or callable(value) else value
    if type(dtype).__module__.startswith("numpy") and hasattr(dtype, "itemsize") and not hasattr(dtype, "ndim"):
        return str(dtype)
    if type(value).__name__ == "_ScalarMeta" and dtype is not None:
        return str(dtype)
    if isinstance(value, type) and value.__module__ in _DTYPE_MODULES:
        return value.__name__
    if any(cls.__name__ == "dtype" and cls.__module__ == "numpy" for cls in type(value).__mro__):
        return str(value.name)
    return None


class ValueKind(enum.Enum):
    """What a value is, for all that is written of it: keys, recorded calls and configurations."""

    PLAIN = "None, a bool, a text or a whole number"
    FLOAT = "a float"
    ENUM = "a member of an enumeration"
    OBJECT = "a dataclass"
    NAMED_TUPLE = "a named tuple"
    MODEL = "a model of pydantic"
    NAMESPACE = "a namespace"
    MAPPING = "a mapping"
    LIST = "a list or a tuple"
    SET = "a set"
    DTYPE = "a data type"
    OTHER = "anything else"


FIELD_KINDS: Final = frozenset(
    {ValueKind.OBJECT, ValueKind.NAMED_TUPLE, ValueKind.MODEL, ValueKind.NAMESPACE, ValueKind.MAPPING}
)
"""Kinds whose parts are values by name."""


def parts_of(value: Any) -> tuple[ValueKind, Any]:
    """Split a value into its kind and its parts: a dict of fields, the items, the name of a data type, or itself."""
    if isinstance(value, enum.Enum):
        return ValueKind.ENUM, value
    if value is None or isinstance(value, bool | str):
        return ValueKind.PLAIN, value
    if isinstance(value, int):
        return ValueKind.PLAIN, int(value)
    if isinstance(value, float):
        return ValueKind.FLOAT, float(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return ValueKind.OBJECT, {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(value, "_asdict") and not isinstance(value, type):
        return ValueKind.NAMED_TUPLE, dict(value._asdict())
    if isinstance(value, list | tuple):
        return ValueKind.LIST, value
    if isinstance(value, set | frozenset):
        return ValueKind.SET, value
    if isinstance(value, Mapping):
        return ValueKind.MAPPING, dict(value)
    if isinstance(value, Namespace | types.SimpleNamespace):
        return ValueKind.NAMESPACE, vars(value)
    if hasattr(value, "model_dump") and not isinstance(value, type):
        return ValueKind.MODEL, value.model_dump()
    if (text := dtype_name(value)) is not None:
        return ValueKind.DTYPE, text
    return ValueKind.OTHER, value


def is_array(value: Any) -> bool:
    """True if a value is an array of JAX or numpy, a tracer, or a `jax.ShapeDtypeStruct`."""
    import jax
    import numpy as np

    return isinstance(value, jax.Array | np.ndarray | jax.core.Tracer | jax.ShapeDtypeStruct)


def is_scalar(value: Any) -> bool:
    """True if a value is a numpy scalar, which is a constant of the candidates and not an array."""
    import numpy as np

    return isinstance(value, np.generic)


def one_level(value: Any) -> tuple[list[Any], Any] | None:
    """Return the children of a pytree node and its static part; None for a value that JAX treats as a leaf."""
    import jax

    found = jax.tree_util.default_registry.flatten_one_level(value)
    return None if found is None else (list(found[0]), found[1])
