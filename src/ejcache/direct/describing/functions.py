"""Functions, methods and code: what they do, what they close over, and the values of the names that they read."""

from __future__ import annotations

import functools
import gc
import types
from typing import TYPE_CHECKING, Any, Final

from ejcache.direct.describing.classes import write_attributes
from ejcache.direct.describing.code import code_digest, reads_of
from ejcache.direct.describing.graph import ARROW
from ejcache.direct.describing.names import forbidden_value, is_module, write_names
from ejcache.direct.describing.standard import write_annotations
from ejcache.jax_integration.seam.direct.refusal import RefusedError

if TYPE_CHECKING:
    from types import FunctionType

    from ejcache.direct.describing.graph import Handler, Node

__all__ = ["BASES", "HANDLERS"]


_SINGLE_DISPATCH: Final = functools.singledispatch(lambda each: each).__code__  # type: ignore[attr-defined]


def _function(node: Node, value: Any) -> None:
    function: FunctionType = value
    code = function.__code__
    project = node.graph.owners.is_project_function(function)
    node.quiet = node.passes = not project
    node.write(b"function", code_digest(code))
    _write_texts(node, function.__module__, function.__qualname__, function.__name__, function.__doc__)
    reads = reads_of(code)
    node.graph.note_reads(node, reads, code, project=project)
    if code is _SINGLE_DISPATCH:  # besides, it remembers what it has found
        node.child(".registry", dict(value.registry))
        return
    cells = _cells(function)
    _write_cells(node, cells)
    write_names(node, function, reads, cells, project=project)
    write_annotations(node, function.__annotations__, function.__globals__)
    node.child(".__defaults__", function.__defaults__)
    node.child(".__kwdefaults__", function.__kwdefaults__)
    write_attributes(node, function.__dict__)


def _write_texts(node: Node, *texts: object) -> None:
    node.write(*[text.encode("utf-8", "surrogatepass") if type(text) is str else b"" for text in texts])


def _cells(function: FunctionType) -> dict[str, object]:
    """What the closure's variables hold; a variable that is not set yet is left out."""
    found: dict[str, object] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found


def _write_cells(node: Node, cells: dict[str, object]) -> None:
    node.write(",".join(cells).encode("utf-8", "surrogatepass"))
    for name, value in cells.items():
        # The class that a method belongs to is in each method that says `super()`.
        node.child(ARROW + name, value, as_type=name == "__class__")


def _method(node: Node, value: Any) -> None:
    node.write(b"method")
    node.child("", value.__func__)
    node.child(f"{ARROW}self", value.__self__)


def _builtin(node: Node, value: Any) -> None:
    name = forbidden_value(value)
    if name is not None and (node.parent is None or not node.parent.quiet):
        node.refuse(f"is {name}")
    owner = value.__self__
    node.write(b"builtin")
    _write_texts(node, value.__module__, value.__qualname__)
    if owner is not None and not is_module(owner):
        node.child(".__self__", owner)


def _slot(node: Node, value: Any) -> None:
    """What a type written in C gives its instances: `str.join`, `int.__add__`."""
    node.write(b"slot")
    _write_texts(node, value.__name__)
    node.child(".__objclass__", value.__objclass__, as_type=True)


def _code(node: Node, value: Any) -> None:
    node.write(b"code", code_digest(value))


def _cell(node: Node, value: Any) -> None:
    node.write(b"cell")
    try:
        node.child(".cell_contents", value.cell_contents)
    except ValueError:
        node.write(b"empty")


def _partial(node: Node, value: Any) -> None:
    """A partial function, or an instance of a class derived from them."""
    kind = functools.partial.__dict__
    node.write(b"partial")
    if type(value) is not functools.partial:
        node.child(".__class__", type(value), as_type=True)
    node.child("", kind["func"].__get__(value))
    for index, argument in enumerate(kind["args"].__get__(value)):
        node.child(f".args[{index}]", argument)
    for name, argument in kind["keywords"].__get__(value).items():
        node.child(f".{name}", argument)
    write_attributes(node, kind["__dict__"].__get__(value))


def _memoised(node: Node, value: Any) -> None:
    """A function that remembers its results: those that it has by now, which a trace may add to, count as well."""
    wrapped = value.__wrapped__
    node.write(b"memoised", repr(value.cache_parameters()).encode())
    node.child("", wrapped)
    # A limited memo shows its keys and results, those that were used last at the end, and then its table.
    held = gc.get_referents(value)
    table = next((place for place, each in enumerate(held) if type(each) is dict), 0)
    known = [each for each in held[:table] if not isinstance(each, type)]
    if value.cache_parameters()["maxsize"] is None and held:
        known = [each for item in held[table].items() for each in item]
    try:
        node.write_passing(node.graph.apart(tuple(known)))
    except RefusedError as exc:
        node.refuse(f"is memoised, and remembers what cannot be compared: {exc}")


def _property(node: Node, value: Any) -> None:
    node.write(b"property")
    for name in ("fget", "fset", "fdel"):
        accessor = getattr(value, name)
        if accessor is not None:
            node.child("" if name == "fget" else f".{name}", accessor)


def _wrapper(node: Node, value: Any) -> None:
    node.write(type(value).__name__.encode())
    node.child("", value.__func__)


HANDLERS: Final[dict[type, Handler]] = {
    types.MethodType: _method,
    types.BuiltinFunctionType: _builtin,
    types.GetSetDescriptorType: _slot,
    types.MemberDescriptorType: _slot,
    types.CodeType: _code,
    types.CellType: _cell,
    property: _property,
    staticmethod: _wrapper,
    classmethod: _wrapper,
}
BASES: Final[tuple[tuple[type, Handler], ...]] = (
    (types.FunctionType, _function),
    (functools.partial, _partial),
    (type(functools.lru_cache(lambda: None)), _memoised),
)
"""Unless a library has it under its own name; and classes whose subclasses are written as they are."""
