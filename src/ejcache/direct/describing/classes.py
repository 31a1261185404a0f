"""Classes by their bases, metaclass and those members that code can name; their instances by attributes and class.

The class of an instance and a class that the code itself uses are two things: only the latter may be called, and only
then do its constructors count. Of an instance of the project, those attributes count that the code that was reached can
name. An instance whose state only its class knows is written as it would be pickled; one that cannot be, because it is
a file or a generator, has no description.
"""

from __future__ import annotations

import abc
import copyreg
import enum
import functools
import sys
import types
import typing
from typing import TYPE_CHECKING, Any, Final

from ejcache.direct.describing.code import identity
from ejcache.direct.describing.graph import ARROW, is_scalar
from ejcache.direct.describing.names import (
    class_text,
    is_project_class,
    is_subtype,
    kind_name,
    library_name,
    mro_of,
    type_dict,
    type_module,
    type_name,
)
from ejcache.direct.describing.standard import CONTENT, write_annotations
from ejcache.jax_integration.seam.direct.traces import registered_functions
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection

    from ejcache.direct.describing.graph import Node


__all__ = ["write_attributes", "write_class", "write_instance"]

_flags_of: Final = dict[str, Any](vars(type))["__flags__"].__get__
_bases_of: Final = dict[str, Any](vars(type))["__bases__"].__get__

_HEAP_TYPE: Final = 1 << 9
_IMMUTABLE_TYPE: Final = 1 << 8

