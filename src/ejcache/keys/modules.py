"""Functions by content: the private ones of a module, and Python functions that a key depends on.

The normal form of a module's private functions and kernel payloads, on plain values.

Only its own module can refer to a private function, so its name is only a label: JAX numbers it by what else was
lowered (`@clip_0`, `@clip_1`) and emits it once or twice depending on what was traced before. Here a private function
is identified by its content: its own bytes, in which each reference to another private function is replaced by that
function's identity.

A Python function by content, for a key: what it does, as far as that can be read without running anything.

    text := the code (bytecode, names, constants, nested code), then the values of its defaults, of what it closes over
            and of the globals that it reads; a function among them by its own text

The function's name and its place in a file do not count. Values are constants, tuples and frozen sets of constants,
functions, and what belongs to modules of the standard library that keep no state. Anything else could change what the
function does without changing this text, so a function that reads anything else has no digest.
"""

from __future__ import annotations

import base64
import binascii
import builtins
import dis
import hashlib
import json
import re
import sys
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


_NUMBERED: Final = r"(.+?)_\d+"


def base_name(symbol: str) -> str:
    """The name that a private symbol had before it was numbered: `clip` of `clip_1`."""
    match = re.fullmatch(_NUMBERED, symbol)
    return match[1] if match else symbol


def content_name(symbol: str, content: bytes) -> str:
    """The name of a private function by its content: equal for functions of equal base name and bytes.

    Args:
        symbol: the function's name.
        content: its bytes, with its own name as `base_name(symbol)` and those it refers to by their content names.
    """
    return f"{base_name(symbol)}.{hashlib.sha256(content).hexdigest()}"


def module_digest(content: bytes, *, form: str) -> str:
    """Digest (hex) of a module's bytes; modules in different canonical forms (`form`) never have the same one."""
    hasher = hashlib.sha256(f"ejcache module, {form}\n".encode())
    hasher.update(content)
    return hasher.hexdigest()


def function_order(references: Mapping[str, Iterable[str]]) -> list[str] | None:
    """The functions of `references` (function → those it refers to), each after the latter; None on a cycle."""
    order: list[str] = []
    done: dict[str, bool] = {}  # False while the function's own references are being placed
    for root in references:
        stack = [(root, iter(references[root]))] if root not in done else []
        done.setdefault(root, False)
        while stack:
            name, following = stack[-1]
            for callee in following:
                if callee not in done:
                    done[callee] = False
                    stack.append((callee, iter(references.get(callee, ()))))
                    break
                if not done[callee]:
                    return None
            else:
                stack.pop()
                done[name] = True
                if name in references:
                    order.append(name)
    return order


def strip_mosaic_config(config: str, strip: Callable[[bytes], bytes | None]) -> str:
    """The `backend_config` of a `tpu_custom_call` without debug locations; unchanged if it has another form.

    Args:
        config: JSON text; `custom_call_config.body` is a kernel in base64, `custom_call_config.debug_locations` holds
            its locations where JAX has taken them out of it (0.11 and newer).
        strip: a kernel without its debug locations, or None if it cannot be read.
    """
    try:
        parsed: Any = json.loads(config)
        call = parsed["custom_call_config"]
        body = base64.b64decode(call["body"], validate=True)
    except (ValueError, KeyError, TypeError, binascii.Error):
        return config
    if call.pop("debug_locations", None) is None and (stripped := strip(body)) is not None:
        call["body"] = base64.b64encode(stripped).decode()
    return json.dumps(parsed, separators=(",", ":"), sort_keys=True)


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
    """16 hex digits that are equal for two functions, of any two processes, only if these do the same.

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
