"""One look at the libraries: what it has found of an object, it does not find again."""

from __future__ import annotations

import functools
import hashlib
from enum import Enum
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from ejcache._tuples import NamedTuple
from ejcache.fingerprint.code import identity
from ejcache.fingerprint.guarding.places import find
from ejcache.fingerprint.guarding.tokens import class_dict, digest_of, functions_of, is_plain, short, token
from ejcache.fingerprint.library import is_library_file, is_library_module

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["OPERATORS", "PATH_SIZE", "Look", "attribute_name", "joined", "written_by_user"]

PATH_SIZE: Final = 4
"""Bytes that tell an entry of one table from the others."""

OPERATORS: Final = frozenset(name for name in dir(int) + dir(list) + dir(dict) if name.startswith("__")) - {
    *("__class__", "__doc__", "__getattribute__", "__init_subclass__", "__subclasshook__", "__dir__")
} | {
    "__bool__",
    "__call__",
    "__enter__",
    "__exit__",
    "__get__",
    "__getattr__",
    "__array__",
    "__jax_array__",
    "__matmul__",
}
"""Methods that Python calls without a name."""

_HEAP_TYPE: Final = 1 << 9


@functools.cache
def attribute_name(name: str) -> bytes:
    """What an attribute is called among the entries of an object."""
    return joined(b".", name.encode("utf-8", "surrogatepass"))


def joined(before: bytes, key: bytes) -> bytes:
    """What an entry of a table is called that is in another entry."""
    return hashlib.blake2b(before + key, digest_size=PATH_SIZE).digest()


class _Own(NamedTuple):
    """What a class itself has."""

    members: dict[str, object]
    """Its attributes that may matter."""
    named: dict[bytes, object] | None
    """The same by what they are called among entries; None if the user wrote one, or one is a table."""


class Look:
    """What is found of objects at one moment, each of them once. Nothing of the program runs meanwhile."""

    def __init__(self) -> None:
        self._held: list[object] = []
        """What the identities below belong to."""
        self._digests: dict[int, bytes] = {}
        self._keys: dict[int, bytes | None] = {}
        self._functions: dict[int, tuple[FunctionType, ...]] = {}
        self._own: dict[int, _Own] = {}
        self._lines: dict[int, dict[str, str]] = {}
        self._homes: dict[int, tuple[str, str] | None] = {}

    def digest(self, value: object) -> bytes:
        """As guards keep what is said of a value."""
        place = identity(value)
        found = self._digests.get(place)
        if found is None:
            found = self._digests[place] = digest_of(value)
            self._held.append(value)
        return found

    def key(self, key: object) -> bytes | None:
        """What a key of a table is called, in every process; None if it has no name."""
        place = identity(key)
        found = self._keys.get(place, b"")
        if found == b"":
            named = _key(key)
            found = self._keys[place] = None if named is None else short(named)[:PATH_SIZE]
            self._held.append(key)
        return found

    def functions(self, value: object) -> tuple[FunctionType, ...]:
        """The functions that the digest of a value tells of."""
        if type(value) is FunctionType and value.__closure__ is None:
            return (value,)
        found = self._functions.get(identity(value))
        if found is None:
            found = self._functions[identity(value)] = tuple(functions_of(value))
            self._held.append(value)
        return found

    def is_by_user(self, value: object) -> bool:
        """Whether the user wrote one of these functions."""
        return any(map(written_by_user, self.functions(value)))

    def members(self, kind: type[Any]) -> Mapping[str, object]:
        """The attributes of a class and of those it inherits from, as an instance would find them."""
        made: dict[str, object] = {}
        for each in reversed(kind.__mro__[:-1]):
            made.update(self._own_of(each).members)
        return made

    def library_members(self, kind: type[Any]) -> Mapping[bytes, object] | None:
        """The same by what they are called among entries; None if the user wrote one, or one is a table."""
        made: dict[bytes, object] = {}
        for each in reversed(kind.__mro__[:-1]):
            own = self._own_of(each)
            if own.named is None:
                return None
            made.update(own.named)
        return made

    def shape(self, kind: type[Any]) -> str:
        """Which class defines each method and property of a class."""
        made: dict[str, str] = {}
        for each in reversed(kind.__mro__[:-1]):
            lines = self._lines.get(identity(each))
            made.update(self._lines_of(each) if lines is None else lines)
        return "\n".join(sorted(filter(None, made.values())))

    def _lines_of(self, kind: type[Any]) -> dict[str, str]:
        """By the name of each attribute of the class itself, what is said of a method or a property, or nothing."""
        own = f" {kind.__qualname__} "
        found = self._lines[identity(kind)] = {
            name: name + own + type(value).__name__ if _is_descriptor(type(value)) else ""
            for name, value in _own_dict(kind).items()
        }
        self._held.append(kind)
        return found

    def _own_of(self, kind: type[Any]) -> _Own:
        found = self._own.get(identity(kind))
        if found is None:
            members = {name: each for name, each in _own_dict(kind).items() if name[:2] != "__" or name in OPERATORS}
            special = any(isinstance(each, dict) or self._is_method_by_user(each) for each in members.values())
            named = None if special else {attribute_name(name): value for name, value in members.items()}
            found = self._own[identity(kind)] = _Own(members, named)
            self._held.append(kind)
        return found

    def _is_method_by_user(self, value: object) -> bool:
        kind = type(value)
        if kind is FunctionType:
            return self.is_by_user(value)
        if kind is property:
            parts: tuple[object, ...] = (value.fget, value.fset, value.fdel)  # type: ignore[attr-defined]
            return any(self.is_by_user(each) for each in parts if each is not None)
        return _is_descriptor(kind) and self.is_by_user(value)

    def home(self, kind: type[Any]) -> tuple[str, str] | None:
        """The module and the path at which a class says that it is found, and is; None if it is not."""
        found = self._homes.get(identity(kind), ("", ""))
        if found == ("", ""):
            place = str(kind.__module__), kind.__qualname__
            found = self._homes[identity(kind)] = place if find(*place) is kind else None
            self._held.append(kind)
        return found


def written_by_user(function: FunctionType) -> bool:
    """Whether the user wrote a function, and no library wrote or generated it."""
    path = function.__code__.co_filename
    if is_library_file(path):
        return False
    return not path.startswith("<") or not is_library_module(str(function.__globals__.get("__name__")))


def _own_dict(kind: type[Any]) -> dict[str, object]:
    """A copy of what a class itself has; nothing of a class in C, which cannot be changed."""
    return dict(class_dict(kind)) if kind.__flags__ & _HEAP_TYPE else {}


_descriptors: Final[dict[type[Any], bool]] = {}


def _is_descriptor(kind: type[Any]) -> bool:
    found = _descriptors.get(kind)
    if found is None:
        found = _descriptors[kind] = callable(getattr(kind, "__get__", None))
    return found


def _key(key: object) -> object | None:
    """What names a key in every process, or None."""
    if is_plain(key):
        return ("plain", key)
    if type(key) is tuple:
        return key if all(is_plain(each) for each in key) else None
    if isinstance(key, type | Enum):
        return token(key)
    if isinstance(key, FunctionType):
        return ("function", key.__module__, key.__qualname__)
    kind = type(key)
    try:
        name = object.__getattribute__(key, "name")
    except AttributeError:
        return None
    return ("named", str(kind.__module__), kind.__qualname__, name) if type(name) is str else None
