"""What a type is, asked in a way that no metaclass, property or `__class__` of the user's can answer.

Types are compared and looked up by identity: a metaclass may say what `==` and `hash` are.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ejcache.direct.describing.graph import Node

__all__ = [
    "class_text",
    "is_project_class",
    "is_subtype",
    "kind_name",
    "module_dict",
    "mro_of",
    "type_dict",
    "type_module",
    "type_name",
]

_getters: Final[dict[str, Any]] = dict(vars(type))
mro_of: Final = _getters["__mro__"].__get__
type_dict: Final = _getters["__dict__"].__get__
type_module: Final = _getters["__module__"].__get__
type_name: Final = _getters["__qualname__"].__get__
_names_of_module: Final = dict[str, Any](vars(types.ModuleType))["__dict__"].__get__


def is_subtype(kind: type, base: type) -> bool:
    """`issubclass` by the real bases."""
    return type.__subclasscheck__(base, kind)


def class_text(kind: type) -> str:
    """`module:qualname`."""
    return f"{type_module(kind)}:{type_name(kind)}"


_BINDINGS: Final = frozenset({"nanobind", "pybind11_builtins"})
"""Modules that exist only in the names of the classes of C++ code."""


def is_project_class(node: Node, kind: type) -> bool:
    """Whether a class says that the project defines it."""
    name = type_module(kind)
    if not isinstance(name, str) or name in _BINDINGS or name == "builtins":
        return False
    return node.graph.owners.is_project_module(name)


def module_dict(module: object) -> dict[str, object]:
    """The names of a module."""
    found: dict[str, object] = _names_of_module(module)
    return found


def kind_name(value: object) -> str:
    """The type of a value, as messages show it: "an _io.TextIOWrapper"."""
    kind = type(value)
    module = type_module(kind)
    name = type_name(kind)
    text = name if module in ("builtins", "__main__") or not isinstance(module, str) else f"{module}.{name}"
    return f"{'an' if text.lstrip('_')[:1].lower() in tuple('aeiou') else 'a'} {text}"
