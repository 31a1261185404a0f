"""The walk: a digest of what a function can read while it is traced, taken from the live objects.

It is what a serialiser by value would send to a worker that has the same packages. It starts at the function and
follows its closure, its defaults, and the value that each name in its code has now. The project's functions and
classes, and every function that cannot be imported by its name, are read whole; others by their names.

It runs none of the project's code, and what it cannot describe by content it refuses, with the path that leads there.
"""

from __future__ import annotations

import functools
import threading
import types
from typing import TYPE_CHECKING, Any, Final

from ejcache.direct.describing import functions, standard
from ejcache.direct.describing.classes import write_class, write_instance
from ejcache.direct.describing.code import identity
from ejcache.direct.describing.graph import ARROW, Description, Graph
from ejcache.direct.describing.names import FLAGS, class_text, is_subtype, library_name, write_module
from ejcache.jax_integration.seam.direct.refusal import RefusedError
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from ejcache.direct.describing.graph import Handler, Node
    from ejcache.direct.files.owners import Owners

    Describe = Callable[[object], Description | None]

__all__ = ["ARROW", "Description", "Walk", "difference", "walk", "whole_digest"]


class Walk(NamedTuple):
    """What a function read when it was walked.

    Attributes:
        digest: equal in two processes only if everything that was read is equal.
        lasting: the same without the results that functions remember, to which a trace may add.
        tokens: for each path a short digest of what is there, nearest first: it only serves to name a difference.
        constants: texts in the code that was reached.
        functions: names of the project's functions that were reached.
        places: it asks where and how it is run: the working directory, the home directory, the thread's name, the limit
            of recursion, the locale and the filters of warnings count.
        hash_order: where the order of a set may decide something; empty if it does not.
        reads_environment: names in the environment are computed.
    """

    digest: str
    lasting: str
    tokens: dict[str, str]
    constants: frozenset[str]
    functions: frozenset[str]
    places: bool
    hash_order: str
    reads_environment: bool


def nothing(value: object) -> None:
    """Describe no value."""


def walk(
    roots: Mapping[str, object], *, owners: Owners, describe: Describe = nothing, ignored: Collection[str] = ()
) -> Walk:
    """Read everything that the roots lead to, by content.

    Args:
        roots: by the name that paths begin with: the function, its static arguments and so on.
        owners: tells the project's code from that of libraries.
        describe: says what only JAX and NumPy know about a value; None: it is not theirs.
        ignored: paths that are left out, such as "step.self.start_time".

    Raises:
        RefusedError: something that is read cannot be described by its content.
    """
    graph = Graph(describe, _handler_for, owners, ignored)
    graph.walk(list(roots.items()))
    return Walk(
        graph.digest(),
        graph.lasting_digest(),
        graph.tokens,
        frozenset(graph.constants),
        frozenset(graph.functions),
        graph.is_named(*_PLACES),
        graph.hash_order,
        graph.reads_environment,
    )


def whole_digest(value: object, *, owners: Owners, describe: Describe = nothing) -> str:
    """A digest of everything that a value leads to; a text that is no digest if that cannot be described."""
    graph = Graph(describe, _handler_for, owners, everything=True)
    try:
        graph.walk([("", value)])
    except RefusedError:
        return "not comparable"
    return graph.digest()


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


_PLACES: Final = (
    *("abspath", "absolute", "cwd", "expanduser", "expandvars", "getcwd", "getcwdb", "home", "realpath", "resolve"),
    *("current_thread", "getrecursionlimit", "getlocale", "localeconv", "setlocale", "warn", "warn_explicit"),
)
"""Names with which code asks where and how it is run."""
_HANDLERS: Final[dict[int, Handler]] = {
    identity(kind): handler
    for handlers in (functions.HANDLERS, standard.HANDLERS)
    for kind, handler in handlers.items()
}
"""By the identity of the type."""


def _handler_for(kind: type) -> Handler:
    return _HANDLERS.get(identity(kind), _other)


_BY_TEXT: Final[dict[str, Handler]] = {
    FLAGS: standard.write_flags,
    "absl.flags._flagvalues:FlagHolder": standard.write_flag_holder,
}
"""By the name of the class, which is not imported for that."""
_BASES: Final[tuple[tuple[type, Handler], ...]] = (
    (types.ModuleType, write_module),
    (functools.partial, functions.write_partial),
    (threading.local, standard.write_thread_local),
    *((kind, standard.write_inert) for kind in standard.INERT),
)
"""Classes whose subclasses are written as they are."""


def _other(node: Node, value: Any) -> None:
    kind = type(value)
    is_class = is_subtype(kind, type)
    if is_class:
        write_class(node, value)
    else:
        name = library_name(node, value)
        if name is not None:
            node.write(b"by name", name.encode())
            return
    description = node.graph.describe(value)
    if description is not None:
        _write_description(node, description)
        return
    if is_class:
        return
    by_text = _BY_TEXT.get(class_text(kind))
    if by_text is not None:
        by_text(node, value)
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
    for label, child in description.children:
        node.child(label, child)
