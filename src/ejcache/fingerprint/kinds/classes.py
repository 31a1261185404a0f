"""Classes: their bases, metaclass and members, and for abstract classes what is registered with them."""

from __future__ import annotations

import abc
import sys
import types
from typing import TYPE_CHECKING, Any, Final

from ejcache.fingerprint.kinds.real_types import class_text, type_dict, type_module, type_name
from ejcache.fingerprint.library import is_library_module

if TYPE_CHECKING:
    from ejcache.fingerprint.kinds.graph import Node

__all__ = ["is_library_class", "write_class"]

_flags: Final = type.__dict__["__flags__"].__get__
_bases: Final = type.__dict__["__bases__"].__get__

_HEAP_TYPE: Final = 1 << 9
_IMMUTABLE_TYPE: Final = 1 << 8

_NOT_READ: Final = frozenset(
    {
        "__dict__",
        "__weakref__",
        "__firstlineno__",
        "__static_attributes__",
        "__slotnames__",
        "__annotations__",
        "__annotations_cache__",
        "__annotate__",
        "__annotate_func__",
        "__conditional_annotations__",
        "__module__",
        "__qualname__",
        "__orig_bases__",
        "__parameters__",
        "__type_params__",
        "_abc_impl",
        "__abstractmethods__",
    }
)
"""Members that say nothing that a trace reads, or are written in another way."""
_SOFT: Final = frozenset({types.FunctionType, staticmethod, classmethod, property})


def is_library_class(kind: type) -> bool:
    """Whether a class says that a library defines it."""
    module = type_module(kind)
    return isinstance(module, str) and is_library_module(module)


def write_class(node: Node, value: Any) -> None:
    """Write a class. Of a library's classes it reads the functions and what the user has put there."""
    kind: type = value
    flags = _flags(kind)
    node.write(b"class", class_text(kind).encode("utf-8", "surrogatepass"))
    if not flags & _HEAP_TYPE or flags & _IMMUTABLE_TYPE:
        return  # Written in C, and nobody can change it.
    library = is_library_class(kind)
    metaclass = type(kind)
    if metaclass is not type and metaclass is not abc.ABCMeta:
        node.child(".__class__", metaclass)
    for index, base in enumerate(_bases(kind)):
        if base is not object:
            node.child(f".__bases__[{index}]", base)
    members = type_dict(kind)
    for name, member in list(members.items()):
        if name not in _NOT_READ:
            node.child(f".{name}", member, soft=library)
    abstract = members.get("__abstractmethods__")
    if type(abstract) is frozenset:
        node.write(",".join(sorted(map(str, abstract))).encode())
    if "_abc_impl" in members:
        _write_registrations(node, kind, library=library)


def _write_registrations(node: Node, kind: type, *, library: bool) -> None:
    """Write the classes that are registered with an abstract one; with a library's, only the user's classes.

    They are kept in the order of their addresses, so they are sorted by name.
    """
    get_dump = getattr(sys.modules.get("_abc"), "_get_dump", None)
    if get_dump is None:
        return
    registered = [reference() for reference in get_dump(kind)[0]]
    classes = [each for each in registered if each is not None and not (library and is_library_class(each))]
    for each in sorted(classes, key=class_text):
        node.child(f".register({type_name(each)})", each)
