"""What is said of a value that library code reads: enough to notice that it is another one, and nothing that differs
between two processes that run the same program.

Functions, plain values and what is made of them are described by content; of other objects only the type counts.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from enum import Enum
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from ejcache.fingerprint.code import code_digest, plain_token

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "ABSENT",
    "DIGEST_SIZE",
    "class_dict",
    "functions_of",
    "instance_items",
    "is_plain",
    "nested_codes",
    "short",
    "token",
    "token_of_module",
]

DIGEST_SIZE: Final = 6
"""Bytes kept of a token. Of 2^48 changed values, one would pass as unchanged."""

ABSENT: Final = b"\0" * DIGEST_SIZE
"""In place of the digest of a value: there is none of this name."""

_DEPTH: Final = 4
_MOST_ELEMENTS: Final = 4096
_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))
_LARGEST_ARRAY: Final = 1 << 16

_INNER: Final = ("__wrapped__", "__func__", "func", "fun", "fget", "fset", "fdel")
"""Attributes by which wrappers of all kinds show the function that they wrap."""

_class_dict: Final = type.__dict__["__dict__"].__get__


def class_dict(kind: type[Any]) -> dict[str, Any]:
    """The attributes of a class itself, past any metaclass."""
    found: dict[str, Any] = _class_dict(kind)
    return found


def short(content: bytes) -> bytes:
    """The digest of a token, as guards keep it."""
    return hashlib.blake2b(content, digest_size=DIGEST_SIZE).digest()


def is_plain(value: object) -> bool:
    """Whether a value is a number, a text, or nothing."""
    return type(value) in _PLAIN


def token(value: object, depth: int = _DEPTH) -> bytes:
    """What is said of a value, in bytes that are equal in two processes exactly if the same is said."""
    kind = type(value)
    if kind in _PLAIN:
        return plain_token(value)
    if kind is FunctionType:
        return _function(value, depth)  # type: ignore[arg-type]  # mypy does not narrow by `kind`
    if isinstance(value, type):
        return _joined(b"class", _name(value))
    if kind is ModuleType or isinstance(value, ModuleType):
        return token_of_module(str(getattr(value, "__name__", None)))
    if kind is BuiltinFunctionType:
        return _joined(b"builtin", str(value.__module__).encode(), value.__qualname__.encode())  # type: ignore[attr-defined]
    if kind is CodeType:
        return _joined(b"code", code_digest(value))  # type: ignore[arg-type]
    if depth <= 0:
        return _joined(b"object", _name(kind))
    if isinstance(value, Enum):
        return _joined(b"enum", _name(kind), value.name.encode())
    if kind in (tuple, list):
        return _joined(b"sequence", _name(kind), *(token(each, depth - 1) for each in value[:_MOST_ELEMENTS]))  # type: ignore[index]
    if kind in (set, frozenset):
        return _joined(b"set", _name(kind), *sorted(token(each, depth - 1) for each in value))  # type: ignore[attr-defined]
    if kind is dict:
        return _joined(b"dict", *sorted(_plain_entries(value, depth)))  # type: ignore[arg-type]
    return _object(value, kind, depth)


def token_of_module(name: str) -> bytes:
    """What is said of a module that is a value."""
    return _joined(b"module", name.encode())


def _function(function: FunctionType, depth: int) -> bytes:
    parts = [b"function", function.__qualname__.encode("utf-8", "replace"), code_digest(function.__code__)]
    if depth > 0:
        if function.__defaults__:
            parts += [b"defaults", *(token(each, depth - 2) for each in function.__defaults__)]
        if function.__kwdefaults__:
            pairs = sorted(function.__kwdefaults__.items())
            parts += [b"keywords", *(name.encode() + token(each, depth - 2) for name, each in pairs)]
        if function.__closure__:
            parts.append(b"closure")
            for cell in function.__closure__:
                try:
                    content = cell.cell_contents
                except ValueError:
                    continue
                parts.append(token(content, depth - 1 if type(content) is FunctionType else depth - 2))
    return _joined(*parts)


def _object(value: object, kind: type[Any], depth: int) -> bytes:
    parts = [b"object", _name(kind)]
    if isinstance(value, MethodType):
        parts += [token(value.__func__, depth - 1), _name(type(value.__self__))]
    elif isinstance(value, functools.partial):
        parts += [token(value.func, depth - 1), *(token(each, depth - 1) for each in value.args)]
        parts += [name.encode() + token(each, depth - 1) for name, each in sorted(value.keywords.items())]
    elif isinstance(value, tuple):
        parts += [token(each, depth - 1) for each in value[:_MOST_ELEMENTS]]
    elif kind.__module__.partition(".")[0] == "numpy":
        parts.append(_numpy(value, kind))
    else:
        parts += [token(each, depth - 1) for each in _inner(value, kind)]
        if "__dataclass_fields__" in class_dict(kind) or "__slots__" in class_dict(kind):
            parts += [name.encode() + token(each, depth - 1) for name, each in sorted(instance_items(value))]
    return _joined(*parts)


def _numpy(value: Any, kind: type[Any]) -> bytes:
    """A type, a small array, or a function of NumPy, by content."""
    if kind.__name__.endswith("DType"):
        return str(value.str).encode()
    data = getattr(value, "tobytes", None)
    if data is not None and not value.dtype.hasobject and value.nbytes <= _LARGEST_ARRAY:
        return _joined(str(value.dtype.str).encode(), str(value.shape).encode(), data())
    return str(getattr(value, "__name__", "")).encode()


def _inner(value: object, kind: type[Any]) -> Iterator[object]:
    """What a wrapper wraps. Asks no `__getattr__` that a program may have written."""
    own = _own_dict(value)
    for name in _INNER:
        if name in own:
            yield own[name]
        elif kind.__module__ in ("builtins", "functools"):
            inner = getattr(value, name, None)
            if inner is not None:
                yield inner


def _own_dict(value: object) -> dict[str, Any]:
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return own if type(own) is dict else {}


def instance_items(value: object) -> Iterator[tuple[str, object]]:
    """The attributes that an object itself holds, in its dictionary and its slots."""
    yield from list(_own_dict(value).items())
    for kind in type(value).__mro__:
        slots = class_dict(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            inner = f"_{kind.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name
            member = class_dict(kind).get(inner)
            if name in ("__dict__", "__weakref__") or member is None:
                continue
            try:
                yield inner, member.__get__(value)
            except AttributeError:
                continue


def _plain_entries(table: dict[object, object], depth: int) -> Iterator[bytes]:
    for key, value in list(table.items())[:_MOST_ELEMENTS]:
        if is_plain(key):
            yield _joined(token(key), token(value, depth - 1))


def functions_of(value: object, depth: int = _DEPTH) -> Iterator[FunctionType]:
    """The functions that the token of a value tells of."""
    kind = type(value)
    if kind is FunctionType:
        yield value  # type: ignore[misc]
        if depth > 0:
            for cell in value.__closure__ or ():  # type: ignore[attr-defined]
                try:
                    content = cell.cell_contents
                except ValueError:
                    continue
                if type(content) is FunctionType:
                    yield from functions_of(content, depth - 1)
                elif type(content) not in _PLAIN:
                    yield from functions_of(content, depth - 2)
        return
    if depth <= 0 or kind in _PLAIN or isinstance(value, type | ModuleType | Enum) or kind is BuiltinFunctionType:
        return
    inner: list[object] = []
    if isinstance(value, MethodType):
        inner.append(value.__func__)
    elif isinstance(value, functools.partial):
        inner += [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, tuple | list | set | frozenset):
        inner += list(value)[:_MOST_ELEMENTS]
    elif kind is dict:
        inner += [each for key, each in list(value.items())[:_MOST_ELEMENTS] if is_plain(key)]  # type: ignore[attr-defined]
    elif kind.__module__.partition(".")[0] != "numpy":
        inner += _inner(value, kind)
        if "__dataclass_fields__" in class_dict(kind) or "__slots__" in class_dict(kind):
            inner += [each for _, each in instance_items(value)]
    for each in inner:
        if type(each) not in _PLAIN:
            yield from functions_of(each, depth - 1)


def nested_codes(code: CodeType) -> Iterator[CodeType]:
    """A code object, and those that are nested in it."""
    yield code
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield from nested_codes(constant)


def _name(kind: type[Any]) -> bytes:
    # Classes that C extensions create may have a module that is no text.
    return f"{kind.__module__}:{kind.__qualname__}".encode("utf-8", "replace")


def _joined(*parts: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)
