"""Reads the text of a program into a form in which two of them can be compared, each operation with its line.

The text is the module as MLIR prints it, with debug locations if this host has compiled it. Each operation becomes a
`Line`: values have no names, an argument has the one that JAX gives it, and a constant stands where it is used, because
its own location is the call of the jitted function. A line of another form than expected is an operation without a
place; nothing here raises on any text.

    location := '"' file '":' line ':' column …          a place in a source file
              | '"' name '"(' location ')'                a function, or a scope such as `jit(train)/mul`, and its place
              | 'callsite(' location ' at ' location ')'  a place, and the place that called it
              | '"' name '"' | 'unknown'

A module's text names each location once (`#loc7 = loc(…)`), and operations refer to these names.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from ejcache.history.host_log import LARGE_CONSTANT
from ejcache.history.source_files import NOWHERE, Place, is_installed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


_DEFINITION: Final = re.compile(r"^#(loc\d*) = loc\((.*)\)$")
_FILE: Final = re.compile(r'^"([^"\n]*)":(\d{1,9}):\d')
_NAMED: Final = re.compile(r'^"((?:[^"\\]|\\.)*)"(?:\(|$)')
_REFERENCE: Final = re.compile(r"#(loc\d*)")
_DEEPEST: Final = 200
"""Locations in one another that are followed."""
_LONGEST_READ: Final = 1000
"""Characters of a location and of a constant that are read: others may have written the text."""

_LOCATION: Final = re.compile(r' loc\((?:#(loc\d*)|unknown|"(?:[^"\\]|\\.)*")\)')
_OPERATION: Final = re.compile(r'^(?:(%[\w#:]+(?:, %[\w#:]+)*) = )?"?((?:[a-z_]+\.)?[a-zA-Z_][\w.]*)"?(.*)$')
_VALUE: Final = re.compile(r"%[\w#]+(?::\d+)?")
_FUNCTION: Final = re.compile(r"@([A-Za-z_]\w*?)(?:_\d+)?\b")
_TENSOR: Final = re.compile(r"tensor<((?:(?:\d+|\?)x)*)([^<>,]+(?:<[^<>]*>)?)(?:, [^<>]*(?:<[^<>]*>)?[^<>]*)?>")
_NUMBER: Final = re.compile(r"[-+]?\d+\.\d+(?:[eE][-+]?\d+)?")
_LABEL: Final = re.compile(r'\bloc\("([^"\n]*)"(?=\))')
_DONATION: Final = frozenset({"tf.aliasing_output", "jax.buffer_donor"})
_AXES: Final = re.compile(r"\{([^{}]*)\}")
ELIDED: Final = "contents "
"""Begins the value of a constant whose elements the text leaves out; then comes their digest."""
_NO_OPERATION: Final = "#/^}"
"""What lines begin with that are a location, a comment, a label or an end; an empty line is none either."""
_LONGEST_LINE: Final = 48
"""Characters of a constant."""


class Argument(NamedTuple):
    """An argument or a result.

    Attributes:
        name: as JAX gives it, `params['w']`; its number if the text has no locations.
        type: `f32[32,32]`.
        attributes: its sharding, donation and so on, by name.
    """

    name: str
    type: str
    attributes: dict[str, str]


class Line(NamedTuple):
    """One operation.

    Attributes:
        name: without its dialect, `dot_general`; with the function that it calls, if it calls one.
        text: without names of values and without types.
        type: the types of operands and result.
        constants: the values of the constants that it uses.
        place: the line of the user's program.
    """

    name: str
    text: str
    type: str
    constants: tuple[str, ...]
    place: Place


class ProgramText(NamedTuple):
    """What a program's text says.

    Attributes:
        module: the attributes of the module.
        meshes: the axes of its meshes.
        arguments: those of the program.
        results: those of the program.
        lines: its operations.
        operands: of each line, what it uses, in their order: the number of the line that makes a value, the name of an
            argument, or `=` and a constant.
    """

    module: str
    meshes: str
    arguments: tuple[Argument, ...]
    results: tuple[Argument, ...]
    lines: tuple[Line, ...]
    operands: tuple[tuple[str, ...], ...] = ()

    @property
    def is_named(self) -> bool:
        """True if the arguments have names."""
        return not all(argument.name.isdigit() for argument in self.arguments)

    def likeness(self, other: ProgramText) -> float:
        """Measure how much of two programs is the same, from 0 to 1, whatever the shapes are."""
        return likeness_of(
            [(line.name, line.text) for line in self.lines], [(line.name, line.text) for line in other.lines]
        )

    def apart(self, other: ProgramText) -> float:
        """Count in how many things two programs differ: each constant is one, and other operations one to five."""
        mine, theirs = (Counter((line.name, line.text) for line in each.lines) for each in (self, other))
        longest = max(len(self.lines), len(other.lines), 1)
        common = (mine & theirs).total()
        given = [Counter(value for line in each.lines for value in line.constants) for each in (self, other)]
        constants = max(len(given[0] - given[1]), len(given[1] - given[0]))
        return constants + (1.0 + 4.0 * (1.0 - common / longest) if common < longest else 0.0)


def likeness_of(mine: Sequence[object], theirs: Sequence[object]) -> float:
    """Measure how many items two sequences have in common, from 0 to 1."""
    counts = Counter(mine), Counter(theirs)
    longest = max(len(mine), len(theirs))
    return (counts[0] & counts[1]).total() / longest if longest else 1.0


def spell_types(text: str) -> str:
    """Return a text in which every type is written as JAX writes it: `f32[32,32]` for `tensor<32x32xf32>`."""
    if "tensor<" not in text:
        return text
    # The types of operations repeat; what is long does not, and would fill the memory.
    return _spelled(text) if len(text) <= _LONGEST_READ else _spelled.__wrapped__(text)


@functools.lru_cache(4096)
def _spelled(text: str) -> str:
    return _TENSOR.sub(lambda match: f"{_dtype(match[2])}[{match[1].rstrip('x').replace('x', ',')}]", text)


def _dtype(name: str) -> str:
    return "bool" if name == "i1" else name.replace("ui", "u")


def read_text(text: str, *, names: Sequence[str] = ()) -> ProgramText:
    """Read a module's text. In one without locations, the arguments have these names, or else numbers."""
    every = text.splitlines()
    places = Places(every)
    digests = iter([line.removeprefix(LARGE_CONSTANT) for line in every if line.startswith(LARGE_CONSTANT)])
    module, meshes = "", []
    arguments: list[Argument] = []
    results: list[Argument] = []
    lines: list[Line] = []
    operands: list[tuple[str, ...]] = []
    values: dict[str, str] = {}
    makers: dict[str, str] = {}
    for line in map(str.strip, every):
        if line[:1] in _NO_OPERATION:
            continue
        if line.startswith("module @"):
            module = _LOCATION.sub("", line).partition(" attributes ")[2]
        elif "sdy.mesh @" in line:
            axes = line.partition(" = <[")[2].partition("]")[0]
            meshes += [axes.replace('"', "")] * bool(axes)
        elif line.startswith("func.func"):
            values, makers = {}, {}
            if "@main(" in line:
                arguments, results = _signature(line.partition("@main(")[2], places, names)
                values = {f"%arg{number}": each.name for number, each in enumerate(arguments)}
        else:
            written = _written(line)
            found = _operation(written, places, values, digests)
            if found is not None:
                operands.append(_operands(written, values, makers, number=len(lines)))
                lines.append(found)
    return ProgramText(module, ", ".join(meshes), tuple(arguments), tuple(results), tuple(lines), tuple(operands))


