"""Instances of classes written in Python: the values of their attributes, and their class.

An instance of a class written in C, or with a part written in C that is not known here, keeps state that nothing shows.
It has no fingerprint.
"""

from __future__ import annotations

import collections
import types
from typing import TYPE_CHECKING, Any, Final

from ejcache.fingerprint.code import plain_token
from ejcache.fingerprint.kinds.containers import write_mapping, write_sequence, write_set
from ejcache.fingerprint.kinds.graph import ARROW
from ejcache.fingerprint.kinds.real_types import is_subtype, kind_name, mro_of, type_dict, type_name

if TYPE_CHECKING:
    from ejcache.fingerprint.kinds.graph import Node

__all__ = ["instance_dict", "slots_of", "write_instance"]

_basic_size: Final = type.__dict__["__basicsize__"].__get__
_default_factory: Any = vars(collections.defaultdict)["default_factory"].__get__
_max_length: Any = vars(collections.deque)["maxlen"].__get__
_arguments: Any = vars(BaseException)["args"].__get__
_NOT_READ: Final = frozenset({"__annotations__", "__type_params__"})
"""Attributes that `functools.wraps` copies from a function, where they are written already."""
_WORD: Final = tuple.__itemsize__


def instance_dict(value: object) -> dict[str, object] | None:
    """The `__dict__` of an instance, whatever its class says `__dict__` is. None: it has none."""
    for kind in mro_of(type(value)):
        found = type_dict(kind).get("__dict__")
        if type(found) is types.GetSetDescriptorType and found.__objclass__ is kind:
            attributes = found.__get__(value)
            return attributes if type(attributes) is dict else None
    return None


def slots_of(value: object) -> list[tuple[str, object]]:
    """The names and values of the slots of an instance that are set, those of its bases last."""
    found: list[tuple[str, object]] = []
    for kind in mro_of(type(value)):
        for name, member in type_dict(kind).items():
            if type(member) is types.MemberDescriptorType and member.__objclass__ is kind:
                try:
                    found.append((name, member.__get__(value)))
                except AttributeError:
                    continue
    return found


def write_instance(node: Node, value: Any) -> None:
    """Write an instance.

    Raises:
        RefusedError: a part of it is written in C, and is not known.
    """
    kind = type(value)
    node.write(b"instance")
    node.child(f"{ARROW}{type_name(kind)}", kind)
    if not _write_content(node, value, kind) and _has_hidden_state(kind):
        node.refuse(f"is {kind_name(value)}")
    for name, attribute in slots_of(value):
        node.child(f".{name}", attribute)
    for name, attribute in list((instance_dict(value) or {}).items()):
        if name not in _NOT_READ:
            node.child(f".{name}", attribute) if type(name) is str else node.child("[an attribute]", (name, attribute))


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


def _has_hidden_state(kind: type) -> bool:
    """Whether instances are larger than their slots and header say."""
    slots = sum(
        type(member) is types.MemberDescriptorType and member.__objclass__ is base
        for base in mro_of(kind)
        for member in type_dict(base).values()
    )
    return bool(_basic_size(kind) > object.__basicsize__ + _WORD * slots)
