"""The values of the names that a function's code reads, and objects by the names under which libraries have them."""

from __future__ import annotations

import importlib
import os
import sys
import types
from typing import TYPE_CHECKING, Any, Final

from ejcache.direct.describing.forbidden import forbidden_attribute, forbidden_value
from ejcache.direct.describing.graph import ARROW, is_scalar
from ejcache.direct.describing.reads import format_names
from ejcache.direct.describing.real_types import (
    class_text,
    is_project_class,
    is_subtype,
    module_dict,
    mro_of,
    type_dict,
    type_module,
)
from ejcache.direct.object_names import name_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FunctionType

    from ejcache.direct.describing.graph import Node
    from ejcache.direct.describing.reads import Chain, Reads

__all__ = ["FLAGS", "is_module", "library_name", "write_module", "write_names"]

FLAGS: Final = "absl.flags._flagvalues:FlagValues"
"""What `absl.flags.FLAGS` is: the program's values in a library's object."""

_MISSING: Final = object()
_CONTAINERS: Final = (dict, list, tuple, set, frozenset)
_BY_POSITION: Final = (types.MethodType, types.BuiltinFunctionType)
_LOOKS: Final = frozenset({"get", "setdefault", "pop", "__getitem__", "__contains__"})
"""Methods of the environment that take one name."""


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
        for name in sorted(reads.names):
            if forbidden_attribute(name):
                node.place = f"{place}:{reads.names[name]}"
                node.refuse(f"reads {name}")
    for module, level, taken in reads.imports:
        _write_import(node, _absolute(module, level, scope), taken)
    for chain in reads.chains:
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
        if _is_computed(node, owner, attribute):
            node.refuse(f"reads {text}, which the class of a module computes")
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
    _note_environment(node, value, chain, attributes)
    if project:
        node.graph.note_scalar(value)
    if project and type(value) is str:
        node.graph.note_names(format_names(value) if attributes[:1] == ["format"] else ())
        if forbidden_attribute(value):
            node.refuse(f"reads {value}")
    if value is importlib.import_module and type(chain.constant) is str:
        _write_import(node, chain.constant, ())
    name = forbidden_value(value, chain.constant)
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
    known = kind in _CONTAINERS or kind in _BY_POSITION or node.graph.describe(value) is None
    known = known and class_text(kind) != FLAGS
    if not known or (kind in _BY_POSITION and library_name(node, value) is not None):
        node.child(label, value)
        return
    own = getattr(value, "__name__", None)
    node.write(b"of library", f"{module}.{attribute} {class_text(kind)} {own if type(own) is str else ''}".encode())


def _note_environment(node: Node, value: object, chain: Chain, attributes: list[str]) -> None:
    names = vars(os)
    if not any(value is names.get(name) for name in ("environ", "environb", "getenv", "getenvb")):
        return
    looks = value is names.get("getenv") or not attributes or attributes[0] in _LOOKS
    if not looks or type(chain.constant) is not str or value is names.get("environb"):
        node.graph.reads_environment = True


def _is_computed(node: Node, module: object, attribute: str) -> bool:
    """Whether the class of a module, which the user has made, may decide what an attribute is."""
    for kind in mro_of(type(module)):
        if kind is types.ModuleType:
            return False
        if is_project_class(node, kind) and not {attribute, "__getattribute__"}.isdisjoint(type_dict(kind)):
            return True
    return False


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