def rename_arguments(text: str, names: Mapping[str, str]) -> str:
    """Return a module's text in which these arguments have other names."""
    if not names:
        return text
    return _LABEL.sub(lambda match: f'loc("{_escaped(names.get(match[1], match[1]))}"', text)


def _escaped(name: str) -> str:
    return name if "\\" in name else name.replace('"', '\\"')


class _Written(NamedTuple):
    """What a line says by itself, whatever the lines before it are.

    Attributes:
        made: the results, as they are written.
        makes: the name of each.
        uses: the values that it names, each in three parts: name, `#`, and the number of a result.
        name: of the operation, as `Line` has it; empty if there is none.
        body: what it does, with the names of values.
        text: the same as `Line` has it, where no value is an argument.
        type: as `Line` has it.
        used: the values in the body.
        location: its name; empty if there is none.
    """

    made: str = ""
    makes: tuple[str, ...] = ()
    uses: tuple[tuple[str, str, str], ...] = ()
    name: str = ""
    body: str = ""
    text: str = ""
    type: str = ""
    used: tuple[str, ...] = ()
    location: str = ""


def _written(line: str) -> _Written:
    # Programs of one function have most lines in common; what is long would fill the memory.
    return _written_once(line) if len(line) <= _LONGEST_READ else _written_once.__wrapped__(line)


