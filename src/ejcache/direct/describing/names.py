"""What names stand for: objects of imported modules, the real type of an object, and the names that code reads.

Nothing is imported, and no code runs, to find an object: only the namespaces of imported modules and their classes are
looked at. A name counts only if it is the one that the object itself has. What a type is, is asked in a way that no
metaclass, property or `__class__` of the user's can answer; types are looked up by identity. What the project's code
must not read, because it leads to what no description covers, is recognised as a value, whatever its name.
"""

from __future__ import annotations

import builtins
import functools
import gc
import importlib
import inspect
import os
import sys
import types
from typing import TYPE_CHECKING, Any, Final

from ejcache.direct.describing.code import format_names, identity
from ejcache.direct.describing.graph import ARROW, is_scalar

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FunctionType

    from ejcache.direct.describing.code import Chain, Reads
    from ejcache.direct.describing.graph import Node


__all__ = [
    "FLAGS",
    "MISSING",
    "class_text",
    "forbidden_value",
    "is_module",
    "is_project_class",
    "is_subtype",
    "kind_name",
    "library_name",
    "module_dict",
    "mro_of",
    "name_of",
    "named",
    "type_dict",
    "type_module",
    "type_name",
    "write_module",
    "write_names",
]

MISSING: Final = object()
"""There is no object of this name."""


def name_of(value: Any) -> str | None:
    """`module:qualified.name` of a class, a function or another named object that is found there; None if it is not."""
    try:
        module = value.__module__
        qualified = getattr(value, "__qualname__", None) or value.__name__  # the latter for ufuncs
    except Exception:
        return None  # anything can happen in an attribute of a user's class
    if type(module) is not str or type(qualified) is not str:
        return None
    name = f"{module}:{qualified}"
    return name if _found(name) is value else None


def named(name: str) -> Any:
    """The object of a name that `name_of` gave, or `MISSING`."""
    found = _found(name)
    return found if found is not MISSING and name_of(found) == name else MISSING


def _found(name: str) -> Any:
    module, _, qualified = name.partition(":")
    if module not in sys.modules:
        return MISSING
    found: Any = sys.modules[module]
    for part in qualified.split("."):
        # `vars` of what is neither a module nor a class could run code.
        if found is not sys.modules[module] and not isinstance(found, type):
            return MISSING
        found = found.__dict__.get(part, MISSING)
        if isinstance(found, staticmethod):
            found = found.__func__
    return found


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


_LEADING_EVERYWHERE: Final = (
    (builtins, "", ("__import__", "eval", "exec", "globals", "id", "input")),
    (os, "os.", ("getpid", "getppid")),
    (sys, "sys.", ("_current_frames", "_getframe", "_getframemodulename", "exc_info", "exception", "modules")),
    (inspect, "inspect.", ("currentframe", "stack", "trace")),
    (importlib, "importlib.", ("import_module", "reload")),
    (gc, "gc.", ("get_objects", "get_referents", "get_referrers")),
)


@functools.cache
def _forbidden_values() -> dict[int, tuple[str, object]]:
    found = [(prefix + name, vars(module).get(name)) for module, prefix, names in _LEADING_EVERYWHERE for name in names]
    return {identity(value): (name, value) for name, value in found if value is not None}


def forbidden_value(value: object) -> str | None:
    """What a value is called if the project's code must not use it: "globals"."""
    found = _forbidden_values().get(identity(value))
    return None if found is None else found[0]


FLAGS: Final = "absl.flags._flagvalues:FlagValues"
"""What `absl.flags.FLAGS` is: the program's values in a library's object."""

_MISSING: Final = object()
_CONTAINERS: Final = (dict, list, tuple, set, frozenset)
_BY_POSITION: Final = (types.MethodType, types.BuiltinFunctionType)
_ENVIRONMENT: Final = ("environ", "environb", "getenv", "getenvb")


def is_module(value: object) -> bool:
    return is_subtype(type(value), types.ModuleType)


def library_name(node: Node, value: Any) -> str | None:
    """`module:name` of what a library's module has under its own name; None if it is the project's, or not there."""
    kind = type(value)
    if is_subtype(kind, type):
        module = type_module(value)
    elif kind is types.FunctionType:
        module = value.__module__
    elif is_project_class(node, kind):
        return None  # its attributes are the user's to compute
    else:
        module = getattr(value, "__module__", None)
    if type(module) is not str or node.graph.owners.is_project_module(module):
        return None
    node.graph.note_library(module)
    code = getattr(getattr(value, "__wrapped__", value), "__code__", None)
    if type(code) is types.CodeType:
        if node.graph.owners.is_project_file(code.co_filename):
            return None  # the program has put its own code there
        node.graph.constants.update(each for each in code.co_consts if type(each) is str)
    return name_of(value)


def write_names(
    node: Node, function: FunctionType, reads: Reads, cells: Mapping[str, object], *, project: bool
) -> None:
    """Write the value of each name that a function's code reads.

    Args:
        node: the function's.
        function: the function.
        reads: what its code reads.
        cells: what its closure variables hold.
        project: it is the project's; of a library's function, only functions, classes and constants are compared.

    Raises:
        RefusedError: a name stands for what leads everywhere, such as `globals`.
    """
    scope = function.__globals__
    place = function.__code__.co_filename.rpartition("/")[2]
    if project:
        for name in reads.writes:
            node.place = f"{place}:{function.__code__.co_firstlineno}"
            node.refuse(f"writes the global {name}")
    for module, level, taken in reads.imports:
        _write_import(node, _absolute(module, level, scope), taken)
    for chain in reads.chains.values():
        node.place = f"{place}:{chain.line}"
        _write_chain(node, chain, function, cells, project=project)


