"""What is said of a value that library code reads: enough to notice that it is another one, and nothing that differs
between two processes that run the same program.

Functions, plain values and what is made of them are described by content; of other objects only the type counts. A
token is a plain value or a tuple of tokens, so what `marshal` makes of it tells it from every other.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from contextvars import ContextVar
from enum import Enum
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from ejcache._tuples import NamedTuple
from ejcache.fingerprint.code import code_digest, injective_bytes
from ejcache.fingerprint.watching.author import Author, author_of_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "ABSENT",
    "DIGEST_SIZE",
    "class_dict",
    "digest_of",
    "functions_of",
    "instance_items",
    "is_plain",
    "nested_codes",
    "own_dict",
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
_PLAIN: Final = frozenset({bool, int, float, complex, str, bytes, type(None), type(Ellipsis)})
_LARGEST_ARRAY: Final = 1 << 16

_INNER: Final = ("__wrapped__", "__func__", "func", "fun", "fget", "fset", "fdel")
"""Attributes by which wrappers of all kinds show the function that they wrap."""

class_dict: Final[Callable[[type[Any]], dict[str, Any]]] = type.__dict__["__dict__"].__get__
"""The attributes of a class itself, past any metaclass."""


def short(value: object) -> bytes:
    """The digest of a token, as guards keep it."""
    try:
        content = injective_bytes(value)
    except ValueError:  # a name is of a class that extends `str`
        content = repr(value).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(content, digest_size=DIGEST_SIZE).digest()


def digest_of(value: Any) -> bytes:
    """The digest of what is said of a value, as guards keep it."""
    if type(value) is not FunctionType:
        return short(token(value))
    said = _function(value, _DEPTH)
    return said[1][:DIGEST_SIZE] if len(said) == _OF_CODE_ALONE else short(said)


_OF_CODE_ALONE: Final = 2
"""How much is said of a function whose code tells all."""


def is_plain(value: object) -> bool:
    """Whether a value is a number, a text, or nothing."""
    return type(value) in _PLAIN


def token(value: Any, depth: int = _DEPTH) -> object:
    """What is said of a value: equal in two processes exactly if the same is said."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is FunctionType:
        return _function(value, depth)
    if isinstance(value, type):
        return ("class", _name_of(value))
    if isinstance(value, ModuleType):
        return token_of_module(str(getattr(value, "__name__", None)))
    if kind is BuiltinFunctionType:
        return ("builtin", str(value.__module__), value.__qualname__)
    if kind is CodeType:
        return ("code", code_digest(value))
    if depth <= 0:
        return ("object", _name_of(kind))
    if isinstance(value, Enum):
        return ("enum", _name_of(kind), value.name)
    if kind is tuple or kind is list:
        return (kind.__name__, *(token(each, depth - 1) for each in value[:_MOST_ELEMENTS]))
    if kind is set or kind is frozenset:
        return (kind.__name__, *sorted([token(each, depth - 1) for each in value], key=repr))
    if kind is dict:
        entries = [(key, token(each, depth - 1)) for key, each in list(value.items()) if is_plain(key)]
        return ("dict", *sorted(entries[:_MOST_ELEMENTS], key=repr))
    return _object(value, kind, depth)


def token_of_module(name: str) -> object:
    """What is said of a module that is a value."""
    return ("module", name)


def _function(function: FunctionType, depth: int) -> tuple[Any, ...]:
    # Each is read once: Python's audit hooks hear of it.
    code, defaults, keywords = function.__code__, function.__defaults__, function.__kwdefaults__
    name, closure = function.__qualname__, function.__closure__
    if name == code.co_qualname and (depth <= 0 or not (defaults or keywords or closure)):
        return ("function", code_digest(code))
    parts: list[object] = ["function", name, code_digest(code)]
    if depth > 0:
        if defaults:
            parts.append(("defaults", *(token(each, depth - 2) for each in defaults)))
        if keywords:
            parts.append(("keywords", *((name, token(each, depth - 2)) for name, each in sorted(keywords.items()))))
        if closure:
            parts.append(("closure", *_cells(closure, depth)))
    return tuple(parts)


def _cells(closure: tuple[Any, ...], depth: int) -> Iterator[object]:
    for cell in closure:
        try:
            content = cell.cell_contents
        except ValueError:
            continue
        yield token(content, depth - _step(content))


def _step(content: object) -> int:
    """How much deeper what a closure holds is: functions, and those that JAX has transformed, are read further."""
    kind = type(content)
    return 1 if kind is FunctionType or kind.__name__ == "PjitFunction" else 2


def _object(value: Any, kind: type[Any], depth: int) -> object:
    about = _kind_of(kind)
    parts: list[object] = ["object", about.name]
    if isinstance(value, MethodType):
        parts += [token(value.__func__, depth - 1), _name_of(type(value.__self__))]
    elif isinstance(value, functools.partial):
        parts += [token(value.func, depth - 1), *(token(each, depth - 1) for each in value.args)]
        parts += [(name, token(each, depth - 1)) for name, each in sorted(value.keywords.items())]
    elif isinstance(value, tuple):
        parts += [token(each, depth - 1) for each in value[:_MOST_ELEMENTS]]
    elif about.of_numpy:
        parts.append(_numpy(value, kind))
    else:
        parts += [token(each, depth - 1) for each in _inner(value, kind)]
        if about.has_fields:
            parts += [(name, token(each, depth - 1)) for name, each in sorted(instance_items(value), key=_first)]
        elif kind is ContextVar:
            parts.append(_plain_or_type(value.get(None)))
        elif about.of_package or kind is threading.local:
            # What a thread has of its own is not found in the way of other objects.
            own = sorted((vars(value) if kind is threading.local else own_dict(value)).items())
            parts += [(name, _plain_or_type(each)) for name, each in own if name[:1] != "_"]
    return tuple(parts)


