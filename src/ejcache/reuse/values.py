"""Plain values as text, equal in every process, and other objects by their type and qualified name.

A number counts by its bits: 1 and True, 0.0 and -0.0, and two NaNs of other bits are different. The order of a set does
not count. A dataclass counts by its fields where it is frozen, and an enumeration by its member.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import struct
import sys
import types
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import jax
import numpy as np

from ejcache.jax_integration.seam.reuse.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

_DEEPEST: Final = 50
_LARGEST: Final = 16 << 20
"""Bytes of an array that a declared value holds."""
_CONTAINERS: Final[dict[type, str]] = {tuple: "tuple", list: "list", set: "set", frozenset: "frozenset"}


def kind_name(value: object) -> str:
    """Return the type of a value, as messages show it: "an _io.TextIOWrapper"."""
    kind = type(value)
    text = (
        kind.__qualname__ if kind.__module__ in {"builtins", "__main__"} else f"{kind.__module__}.{kind.__qualname__}"
    )
    return f"{'an' if text.lstrip('_')[:1].lower() in tuple('aeiou') else 'a'} {text}"


def plain_text(value: object) -> str:
    """Return the text of a value that is plain all through.

    Raises:
        RefusedError: it is not, or holds itself.
    """
    return _text(value, _refuse, 0)


def lenient_text(value: object) -> str:
    """Return the text of any object: plain values by value, and others by their type and qualified name."""
    return _text(value, _by_name, 0)


def _refuse(value: object) -> str:
    raise RefusedError(f"it holds {kind_name(value)}, which is not a plain value")


def name_of(value: object) -> str | None:
    """`module:qualified.name` of a class, a function or another named object that is found there; None if it is not."""
    try:
        module, qualified = value.__module__, getattr(value, "__qualname__", None) or value.__name__  # type: ignore[attr-defined]
    except Exception:
        return None  # anything can happen in an attribute of a user's class
    if type(module) is not str or type(qualified) is not str:
        return None
    name = f"{module}:{qualified}"
    return name if named(name) is value else None


MISSING: Final = object()
"""There is no object of this name."""


def named(name: str) -> Any:
    """Return the object of a name that `name_of` gave, or `MISSING`. Nothing is imported."""
    module, _, qualified = name.partition(":")
    found: Any = sys.modules.get(module, MISSING)
    if found is MISSING:
        return MISSING
    for part in qualified.split("."):
        if not isinstance(found, (type, types.ModuleType)):
            return MISSING
        found = vars(found).get(part, MISSING)
        if isinstance(found, staticmethod):
            found = found.__func__
    return found


def _by_name(value: object) -> str:
    kind = type(value)
    text = f"{kind.__module__}:{kind.__qualname__}"
    if isinstance(value, functools.partial):
        return f"{text}({lenient_text(value.func)}, {lenient_text(value.args)}, {lenient_text(value.keywords)})"
    if isinstance(value, types.MethodType):
        return f"{text}({lenient_text(value.__func__)})"
    return f"{text} {_own_name(value)}"


def _own_name(value: object) -> str:
    """The qualified name that an object has of its own, as functions and what JAX makes of them do; empty if none."""
    try:
        names = [getattr(value, each, None) for each in ("__module__", "__qualname__", "__name__")]
    except Exception:
        return ""  # anything can happen in an attribute of a user's class
    module, qualified, name = (each if isinstance(each, str) else "" for each in names)
    return f"{module}:{qualified or name}" if qualified or name else ""


def _text(value: Any, other: Callable[[object], str], depth: int) -> str:
    kind = type(value)
    if depth > _DEEPEST:
        raise RefusedError("it is nested too deeply")
    if value is None or kind in {bool, int, str, bytes}:
        return f"{kind.__name__} {value!r}"
    if kind is float:
        return f"float {struct.pack('<d', value).hex()}"
    if kind is complex:
        return f"complex {struct.pack('<dd', value.real, value.imag).hex()}"
    if isinstance(value, enum.Enum):
        return f"enum {kind.__module__}:{kind.__qualname__}.{value.name} {_text(value.value, _by_name, depth + 1)}"
    if kind in _CONTAINERS:
        parts = [_text(each, other, depth + 1) for each in value]
        return f"{_CONTAINERS[kind]}({', '.join(sorted(parts) if kind in {set, frozenset} else parts)})"
    if kind is dict:
        items = (f"{_text(k, other, depth + 1)}: {_text(v, other, depth + 1)}" for k, v in value.items())
        return f"dict({', '.join(items)})"
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return f"{kind.__module__}:{kind.__qualname__}({', '.join(_text(e, other, depth + 1) for e in value)})"
    if isinstance(value, np.dtype):
        return f"dtype {_dtype_text(value)}"
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return f"numpy {_dtype_text(value.dtype)} {value.tobytes().hex()}"
    if isinstance(value, (int, float, complex, str, bytes, Decimal, Fraction)):
        return f"{kind.__module__}:{kind.__qualname__} {_number_or_text(value)}"
    if kind in {range, slice}:
        bounds = (value.start, value.stop, value.step)
        return f"{kind.__name__}({', '.join(_text(each, other, depth + 1) for each in bounds)})"
    if isinstance(value, PurePath):
        return f"path {value!s}"
    if (kind is np.ndarray or isinstance(value, jax.Array)) and other is _refuse:
        return _array_text(value)
    if dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        fields = [f"{f.name}={_text(getattr(value, f.name, MISSING), other, depth + 1)}" for f in _fields(kind)]
        return f"{kind.__module__}:{kind.__qualname__}({', '.join(fields)})"
    return other(value)


def _number_or_text(value: Any) -> str:
    """The value of a number or text whose class is not Python's own, whatever that class shows of it."""
    for kind in (int, float, complex, str, bytes):  # what a subclass shows may be anything
        if isinstance(value, kind):
            return kind.__repr__(value)
    return repr(value)


def _fields(kind: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind)


def _array_text(value: Any) -> str:
    if isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        return f"keys {value.dtype} {_array_text(jax.random.key_data(value))}"
    try:
        array = np.asarray(value)
    except RuntimeError as exc:  # it was donated, or other processes have parts of it
        raise RefusedError(f"it holds an array that cannot be read: {exc}") from exc
    if array.nbytes > _LARGEST:
        raise RefusedError(f"it holds an array of {array.nbytes:,} bytes, and at most {_LARGEST:,} are read")
    if array.dtype.kind == "T":
        content = repr(array.tolist()).encode("utf-8", "surrogatepass")  # NumPy keeps long texts beside the array
    elif array.dtype.hasobject:
        raise RefusedError("it holds an array of objects")
    else:
        content = np.ascontiguousarray(array).tobytes()
    return f"array {_dtype_text(array.dtype)} {array.shape} {hashlib.sha256(content).hexdigest()}"


def _dtype_text(dtype: np.dtype[Any]) -> str:
    """Its bytes, and its name, which tells one type of eight bits from another and has the names of fields."""
    return f"{dtype.str} {dtype}"
