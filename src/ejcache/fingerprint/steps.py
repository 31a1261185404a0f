"""The instructions of a code object, each with the name or constant that it uses.

The module `dis` tells the same, and takes six times as long, because it works out positions and jumps. It is asked
where the coding of arguments is not known.
"""

from __future__ import annotations

import dis
import sys
from typing import TYPE_CHECKING, Final

from ejcache._tuples import NamedTuple

if TYPE_CHECKING:
    from types import CodeType

__all__ = ["Step", "steps_of"]


class Step(NamedTuple):
    """An instruction. Those that do the work of two are two."""

    operation: str
    argument: object
    """The name, the constant, or for a few the number; None for those whose argument says nothing here."""


def steps_of(code: CodeType) -> list[Step]:
    """The instructions of a code object, without inline caches and without what only prepares the next one."""
    return _read_by_dis(code) if sys.version_info >= _UNKNOWN else _read(code)


_UNKNOWN: Final = (3, 15)
_IGNORED: Final = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "PRECALL", "PUSH_NULL"})
_COUNTED: Final = frozenset({"BINARY_OP", "BUILD_TUPLE", "CALL", "LOAD_SMALL_INT"})
_METHOD_BIT: Final = sys.version_info >= (3, 12)
"""`LOAD_ATTR` says in its lowest bit whether the attribute is called at once."""


def _kind_of(name: str, number: int) -> str:
    """How the argument of an operation is to be read."""
    if name in _IGNORED:
        return "ignored"
    if "_FAST_" in name and name.count("_FAST") == 2:
        return "two"
    if name == "LOAD_ATTR":
        return "attribute" if _METHOD_BIT else "name"
    if name == "LOAD_GLOBAL":
        return "shifted name"
    if name == "LOAD_SUPER_ATTR":
        return "twice shifted name"
    for kind, numbers in (("constant", dis.hasconst), ("name", dis.hasname), ("local", dis.haslocal + dis.hasfree)):
        if number in numbers:
            return kind
    return "number" if name in _COUNTED else "nothing"


_KINDS: Final = tuple(_kind_of(name, number) for number, name in enumerate(dis.opname[:256]))
_EXTENDED: Final = dis.opmap["EXTENDED_ARG"]


def _read(code: CodeType) -> list[Step]:
    names, constants = code.co_names, code.co_consts
    arguments = code.co_varnames
    variables = (*arguments, *(each for each in code.co_cellvars if each not in arguments), *code.co_freevars)
    found: list[Step] = []
    extended = 0
    raw = code.co_code
    for index in range(0, len(raw), 2):
        number = raw[index]
        argument = raw[index + 1] | extended
        if number == _EXTENDED:
            extended = argument << 8
            continue
        extended = 0
        kind = _KINDS[number]
        if kind == "ignored":
            continue
        operation = dis.opname[number]
        value: object = argument
        if kind == "attribute":
            operation = "LOAD_METHOD" if argument & 1 else "LOAD_ATTR"
            value = names[argument >> 1]
        elif kind == "local":
            value = variables[argument]
        elif kind == "constant":
            value = constants[argument]
        elif kind == "name":
            value = names[argument]
        elif kind == "shifted name":
            value = names[argument >> 1]
        elif kind == "twice shifted name":
            value = names[argument >> 2]
        elif kind == "nothing":
            value = None
        elif kind == "two":
            found += _two(operation, variables[argument >> 4], variables[argument & 15])
            continue
        found.append(Step(operation, value))
    return found


def _two(operation: str, first: object, second: object) -> tuple[Step, Step]:
    """The two instructions that one does: "STORE_FAST_LOAD_FAST"."""
    verbs = [verb for verb in operation.split("_") if verb in {"LOAD", "STORE"}]
    return Step(f"{verbs[0]}_FAST", first), Step(f"{verbs[1]}_FAST", second)


def _read_by_dis(code: CodeType) -> list[Step]:
    found: list[Step] = []
    for each in dis.get_instructions(code):
        if each.opname in _IGNORED:
            continue
        if isinstance(each.argval, tuple) and each.opname.count("_FAST") == 2:
            found += _two(each.opname, *each.argval)
        else:
            method = each.opname == "LOAD_ATTR" and _METHOD_BIT and bool((each.arg or 0) & 1)
            silent = _KINDS[each.opcode] == "nothing"
            found.append(Step("LOAD_METHOD" if method else each.opname, None if silent else each.argval))
    return found
