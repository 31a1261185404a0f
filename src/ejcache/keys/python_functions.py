"""A Python function by content, for a key: what it does, as far as that can be read without running anything.

    text := the code (bytecode, names, constants, nested code), then the values of its defaults, of what it closes over
            and of the globals that it reads; a function among them by its own text

The function's name and its place in a file do not count. Values are constants, tuples and frozen sets of constants,
functions, and what belongs to modules of the standard library that keep no state. Anything else could change what the
function does without changing this text, so a function that reads anything else has no digest.
"""

from __future__ import annotations

import builtins
import dis
import hashlib
import sys
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Final

_STATELESS: Final = frozenset(
    {"__future__", "base64", "binascii", "collections", "copy", "dataclasses", "enum", "functools", "hashlib"}
    | {"itertools", "json", "math", "operator", "re", "string", "struct", "typing", "zlib"}
)
"""Modules whose functions depend on their arguments only; the version of Python stands for their content."""


_READERS: Final = frozenset(
    {"__import__", "breakpoint", "compile", "eval", "exec", "globals", "hash", "id", "input", "locals", "open", "vars"}
)
"""Built-in functions whose results are not decided by their arguments."""


_CODE: Final = (
    *("co_code", "co_names", "co_varnames", "co_cellvars", "co_freevars", "co_flags", "co_exceptiontable"),
    *("co_argcount", "co_posonlyargcount", "co_kwonlyargcount"),
)


class UndescribedError(Exception):
    """Something that a function may read has no content that could be compared; the text says what."""


def function_digest(function: object) -> str:
    """Return 16 hex digits that are equal for two functions, of any two processes, only if these do the same.

    Raises:
        UndescribedError: it reads something whose content is not known.
    """
    described = repr((sys.implementation.cache_tag, _value(function, "it", ())))
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def _function(function: FunctionType, within: tuple[FunctionType, ...]) -> tuple[object, ...]:
    if function in within:
        return ("again", within.index(function))
    within = (*within, function)
    if vars(function):
        raise UndescribedError(f"{function.__qualname__} has attributes")
    closed = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            closed.append(_value(cell.cell_contents, name, within))
        except ValueError:
            raise UndescribedError(f"{name} is not set yet") from None
    read = sorted(_globals_read(function.__code__))
    return (
        _code(function.__code__),
        _value(function.__defaults__, "a default", within),
        [(name, _value(value, name, within)) for name, value in sorted((function.__kwdefaults__ or {}).items())],
        closed,
        [(name, _global(function, name, within)) for name in read],
    )


def _code(code: CodeType) -> tuple[object, ...]:
    fields = [getattr(code, field) for field in _CODE]
    nested = [_code(each) if isinstance(each, CodeType) else _value(each, "a constant", ()) for each in code.co_consts]
    return (*fields, nested)


def _globals_read(code: CodeType) -> set[str]:
    found = set()
    for step in dis.get_instructions(code):
        if step.opname.startswith("LOAD_") and ("GLOBAL" in step.opname or step.opname == "LOAD_NAME"):
            found.add(str(step.argval))
        elif step.opname == "IMPORT_NAME" and step.argval not in _STATELESS:
            raise UndescribedError(f"it imports {step.argval}")
        elif step.opname in {"STORE_GLOBAL", "DELETE_GLOBAL"}:
            raise UndescribedError(f"it changes the global {step.argval}")
    return found.union(*(_globals_read(each) for each in code.co_consts if isinstance(each, CodeType)))


def _global(function: FunctionType, name: str, within: tuple[FunctionType, ...]) -> object:
    if name in function.__globals__:
        return _value(function.__globals__[name], name, within)
    if name in _READERS:
        raise UndescribedError(f"it calls {name}")
    return "built in" if hasattr(builtins, name) else "missing"


def _value(value: object, name: str, within: tuple[FunctionType, ...]) -> object:
    kind = type(value)
    if value is None or value is Ellipsis or kind in {bool, float, complex, str, bytes}:
        return kind.__name__, repr(value)
    if isinstance(value, int) and kind is int:
        return "int", hex(value)  # the number of decimal digits is limited
    if isinstance(value, tuple) and kind is tuple:
        return "tuple", [_value(each, name, within) for each in value]
    if isinstance(value, frozenset) and kind is frozenset:
        return "frozenset", sorted(repr(_value(each, name, within)) for each in value)
    if isinstance(value, ModuleType) and value.__name__ in _STATELESS and sys.modules.get(value.__name__) is value:
        return "module", value.__name__
    if isinstance(value, type | FunctionType | BuiltinFunctionType) and _is_standard(value):
        return "standard", value.__module__, value.__qualname__
    if isinstance(value, FunctionType):
        return "function", _function(value, within)
    raise UndescribedError(f"it reads {name}, of type {kind.__qualname__}")


def _is_standard(value: type | FunctionType | BuiltinFunctionType) -> bool:
    """True if it is what a stateless module, or Python itself, has under its name."""
    module = str(value.__module__).removeprefix("_")  # a part in C has this name
    if module not in {"builtins", *_STATELESS} or value.__name__ in _READERS:
        return False
    return getattr(sys.modules.get(module), value.__qualname__, None) is value
