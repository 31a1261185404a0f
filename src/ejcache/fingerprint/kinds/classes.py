"""Classes: their bases, metaclass and members, and for abstract classes what is registered with them.

Of a library's class only some members count here, see `libraries`.
"""

from __future__ import annotations

import abc
import sys
from typing import TYPE_CHECKING, Any, Final

from ejcache.fingerprint.kinds.annotations import write_annotations
from ejcache.fingerprint.kinds.libraries import write_library_names
from ejcache.fingerprint.kinds.real_types import class_text, is_library_class, type_dict, type_name

if TYPE_CHECKING:
    from ejcache.fingerprint.kinds.graph import Node

__all__ = ["write_class"]

_flags: Final = dict[str, Any](vars(type))["__flags__"].__get__
_bases: Final = dict[str, Any](vars(type))["__bases__"].__get__

_HEAP_TYPE: Final = 1 << 9
_IMMUTABLE_TYPE: Final = 1 << 8

_NOT_READ: Final = frozenset(
    {
        "__abstractmethods__",
        "__annotate__",
        "__annotate_func__",
        "__annotations__",
        "__annotations_cache__",
        "__conditional_annotations__",
        "__dict__",
        "__firstlineno__",
        "__non_callable_proto_members__",
        "__protocol_attrs__",
        "__module__",
        "__orig_bases__",
        "__parameters__",
        "__qualname__",
        "__signature__",
        "__slotnames__",
        "__static_attributes__",
        "__type_params__",
        "__weakref__",
        "_abc_impl",
        "_api_export_symbol_id",
    }
)
"""Members that say nothing that a trace reads, or are written in another way; an address that Keras notes."""


def write_class(node: Node, value: Any) -> None:
    """Write a class."""
    kind: type = value
    flags = _flags(kind)
    node.write(b"class", class_text(kind).encode("utf-8", "surrogatepass"))
    if not flags & _HEAP_TYPE or flags & _IMMUTABLE_TYPE:
        return  # Written in C, and nobody can change it.
    library = node.quiet = is_library_class(kind)
    metaclass = type(kind)
    if metaclass is not type and metaclass is not abc.ABCMeta:
        node.child(".__class__", metaclass)
    for index, base in enumerate(_bases(kind)):
        if base is not object:
            node.child(f".__bases__[{index}]", base)
    members = type_dict(kind)
    if library:
        write_library_names(node, members, _NOT_READ)
    else:
        for name, member in list(members.items()):
            if type(name) is not str:
                node.child("[a member]", (name, member))
            elif name not in _NOT_READ and not (name == "__doc__" and _is_generated(member, kind, members)):
                node.child(f".{name}", member)
        write_annotations(node, kind)
    abstract = members.get("__abstractmethods__")
    if type(abstract) is frozenset:
        node.write(",".join(sorted(map(str, abstract))).encode())
    if "_abc_impl" in members:
        _write_registrations(node, kind, library=library)


def _is_generated(text: Any, kind: type, members: Any) -> bool:
    """Whether a docstring is the one that a dataclass makes of its fields, which may show addresses."""
    name = type_name(kind).rpartition(".")[2]
    return "__dataclass_fields__" in members and type(text) is str and text.startswith(f"{name}(")


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
        node.write(class_text(each).encode("utf-8", "surrogatepass"))
        node.child(f".register({type_name(each)})", each)