_NO_MEMBERS: Final = frozenset(
    {
        *("__abstractmethods__", "__annotations__", "__dict__", "__firstlineno__", "__module__", "__orig_bases__"),
        *("__non_callable_proto_members__", "__parameters__", "__protocol_attrs__", "__qualname__", "__signature__"),
        *("__slotnames__", "__static_attributes__", "__type_params__", "__weakref__", "_abc_impl"),
        "_api_export_symbol_id",
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
    flags = _flags_of(kind)
    node.write(b"class", class_text(kind).encode("utf-8", "surrogatepass"))
    for place, function in enumerate(registered_functions(kind)):
        node.child(f" as a pytree[{place}]", function)
    if not flags & _HEAP_TYPE or flags & _IMMUTABLE_TYPE:
        return  # Written in C, and nobody can change it.
    if library_name(node, kind) is not None:
        _write_patches(node, kind)
        return
    node.quiet = not is_project_class(node, kind)
    if type_dict(kind).get("_is_protocol"):
        names = (type_dict(kind).get(each, ()) for each in ("__protocol_attrs__", "__annotations__"))
        node.graph.note_names(node, dict.fromkeys({*type_dict(kind)}.union(*names), ""))
    metaclass = type(kind)
    if metaclass is not type and metaclass is not abc.ABCMeta:
        node.child(".__class__", metaclass)
    for index, base in enumerate(_bases_of(kind)):
        if base is not object:
            node.child(f".__bases__[{index}]", base, as_type=node.as_type)
    members = {name: each for name, each in type_dict(kind).items() if type(name) is str and name not in _NO_MEMBERS}
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
    if not node.quiet:
        node.child(".__orig_bases__", type_dict(kind).get("__orig_bases__"))
    scope = getattr(sys.modules.get(type_dict(kind).get("__module__")), "__dict__", {})
    write_annotations(node, type_dict(kind).get("__annotations__", {}), scope)
    node.child(".__abstractmethods__", type_dict(kind).get("__abstractmethods__"))
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


_type_members: Final[dict[str, Any]] = dict(vars(type))
_basic_size: Final = _type_members["__basicsize__"].__get__
_dict_offset: Final = _type_members["__dictoffset__"].__get__
_weak_list_offset: Final = _type_members["__weakrefoffset__"].__get__
_NO_ATTRIBUTES: Final = frozenset({"__annotations__", "__type_params__", "__wrapped__", "_api_export_symbol_id"})
"""Attributes that `functools.wraps` copies from a function, where they are written already; addresses that Keras notes.
"""
_ADDRESSES: Final = {
    "absl.flags._flagvalues:FlagValues": frozenset({"__banned_flag_names", "__flags_by_module_id"}),
    "flax.ids:FlaxId": frozenset({"id"}),
    "flax.linen.module:Module": frozenset({"_id"}),
    "flax.linen.module:_ModuleInternalState": frozenset({"autoname_cursor"}),
}
"""Attributes of libraries' instances that differ between processes and mean nothing: addresses, serial numbers."""
_WORD: Final = tuple.__itemsize__
_NEUTRAL: Final[tuple[object, ...]] = (object, abc.ABC, typing.Generic, typing.Protocol)
"""Bases that read no attributes."""
_PICKLED: Final = ("__getstate__", "__reduce_ex__", "__reduce__")
_LOOKS_UP: Final = ("__getattr__", "__getattribute__")


class _Layout(NamedTuple):
    """Where the instances of a class keep what they hold.

    Attributes:
        kind: kept, so that no other class gets its identity.
        slots: names and descriptors, those of the bases last.
        attributes: the descriptor of `__dict__`, or None.
        is_namespace: only the attributes count that the code can name.
        is_pickled: a library says how it is pickled, or instances are larger than their header and slots, so that C
            code keeps something in them.
        cached: the names of its cached properties.
        inner: attributes that have more attributes, of a class of `_HOLDERS`.
        opens: methods of such a class, with which code reaches all attributes.
        unread: attributes that mean nothing.
    """

    kind: type
    slots: tuple[tuple[str, Any], ...]
    attributes: Any
    is_namespace: bool
    is_pickled: bool
    cached: frozenset[str]
    inner: tuple[str, ...]
    opens: frozenset[str]
    unread: frozenset[str]


def _layout_of(node: Node, kind: type) -> _Layout:
    slots: list[tuple[str, Any]] = []
    attributes = None
    is_pickled = False
    unread: frozenset[str] = frozenset()
    foreign = False
    inner: tuple[str, ...] = ()
    cached: set[str] = set()
    opens: set[str] = set()
    for base in mro_of(kind):
        members = type_dict(base)
        for name, member in members.items():
            if type(member) is types.MemberDescriptorType and member.__objclass__ is base and name != "__dict__":
                slots.append((name, member))
        found = members.get("__dict__")
        if attributes is None and type(found) in _DESCRIPTORS and found.__objclass__ is base:
            attributes = found
        cached.update(str(name) for name, member in members.items() if type(member) is functools.cached_property)
        text = class_text(base)
        unread |= _ADDRESSES.get(text, frozenset())
        if any(base is each for each in _NEUTRAL):
            continue
        if text in _HOLDERS:
            inner += _HOLDERS[text]
            opens.update(name for name in members if name[:1] != "_" or name in {"_get_kwargs", "_get_args"})
        elif is_project_class(node, base):
            foreign |= any(name in members for name in _LOOKS_UP)
        else:
            foreign = True
            is_pickled |= text not in _KEPT_WHOLE and any(name in members for name in _PICKLED)
    foreign |= bool(registered_functions(kind))
    # The dictionary and the list of weak references are inside the instance if their offsets say so.
    pointers = len(slots) + (_dict_offset(kind) > 0) + (_weak_list_offset(kind) > 0)
    hidden = bool(_basic_size(kind) > object.__basicsize__ + _WORD * pointers)
    named = frozenset(cached), inner, frozenset(opens)
    return _Layout(kind, tuple(slots), attributes, not foreign, is_pickled or hidden, *named, unread)


_DESCRIPTORS: Final = (types.GetSetDescriptorType, types.MemberDescriptorType)
_HOLDERS: Final = {
    "argparse:Namespace": (),
    "argparse:_AttributeHolder": (),
    "ml_collections.config_dict.config_dict:ConfigDict": ("_fields",),
    "ml_collections.config_dict.config_dict:FrozenConfigDict": ("_fields",),
    "pydantic.main:BaseModel": ("__pydantic_extra__", "__pydantic_private__"),
    "types:SimpleNamespace": (),
}
"""Classes of libraries that only hold what the program reads by name, and the attributes that have more of it."""
_KEPT_WHOLE: Final = frozenset(
    {"enum:Enum", "flax.linen.module:Module", "keras.src.saving.keras_saveable:KerasSaveable"}
)
"""Classes whose attributes say all, although they say how they are pickled."""


def write_attributes(node: Node, attributes: Any, unread: Collection[str] = ()) -> None:
    """Write the `__dict__` of a function or an instance: any dictionary, with any keys."""
    for name, attribute in list(dict.items(attributes)):
        if type(name) is not str:
            node.child("[an attribute]", (name, attribute))
        elif name not in _NO_ATTRIBUTES and name not in unread:
            node.child(f".{name}", attribute)


def write_instance(node: Node, value: Any) -> None:
    """Write an instance.

    Raises:
        RefusedError: a part of it is written in C, and nothing shows it.
    """
    kind = type(value)
    node.write(b"instance")
    node.child(f"{ARROW}{type_name(kind)}", kind, as_type=True)
    layout = node.graph.layouts.get(identity(kind))
    if layout is None:
        layout = node.graph.layouts[identity(kind)] = _layout_of(node, kind)
    write_content = next((write for base, write in CONTENT if is_subtype(kind, base)), None)
    if write_content is not None:
        write_content(node, value)
    elif layout.is_pickled:
        _write_pickled(node, value, kind)
        return
    held: dict[str, object] = {}
    for name, descriptor in layout.slots:
        try:
            held[name] = descriptor.__get__(value)
        except AttributeError:
            continue
    own = layout.attributes.__get__(value) if layout.attributes is not None else {}
    if layout.is_namespace:
        # The attributes in the order in which they were set.
        members = {**held, **own}
        for name in layout.inner:
            members.update(members.pop(name, None) or {})
        for name in layout.cached & members.keys():
            # A trace may compute it, so it is no change that it is there.
            node.write_passing(name.encode() + node.graph.apart(members.pop(name)))
        named = {name: each for name, each in members.items() if type(name) is str}
        node.graph.add_namespace(node, named, opens=layout.opens)
        return
    write_attributes(node, held, layout.unread)
    write_attributes(node, own, layout.unread)


def _write_pickled(node: Node, value: Any, kind: type) -> None:
    """Write an instance as it would be pickled, if its class, or `copyreg`, says how; what makes it follows from those.

    Raises:
        RefusedError: nothing says how.
    """
    reduced: object = None
    reduce = copyreg.dispatch_table.get(kind)
    try:
        if reduce is not None:
            reduced = reduce(value)
        elif any(name in type_dict(base) for base in mro_of(kind) if base is not object for name in _PICKLED):
            reduced = value.__reduce_ex__(4)
    except Exception as error:
        node.write(str(error).encode("utf-8", "surrogatepass"))
    if type(reduced) is not tuple:
        node.refuse(f"is {kind_name(value)}, which cannot be compared")
    if type_module(kind) in {"operator", "_operator"}:
        # It reads the attributes that it has the names of.
        texts = [each for each in (*reduced[1], *getattr(reduced[0], "args", ())) if type(each) is str]
        node.graph.note_names(node, {name: node.place for text in texts for name in text.split(".")})
    made, *parts = reduced
    if type(made) in {types.FunctionType, functools.partial}:
        node.child("", made)  # others are classes, and functions written in C
    for index, part in enumerate(parts):
        # Items that are appended or set are given by iterators.
        node.child("", part if index < 2 or part is None else list(part))
