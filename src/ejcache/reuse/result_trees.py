"""Writes the pytree structure of a call's results as JSON, and reads it.

    tree  := [node, …]                              the children of a node before it, as JAX keeps them
    node  := 0                                      a leaf
           | [number of children, class, data]      data is a value
    class := ["name", "module:qualified.name"]      a class of a loaded module
           | ["ref", number]
    value := null | true | false | number below 2**53 | text
           | ["literal", text]                      what Python writes so: 0.5, 1j, b"x", a large number
           | ["tuple", value, …] | ["list", value, …] | ["set", value, …] | ["frozenset", value, …]
           | ["dict", [value, value], …]
           | ["ref", number]                        an object that the arguments of the call hold
           | ["tuple of", class, value, …]          a named tuple

Results often have parts of the arguments in their structure, such as the optimiser in a training state. A record says
where in the arguments these are. Reading imports nothing and runs no code of any class but comparisons. A class is one
that JAX knows as a node, or a named tuple; data is never anything that could be called, unless the arguments hold it.
"""

from __future__ import annotations

import ast
import functools
import itertools
import json
from collections import OrderedDict, defaultdict
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from ejcache.jax_integration.seam.reuse.calls import RefusedError, make_tree
from ejcache.values.names import MISSING, kind_name, name_of, named
from ejcache.values.plain_data import NotWholeError, whole_digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.jax_integration.seam.reuse.calls import ParsedCall

_DEEPEST_TREE: Final = 200
_DEEPEST_OBJECT: Final = 8
_MOST_OBJECTS: Final = 100_000
_EXACT: Final = 1 << 53
_PLAIN: Final = frozenset({NoneType, bool, int, float, complex, str, bytes})
_LITERALS: Final = frozenset({int, float, complex, bytes})
_CONTAINERS: Final[dict[type, str]] = {tuple: "tuple", list: "list", set: "set", frozenset: "frozenset"}
_BY_TAG: Final = {tag: kind for kind, tag in _CONTAINERS.items()}


def _objects_of(call: ParsedCall) -> Iterator[object]:
    """Yield the objects in the trees of all arguments, static ones too, in an order that follows from their content."""
    for tree in call.trees:
        waiting = [tree]
        while waiting:
            current = waiting.pop()
            node = current.node_data()
            if node is not None:
                yield node[0]
                yield from _parts_of(node[1], 0)
                waiting.extend(reversed(current.children()))
    for static in call.statics:
        yield from _parts_of(static, 0)


def _parts_of(value: Any, depth: int) -> Iterator[object]:
    if type(value) in _PLAIN or depth > _DEEPEST_OBJECT:
        return
    if type(value) not in _CONTAINERS and type(value) is not dict:
        yield value
    parts = value if isinstance(value, (tuple, list)) else value.values() if type(value) is dict else ()
    for each in parts:
        yield from _parts_of(each, depth + 1)


