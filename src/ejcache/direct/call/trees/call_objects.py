"""The objects that a call brings along: what the nodes of its arguments' trees hold, and its static arguments.

The outputs of a function often have parts of its inputs in their structure, such as the optimiser in a training state.
A record does not describe these: it says where in the arguments they are. The fingerprint covers their content.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from ejcache.direct.object_names import MISSING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["CallObjects", "nodes_of"]

_MAX_DEPTH: Final = 8
_MAX_OBJECTS: Final = 100_000
_PLAIN: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
_CLASS: Final = -1
"""The step from a node to its class."""


def nodes_of(tree: Any) -> Iterator[tuple[type, Any]]:
    """The class and the data of each inner node of a tree, from top to bottom and from left to right."""
    waiting = [tree]
    while waiting:
        current = waiting.pop()
        node = current.node_data()
        if node is not None:
            yield node
            waiting.extend(reversed(current.children()))


class CallObjects:
    """Finds an object in the arguments of a call, and gets it back from those of another call.

    A path is a list of numbers: the argument, the node of its tree, and steps into tuples, lists and dictionaries.
    Static arguments have negative numbers, and no nodes.

    Args:
        trees: of the arguments.
        statics: the static arguments.
        is_same: decides whether two objects of one class are equal for every purpose.
    """

    def __init__(
        self, trees: Sequence[Any], statics: Sequence[Any], is_same: Callable[[Any, Any], bool] | None = None
    ) -> None:
        self._trees = tuple(trees)
        self._statics = tuple(statics)
        self._is_same = is_same or _is_equal
        self._nodes: dict[int, tuple[tuple[type, Any], ...]] = {}
        self._by_id: dict[int, tuple[int, ...]] | None = None
        self._by_class: dict[type, list[tuple[tuple[int, ...], Any]]] = {}

    def path_of(self, value: Any) -> list[int] | None:
        """Where this object is, or else one that equals it; None if there is none."""
        if self._by_id is None:
            self._by_id = {}
            for path, each in self._all():
                if id(each) not in self._by_id:
                    self._by_id[id(each)] = path
                    self._by_class.setdefault(type(each), []).append((path, each))
        found = self._by_id.get(id(value))
        if found is None:
            candidates = self._by_class.get(type(value), ())
            found = next((path for path, each in candidates if self._is_same(each, value)), None)
        return None if found is None else list(found)

    def at(self, path: Sequence[int]) -> Any:
        """The object there, or `MISSING`."""
        if len(path) < 2:
            return MISSING
        argument, node, *steps = path
        if argument < 0:
            found = self._statics[-1 - argument] if -argument <= len(self._statics) and node == 0 else MISSING
        else:
            nodes = self._nodes_of(argument)
            if not 0 <= node < len(nodes):
                return MISSING
            if steps == [_CLASS]:
                return nodes[node][0]
            found = nodes[node][1]
        for step in steps:
            parts = _parts(found)
            if not 0 <= step < len(parts):
                return MISSING
            found = parts[step]
        return found

    def _nodes_of(self, argument: int) -> tuple[tuple[type, Any], ...]:
        if argument >= len(self._trees):
            return ()
        if argument not in self._nodes:
            self._nodes[argument] = tuple(nodes_of(self._trees[argument]))
        return self._nodes[argument]

    def _all(self) -> Iterator[tuple[tuple[int, ...], Any]]:
        count = 0
        for path, each in self._roots():
            waiting = [(path, each)]
            while waiting:
                here, value = waiting.pop()
                if type(value) in _PLAIN:
                    continue
                count += 1
                if count > _MAX_OBJECTS:
                    return
                yield here, value
                if len(here) < _MAX_DEPTH:
                    parts = _parts(value)
                    waiting.extend(((*here, step), parts[step]) for step in reversed(range(len(parts))))

    def _roots(self) -> Iterator[tuple[tuple[int, ...], Any]]:
        for argument in range(len(self._trees)):
            for number, (kind, data) in enumerate(self._nodes_of(argument)):
                yield (argument, number, _CLASS), kind
                yield (argument, number), data
        for number, static in enumerate(self._statics):
            yield (-1 - number, 0), static


def _parts(value: Any) -> Sequence[Any]:
    """What a container holds; nothing for other objects."""
    if isinstance(value, (tuple, list)):
        return value
    if type(value) is dict:
        return tuple(value.values())
    return ()


def _is_equal(one: Any, other: Any, depth: int = 0) -> bool:
    """Whether two objects are equal, without the numbers that Python takes for equal although they are not: 1 and True.

    The order of a dictionary does not count: flax writes the same metadata in different orders.
    """
    if one is other:
        return True
    if type(one) is not type(other) or depth > _MAX_DEPTH:
        return False
    if isinstance(one, (float, complex)):
        return repr(one) == repr(other)
    if isinstance(one, (tuple, list)):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(_is_equal(each, its, depth + 1) for each, its in pairs)
    if type(one) is dict:
        return one.keys() == other.keys() and all(_is_equal(one[key], other[key], depth + 1) for key in one)
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        if not all(_is_equal(getattr(one, name, None), getattr(other, name, None), depth + 1) for name in names):
            return False
    try:
        return bool(one == other)
    except Exception:
        return False  # arrays, or a comparison of the user's that fails
