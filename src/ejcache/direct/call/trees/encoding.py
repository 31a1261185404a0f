"""Trees of arguments and outputs as JSON.

    tree := 0                                   a leaf
          | null                                None
          | ["tuple", tree, …] | ["list", tree, …]
          | ["dict", [key, …], tree, …]         in the order of JAX
          | ["ordered", [key, …], tree, …]      an OrderedDict
          | ["default", value, [key, …], tree, …]     a defaultdict, and what it makes for missing keys
          | ["node", class, value, tree, …]     a class that is registered as a node, or a named tuple

Keys and values are written as `node_data` says, and classes, too. Reading imports nothing and runs no code of a class.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from jax.tree_util import PyTreeDef

from ejcache.direct.call.trees.node_data import DataReader, DataWriter
from ejcache.errors import EntryCorruptError
from ejcache.jax_integration.seam.direct.fastpath import make_tree
from ejcache.jax_integration.seam.direct.refusal import RefusedError

if TYPE_CHECKING:
    from ejcache.direct.call.shardings import Devices
    from ejcache.direct.call.trees.call_objects import CallObjects

__all__ = ["decode_tree", "encode_tree", "write_tree"]

_LEAF: Final = 0
_MAX_DEPTH: Final = 200
_DEPTH_OF_DATA: Final = 20
"""By how much a treedef is deeper for each value around it in the data of a node."""
_MAX_NODES: Final = 1_000_000
_BUILT_IN: Final = frozenset({tuple, list, dict, OrderedDict, defaultdict, NoneType})
"""Classes that have tags of their own."""
_SEQUENCES: Final[dict[type, str]] = {tuple: "tuple", list: "list"}


def encode_tree(tree: Any, devices: Devices, objects: CallObjects, where: str = "the result") -> Any:
    """A tree of outputs.

    Args:
        tree: a treedef.
        devices: of the backend.
        objects: of the call that gave these outputs.
        where: what has this structure, for messages.

    Raises:
        RefusedError: a node holds what cannot be described, and what is in no argument.
    """

    def other(value: Any, place: str) -> Any:
        path = objects.path_of(value)
        if path is not None:
            return ["ref", *path]
        if isinstance(value, PyTreeDef):
            return ["tree", write_tree(value, writer, place)]
        return writer.encode_fields(value, place)

    writer = DataWriter(devices, other)
    return write_tree(tree, writer, where)


def decode_tree(value: Any, devices: Devices, objects: CallObjects) -> Any:
    """The treedef that `encode_tree` wrote, for a call with the same structure.

    Raises:
        EntryCorruptError: the value does not describe a tree.
        RefusedError: it names what this process or this call does not have.
    """
    return _TreeReader(devices, objects).read(value, 0)


def write_tree(tree: Any, writer: DataWriter, where: str, depth: int = 0) -> Any:
    """A tree, whose data is written by `writer`.

    Raises:
        RefusedError: a node holds what cannot be described.
    """
    node = tree.node_data()
    if node is None:
        return _LEAF
    kind, data = node
    if kind is NoneType:
        return None
    if depth > _MAX_DEPTH:
        raise RefusedError(f"{where} is nested too deeply")
    names = data if kind is dict else data[1] if kind is defaultdict else data if kind is OrderedDict else ()
    children = [
        write_tree(child, writer, _place(where, names, number), depth + 1)
        for number, child in enumerate(tree.children())
    ]
    if kind in _SEQUENCES:
        return [_SEQUENCES[kind], *children]
    keys = [writer.encode(key, f"a key of {where}") for key in names]
    if kind is dict:
        return ["dict", keys, *children]
    if kind is OrderedDict:
        return ["ordered", keys, *children]
    if kind is defaultdict:
        return ["default", writer.encode(data[0], f"the default of {where}"), keys, *children]
    return [
        "node",
        writer.encode(kind, f"the class of {where}"),
        writer.encode(data, f"the data of {where}"),
        *children,
    ]


def _place(where: str, names: Any, number: int) -> str:
    return f"{where}[{names[number]!r:.40}]" if number < len(names) else f"{where}[{number}]"


class _TreeReader:
    """Reads a tree; `of_outputs` tells it from a treedef that a node of another one holds."""

    def __init__(self, devices: Devices, objects: CallObjects, *, of_outputs: bool = True) -> None:
        self._of_outputs = of_outputs
        self._nodes = 0

        def read_held(value: Any, depth: int) -> Any:
            return _TreeReader(devices, objects, of_outputs=False).read(value, depth * _DEPTH_OF_DATA)

        self._reader = DataReader(devices, objects, read_held)

    def read(self, value: Any, depth: int) -> Any:
        self._nodes += 1
        if depth > _MAX_DEPTH or self._nodes > _MAX_NODES:
            raise EntryCorruptError("a tree is too large")
        if value is None:
            return self._made((NoneType, None), [])
        if type(value) is int and value == _LEAF:
            return self._made(None, [])
        if type(value) is not list:
            raise EntryCorruptError("a tree is neither a leaf nor a node")
        match value:
            case ["tuple", *children]:
                node: tuple[type, Any] = (tuple, None)
            case ["list", *children]:
                node = (list, None)
            case ["dict", [*keys], *children]:
                node = (dict, self._keys(keys, children))
            case ["ordered", [*keys], *children]:
                node = (OrderedDict, tuple(self._keys(keys, children)))
            case ["default", made, [*keys], *children]:
                node = (defaultdict, (self._reader.decode(made), tuple(self._keys(keys, children))))
            case ["node", kind, data, *children]:
                cls = self._reader.decode(kind)
                if not isinstance(cls, type) or cls in _BUILT_IN:
                    raise EntryCorruptError("a node whose class is none")
                if data is None and issubclass(cls, tuple) and len(getattr(cls, "_fields", ())) != len(children):
                    raise EntryCorruptError("a named tuple with other fields than its class")
                node = (cls, self._reader.decode(data))
            case _:
                raise EntryCorruptError("a node of an unknown kind")
        return self._made(node, [self.read(child, depth + 1) for child in children])

    def _keys(self, keys: list[Any], children: list[Any]) -> list[Any]:
        if len(keys) != len(children):
            raise EntryCorruptError("a dictionary with more keys than values, or fewer")
        decoded = [self._reader.decode(key) for key in keys]
        try:
            if len(set(decoded)) != len(decoded):
                raise EntryCorruptError("a dictionary with a key twice")
        except TypeError as exc:
            raise EntryCorruptError("a dictionary with a key that is none") from exc
        return decoded

    def _made(self, node: tuple[type, Any] | None, children: list[Any]) -> Any:
        try:
            return make_tree(node, children, of_outputs=self._of_outputs)
        except (ValueError, TypeError, RuntimeError) as exc:
            # The class is not registered in this process, or registered otherwise.
            raise RefusedError(f"no tree can be made of a {node[0].__qualname__ if node else 'leaf'}") from exc