class TreeCodec:
    """Writes and reads the trees of the results of a call.

    Args:
        call: the call, or one with the same question.
    """

    def __init__(self, call: ParsedCall) -> None:
        self._call = call
        self._numbers: dict[int, int] = {}
        self._by_class: dict[type, list[int]] = {}
        self._digests: dict[int, str] = {}

    @functools.cached_property
    def _objects(self) -> list[Any]:
        return list(itertools.islice(_objects_of(self._call), _MOST_OBJECTS))

    # -- writing ---------------------------------------------------------------------------------------------------

    def encode_tree(self, tree: Any, where: str = "the result") -> list[Any]:
        """Return a treedef.

        Raises:
            RefusedError: a node holds what cannot be written, and what is in no argument.
        """
        found: list[Any] = []
        for number, child in enumerate(tree.children()):
            found += self.encode_tree(child, f"{where}[{number}]")
        node = tree.node_data()
        if node is None:
            return [0]
        kind, data = node
        return [*found, [len(tree.children()), self._encode_class(kind, where), self._encode(data, where)]]

    def _encode_class(self, kind: type, where: str) -> list[Any]:
        name = "types:NoneType" if kind is NoneType else name_of(kind)
        if name is not None:
            return ["name", name]
        number = self._number_of(kind)
        if number is None:
            raise RefusedError(f"the class of {where} is found under no name, and in no argument")
        return ["ref", number]

    def _encode(self, value: Any, where: str) -> Any:
        kind = type(value)
        if value is None or kind is bool or kind is str or (kind is int and -_EXACT < value < _EXACT):
            return value
        if kind in _LITERALS and repr(_literal(repr(value))) == repr(value):
            return ["literal", repr(value)]
        if kind in _CONTAINERS:
            parts = [self._encode(each, where) for each in value]
            # The order of a set differs from one process to the next.
            return [_CONTAINERS[kind], *(sorted(parts, key=json.dumps) if kind in {set, frozenset} else parts)]
        if kind is dict:
            return ["dict", *([self._encode(key, where), self._encode(each, where)] for key, each in value.items())]
        number = self._number_of(value)
        if number is not None:
            return ["ref", number]
        if isinstance(value, tuple) and hasattr(kind, "_fields") and not callable(value):
            return ["tuple of", self._encode_class(kind, where), *(self._encode(each, where) for each in value)]
        raise RefusedError(f"{where} holds {kind_name(value)}, which is in no argument")

    def _number_of(self, value: Any) -> int | None:
        """Find the number of this object among those of the arguments, or of one that holds the same; None without."""
        if not self._numbers:
            for number, each in enumerate(self._objects):
                if self._numbers.setdefault(id(each), number) == number:
                    self._by_class.setdefault(type(each), []).append(number)
        found = self._numbers.get(id(value))
        if found is None:
            candidates = self._by_class.get(type(value), ())
            wanted = self._digest(value) if candidates else ""
            found = next((number for number in candidates if wanted and self._digest_at(number) == wanted), None)
        return found

    def _digest_at(self, number: int) -> str:
        if number not in self._digests:
            self._digests[number] = self._digest(self._objects[number])
        return self._digests[number]

    @staticmethod
    def _digest(value: Any) -> str:
        try:
            return whole_digest(value, "an object")
        except NotWholeError:
            return ""

    # -- reading ---------------------------------------------------------------------------------------------------

    def decode_tree(self, value: Any) -> Any:
        """Return the treedef that `encode_tree` wrote, for a call with the same structure.

        Raises a `ValueError` or another error of Python where it is none.

        Raises:
            RefusedError: it names what this process or this call does not have.
        """
        done: list[tuple[Any, int]] = []
        for node in value:
            if type(node) is int and node == 0:
                done.append((make_tree(None, []), 0))
                continue
            count, kind, data = node
            if type(count) is not int or not 0 <= count <= len(done):
                raise ValueError("a node with more children than there are")
            children = done[len(done) - count :]
            del done[len(done) - count :]
            depth = 1 + max((below for _, below in children), default=0)
            cls, held = self._decode_class(kind), self._decode(data)
            if depth > _DEEPEST_TREE or not _fits(cls, held, count):
                raise ValueError("a node with another number of children than its class has")
            try:
                tree = make_tree((cls, held), [child for child, _ in children])
            except (ValueError, TypeError, RuntimeError) as exc:
                # The class is not registered in this process, or registered otherwise.
                raise RefusedError(f"no tree can be made of a {cls.__qualname__}") from exc
            done.append((tree, depth))
        ((tree, _),) = done
        return tree

    def _decode_class(self, value: Any) -> type:
        tag, content = value
        found = named(content) if tag == "name" and type(content) is str else self._decode(value)
        if found is MISSING:
            raise RefusedError(f"there is no {content:.200}")
        if not isinstance(found, type):
            raise RefusedError("the class of a node is none")
        return found

    def _decode(self, value: Any) -> Any:
        if value is None or type(value) in {bool, str, int}:
            return value
        tag, *rest = value
        if tag in _BY_TAG:
            return _BY_TAG[tag](map(self._decode, rest))
        match tag, rest:
            case "literal", [str(text)]:
                return _literal(text)
            case "dict", _:
                return {self._decode(key): self._decode(each) for key, each in rest}
            case "ref", [int(number)] if number >= 0:
                return self._objects[number]
            case "tuple of", [kind, *values]:
                cls = self._decode_class(kind)
                if issubclass(cls, tuple) and hasattr(cls, "_fields") and _fits(cls, None, len(values)):
                    found = tuple.__new__(cls, map(self._decode, values))
                    if not callable(found):
                        return found
        raise ValueError(f"the data of a node is no {tag!r:.20}")


def _fits(kind: type, data: Any, count: int) -> bool:
    """True if a node of this class can hold this, and have so many children."""
    if kind in {dict, OrderedDict, defaultdict}:
        keys = data[1] if kind is defaultdict else data
        return isinstance(keys, (list, tuple)) and len(keys) == count == len(set(keys))
    if kind is NoneType or kind in {tuple, list}:
        return data is None and (kind is not NoneType or not count)
    return data is not None or not issubclass(kind, tuple) or len(getattr(kind, "_fields", ())) == count


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return MISSING  # infinity, and what is no number
