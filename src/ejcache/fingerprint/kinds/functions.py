"""Functions, methods and code: what they do, what they close over, and the values of the names that they read."""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any, Final

from ejcache.fingerprint.bytecode import reads_of
from ejcache.fingerprint.code import code_digest
from ejcache.fingerprint.kinds.annotations import write_annotations
from ejcache.fingerprint.kinds.forbidden import forbidden_value
from ejcache.fingerprint.kinds.graph import ARROW
from ejcache.fingerprint.kinds.instances import write_attributes
from ejcache.fingerprint.kinds.names import is_module, write_names
from ejcache.fingerprint.library import is_library_code, is_library_module

if TYPE_CHECKING:
    from types import FunctionType

    from ejcache.fingerprint.kinds.graph import Handler, Node

__all__ = ["HANDLERS", "write_partial"]

_SINGLE_DISPATCH: Final = functools.singledispatch(lambda each: each).__code__  # type: ignore[attr-defined]


def _function(node: Node, value: Any) -> None:
    function: FunctionType = value
    name = forbidden_value(function)
    if name is not None:
        node.refuse(f"is {name}")
    code = function.__code__
    library = _is_library_function(function)
    node.quiet = node.of_library = library
    node.write(b"library function" if library else b"function", code_digest(code))
    _write_texts(node, function.__module__, function.__qualname__, function.__name__)
    if not library:
        _write_texts(node, function.__doc__)
    cells = _cells(function)
    if code is _SINGLE_DISPATCH:
        node.child(".registry", function.__dict__.get("registry"))
        node.child(ARROW + "__wrapped__", function.__dict__.get("__wrapped__"))
        return
    if library:
        _write_cells(node, cells)
    else:
        reads = reads_of(code)
        node.graph.note_reads(reads)
        node.graph.functions.add(id(function))
        _write_cells(node, cells)
        write_names(node, function, reads, cells)
        write_annotations(node, function)
    _write_defaults(node, function)
    write_attributes(node, function.__dict__)


def _is_library_function(function: FunctionType) -> bool:
    """Whether a library made a function. Generated code has no file, and belongs to the module whose names it reads."""
    if is_library_code(function.__code__):
        return True
    module = function.__globals__.get("__name__")
    return function.__code__.co_filename.startswith("<") and type(module) is str and is_library_module(module)


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
        if not is_module(value):
            node.child(ARROW + name, value)


def _write_defaults(node: Node, function: FunctionType) -> None:
    code = function.__code__
    defaults = function.__defaults__ or ()
    positional = code.co_varnames[: code.co_argcount]
    if len(defaults) > len(positional):
        positional = ("",) * (len(defaults) - len(positional)) + positional
    node.write(b"%d" % len(defaults))
    for name, value in zip(positional[len(positional) - len(defaults) :], defaults, strict=True):
        node.child(f"{ARROW}the default of {name}", value)
    for name, value in (function.__kwdefaults__ or {}).items():
        node.child(f"{ARROW}the default of {name}", value)


def _method(node: Node, value: Any) -> None:
    name = forbidden_value(value)
    if name is not None:
        node.refuse(f"is {name}")
    node.write(b"method")
    node.child(".__func__", value.__func__)
    node.child(".__self__", value.__self__)


def _builtin(node: Node, value: Any) -> None:
    name = forbidden_value(value)
    if name is not None:
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
    node.child(".__objclass__", value.__objclass__)


def _bound_slot(node: Node, value: Any) -> None:
    node.write(b"bound slot")
    _write_texts(node, value.__name__)
    node.child(".__self__", value.__self__)


def _code(node: Node, value: Any) -> None:
    node.write(b"code", code_digest(value))


def _cell(node: Node, value: Any) -> None:
    node.write(b"cell")
    try:
        node.child(".cell_contents", value.cell_contents)
    except ValueError:
        node.write(b"empty")


def write_partial(node: Node, value: Any) -> None:
    """A partial function, or an instance of a class derived from them."""
    kind = functools.partial.__dict__
    node.write(b"partial")
    if type(value) is not functools.partial:
        node.child(".__class__", type(value))
    node.child(".func", kind["func"].__get__(value))
    for index, argument in enumerate(kind["args"].__get__(value)):
        node.child(f".args[{index}]", argument)
    for name, argument in kind["keywords"].__get__(value).items():
        node.child(f".{name}", argument)
    write_attributes(node, kind["__dict__"].__get__(value))


def _memoised(node: Node, value: Any) -> None:
    wrapped = value.__wrapped__
    code = getattr(wrapped, "__code__", None) if type(wrapped) is types.FunctionType else None
    node.write(b"memoised")
    if (code is None or not is_library_code(code)) and value.cache_info().currsize:
        node.refuse("is memoised, and was called before")
    parameters = value.cache_parameters()
    node.child(".maxsize", parameters["maxsize"])
    node.child(".typed", parameters["typed"])
    node.child("", wrapped)


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
    types.FunctionType: _function,
    types.MethodType: _method,
    types.BuiltinFunctionType: _builtin,
    types.WrapperDescriptorType: _slot,
    types.MethodDescriptorType: _slot,
    types.ClassMethodDescriptorType: _slot,
    types.GetSetDescriptorType: _slot,
    types.MemberDescriptorType: _slot,
    types.MethodWrapperType: _bound_slot,
    types.CodeType: _code,
    types.CellType: _cell,
    functools.partial: write_partial,
    type(functools.lru_cache(lambda: None)): _memoised,
    property: _property,
    staticmethod: _wrapper,
    classmethod: _wrapper,
}