@functools.lru_cache(2048)
def _written_once(line: str) -> _Written:
    left, equals, right = line.partition(" = ")
    if not equals or not left.startswith("%"):
        left, right = "", line
    named = _LOCATION.findall(line)
    match = _OPERATION.match(_LOCATION.sub("", line) if named else line)
    if match is None:
        return _Written()
    operation, rest = match[2].rpartition(".")[2], match[3]
    body, _, types = rest.rpartition(" : ")
    body = body or rest
    name, text = _tidied(operation, _VALUE.sub("%", body))
    return _Written(
        match[1] or "",
        tuple(each.partition(":")[0] for each in _VALUE.findall(left)),
        tuple(each.partition("#") for each in _VALUE.findall(right.partition(" : ")[0])),
        name,
        body,
        text,
        spell_types(types),
        tuple(_VALUE.findall(body)),
        named[-1] if named else "",
    )


def _tidied(name: str, text: str) -> tuple[str, str]:
    """Return name and text of an operation as `Line` has them, of a text without names of values."""
    if "@" in text:
        text = _FUNCTION.sub(r"@\1", text)
    text = " ".join(text.split())
    if name in {"call", "custom_call"} and (called := _FUNCTION.search(text)):
        name = f"{name} {called[1]}"
    return name, spell_types(text)


def _operands(written: _Written, values: Mapping[str, str], makers: dict[str, str], *, number: int) -> tuple[str, ...]:
    """List what an operation uses; its own results are noted in `makers`."""
    found = tuple(values.get(name) or makers.get(name, name) + mark + part for name, mark, part in written.uses)
    for name in written.makes:
        makers[name] = str(number)
    return found


def _operation(written: _Written, places: Places, values: dict[str, str], digests: Iterable[str]) -> Line | None:
    """Return an operation; a constant is noted in `values` for those that use it."""
    name, text = written.name, written.text
    if name == "constant":
        body = written.body
        content = f"{ELIDED}{next(iter(digests), '')}" if "__elided__" in body else _value(body.strip())
        values[written.made] = "=" + content
    if name in {"", "constant"}:
        return None
    used = [values.get(each, "") for each in written.used]
    if any(each and each[0] != "=" for each in used):
        shown = {each: value for each, value in zip(written.used, used, strict=True) if value[:1] != "="}
        text = _VALUE.sub(lambda each: shown.get(each[0]) or "%", written.body)
        name, text = _tidied(name.partition(" ")[0], text)
    place = places.of(written.location) if written.location else NOWHERE
    return Line(name, text, written.type, tuple(each[1:] for each in used if each.startswith("=")), place)


def _signature(line: str, places: Places, names: Sequence[str]) -> tuple[list[Argument], list[Argument]]:
    """Return the arguments and the results, of what follows `@main(`."""
    inner, arrow, after = line.removesuffix("{").strip().rpartition(") -> ")
    inner = inner if arrow else after.removesuffix(")")
    arguments = []
    for number, part in enumerate(re.split(r", (?=%arg\d)", inner) if inner else ()):
        text, _, location = part.partition(": ")[2].rpartition(" loc(")
        label = location.removesuffix(")").removeprefix("#")
        label = label[1:-1] if label.startswith('"') else places.label(label)
        arguments.append(_described(label or "".join(names[number : number + 1]) or str(number), text or location))
    parts = re.split(r", (?=tensor<|!)", after.removeprefix("(").removesuffix(")")) if arrow else ()
    results = [_described("", part) for part in parts if part]
    return arguments, [each._replace(name=each.name or f"result {number}") for number, each in enumerate(results)]


