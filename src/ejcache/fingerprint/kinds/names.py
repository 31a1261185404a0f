"""What the names in a function's bytecode stand for now."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any, Final

from ejcache.fingerprint.kinds.forbidden import FORBIDDEN_ATTRIBUTES, forbidden_member, forbidden_value
from ejcache.fingerprint.kinds.graph import ARROW
from ejcache.fingerprint.kinds.real_types import is_library_class, is_subtype, module_dict, mro_of, type_dict
from ejcache.fingerprint.library import is_library_module

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FunctionType

    from ejcache.fingerprint.bytecode import Chain, Reads
    from ejcache.fingerprint.kinds.graph import Node

__all__ = ["is_module", "write_names"]

_MISSING: Final = object()


def is_module(value: object) -> bool:
    """Whether a value is a module, by its real type."""
    return is_subtype(type(value), types.ModuleType)


def write_names(node: Node, function: FunctionType, reads: Reads, cells: Mapping[str, object]) -> None:
    """Write the value of each name that a user's function reads, and refuse names that lead out of what is seen.

    Args:
        node: the function's.
        function: the function.
        reads: what its bytecode reads.
        cells: what its closure variables hold.

    Raises:
        RefusedError: a name stands for a module itself, or for a clock, a file, a frame and the like.
    """
    for name in reads.writes:
        node.refuse(f"writes the global {name}")
    for attribute in sorted(reads.attributes & FORBIDDEN_ATTRIBUTES):
        node.refuse(f"reads {attribute}")
    scope = function.__globals__
    for module, level in reads.imports:
        name = _absolute(module, level, scope)
        if name not in sys.modules:
            node.refuse(f"imports {name}, which is not imported yet")
    for chain in reads.chains:
        _write_chain(node, chain, function, cells)


def _absolute(module: str, level: int, scope: Mapping[str, object]) -> str:
    if not level:
        return module
    package = scope.get("__package__")
    base = package.split(".") if isinstance(package, str) else []
    return ".".join([*base[: len(base) - level + 1], *([module] if module else [])])


def _write_chain(node: Node, chain: Chain, function: FunctionType, cells: Mapping[str, object]) -> None:
    scope = function.__globals__
    text = chain.name
    if chain.root == "import":
        text = _absolute(chain.name, chain.level, scope)
        value = sys.modules.get(text, _MISSING)
    elif chain.root == "free":
        value = cells.get(chain.name, _MISSING)
        if value is not _MISSING and not is_module(value):
            node.graph.note_named(value)
            return  # The closure is written as a whole.
    else:
        value = scope.get(chain.name, _MISSING)
        if value is _MISSING:
            # mypy knows `__builtins__` of a function from its own stubs, and not from its cache of them.
            untyped: Any = function
            builtin_names: Mapping[str, object] = untyped.__builtins__
            value = builtin_names.get(chain.name, _MISSING)
    attributes = list(chain.attributes)
    while attributes and value is not _MISSING and is_module(value):
        attribute = attributes.pop(0)
        module, text = value, f"{text}.{attribute}"
        if _is_computed(module, attribute):
            node.refuse(f"reads {text}, which the class of a module computes")
        value = _module_attribute(module, attribute)
        if value is _MISSING and attribute not in {"__dict__", "__class__"}:
            user_getter = module_dict(module).get("__getattr__", _MISSING)
            if user_getter is not _MISSING:
                node.child(f"{ARROW}{text.rpartition('.')[0]}.__getattr__", user_getter)
        elif attribute == "__dict__":
            value = module
    if value is _MISSING:
        node.write(b"absent", text.encode())
        return
    if is_module(value) and not is_library_module(str(module_dict(value).get("__name__"))):
        node.refuse(f"uses the module {text} as a value")
    name = forbidden_value(value) or (forbidden_member(value, attributes[0]) if attributes else None)
    if name is not None:
        node.refuse(f"uses {name}" if name == "sys.modules" else f"uses {name}()")
    if not attributes:
        node.graph.note_named(value)
    node.child(ARROW + text, value, member=chain.member and not attributes)


def _is_computed(module: object, attribute: str) -> bool:
    """Whether the class of a module, which the user has made, may decide what an attribute is."""
    for kind in mro_of(type(module)):
        if kind is types.ModuleType:
            return False
        if not is_library_class(kind) and not {attribute, "__getattribute__"}.isdisjoint(type_dict(kind)):
            return True
    return False


def _module_attribute(module: object, attribute: str) -> object:
    found = module_dict(module).get(attribute, _MISSING)
    if found is not _MISSING or attribute in {"__dict__", "__class__"}:
        return found
    name = module_dict(module).get("__name__")
    if isinstance(name, str) and is_library_module(name):
        # A library that fills its namespace when it is asked: no code of the user's runs.
        try:
            return getattr(module, attribute, _MISSING)
        except Exception:
            return _MISSING
    return _MISSING
