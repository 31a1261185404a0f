"""Containers, in the order in which a program meets what they hold; sets are sorted."""

from __future__ import annotations

import array
import collections
import gc
import types
from typing import TYPE_CHECKING, Any, Final

from ejcache.direct.describing.code import identity
from ejcache.direct.describing.graph import is_scalar, scalar_token

if TYPE_CHECKING:
    from ejcache.direct.describing.graph import Handler, Node

__all__ = ["HANDLERS", "write_mapping", "write_sequence", "write_set"]

_PLAIN_KEYS: Final = frozenset(map(identity, (str, bool)))


def write_sequence(node: Node, items: Any) -> None:
    """Write the items of a list or a tuple, which `items` iterates without asking the object's class."""
    for index, item in enumerate(items):
        node.item(f"[{index}]", item)


def write_mapping(node: Node, items: Any) -> None:
    """Write the keys and values of a dictionary in its order."""
    for index, (key, value) in enumerate(items):
        if identity(type(key)) in _PLAIN_KEYS:
            text = repr(key)
            node.write(text.encode("utf-8", "surrogatepass"))
            node.child(f"[{text}]", value)
        else:
            node.child(f"[key {index}]", key)
            node.child(f"[value {index}]", value)


def write_set(node: Node, items: Any) -> None:
    """Write the members of a set, sorted: their order differs from one process to the next."""
    members = list(items)
    if all(map(is_scalar, members)):
        node.write(*sorted(map(scalar_token, members)))
    else:
        node.write(*sorted(map(node.graph.apart, members)))


def _list(node: Node, value: Any) -> None:
    node.write(b"list")
    write_sequence(node, list.__iter__(value))


def _dict(node: Node, value: Any) -> None:
    node.write(b"dict")
    write_mapping(node, dict.items(value))


def _set(node: Node, value: Any) -> None:
    node.write(b"set")
    write_set(node, set.__iter__(value))


def _frozenset(node: Node, value: Any) -> None:
    node.write(b"frozenset")
    write_set(node, frozenset.__iter__(value))


def _deque(node: Node, value: Any) -> None:
    node.write(b"deque", repr(value.maxlen).encode())
    write_sequence(node, collections.deque.__iter__(value))


def _ordered_dict(node: Node, value: Any) -> None:
    node.write(b"OrderedDict")
    write_mapping(node, collections.OrderedDict.items(value))


def _default_dict(node: Node, value: Any) -> None:
    node.write(b"defaultdict")
    node.child(".default_factory", value.default_factory)
    write_mapping(node, dict.items(value))


def _view(node: Node, value: Any) -> None:
    """A proxy or a view of a mapping: the collector names the mapping, whose own methods are not asked."""
    node.write(type(value).__name__.encode())
    for mapping in gc.get_referents(value):
        node.child("", mapping)


def _range(node: Node, value: Any) -> None:
    node.write(b"range", repr((value.start, value.stop, value.step)).encode())


def _slice(node: Node, value: Any) -> None:
    node.write(b"slice")
    for name in ("start", "stop", "step"):
        node.child(f".{name}", getattr(value, name))


def _bytearray(node: Node, value: Any) -> None:
    node.write(b"bytearray", bytes(value))


def _array(node: Node, value: Any) -> None:
    node.write(b"array", value.typecode.encode(), value.tobytes())


HANDLERS: Final[dict[type, Handler]] = {
    list: _list,
    dict: _dict,
    set: _set,
    frozenset: _frozenset,
    collections.deque: _deque,
    collections.OrderedDict: _ordered_dict,
    collections.defaultdict: _default_dict,
    types.MappingProxyType: _view,
    type({}.keys()): _view,
    type({}.values()): _view,
    type({}.items()): _view,
    range: _range,
    slice: _slice,
    bytearray: _bytearray,
    array.array: _array,
}
