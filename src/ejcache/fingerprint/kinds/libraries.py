"""The names of a library's class or module: what the functions do, plain values, and what the user has put there.

Tables of a library are read only where the user's code says their name. The rest, caches among it, is left to the
guards of the libraries.
"""

from __future__ import annotations

import collections
import functools
import types
from typing import TYPE_CHECKING, Any, Final

from ejcache.fingerprint.code import code_digest
from ejcache.fingerprint.kinds.graph import is_scalar, scalar_token
from ejcache.fingerprint.kinds.real_types import class_text, is_library_class, is_subtype
from ejcache.fingerprint.library import is_library_code

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ejcache.fingerprint.kinds.graph import Node

__all__ = ["write_library_module", "write_library_names"]

_TABLES: Final = frozenset(
    map(id, (collections.OrderedDict, collections.defaultdict, collections.deque, dict, frozenset, list, set, tuple))
)


def write_library_names(node: Node, names: Mapping[Any, object], unread: Collection[str]) -> None:
    """Write the members of a library's class."""
    for name, member in list(names.items()):
        if type(name) is not str or name in unread:
            continue
        kind = type(member)
        function = _function_of(member)
        if type(function) is types.FunctionType:
            _write_function(node, name, function, member)
        elif is_scalar(member):
            node.write(_bytes(name), scalar_token(member))
        elif not is_library_class(member if is_subtype(kind, type) else kind):  # type: ignore[arg-type]
            node.child(f".{name}", member)
        elif id(kind) in _TABLES:
            node.graph.defer(node, name, member)


def write_library_module(node: Node, names: Mapping[str, object]) -> None:
    """Write the public names of a library's module, any of which a program may look up."""
    node.quiet = True
    node.write(_bytes(str(names.get("__name__"))))
    for name, member in sorted(names.items()):
        if name.startswith("__") or is_subtype(type(member), types.ModuleType):
            continue
        if is_subtype(type(member), type):
            node.write(_bytes(name), _bytes(class_text(member)))  # type: ignore[arg-type]
        elif type(member) is not types.FunctionType and is_library_class(type(member)) and not is_scalar(member):
            node.write(_bytes(name), _bytes(class_text(type(member))), *_inside(member))
            if id(type(member)) in _TABLES:
                node.graph.defer(node, name, member)
        else:
            write_library_names(node, {name: member}, ())


def _inside(member: object) -> tuple[bytes, ...]:
    """What a library's own kind of callable is made of: the functions in it, by their names and code."""
    found = []
    for name in ("__name__", "__wrapped__"):
        try:
            attribute = getattr(member, name, None)
        except Exception:  # noqa: S112  # what a library's object answers is its own business
            continue
        if type(attribute) is str:
            found.append(_bytes(attribute))
        elif type(attribute) is types.FunctionType:
            found.append(code_digest(attribute.__code__))
    return tuple(found)


def _write_function(node: Node, name: str, function: types.FunctionType, member: object) -> None:
    if is_library_code(function.__code__) and function.__closure__ is None:
        node.write(_bytes(name), code_digest(function.__code__))
    else:
        node.child(f".{name}", member)


def _function_of(member: Any) -> object:
    kind = type(member)
    if kind is staticmethod or kind is classmethod:
        return member.__func__
    if kind is property and member.fset is None and member.fdel is None:
        return member.fget
    if kind is functools.cached_property:
        return member.func
    return member


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
