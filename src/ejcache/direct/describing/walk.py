"""The walk: a digest of what a function can read while it is traced, taken from the live objects.

It is what a serialiser by value would send to a worker that has the same packages. It starts at the function and
follows its closure, its defaults, and the value that each name in its code has now. The project's functions and
classes, and every function that cannot be imported by its name, are read whole; others by their names.

It runs none of the project's code, but for how that pickles objects of classes of libraries. What it cannot describe by
content it refuses, with the path that leads there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ejcache.direct.describing import functions, standard, values
from ejcache.direct.describing.classes import write_class, write_instance
from ejcache.direct.describing.code import identity
from ejcache.direct.describing.graph import Graph
from ejcache.direct.describing.names import class_text, is_subtype, library_name, type_name
from ejcache.jax_integration.seam.direct.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ejcache.direct.describing.graph import Handler, Node
    from ejcache.direct.files.owners import Owners

__all__ = ["difference", "walk", "whole_digest"]


def walk(
    roots: Mapping[str, object], *, owners: Owners, ignored: Collection[str] = (), everything: bool = False
) -> Graph:
    """Read everything that the roots lead to, by content.

    Args:
        roots: by the name that paths begin with: the function, its static arguments and so on.
        owners: tells the project's code from that of libraries.
        ignored: paths that are left out, such as "step.self.start_time".
        everything: all attributes count, also those that no code names.

    Raises:
        RefusedError: something that is read cannot be described by its content.
    """
    graph = Graph(_handler_for, _of_values, owners, ignored, everything=everything)
    graph.walk(list(roots.items()))
    return graph


def whole_digest(value: object, *, owners: Owners) -> str:
    """A digest of everything that a value leads to; a text that is no digest if that cannot be described."""
    try:
        return walk({"": value}, owners=owners, everything=True).digest()
    except RefusedError:
        return "not comparable"


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


def _by_identity(*handlers: Mapping[type, Handler]) -> dict[int, Handler]:
    return {identity(kind): handler for each in handlers for kind, handler in each.items()}


_HANDLERS: Final = _by_identity(functions.HANDLERS, standard.HANDLERS)
_OF_VALUES: Final = _by_identity(values.HANDLERS)


def _handler_for(kind: type) -> Handler:
    return _HANDLERS.get(identity(kind), _other)


def _other(node: Node, value: Any) -> None:
    """What a library has under its own name counts by that; a class, and everything else, by what it is."""
    kind = type(value)
    if is_subtype(kind, type):
        write_class(node, value)
        return
    name = library_name(node, value) or standard.singleton_name(value)
    if name is not None:
        node.write(b"by name", name.encode())
        return
    handler = _of_values(kind) or standard.BY_TEXT.get(class_text(kind))
    (handler or _of_bases(kind, functions.BASES + standard.BASES) or write_instance)(node, value)


def _of_values(kind: type) -> Handler | None:
    """The handler of a type of JAX or NumPy."""
    of_jax = values.BY_NAME.get(type_name(kind)) if class_text(kind).startswith("jax") else None
    return of_jax or _OF_VALUES.get(identity(kind)) or _of_bases(kind, values.BASES)


def _of_bases(kind: type, handlers: tuple[tuple[type, Handler], ...]) -> Handler | None:
    return next((handler for base, handler in handlers if is_subtype(kind, base)), None)
