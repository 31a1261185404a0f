"""Instances of classes written in Python: the values of their attributes, and their class.

An instance of a class written in C, or with a part written in C that is not known here, keeps state that nothing shows.
It has no fingerprint.
"""

from __future__ import annotations

import collections
import types
from typing import TYPE_CHECKING, Any, Final

from ejcache._tuples import NamedTuple
from ejcache.fingerprint.code import plain_token
from ejcache.fingerprint.kinds.containers import write_mapping, write_sequence, write_set
from ejcache.fingerprint.kinds.graph import ARROW
from ejcache.fingerprint.kinds.real_types import (
    class_text,
    is_library_class,
    is_subtype,
    kind_name,
    mro_of,
    type_dict,
    type_name,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from ejcache.fingerprint.kinds.graph import Node

__all__ = ["write_attributes", "write_instance"]

_type_members: Final[dict[str, Any]] = dict(vars(type))
_basic_size: Final = _type_members["__basicsize__"].__get__
_dict_offset: Final = _type_members["__dictoffset__"].__get__
_weak_list_offset: Final = _type_members["__weakrefoffset__"].__get__
_default_factory: Any = vars(collections.defaultdict)["default_factory"].__get__
_max_length: Any = vars(collections.deque)["maxlen"].__get__
_arguments: Any = vars(BaseException)["args"].__get__
_NOT_READ: Final = frozenset({"__annotations__", "__type_params__", "_api_export_symbol_id"})
"""Attributes that `functools.wraps` copies from a function, where they are written already; addresses that Keras notes.
"""
_ADDRESSES: Final = {
    "absl.flags._flagvalues:FlagValues": frozenset({"__banned_flag_names", "__flags_by_module_id"}),
    "flax.ids:FlaxId": frozenset({"id"}),
}
"""Attributes of libraries' instances that differ between processes and mean nothing: addresses, serial numbers."""
_WORD: Final = tuple.__itemsize__


class _Layout(NamedTuple):
    """Where the instances of a class keep what they hold."""

    kind: type
    """Kept, so that no other class gets its identity."""
    slots: tuple[tuple[str, Any], ...]
    """Names and descriptors, those of the bases last."""
    attributes: Any
    """The descriptor of `__dict__`, or None."""
    has_hidden_state: bool
    """Instances are larger than their header and slots: C code keeps something in them."""


def _layout_of(kind: type) -> _Layout:
    slots: list[tuple[str, Any]] = []
    attributes = None
    for base in mro_of(kind):
        for name, member in type_dict(base).items():
            if type(member) is types.MemberDescriptorType and member.__objclass__ is base:
                slots.append((name, member))
        found = type_dict(base).get("__dict__")
        if attributes is None and type(found) is types.GetSetDescriptorType and found.__objclass__ is base:
            attributes = found
    # The dictionary and the list of weak references are inside the instance if their offsets say so.
    pointers = len(slots) + (_dict_offset(kind) > 0) + (_weak_list_offset(kind) > 0)
    size = object.__basicsize__ + _WORD * pointers
    return _Layout(kind, tuple(slots), attributes, bool(_basic_size(kind) > size))


def write_attributes(node: Node, attributes: Any, unread: Collection[str] = ()) -> None:
    """Write the `__dict__` of a function or an instance: any dictionary, with any keys."""
    for name, attribute in list(dict.items(attributes)):
        if type(name) is not str:
            node.child("[an attribute]", (name, attribute))
        elif name not in _NOT_READ and name not in unread:
            node.child(f".{name}", attribute)


def write_instance(node: Node, value: Any) -> None:
    """Write an instance.

    Raises:
        RefusedError: a part of it is written in C, and is not known.
    """
    kind = type(value)
    node.write(b"instance")
    node.child(f"{ARROW}{type_name(kind)}", kind)
    layout = node.graph.layouts.get(id(kind))
    if layout is None:
        layout = node.graph.layouts[id(kind)] = _layout_of(kind)
    if not _write_content(node, value, kind) and layout.has_hidden_state:
        node.refuse(f"is {kind_name(value)}")
    for name, descriptor in layout.slots:
        try:
            attribute = descriptor.__get__(value)
        except AttributeError:
            continue
        node.child(f".{name}", attribute)
    if layout.attributes is not None:
        unread = _ADDRESSES.get(class_text(kind), ()) if is_library_class(kind) else ()
        write_attributes(node, layout.attributes.__get__(value), unread)


def _write_content(node: Node, value: Any, kind: type) -> bool:
    """Write what a subclass of a built-in class holds as such. False: it is not one."""
    if is_subtype(kind, dict):
        if is_subtype(kind, collections.defaultdict):
            node.child(".default_factory", _default_factory(value))
        ordered = is_subtype(kind, collections.OrderedDict)
        write_mapping(node, collections.OrderedDict.items(value) if ordered else dict.items(value))
    elif is_subtype(kind, list):
        write_sequence(node, list.__iter__(value))
    elif is_subtype(kind, tuple):
        write_sequence(node, tuple.__iter__(value))
    elif is_subtype(kind, set):
        write_set(node, set.__iter__(value))
    elif is_subtype(kind, frozenset):
        write_set(node, frozenset.__iter__(value))
    elif is_subtype(kind, int):
        node.write(plain_token(int.__index__(value)))
    elif is_subtype(kind, float):
        node.write(plain_token(float.__float__(value)))
    elif is_subtype(kind, complex):
        node.write(plain_token(complex.__complex__(value)))
    elif is_subtype(kind, str):
        node.write(plain_token(str.__str__(value)))
    elif is_subtype(kind, bytes):
        node.write(plain_token(bytes.__getitem__(value, slice(None))))
    elif is_subtype(kind, BaseException):
        node.child(".args", _arguments(value))
    elif is_subtype(kind, collections.deque):
        node.write(repr(_max_length(value)).encode())
        write_sequence(node, collections.deque.__iter__(value))
    else:
        return False
    return True
