"""Values as plain data that is equal in every process: plain values and dataclasses by value, functions by bytecode.

A number counts by its bits: 1 and True, 0.0 and -0.0, and two NaNs of other bits are different. The order of a set does
not count. What counts of any other object depends on where it is, see `ValuePlace`.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import struct
import sys
import types
from decimal import Decimal
from fractions import Fraction
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, Final

import jax
import numpy as np

from ejcache.jax_integration.seam.reuse.calls import key_type_name
from ejcache.jax_integration.seam.reuse.refusal import RefusedError

_DEEPEST: Final = 50
_CONTAINERS: Final[dict[type, str]] = {tuple: "tuple", list: "list", set: "set", frozenset: "frozenset"}
_PATHS: Final = frozenset({PosixPath, PurePosixPath, WindowsPath, PureWindowsPath})
_PYTHON_TYPES: Final = frozenset({bool, int, float, complex})
"""Classes that NumPy and JAX take for a type of elements."""
_WRAPPERS: Final = ("functools", "jax", "jaxlib")
"""Libraries whose objects stand for the function that they wrap, and hold nothing else that a program depends on."""


class ValuePlace(enum.Enum):
    """Where a value is, which decides what counts of an object that is neither plain nor a dataclass."""

    WORD = "word"
    """Nothing can: it is refused."""
    STATIC = "static"
    """Functions by name and bytecode; anything else is refused."""
    NODE = "node"
    """Functions by name and bytecode, anything else by its class."""


class NotPlainError(RefusedError):
    """A value holds an object that has no content which could be compared.

    Args:
        where: in the value, as Python writes it.
        value: the object.
        what: what it is; by default its class.
    """

    def __init__(self, where: str, value: object, what: str = "") -> None:
        super().__init__(f"{where} is {what or kind_name(value)}")
        self.value = value


def kind_name(value: object) -> str:
    """Return the type of a value, as messages show it: "an _io.TextIOWrapper"."""
    if isinstance(value, jax.Array):
        return "an array of JAX"
    text = class_name(type(value)).removeprefix("builtins:").removeprefix("__main__:").replace(":", ".")
    return f"{'an' if text.lstrip('_')[:1].lower() in tuple('aeiou') else 'a'} {text}"


def class_name(kind: type) -> str:
    """Return the module and qualified name of a class."""
    return f"{kind.__module__}:{kind.__qualname__}"


def digest_of(content: Any) -> str:
    """Return a digest of plain data."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


# -- names -----------------------------------------------------------------------------------------------------------


def name_of(value: object) -> str | None:
    """Return `module:qualified.name` of a class, a function or another named object that is found there; None if it is
    not.
    """
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


# -- values ----------------------------------------------------------------------------------------------------------


def plain_data(value: Any, place: ValuePlace, where: str, depth: int = 0) -> Any:
    """Return what counts of a value, as data for JSON.

    Args:
        value: any object.
        place: where it is.
        where: how an error names it.
        depth: how deep it lies in another one.

    Raises:
        NotPlainError: it holds what cannot be compared, or is nested too deeply.
    """
    kind: Any = type(value)
    depth += 1
    if depth > _DEEPEST:
        raise NotPlainError(where, value, "nested too deeply")
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return ["int", f"{value:x}"]
    if kind is bytes:
        return ["bytes", value.hex()]
    if kind is float:
        return ["float", struct.pack("<d", value).hex()]
    if kind is complex:
        return ["complex", struct.pack("<dd", value.real, value.imag).hex()]
    if kind in _CONTAINERS:
        parts = [plain_data(each, place, f"{where}[{number}]", depth) for number, each in enumerate(value)]
        return [_CONTAINERS[kind], sorted(parts, key=json.dumps) if kind in {set, frozenset} else parts]
    if kind is dict:
        return ["dict", [_item(key, each, place, where, depth) for key, each in value.items()]]
    if isinstance(value, enum.Enum):
        return ["enum", class_name(kind), value.name, plain_data(value.value, ValuePlace.NODE, where, depth)]
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return ["numpy", _dtype_name(value.dtype), value.tobytes().hex()]
    if kind in {Decimal, Fraction}:
        return [kind.__name__, repr(value)]
    if kind in _PATHS:
        return ["path", kind.__name__, str(value)]
    dtype = _dtype_of(value)
    if dtype is not None:
        return ["dtype", *dtype]
    if _is_named_tuple(value):
        parts = [_field(value, name, place, where, depth) for name in kind._fields]
        return ["named tuple", class_name(kind), parts]
    if "__dataclass_fields__" in vars(kind):  # of a subclass, nobody says which attributes count
        parts = [_field(value, each.name, place, where, depth) for each in dataclasses.fields(kind)]
        return ["dataclass", class_name(kind), parts, _hidden(value, place, where, depth)]
    if place is ValuePlace.WORD:
        raise NotPlainError(where, value)
    return _object_data(value, place, where, depth)


