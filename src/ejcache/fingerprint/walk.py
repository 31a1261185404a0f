"""The walk: a digest of everything that a function can read while it is traced, taken from the live objects.

It starts at the function and follows its closure, its defaults, and the value that each name in its bytecode has now.
User code is read whole. Of library functions it reads what they are, and what they close over; whether a library has
changed is the business of the guards.

It never runs user code, and what it cannot describe by content it refuses, with the path that leads there.
"""

from __future__ import annotations

import functools
import logging
import threading
import types
from typing import TYPE_CHECKING, Any, Final

from ejcache._tuples import NamedTuple
from ejcache.fingerprint.kinds import containers, functions, special
from ejcache.fingerprint.kinds.classes import write_class
from ejcache.fingerprint.kinds.graph import Description, Graph
from ejcache.fingerprint.kinds.instances import write_instance
from ejcache.fingerprint.kinds.real_types import is_library_class, is_subtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import CodeType

    from ejcache.fingerprint.kinds.graph import Handler, Node

    Describe = Callable[[object], Description | None]

__all__ = ["HASH_SEED", "Codes", "Description", "Walk", "difference", "walk"]


HASH_SEED: Final = "the hash seed"
"""The path in `Walk.tokens` of the process's hash seed, where the order of a set or `hash()` decides something."""


class Codes:
    """Code objects by identity: equal ones from different places are different."""

    __slots__ = ("_codes",)

    def __init__(self, codes: Mapping[int, CodeType]) -> None:
        self._codes = dict(codes)

    def __contains__(self, code: CodeType) -> bool:
        return id(code) in self._codes

    def __iter__(self) -> Iterator[CodeType]:
        return iter(self._codes.values())

    def __len__(self) -> int:
        return len(self._codes)


class Walk(NamedTuple):
    """What a function read when it was walked."""

    digest: str
    """Equal in two processes only if everything that was read is equal."""
    tokens: dict[str, str]
    """For each path a short digest of what is there, nearest first: it only serves to name a difference."""
    codes: Codes
    """The user's code objects that were reached, with those inside them."""
    user_digest: str
    """Equal also if only what the functions of libraries close over differs: a number that a schedule converts."""
    functions: frozenset[int]
    """The identities of the user's functions that were reached."""


def nothing(value: object) -> None:
    """Describe no value."""


def walk(roots: Mapping[str, object], *, describe: Describe = nothing) -> Walk:
    """Read everything that the roots lead to, by content.

    Args:
        roots: by the name that paths begin with: the function, its static arguments and so on.
        describe: says what only JAX and NumPy know about a value; None: it is not theirs.

    Raises:
        RefusedError: something that is read cannot be described by its content.
    """
    graph = Graph(describe, _handler_for)
    graph.walk(list(roots.items()))
    if graph.hash_order:
        graph.update([b"hash seed", b"%d" % hash("ejcache")])
        graph.tokens[HASH_SEED] = f"{hash('ejcache') & 0xFFFFFFFF:08x}"
    if graph.shared is not None:
        graph.update([b"shared", repr(graph.shared).encode()])
    return Walk(graph.digest(), graph.tokens, Codes(graph.codes), graph.user_digest(), frozenset(graph.functions))


def difference(old: Mapping[str, str], new: Mapping[str, str]) -> str | None:
    """The first difference of two walks in words: "step → cfg.K changed". None: the tokens do not show it.

    Args:
        old: tokens of one walk.
        new: tokens of a later one.
    """
    for path, token in new.items():
        if old.get(path, token) != token:
            return f"{path} changed"
    for path in new:
        if path not in old:
            return f"{path} is new"
    for path in old:
        if path not in new:
            return f"{path} is gone"
    return None


_HANDLERS: Final[dict[int, Handler]] = {
    id(kind): handler
    for handlers in (containers.HANDLERS, functions.HANDLERS, special.HANDLERS)
    for kind, handler in handlers.items()
}
"""By the identity of the type."""


def _handler_for(kind: type) -> Handler:
    return _HANDLERS.get(id(kind), _other)


_BASES: Final[tuple[tuple[type, Handler], ...]] = (
    (types.ModuleType, special.write_module),
    (functools.partial, functions.write_partial),
    (logging.Logger, special.write_logger),
    (threading.local, special.write_thread_local),
)
"""Classes whose subclasses are written as they are."""


def _other(node: Node, value: Any) -> None:
    kind = type(value)
    is_class = is_subtype(kind, type)
    if is_class:
        write_class(node, value)
        if is_library_class(value):
            return
    description = node.graph.describe(value)
    if description is not None:
        _write_description(node, description)
        return
    if is_class:
        return
    for base, handler in _BASES:
        if is_subtype(kind, base):
            handler(node, value)
            return
    write_instance(node, value)


def _write_description(node: Node, description: Description) -> None:
    if description.refusal is not None:
        node.refuse(description.refusal)
    node.write(b"described", description.token)
    if description.content is not None:
        node.graph.spend(node, description.size)
        node.write_content(description.content())
    for label, child in description.children:
        node.child(label, child)
