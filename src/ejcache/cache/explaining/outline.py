"""The outline of a program: its arguments and results, its meshes, and its operations with the lines that made them.

It is read of the text of a StableHLO module, line by line. A line that has another form than expected is an operation
whose name and place are unknown; nothing here raises on any text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Final

from ejcache.cache.explaining.locations import NOWHERE, Locations, Place
from ejcache.cache.explaining.types import constant_value, jax_type, jax_types, split_top
from ejcache.cache.program_log import LARGE_CONSTANT

__all__ = ["Argument", "Operation", "Outline", "read_outline"]

_MODULE: Final = re.compile(r"^module @(\S+) attributes \{(.*?)\}")
_MESH: Final = re.compile(r"sdy\.mesh @(\w+) = <\[(.*?)\]")
_MAIN: Final = re.compile(r"func\.func (?:public )?@main\(")
_PRIVATE: Final = re.compile(r"func\.func private @([\w.]+)\(")
_OPERATION: Final = re.compile(r'^\s*(?:(%[\w#:]+(?:, %[\w#:]+)*) = )?"?((?:[a-z_]+\.)?[a-zA-Z_][\w.]*)"?(.*)$')
_LOCATION: Final = re.compile(r' loc\((?:#(loc\d*)|unknown|"(?:[^"\\]|\\.)*")\)')
_ARGUMENT: Final = re.compile(r"^%\w+: (.*)$")
_VALUE: Final = re.compile(r"%[\w#]+(?::\d+)?")
_NUMBERED: Final = re.compile(r"@([A-Za-z_]\w*?)(?:_\d+)?\b")
_ELIDED: Final = "__elided__"
_SHAPING: Final = frozenset({"broadcast_in_dim", "convert", "reshape"})


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument or a result.

    Attributes:
        name: as JAX gives it, `params['w']`; empty if it is not known.
        type: `f32[32,32]`.
        attributes: of the compiler, such as its sharding, by name.
    """

    name: str
    type: str
    attributes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation.

    Attributes:
        name: without its dialect, `dot_general`.
        text: the line without names of values.
        function: the private function that it is in; empty for the main one.
        place: the line of the user's program.
        constant: the value, if it is a constant.
        type: the type of its result, or the types of operands and result.
        uses: the names of the values that it uses.
    """

    name: str
    text: str
    function: str = ""
    place: Place = NOWHERE
    constant: str = ""
    type: str = ""
    uses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outline:
    """What a program's text says."""

    name: str = ""
    attributes: str = ""
    arguments: tuple[Argument, ...] = ()
    results: tuple[Argument, ...] = ()
    meshes: dict[str, str] = field(default_factory=dict)
    operations: tuple[Operation, ...] = ()


def read_outline(text: str) -> Outline:
    """The outline of a module's text."""
    lines = text.splitlines()
    places = Locations(lines)
    digests = iter([line.removeprefix(LARGE_CONSTANT) for line in lines if line.startswith(LARGE_CONSTANT)])
    reader = _Reader(places)
    outline = Outline()
    for line in lines:
        stripped = line.strip()
        if not stripped or stripped.startswith(("#", "//", "^")):
            continue
        if stripped.startswith("}"):
            reader.close(stripped)
            continue
        if match := _MODULE.match(stripped):
            outline = replace(outline, name=match[1], attributes=match[2])
        elif match := _MESH.search(stripped):
            outline.meshes[match[1]] = match[2].replace('"', "")
        elif match := _MAIN.search(stripped):
            arguments, results = _signature(stripped[match.end() :], places)
            outline = replace(outline, arguments=arguments, results=results)
            reader.enter("")
        elif match := _PRIVATE.search(stripped):
            reader.enter(re.sub(r"_\d+$", "", match[1]))
        else:
            reader.read(stripped, next(digests, "") if _ELIDED in stripped else "")
    return replace(outline, operations=tuple(reader.operations))