def _item(key: Any, value: Any, place: ValuePlace, where: str, depth: int) -> list[Any]:
    inner = f"{where}[{key!r:.80}]" if isinstance(key, (str, int)) else f"{where}[…]"
    return [plain_data(key, place, f"a key of {where}", depth), plain_data(value, place, inner, depth)]


def _field(value: Any, name: str, place: ValuePlace, where: str, depth: int) -> list[Any]:
    found = getattr(value, name, MISSING)
    return [name, "missing" if found is MISSING else plain_data(found, place, f"{where}.{name}", depth)]


def _hidden(value: Any, place: ValuePlace, where: str, depth: int) -> list[Any]:
    """List what the dataclass of an argument holds besides its fields; of a word, only the fields count."""
    if place is ValuePlace.WORD:
        return []
    fields = {each.name for each in dataclasses.fields(value)}
    names = sorted(set(getattr(value, "__dict__", ())) - fields)
    return [_field(value, name, place, where, depth) for name in names]


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(type(value), "_fields") and not getattr(value, "__dict__", None)


def _dtype_of(value: Any) -> tuple[str, str] | None:
    """Return the class and the name of a type of elements, as an object or as the class of its numbers; None for
    others.
    """
    if isinstance(value, np.dtype):
        return "dtype", _dtype_name(value)
    if isinstance(value, type):
        if value in _PYTHON_TYPES or issubclass(value, np.generic):
            return "class", class_name(value)
        of_jax = getattr(value, "dtype", None)
        return ("jax", _dtype_name(of_jax)) if isinstance(of_jax, np.dtype) else None
    of_keys = key_type_name(value)
    return None if of_keys is None else ("key", of_keys)


def _dtype_name(dtype: np.dtype[Any]) -> str:
    """Return its bytes, and its name, which tells one type of eight bits from another and has the names of fields."""
    return f"{dtype.str} {dtype}"


# -- functions and other objects -------------------------------------------------------------------------------------


def _object_data(value: Any, place: ValuePlace, where: str, depth: int) -> Any:
    kind = type(value)
    if kind in {range, slice}:
        bounds = (value.start, value.stop, value.step)
        return [kind.__name__, [plain_data(each, place, where, depth) for each in bounds]]
    if value is Ellipsis:
        return ["..."]
    if isinstance(value, types.FunctionType):
        return ["function", value.__module__, value.__qualname__, code_digest_of(value.__code__)]
    if isinstance(value, types.MethodType):
        bound = (value.__func__, value.__self__)
        return ["method", [plain_data(each, place, where, depth) for each in bound]]
    if isinstance(value, functools.partial):
        given = (value.func, value.args, value.keywords)
        return ["partial", class_name(kind), [plain_data(each, place, where, depth) for each in given]]
    if callable(value) and not isinstance(value, type):
        wrapped = getattr(value, "__wrapped__", None)
        if wrapped is not None and kind.__module__.partition(".")[0] in _WRAPPERS:
            return ["wrapped", class_name(kind), plain_data(wrapped, place, where, depth)]
        name = name_of(value) if isinstance(value, (np.ufunc, jax.numpy.ufunc, types.BuiltinFunctionType)) else None
        if name is not None:
            return ["named", name]
    if place is ValuePlace.STATIC:
        raise NotPlainError(where, value)
    return ["class", class_name(kind), class_name(value) if isinstance(value, type) else ""]


@functools.lru_cache(maxsize=1024)
def code_digest_of(code: types.CodeType) -> str:
    """Return a digest of the bytecode of a function and of those that are defined in it, without lines and files."""
    return digest_of(_code_data(code))


def _code_data(code: types.CodeType) -> list[Any]:
    constants = [
        _code_data(each) if isinstance(each, types.CodeType) else plain_data(each, ValuePlace.NODE, "a constant")
        for each in code.co_consts
    ]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return [code.co_qualname, code.co_code.hex(), code.co_exceptiontable.hex(), constants, names, counts]