def _plain_or_type(value: object) -> object:
    """A plain value, or a sequence of such values; of anything else the type."""
    if type(value) in _PLAIN:
        return value
    if (type(value) is list or type(value) is tuple) and len(value) <= _MOST_ELEMENTS:
        return tuple(each if type(each) in _PLAIN else _name_of(type(each)) for each in value)
    return _name_of(type(value))


def _first(pair: tuple[str, object]) -> str:
    return pair[0]


def _name_of(kind: type[Any]) -> str:
    # Classes that C extensions create may have a module whose name is not a text.
    return f"{kind.__module__}:{kind.__qualname__}"


class _Kind(NamedTuple):
    """What is known of a class, found once."""

    name: str
    of_numpy: bool
    of_package: bool
    """Whether it is written in a package other than JAX and its like."""
    has_fields: bool
    """Whether what an instance holds belongs to what it is."""
    slots: tuple[tuple[str, Any], ...]


_kinds: Final[dict[type[Any], _Kind]] = {}


def _kind_of(kind: type[Any]) -> _Kind:
    found = _kinds.get(kind)
    if found is None:
        own = class_dict(kind)
        found = _kinds[kind] = _Kind(
            _name_of(kind),
            str(kind.__module__).partition(".")[0] == "numpy",
            author_of_module(str(kind.__module__)) is Author.PACKAGE,
            "__dataclass_fields__" in own or "__slots__" in own or kind is SimpleNamespace,
            _slots(kind),
        )
    return found


def _numpy(value: Any, kind: type[Any]) -> object:
    """A type, a small array, or a function of NumPy, by content."""
    if kind.__name__.endswith("DType"):
        return str(value.str)
    data = getattr(value, "tobytes", None)
    if data is not None and not value.dtype.hasobject and value.nbytes <= _LARGEST_ARRAY:
        return (str(value.dtype.str), value.shape, hashlib.sha256(data()).digest())
    return str(getattr(value, "__name__", ""))


def _inner(value: object, kind: type[Any]) -> Iterator[object]:
    """What a wrapper wraps. Asks no `__getattr__` that a program may have written."""
    own = own_dict(value)
    of_python = kind.__module__ in ("builtins", "functools")
    if own or of_python:
        for name in _INNER:
            if name in own:
                yield own[name]
            elif of_python:
                inner = getattr(value, name, None)
                if inner is not None:
                    yield inner


def own_dict(value: object) -> dict[str, Any]:
    """The attributes of an object itself; empty if it has no dictionary."""
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return own if type(own) is dict else {}


def instance_items(value: object) -> Iterator[tuple[str, Any]]:
    """The attributes that an object itself holds, in its dictionary and its slots."""
    yield from list(own_dict(value).items())
    for name, member in _kind_of(type(value)).slots:
        try:
            yield name, member.__get__(value)
        except AttributeError:
            continue


def _slots(kind: type[Any]) -> tuple[tuple[str, Any], ...]:
    found: list[tuple[str, Any]] = []
    for each in kind.__mro__:
        slots = class_dict(each).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            inner = f"_{each.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name
            member = class_dict(each).get(inner)
            if name not in ("__dict__", "__weakref__") and member is not None:
                found.append((inner, member))
    return tuple(found)


def functions_of(value: Any, depth: int = _DEPTH) -> Iterator[FunctionType]:
    """The functions that the token of a value tells of."""
    kind = type(value)
    if kind is FunctionType:
        yield value
        if depth > 0:
            for cell in value.__closure__ or ():
                try:
                    content = cell.cell_contents
                except ValueError:
                    continue
                if type(content) not in _PLAIN:
                    yield from functions_of(content, depth - _step(content))
        return
    if depth <= 0 or kind in _PLAIN or kind is BuiltinFunctionType or isinstance(value, type | ModuleType | Enum):
        return
    for each in _parts(value, kind):
        if type(each) not in _PLAIN:
            yield from functions_of(each, depth - 1)


def _parts(value: Any, kind: type[Any]) -> Iterator[object]:
    if isinstance(value, MethodType):
        yield value.__func__
    elif isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, tuple | list | set | frozenset):
        yield from list(value)[:_MOST_ELEMENTS]
    elif kind is dict:
        yield from [each for key, each in list(value.items())[:_MOST_ELEMENTS] if is_plain(key)]
    elif not _kind_of(kind).of_numpy:
        yield from _inner(value, kind)
        if _kind_of(kind).has_fields:
            yield from (each for _, each in instance_items(value))


def nested_codes(code: CodeType) -> Iterator[CodeType]:
    """A code object, and those that are nested in it."""
    yield code
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield from nested_codes(constant)