def _described(name: str, text: str) -> Argument:
    type_, _, attributes = text.partition(" {")
    found = {}
    for each in re.split(r", (?=[\w.]+ = )", attributes.removesuffix("}")) if attributes else ():
        key, _, value = each.partition(" = ")
        if key in _DONATION:
            key, value = "donation", "donated"
        found[key.rpartition(".")[2]] = _partition_spec(value)
    result = found.pop("result_info", "").strip('"')
    return Argument(name or ("the result" if result == "result" else result), spell_types(type_), found)


def _partition_spec(sharding: str) -> str:
    """Return `P('data', None)` of `#sdy.sharding<@mesh, [{"data"}, {}]>`; any other text as it is."""
    match = re.search(r"<@\w+, \[(.*?)\]", sharding[:_LONGEST_READ])
    if match is None:
        return sharding
    axes = [group.replace('"', "'") or "None" for group in _AXES.findall(match[1])]
    axes = [f"({group})" if ", " in group else group for group in axes]
    while axes and axes[-1] == "None":
        axes.pop()
    return f"P({', '.join(axes)})"


def _value(text: str) -> str:
    """Return the value in `dense<…>` as Python writes it, cut to a few dozen characters."""
    value = text.removeprefix("dense<").removesuffix(">")[:_LONGEST_READ]
    value = _NUMBER.sub(lambda match: f"{float(match[0]):.7g}", value)
    return value if len(value) <= _LONGEST_LINE else value[: _LONGEST_LINE - 1] + "\N{HORIZONTAL ELLIPSIS}"


class Places:
    """The locations that a module's text defines, by their names."""

    def __init__(self, lines: Iterable[str]) -> None:
        found = (_DEFINITION.match(line) for line in lines if line.startswith("#loc"))
        self._texts = {match[1]: match[2] for match in found if match}
        self._places: dict[str, Place] = {}
        self._chains: dict[str, tuple[Place, ...]] = {}

    def of(self, name: str, depth: int = _DEEPEST) -> Place:
        """Return the innermost line of the user's own program: not of an installed library, if another one is there."""
        if name not in self._places:
            self._places[name] = NOWHERE  # a text that others wrote may name itself
            self._places[name] = self._place(self._texts.get(name, ""), depth)
        return self._places[name]

    def chain(self, name: str, depth: int = _DEEPEST) -> tuple[Place, ...]:
        """Return the lines of the user's program that the location comes from through every call, the innermost first.

        The line to change is often that of a call: the one in a loop, rather than the one in the function that the loop
        calls.
        """
        if name not in self._chains:
            self._chains[name] = ()  # a text that others wrote may name itself
            self._chains[name] = self._chain(self._texts.get(name, ""), depth)
        return self._chains[name]

    def label(self, name: str) -> str:
        """Return the name that the location has itself, as arguments have theirs; empty if it has none."""
        match = _NAMED.match(self._texts.get(name, ""))
        return match[1] if match else ""

    def _place(self, text: str, depth: int) -> Place:
        if match := _FILE.match(text):
            return Place(match[1], int(match[2]))
        named = _NAMED.match(text)
        inner = [self.of(name, depth - 1) for name in _REFERENCE.findall(text[:_LONGEST_READ]) if depth]
        found = [place for place in inner if place.line]
        own = [place for place in found if not is_installed(place.file)]
        place = next(iter(own or found), NOWHERE)
        return place._replace(function=named[1]) if named and place.line and not place.function else place

    def _chain(self, text: str, depth: int) -> tuple[Place, ...]:
        if match := _FILE.match(text):
            return () if is_installed(match[1]) else (Place(match[1], int(match[2])),)
        inner = [self.chain(name, depth - 1) for name in _REFERENCE.findall(text[:_LONGEST_READ]) if depth]
        found = tuple(place for each in inner for place in each)[:_DEEPEST]
        if (named := _NAMED.match(text)) and len(found) == 1 and not found[0].function:
            return (found[0]._replace(function=named[1]),)
        return found
