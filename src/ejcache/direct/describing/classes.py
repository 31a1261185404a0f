"""Classes: their bases, metaclass and those members that code can name; a library's class by its name.

The class of an instance and a class that the code itself uses are two things: only the latter may be called, and only
then do its constructors count.
"""

from __future__ import annotations

import abc
import enum
import sys
import types
from typing import TYPE_CHECKING, Any, Final

from ejcache.direct.describing.annotations import write_annotations
from ejcache.direct.describing.graph import is_scalar
from ejcache.direct.describing.names import library_name
from ejcache.direct.describing.real_types import (
    class_text,
    is_project_class,
    is_subtype,
    mro_of,
    type_dict,
    type_module,
    type_name,
)

if TYPE_CHECKING:
    from ejcache.direct.describing.graph import Node

__all__ = ["write_class"]

_flags: Final = dict[str, Any](vars(type))["__flags__"].__get__
_bases: Final = dict[str, Any](vars(type))["__bases__"].__get__

_HEAP_TYPE: Final = 1 << 9
_IMMUTABLE_TYPE: Final = 1 << 8

_NOT_READ: Final = frozenset(
    {
        *("__abstractmethods__", "__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__"),
        *("__conditional_annotations__", "__dict__", "__firstlineno__", "__module__", "__non_callable_proto_members__"),
        *("__orig_bases__", "__parameters__", "__protocol_attrs__", "__qualname__", "__signature__", "__slotnames__"),
        *("__static_attributes__", "__type_params__", "__weakref__", "_abc_impl", "_api_export_symbol_id"),
    }
)
"""Members that say nothing that a trace reads, or are written in another way; an address that Keras notes."""
_CONSTRUCTORS: Final = frozenset(
    {"__attrs_attrs__", "__init__", "__new__", "__post_init__", "__attrs_post_init__", "__init_subclass__"}
)
_NEUTRAL_MODULES: Final = frozenset({"abc", "builtins", "typing"})
"""Their classes use no members of classes derived from them but those that the interpreter says."""
_OF_TEXTS: Final = frozenset({"__repr__", "__str__", "__format__", "__del__", "__doc__"})
_SAID: Final = (types.FunctionType, staticmethod, classmethod, property)


def write_class(node: Node, value: Any) -> None:
    """Write a class."""
    kind: type = value
    flags = _flags(kind)
    node.write(b"class", class_text(kind).encode("utf-8", "surrogatepass"))
    if not flags & _HEAP_TYPE or flags & _IMMUTABLE_TYPE:
        return  # Written in C, and nobody can change it.
    if library_name(node, kind) is not None:
        _write_patches(node, kind)
        return
    node.quiet = not is_project_class(node, kind)
    if type_dict(kind).get("_is_protocol"):
        names = (type_dict(kind).get(each, ()) for each in ("__protocol_attrs__", "__annotations__"))
        node.graph.note_names({*type_dict(kind)}.union(*names))
    metaclass = type(kind)
    if metaclass is not type and metaclass is not abc.ABCMeta:
        node.child(".__class__", metaclass)
    for index, base in enumerate(_bases(kind)):
        if base is not object:
            node.child(f".__bases__[{index}]", base, as_type=node.as_type)
    members = {name: each for name, each in type_dict(kind).items() if type(name) is str and name not in _NOT_READ}
    if "__doc__" in members and "__dataclass_fields__" in members:
        del members["__doc__"]  # it may be made of the fields, and show addresses
    if "__attrs_attrs__" in members:
        # What attrs generates follows from the attributes, and has numbers of this process in it.
        members = {name: each for name, each in members.items() if not _is_generated_by_attrs(each)}
    every = is_subtype(metaclass, enum.EnumType) or is_project_class(node, metaclass)
    used = _has_library_base(node, kind)
    wanted = [
        name
        for name, member in members.items()
        if every or (used and name[:2] != "__") or _is_said(name, member, called=not node.as_type)
    ]
    node.graph.add_namespace(node, members, wanted=wanted)
    if "__dataclass_fields__" in members:
        node.graph.add_namespace(node, {"": members["__dataclass_fields__"]}, opens={"fields"})
    write_annotations(node, kind)
    abstract = type_dict(kind).get("__abstractmethods__")
    if type(abstract) is frozenset:
        node.write(",".join(sorted(map(str, abstract))).encode())
    _write_registrations(node, kind)


def _has_library_base(node: Node, kind: type) -> bool:
    """Whether code of a library may use any member of a class: a base of it is a library's."""
    return any(type_module(base) not in _NEUTRAL_MODULES and not is_project_class(node, base) for base in mro_of(kind))


def _is_generated_by_attrs(member: object) -> bool:
    if type(member) is not types.FunctionType:
        return False
    return (
        member.__code__.co_filename.startswith("<attrs generated") or member.__globals__.get("__name__") == "attr._make"
    )


def _is_said(name: str, member: object, *, called: bool) -> bool:
    """Whether the interpreter says a name: operators and the like, and constructors of a class that is called."""
    if name[:2] != "__" or name[-2:] != "__" or name in _OF_TEXTS:
        return False
    if name in _CONSTRUCTORS:
        return called
    return type(member) in _SAID or is_scalar(member) or name in {"__match_args__", "__slots__"}


def _write_patches(node: Node, kind: type) -> None:
    """Write what the project has put into a library's class."""
    node.quiet = True
    for name, member in tuple(type_dict(kind).items()):
        function = member.__func__ if type(member) in {staticmethod, classmethod} else member
        if type(function) is types.FunctionType and node.graph.owners.is_project_function(function, unknown=False):
            node.child(f".{name}", function)
    _write_registrations(node, kind)


def _write_registrations(node: Node, kind: type) -> None:
    """Write the project's classes that are registered with an abstract one, by name: they are kept by address."""
    get_dump = getattr(sys.modules.get("_abc"), "_get_dump", None)
    if get_dump is None or "_abc_impl" not in type_dict(kind):
        return
    registered = [reference() for reference in get_dump(kind)[0]]
    classes = [each for each in registered if each is not None and is_project_class(node, each)]
    for each in sorted(classes, key=class_text):
        node.write(class_text(each).encode("utf-8", "surrogatepass"))
        node.child(f".register({type_name(each)})", each, as_type=True)