def _absolute(module: str, level: int, scope: Mapping[str, object]) -> str:
    if not level:
        return module
    package = scope.get("__package__")
    base = package.split(".") if isinstance(package, str) else []
    return ".".join([*base[: len(base) - level + 1], *([module] if module else [])])


def _write_import(node: Node, name: str, taken: tuple[str, ...]) -> None:
    module = sys.modules.get(name)
    if module is None:
        return  # if the trace imports it, the record lists its file
    for each in taken:
        value = _module_attribute(module, each)
        if value is not _MISSING:
            _write_value(node, f"{ARROW}{name}.{each}", module, each, value, project=True)
    if not taken:
        top = name.partition(".")[0]
        node.child(f"{ARROW}{top}", sys.modules.get(top, module))


def _write_chain(
    node: Node, chain: Chain, function: FunctionType, cells: Mapping[str, object], *, project: bool
) -> None:
    if chain.free:
        value = cells.get(chain.name, _MISSING)
        if value is _MISSING or not is_module(value):
            return  # the closure is written as a whole
    else:
        value = function.__globals__.get(chain.name, _MISSING)
        if value is _MISSING:
            # mypy knows `__builtins__` of a function from its own stubs, and not from its cache of them.
            untyped: Any = function
            builtin_names: Mapping[str, object] = untyped.__builtins__
            value = builtin_names.get(chain.name, _MISSING)
    text, owner, attribute = chain.name, None, ""
    attributes = list(chain.attributes)
    while attributes and value is not _MISSING and is_module(value):
        owner, attribute = value, attributes.pop(0)
        text = f"{text}.{attribute}"
        if is_project_class(node, type(owner)):
            node.refuse(f"reads {text}, which the class of a module may compute")
        value = _module_attribute(owner, attribute)
        if value is _MISSING and attribute not in {"__dict__", "__class__"}:
            getter = module_dict(owner).get("__getattr__", _MISSING)
            if getter is not _MISSING:
                node.child(f"{ARROW}{text.rpartition('.')[0]}.__getattr__", getter)
        elif attribute == "__dict__":
            value = owner
    if value is _MISSING:
        node.write(b"absent", text.encode())
        return
    node.graph.reads_environment |= any(value is vars(os).get(name) for name in _ENVIRONMENT)
    if project:
        node.graph.note_scalar(value)
    if project and type(value) is str:
        node.graph.note_names(node, dict.fromkeys((value, *format_names(value)), node.place))
    name = forbidden_value(value)
    if name is not None and project:
        node.refuse(f"uses {name}")
    if not chain.free and owner is None and not project:
        owner, attribute = sys.modules.get(str(function.__module__)), chain.name
    ordered = chain.follows != "CONTAINS_OP" and type(value) in {set, frozenset} and not attributes
    if project and ordered and not node.graph.hash_order and _has_seeded_order(value):
        node.graph.hash_order = f"{text}, {node.place}"
    _write_value(node, ARROW + text, owner, attribute, value, project=project)


def _has_seeded_order(value: Any) -> bool:
    return len(value) > 1 and any(type(each) is not int for each in value)


def _write_value(node: Node, label: str, owner: Any, attribute: str, value: object, *, project: bool) -> None:
    """Write what a name stands for.

    Of a library's module, what is no function, class, number or container of its own is written by the name that it
    has there: what a library keeps to itself is not compared.
    """
    kind = type(value)
    plain = is_scalar(value) or is_subtype(kind, type) or is_module(value) or kind is types.FunctionType
    if owner is None or plain or is_project_class(node, kind) or (project and kind in _CONTAINERS):
        node.child(label, value)
        return
    module = module_dict(owner).get("__name__")
    if type(module) is not str or node.graph.owners.is_project_module(module):
        node.child(label, value)
        return
    known = kind in _CONTAINERS or kind in _BY_POSITION or node.graph.of_values(kind) is None
    known = known and class_text(kind) != FLAGS
    if not known or (kind in _BY_POSITION and library_name(node, value) is not None):
        node.child(label, value)
        return
    own = getattr(value, "__name__", None)
    node.write(b"of library", f"{module}.{attribute} {class_text(kind)} {own if type(own) is str else ''}".encode())


def _module_attribute(module: object, attribute: str) -> object:
    names = module_dict(module)
    found = names.get(attribute, _MISSING)
    if found is not _MISSING or attribute in {"__dict__", "__class__"}:
        return found
    name = names.get("__name__")
    if isinstance(name, str) and f"{name}.{attribute}" in sys.modules:
        return sys.modules[f"{name}.{attribute}"]
    if "__getattr__" in names and _is_lazy_library(names):
        try:
            return getattr(module, attribute, _MISSING)
        except Exception:
            return _MISSING
    return _MISSING


def _is_lazy_library(names: Mapping[str, object]) -> bool:
    """Whether the names of a module are filled when they are asked for by a library's function."""
    path = names.get("__file__")
    return type(path) is str and "site-packages" in path


def write_module(node: Node, value: Any) -> None:
    """Write a module that is kept as a value: those of its names that the code can say."""
    names = module_dict(value)
    name = names.get("__name__")
    node.write(b"module", str(name).encode())
    project = type(name) is str and node.graph.owners.is_project_module(name)
    node.quiet = not project
    if node.quiet and node.parent is not None and node.parent.quiet:
        return  # a library's code has it: what a library keeps to itself is not compared

    def write(at: Node, member: str, found: object) -> None:
        _write_value(at, f".{member}", value, member, found, project=project)

    node.graph.add_namespace(node, names, write)