class _Reader:
    """Collects operations. A constant has the place of the first operation that uses it: its own is the call of jit."""

    def __init__(self, places: Locations) -> None:
        self.operations: list[Operation] = []
        self._places = places
        self._function = ""
        self._constants: dict[str, int] = {}

    def enter(self, function: str) -> None:
        self._function = function
        self._constants = {}

    def close(self, line: str) -> None:
        """The end of an operation with regions, where its location is."""
        named = _LOCATION.findall(line)
        place = self._places.place(named[-1]) if named else NOWHERE
        for index in range(len(self.operations) - 1, -1, -1) if place.line else ():
            operation = self.operations[index]
            if not operation.place.line and operation.name not in {"cond", "constant"}:
                self.operations[index] = replace(operation, place=place)
                return

    def read(self, line: str, digest: str) -> None:
        named = _LOCATION.findall(line)
        place = self._places.place(named[-1]) if named else NOWHERE
        line = _LOCATION.sub("", line)
        match = _OPERATION.match(line)
        if match is None:
            return
        result, name, rest = match[1] or "", match[2].rpartition(".")[2], match[3]
        if name in {"return", "constant"}:
            if name == "return":
                return
            value, _, type_ = rest.strip().rpartition(" : ")
            type_ = jax_type(type_)
            value = f"contents {digest[:8]}" if digest else constant_value(value.strip(), type_)
            self._constants[result] = len(self.operations)
            text = f"constant {value} {type_}"
            self.operations.append(Operation(name, text, self._function, place, value, type_))
            return
        for used in _VALUE.findall(rest) if place.line else ():
            index = self._constants.get(used)
            if index is not None and name in _SHAPING and place == self.operations[index].place:
                self._constants[result] = index  # still at the call of jit
            elif index is not None:
                del self._constants[used]
                self.operations[index] = replace(self.operations[index], place=place)
        if name in {"call", "custom_call"}:
            called = _NUMBERED.search(rest)
            name = f"{name} {called[1]}" if called else name
        body, _, type_ = rest.rpartition(" : ")
        body = re.sub(r"\s+", " ", _NUMBERED.sub(r"@\1", _VALUE.sub("%", body or rest))).strip()
        type_ = jax_types(type_)
        uses = tuple(_VALUE.findall(rest))
        self.operations.append(Operation(name, f"{name} {body} {type_}", self._function, place, "", type_, uses))


def _signature(text: str, places: Locations) -> tuple[tuple[Argument, ...], tuple[Argument, ...]]:
    """The arguments and results, of what follows `@main(`."""
    depth, end = 1, 0
    quoted = False
    for end, character in enumerate(text):
        if character == '"' and text[end - 1] != "\\":
            quoted = not quoted
        depth += 0 if quoted else (character == "(") - (character == ")")
        if not depth:
            break
    arguments = tuple(filter(None, (_argument(part, places) for part in split_top(text[:end]))))
    after = text[end + 1 :].strip().removeprefix("->").strip()
    after = re.sub(r"\s*\{$", "", after)
    after = after[1:].rpartition(")")[0] if after.startswith("(") else after
    results = tuple(_described(part, "") for part in split_top(after))
    return arguments, results


def _argument(text: str, places: Locations) -> Argument | None:
    located = _LOCATION.findall(text)
    inline = re.search(r' loc\("((?:[^"\\]|\\.)*)"\)$', text)
    name = inline[1] if inline else places.label(located[-1]) if located else ""
    match = _ARGUMENT.match(_LOCATION.sub("", text).strip())
    return _described(match[1], name) if match else None


def _described(text: str, name: str) -> Argument:
    type_, brace, attributes = text.partition(" {")
    found = {}
    for part in split_top(attributes.rstrip().removesuffix("}")) if brace else ():
        key, _, value = part.partition(" = ")
        found[key.strip()] = value.strip()
    label = name or found.get("jax.result_info", "").strip('"')
    return Argument(label, jax_type(type_), found)
