"""The texts of two programs, and what changed from one to the other.

The text of a program in a form in which two of them can be compared, and the source lines that it names.

The text is the module as MLIR prints it, with debug locations if this host has compiled it. Each operation becomes a
`Line`: values have no names, an argument has the one that JAX gives it, and a constant stands where it is used, because
its own location is the call of the jitted function. A line of another form than expected is an operation without a
place; nothing here raises on any text.

    location := '"' file '":' line ':' column …          a place in a source file
              | '"' name '"(' location ')'                a function, or a scope such as `jit(train)/mul`, and its place
              | 'callsite(' location ' at ' location ')'  a place, and the place that called it
              | '"' name '"' | 'unknown'

A module's text names each location once (`#loc7 = loc(…)`), and operations refer to these names.

What changed from one program to another: arguments, constants, and the lines that do something else.

The texts of the two programs are compared line by line. What is shown of a change is what the texts say, and the source
line that it comes from.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import math
import os
import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from ejcache.keys.difference import ARROW, Difference
from ejcache.misses.log import LARGE_CONSTANT
from ejcache.util.files import read_regular
from ejcache.util.tuples import NamedTuple
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from ejcache.keys.difference import Identity


_DEFINITION: Final = re.compile(r"^#(loc\d*) = loc\((.*)\)$")
_FILE: Final = re.compile(r'^"([^"\n]*)":(\d{1,9}):\d')
_NAMED: Final = re.compile(r'^"((?:[^"\\]|\\.)*)"(?:\(|$)')
_REFERENCE: Final = re.compile(r"#(loc\d*)")
_INSTALLED: Final = ("/site-packages/", "/dist-packages/")
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
_DONATION: Final = frozenset({"tf.aliasing_output", "jax.buffer_donor"})
_AXES: Final = re.compile(r"\{([^{}]*)\}")
ELIDED: Final = "contents "
"""Begins the value of a constant whose elements the text leaves out; then comes their digest."""
_LONGEST_LINE: Final = 48
"""Characters of a constant."""


class Place(NamedTuple):
    """A line of a Python program.

    Attributes:
        file: its path.
        line: from 1; 0 if it is not known.
        function: the qualified name of the function around it.
    """

    file: str = ""
    line: int = 0
    function: str = ""

    def __str__(self) -> str:
        """`train.py:12`; empty if it is not known."""
        return f"{self.file.rpartition('/')[2]}:{self.line}" if self.line else ""


NOWHERE: Final = Place()


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
        """Return how much of two programs is the same, from 0 to 1, whatever the shapes are."""
        return shared([(line.name, line.text) for line in self.lines], [(line.name, line.text) for line in other.lines])


def shared(mine: Sequence[object], theirs: Sequence[object]) -> float:
    """Return how many items two sequences have in common, from 0 to 1."""
    counts = Counter(mine), Counter(theirs)
    longest = max(len(mine), len(theirs))
    return (counts[0] & counts[1]).total() / longest if longest else 1.0


def spelled(text: str) -> str:
    """A text in which every type is written as JAX writes it: `f32[32,32]` for `tensor<32x32xf32>`."""
    return _TENSOR.sub(lambda match: f"{_dtype(match[2])}[{match[1].rstrip('x').replace('x', ',')}]", text)


def _dtype(name: str) -> str:
    return "bool" if name == "i1" else name.replace("ui", "u")


def read_text(text: str, *, names: Sequence[str] = ()) -> ProgramText:
    """Read a module's text. In one without locations, the arguments have these names, or else numbers."""
    every = text.splitlines()
    places = _Places(every)
    digests = iter([line.removeprefix(LARGE_CONSTANT) for line in every if line.startswith(LARGE_CONSTANT)])
    module, meshes = "", []
    arguments: list[Argument] = []
    results: list[Argument] = []
    lines: list[Line] = []
    operands: list[tuple[str, ...]] = []
    values: dict[str, str] = {}
    makers: dict[str, str] = {}
    for line in map(str.strip, every):
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
        elif line and not line.startswith(("#", "/", "^", "}")):
            found = _operation(line, places, values, digests)
            for each in found:
                operands.append(_operands(line, values, makers, number=len(lines)))
                lines.append(each)
    return ProgramText(module, ", ".join(meshes), tuple(arguments), tuple(results), tuple(lines), tuple(operands))


def _operands(line: str, values: Mapping[str, str], makers: dict[str, str], *, number: int) -> tuple[str, ...]:
    """Return what the operation of this line uses; its own results are noted in `makers`."""
    made, equals, uses = line.partition(" = ")
    if not equals or not made.startswith("%"):
        made, uses = "", line
    names = (each.partition("#") for each in _VALUE.findall(uses.partition(" : ")[0]))
    found = tuple(values.get(name) or makers.get(name, name) + mark + part for name, mark, part in names)
    makers.update((each.partition(":")[0], str(number)) for each in _VALUE.findall(made))
    return found


def _operation(line: str, places: _Places, values: dict[str, str], digests: Iterable[str]) -> list[Line]:
    """The operation of this line; a constant is noted in `values` for those that use it."""
    named = _LOCATION.findall(line)
    match = _OPERATION.match(_LOCATION.sub("", line))
    if match is None:
        return []
    result, name, rest = match[1] or "", match[2].rpartition(".")[2], match[3]
    body, _, types = rest.rpartition(" : ")
    body = body or rest
    if name == "constant":
        content = f"{ELIDED}{next(iter(digests), '')}" if "__elided__" in body else _value(body.strip())
        values[result] = "=" + content
        return []
    used = [values.get(each, "") for each in _VALUE.findall(body)]
    text = _VALUE.sub(lambda each: values.get(each[0], "%") if values.get(each[0], "%")[:1] != "=" else "%", body)
    text = re.sub(r"\s+", " ", _FUNCTION.sub(r"@\1", text)).strip()
    if name in {"call", "custom_call"} and (called := _FUNCTION.search(text)):
        name = f"{name} {called[1]}"
    place = places.of(named[-1]) if named else NOWHERE
    constants = tuple(each[1:] for each in used if each.startswith("="))
    return [Line(name, spelled(text), spelled(types), constants, place)]


def _signature(line: str, places: _Places, names: Sequence[str]) -> tuple[list[Argument], list[Argument]]:
    """The arguments and the results, of what follows `@main(`."""
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
    return Argument(name or ("the result" if result == "result" else result), spelled(type_), found)


def _partition_spec(sharding: str) -> str:
    """`P('data', None)` of `#sdy.sharding<@mesh, [{"data"}, {}]>`; any other text as it is."""
    match = re.search(r"<@\w+, \[(.*?)\]", sharding[:_LONGEST_READ])
    if match is None:
        return sharding
    axes = [group.replace('"', "'") or "None" for group in _AXES.findall(match[1])]
    axes = [f"({group})" if ", " in group else group for group in axes]
    while axes and axes[-1] == "None":
        axes.pop()
    return f"P({', '.join(axes)})"


def _value(text: str) -> str:
    """The value in `dense<…>` as Python writes it, cut to a few dozen characters."""
    value = text.removeprefix("dense<").removesuffix(">")[:_LONGEST_READ]
    value = _NUMBER.sub(lambda match: f"{float(match[0]):.7g}", value)
    return value if len(value) <= _LONGEST_LINE else value[: _LONGEST_LINE - 1] + "\N{HORIZONTAL ELLIPSIS}"


class _Places:
    """The locations that a module's text defines."""

    def __init__(self, lines: list[str]) -> None:
        found = (_DEFINITION.match(line) for line in lines if line.startswith("#loc"))
        self._texts = {match[1]: match[2] for match in found if match}
        self._places: dict[str, Place] = {}

    def of(self, name: str, depth: int = _DEEPEST) -> Place:
        """The innermost line of the user's own program: not of an installed library, if another one is there."""
        if name not in self._places:
            self._places[name] = NOWHERE  # a text that others wrote may name itself
            self._places[name] = self._place(self._texts.get(name, ""), depth)
        return self._places[name]

    def label(self, name: str) -> str:
        """The name that the location has itself, as arguments have theirs; empty if it has none."""
        match = _NAMED.match(self._texts.get(name, ""))
        return match[1] if match else ""

    def _place(self, text: str, depth: int) -> Place:
        if match := _FILE.match(text):
            return Place(match[1], int(match[2]))
        named = _NAMED.match(text)
        inner = [self.of(name, depth - 1) for name in _REFERENCE.findall(text[:_LONGEST_READ]) if depth]
        found = [place for place in inner if place.line]
        own = [place for place in found if not any(part in place.file for part in _INSTALLED)]
        place = next(iter(own or found), NOWHERE)
        return place._replace(function=named[1]) if named and place.line and not place.function else place


_LARGEST: Final = 2_000_000


class SourceFiles:
    """The source files of a program, as they are now.

    Args:
        until: seconds since the epoch; a file that changed later may hold another program and is not read.
    """

    def __init__(self, *, until: float) -> None:
        self._until = until
        self._lines = functools.cache(self._read)

    def are_older(self, files: Iterable[str], time: float) -> bool:
        """True if all of these files exist and have not changed since `time`, in seconds since the epoch."""
        try:
            return all(os.stat(path).st_mtime <= time for path in files)  # noqa: PTH116
        except (OSError, ValueError):
            return False

    def line(self, place: Place) -> str:
        """The text of that line; empty if it is not known."""
        lines = self._lines(place.file)
        return lines[place.line - 1].strip() if 0 < place.line <= len(lines) else ""

    def lack(self, file: str, name: str) -> bool:
        """True if the file can be read and nothing in it has this name."""
        lines = self._lines(file)
        word = re.compile(rf"\b{re.escape(name)}\b")
        return bool(lines) and not any(word.search(line) for line in lines)

    def assigned(self, value: str, place: Place) -> tuple[str, Place]:
        """The name that the line at `place` reads and that its file gives this number, and the line that does so.

        `learning_rate = 0.01`, `learning_rate: float = 0.01` and `'learning_rate': 0.01` give a number. ("", NOWHERE)
        if there is no such name, or more than one.
        """
        found: dict[str, Place] = {}
        words = set(re.findall(r"[^\W\d]\w*", self.line(place)))
        for number, line in enumerate(self._lines(place.file) if words else (), 1):
            for match in re.finditer(r"([^\W\d]\w*)['\"]?\s*(?::[^=#]*?)?[=:]\s*([-+]?[\d.][\w.+-]*)", line):
                if match[1] in words and _is_number(match[2], value):
                    found.setdefault(match[1], Place(place.file, number))
        return next(iter(found.items())) if len(found) == 1 else ("", NOWHERE)

    def _read(self, path: str) -> list[str]:
        try:
            if not path.startswith("/") or os.stat(path).st_mtime > self._until + 1.0:  # noqa: PTH116
                return []
            return read_regular(path, max_size=_LARGEST).decode().splitlines()
        except (OSError, ValueError):
            return []


def _is_number(literal: str, value: str) -> bool:
    try:
        return abs(float(literal) - float(value)) <= abs(float(value)) * 1e-6
    except ValueError:
        return False


_ALIGNED: Final = 3000
"""Lines that are aligned with one another; of more, the first ones after those that are equal."""
_QUIET: Final = frozenset({"broadcast_in_dim", "reshape", "convert", "bitcast_convert", "return", "cond", "do"})
"""Operations that say little about what the author wrote."""
_MEANING: Final = {
    "optimization_barrier": "rematerialisation: jax.checkpoint",
    "while": "a loop: scan, fori_loop, while_loop",
    "case": "a branch: cond, switch",
    "callback": "a callback into Python: jax.debug.print, pure_callback",
    "rng_bit_generator": "random numbers: jax_default_prng_impl, jax.random.key(impl=…)",
}
"""Operations of which the author wrote something else, and what; they are named first."""
_WEAK: Final = "a Python scalar takes the dtype of the array beside it, an array scalar has its own (weak types)"
_SHOWN: Final = 5
_IN_CHANGE: Final = 2
_COMPARED: Final = 300
"""Characters of a line of which it is shown what differs."""
_LONGEST: Final = 100
"""Characters of a source line."""
_PART: Final = re.compile(r", (?![^\[(]*[\])])| (?=\w+ = )")
_TYPE: Final = re.compile(r"\w+\[[^\]]*\]")


def program_differences(
    before: ProgramText,
    after: ProgramText,
    *,
    sources: SourceFiles,
    seen: Iterable[ProgramText] = (),
    weak: Sequence[Difference] = (),
    committed: Collection[str] = (),
) -> list[Difference]:
    """Compare two programs: the most telling change first; empty if the texts do the same.

    What follows from another change is left out: from another weak type, other results and conversions; from another
    shape, the constants that are made of it; from another commitment, the first mesh.

    Args:
        before: the nearest program.
        after: the compiled one.
        sources: the user's files.
        seen: other programs of this function, for advice about shapes that vary.
        weak: what changed in the weak types of arguments.
        committed: the arguments whose commitment to devices changed.
    """
    found = list(weak)
    if before.meshes != after.meshes and not (committed and "" in {before.meshes, after.meshes}):
        advice = "keep one mesh, and one set of names for its axes"
        sentence = f"the mesh changed: {before.meshes or 'none'} {ARROW} {after.meshes or 'none'}"
        found.append(Difference("computation", sentence, advice))
    found += _signature_differences(before.arguments, after.arguments, "argument", seen, committed)
    # The results follow from the arguments.
    if not any(each.component == "signature" for each in found):
        found += _signature_differences(before.results, after.results, "result", ())
    retyped = any(each.component == "signature" for each in found)
    reshaped = _Reshaped.of(before.arguments, after.arguments)
    old, new = _middle(before.lines, after.lines)
    if [line.name for line in old] == [line.name for line in new]:
        pairs = list(zip(old, new, strict=True))
        found += _constant_differences(pairs, sources, reshaped)
        found += _line_differences(pairs, sources, typed=not retyped)
    else:
        found += _rewritten(old, new, sources, reshaped, is_weak=bool(weak))
    if not found:
        found += _operand_differences(before, after, sources)
    if not found and before.module != after.module:
        found.append(Difference("computation", f"the module changed: {before.module} {ARROW} {after.module}"))
    return found


def does_the_same(before: ProgramText, after: ProgramText) -> bool:
    """True if two programs have the same arguments, results and operations, wherever these are in the source."""
    one, other = (
        text._replace(module="", lines=tuple(line._replace(place=NOWHERE) for line in text.lines))
        for text in (before, after)
    )
    return one == other


def reordered(before: ProgramText, after: ProgramText) -> Place | None:
    """Find where two programs first differ, if they have the same operations, from the same lines, in another order."""
    if before._replace(lines=(), operands=()) != after._replace(lines=(), operands=()):
        return None
    counts = [
        Counter((line.place, line.constants, *sorted(line.text.split())) for line in program.lines)
        for program in (before, after)
    ]
    if counts[0] != counts[1]:
        return None
    pairs = zip(before.lines, after.lines, strict=True)
    return next((new.place for old, new in pairs if old != new and new.place.line), None)


# -- arguments and results ---------------------------------------------------------------------------------------------


def _signature_differences(
    before: Sequence[Argument],
    after: Sequence[Argument],
    what: str,
    seen: Iterable[ProgramText],
    committed: Collection[str] = (),
) -> list[Difference]:
    """Return what changed in arguments or results (`what`): which there are, their types, their shardings and so on."""
    old, new = ({each.name: each for each in side} for side in (before, after))
    found = []
    for verb, names, of in (("added", new.keys() - old.keys(), new), ("removed", old.keys() - new.keys(), old)):
        if names:
            shown = [f"{each.name} {each.type}" for each in of.values() if each.name in names]
            words = f"{plural(len(shown), what)} {'was' if len(shown) == 1 else 'were'} {verb}: {', '.join(shown[:3])}"
            found.append(Difference("signature", words + ", \N{HORIZONTAL ELLIPSIS}" * (len(shown) > 3)))
    pairs = [(old[name], new[name]) for name in new if name in old]
    changed = [pair for pair in pairs if pair[0].type != pair[1].type]
    if changed:
        # An array that is an argument by itself says more than one of many parameters.
        changed.sort(key=lambda pair: len(pair[1].name))
        more = tuple(f"{a.name} {a.type} {ARROW} {b.type}" for a, b in changed[:6]) if len(changed) > 1 else ()
        a, b = changed[0]
        words = f"{_called(b, what)} changed: {a.type} {ARROW} {b.type}{_and_more(changed)}"
        advice = _WEAK if what == "result" else ""
        if a.type.partition("[")[2] != b.type.partition("[")[2]:
            shapes = {a.type, *(each.type for text in seen for each in text.arguments if each.name == b.name), b.type}
            shown = sorted(shapes, key=lambda shape: (len(shape), shape))[:_SHOWN]
            advice = f"pad it to one shape: {len(shapes)} were seen ({', '.join(shown)})"
            if what == "result" or not _is_one_axis(changed):
                advice = ""  # another model, rather than more or less of the same data
        found.append(Difference("signature", words, advice, more))
    return found + _attribute_differences(pairs, what, committed)


def _is_one_axis(changed: Sequence[tuple[Argument, Argument]]) -> bool:
    """True if these arguments changed their size along one axis, and all from and to one size."""
    axes: set[int] | None = None
    sizes = set()
    for old, new in changed:
        a, b = _dimensions(old.type), _dimensions(new.type)
        if len(a) != len(b) or old.type.partition("[")[0] != new.type.partition("[")[0]:
            return False
        found = {axis for axis, (x, y) in enumerate(zip(a, b, strict=True)) if x != y}
        sizes |= {(a[axis], b[axis]) for axis in found}
        axes = found if axes is None else axes & found
    return bool(axes) and len(sizes) == 1


def _dimensions(type_: str) -> tuple[int, ...]:
    """`(32, 64)` of `f32[32,64]`."""
    return tuple(int(each) for each in type_.partition("[")[2].rstrip("]").split(",") if each.isdigit())


_FORMULAS: Final[tuple[Callable[[float], float], ...]] = (
    lambda size: size,
    lambda size: size - 1,
    lambda size: size + 1,
    lambda size: 1 / size,
    lambda size: 1 / (size - 1) if size > 1 else 0.0,
    lambda size: size**0.5,
    lambda size: size**-0.5,
    lambda size: size / 2,
)
"""What programs make of a size: a mean divides by it, attention by its root, an index ends one below it."""


class _Reshaped(NamedTuple):
    """Sizes that changed with the shapes of arguments: pairs of dimensions, and of products of dimensions."""

    sizes: frozenset[tuple[float, float]] = frozenset()
    is_any: bool = False

    @staticmethod
    def of(before: Sequence[Argument], after: Sequence[Argument]) -> _Reshaped:
        """The sizes that changed from these arguments to those."""
        old = {each.name: each.type for each in before}
        sizes: set[tuple[float, float]] = set()
        is_any = False
        for each in after:
            was = old.get(each.name, each.type)
            if was.partition("[")[2] == each.type.partition("[")[2]:
                continue
            is_any = True
            a, b = _dimensions(was)[:_AXES_READ], _dimensions(each.type)[:_AXES_READ]
            for count in range(1, len(a) + 1) if len(a) == len(b) else ():
                for axes in itertools.combinations(range(len(a)), count):
                    sizes.add((math.prod(a[axis] for axis in axes), math.prod(b[axis] for axis in axes)))
        return _Reshaped(frozenset(sizes), is_any)

    def explain(self, was: str, now: str) -> bool:
        """True if a constant that was this and is that follows from the sizes."""
        if not self.is_any:
            return False
        try:
            old, new = float(was), float(now)
        except ValueError:
            return True  # an array that the program makes of a size
        close = functools.partial(math.isclose, rel_tol=1e-5)
        pairs = ((formula(a), formula(b)) for a, b in self.sizes for formula in _FORMULAS if a > 0 and b > 0)
        return any(close(abs(old), x) and close(abs(new), y) for x, y in pairs)


_AXES_READ: Final = 6
"""Dimensions of which all products are made."""


def weak_differences(
    before: Identity, after: Identity, text: ProgramText | None = None, *, former: ProgramText | None = None
) -> list[Difference]:
    """Return what changed in the weak types of arguments, of those that the program uses if its text is known.

    An argument whose shape or dtype differs from the one in the former text is left out: that is the change to name.
    """
    sides = _noted(before, after, "weak")
    if sides is None:
        return []
    old, new = sides
    types = {each.name: each.type for each in text.arguments} if text is not None else {}
    changed = sorted(old ^ new, key=lambda name: (len(name), name))
    if text is not None and text.is_named:
        changed = [name for name in changed if name in types]
    formerly = {each.name: each.type for each in former.arguments} if former is not None else types
    changed = [name for name in changed if formerly.get(name) == types.get(name)]
    if not changed:
        return []
    name = changed[0]
    was, now = (
        f"{types.get(name, '')}{' ' * (name in types)}{'weakly typed' if name in side else 'strongly typed'}"
        for side in (old, new)
    )
    words = f"the weak type of argument {name}{_and_more(changed)} changed: {was} {ARROW} {now}"
    cast = f"jnp.asarray({name}, dtype)" if name.isidentifier() else "jnp.asarray(value, dtype)"
    advice = f"a Python number is weakly typed, an array with a dtype is not: pass {cast} in every call"
    return [Difference("signature", words, advice, tuple(changed[:6]) if len(changed) > 1 else ())]


def _noted(before: Identity, after: Identity, what: str) -> tuple[set[str], set[str]] | None:
    """The paths of arguments that two compilations note as this; None if one of them does not say."""
    old, new = (each.details.get(what) for each in (before, after))
    return (set(old.split("\n")) - {""}, set(new.split("\n")) - {""}) if old is not None and new is not None else None


def commitment_changes(before: Identity, after: Identity) -> list[str]:
    """The paths of the arguments that are committed to devices in one of two compilations only."""
    old, new = _noted(before, after, "committed") or (set(), set())
    return sorted(old ^ new, key=lambda name: (len(name), name))


def commitment_differences(before: Identity, after: Identity) -> list[Difference]:
    """Return what changed in the commitment of arguments, by what the two compilations note."""
    names = commitment_changes(before, after)
    if not names:
        return []
    is_new = names[0] not in before.details["committed"].split("\n")
    return [_commitment(f"argument {names[0]}{_and_more(names)}", is_new=is_new)]


def _commitment(of: str, *, is_new: bool) -> Difference:
    sides = ("uncommitted", "committed") if is_new else ("committed", "uncommitted")
    return Difference("computation", f"the commitment of {of} changed: {sides[0]} {ARROW} {sides[1]}", _COMMIT)


_COMMIT: Final = (
    "jax.device_put with a device or sharding commits an array, jnp.asarray does not: place it alike in every call"
)
_WHOLE: Final = frozenset({"none", "P()", "{replicated}"})
"""The shardings of an argument that is not split."""


def _attribute_differences(
    pairs: Sequence[tuple[Argument, Argument]], what: str, committed: Collection[str]
) -> list[Difference]:
    groups: dict[tuple[str, str, str], list[str]] = {}
    for old, new in pairs:
        for key in sorted(old.attributes.keys() | new.attributes.keys()):
            a, b = (each.attributes.get(key, "none").strip('"') for each in (old, new))
            if a != b:
                moved = key == "sharding" and new.name in committed and "none" in {a, b}
                groups.setdefault(("commitment" if moved else key, a, b), []).append(_called(new, what))
    advice = {
        "donation": "donate the same arguments everywhere (donate_argnums)",
        "sharding": "place it alike in every call: jax.device_put(value, sharding), or in_shardings and out_shardings",
        "commitment": _COMMIT,
        "layout_mode": "give it one layout in every call: jax.device_put(value, Format(…)), or in_shardings",
    }
    words = {"layout_mode": "layout", "commitment": "sharding"}
    found = []
    for (key, a, b), names in groups.items():
        of = f"{names[0]}{_and_more(names)}"
        if key == "commitment" and {a, b} <= _WHOLE:
            found.append(_commitment(of, is_new=a == "none"))
            continue
        sentence = f"the {words.get(key, key)} of {of} changed: {a} {ARROW} {b}"
        if key == "commitment":
            sentence += f" ({'uncommitted' if a == 'none' else 'committed'} before)"
        found.append(Difference("computation", sentence, advice.get(key, "")))
    return found


def _called(argument: Argument, what: str) -> str:
    return f"argument {argument.name}" if what == "argument" else argument.name


def _and_more(items: Sequence[object]) -> str:
    return f" and {len(items) - 1} more" if len(items) > 1 else ""


# -- the same operations -----------------------------------------------------------------------------------------------


def _constant_differences(
    pairs: Iterable[tuple[Line, Line]], sources: SourceFiles, reshaped: _Reshaped
) -> list[Difference]:
    """Constants of lines that do what they did, unless they follow from a shape; first those that have a name."""
    groups: dict[tuple[str, str], list[Line]] = {}
    for old, new in pairs:
        for was, now in zip(old.constants, new.constants, strict=False):
            if was != now and not reshaped.explain(was, now):
                groups.setdefault((was, now), []).append(new)
    ranked = []
    for (was, now), lines in groups.items():
        place = next((line.place for line in lines if line.place.line), NOWHERE)
        unnamed = "", place
        name, given = next((each for line in lines if (each := sources.assigned(now, line.place))[0]), unnamed)
        where, more = _place(given, sources)
        where = f"{_times(lines)}{where and ', '}{where}"
        if was.startswith(ELIDED):
            sentence = f"the contents of a captured array changed{where}"
            advice = "an array that the function captures is compiled into the program: pass it as an argument"
        else:
            sentence = f"{name or 'a constant'} changed: {was} {ARROW} {now}{where}"
            advice = f"a Python value is compiled into the program: pass {name or 'it'} as an argument"
            if reshaped.is_any and not name:
                advice = ""  # it may follow from a shape in another way
        ranked.append((not name, not place.line, Difference("computation", sentence, advice, more)))
    return [difference for *_, difference in sorted(ranked, key=lambda each: each[:2])]


def _line_differences(pairs: Sequence[tuple[Line, Line]], sources: SourceFiles, *, typed: bool) -> list[Difference]:
    """Precision, dimensions and the like of lines that do what they did, or else, if `typed`, the first other shape."""
    groups: dict[tuple[str, str, str], list[Line]] = {}
    for old, new in pairs:
        if old.text != new.text and new.name != "return":
            was, now = _apart(_PART.split(old.text[:_COMPARED]), _PART.split(new.text[:_COMPARED]))
            groups.setdefault((new.name, was, now), []).append(new)
    if typed and not groups:
        retyped = ((new, _apart(_TYPE.findall(old.type), _TYPE.findall(new.type))) for old, new in pairs)
        first = next(((line, apart) for line, apart in retyped if any(apart)), None)
        groups = {(first[0].name, *first[1]): [first[0]]} if first is not None else {}
    found = []
    for (name, was, now), lines in groups.items():
        where, more = _place(next((line.place for line in lines if line.place.line), NOWHERE), sources)
        key = was.partition(" = ")[0] + " = "
        sentence = f"{name} changed: {was or 'nothing'} {ARROW} {now.removeprefix(key) or 'nothing'}{_times(lines)}"
        advice = "jax_default_matmul_precision and precision=… decide it" if "precision" in key else ""
        found.append(Difference("computation", f"{sentence}{where and ', '}{where}", advice, more))
    return found


def _operand_differences(before: ProgramText, after: ProgramText, sources: SourceFiles) -> list[Difference]:
    """The first line that uses other values, or in another order, of programs whose lines say the same."""
    for line, was, now in zip(after.lines, before.operands, after.operands, strict=False):
        if was == now or not line.place.line:
            continue
        where, more = _place(line.place, sources)
        inside = f" in {line.place.function}" if line.place.function not in {"", "<module>"} else ""
        what = "takes its operands in another order" if sorted(was) == sorted(now) else "takes other values"
        return [Difference("computation", f"the computation changed at {where}{inside}: {line.name} {what}", "", more)]
    return []


def _apart(old: Sequence[str], new: Sequence[str]) -> tuple[str, str]:
    """The first words of two lists that differ, side by side."""
    pairs = [(a, b) for a, b in itertools.zip_longest(old, new, fillvalue="") if a != b][:_IN_CHANGE]
    return ", ".join(a for a, _ in pairs), ", ".join(b for _, b in pairs)


def _times(lines: Sequence[Line]) -> str:
    return f" ({len(lines)} places)" if len(lines) > 1 else ""


def _place(place: Place, sources: SourceFiles) -> tuple[str, tuple[str, ...]]:
    """`train.py:12`, or nothing if it is not known, and the source line, for the lines below the sentence."""
    source = sources.line(place)
    return str(place), (f"{place}: {source[:_LONGEST]}",) if source else ()


# -- other operations --------------------------------------------------------------------------------------------------


def _middle(old: Sequence[Line], new: Sequence[Line]) -> tuple[Sequence[Line], Sequence[Line]]:
    """Both programs without the lines with which they begin and end alike, and no more than can be aligned."""
    least = min(len(old), len(new))
    start = next((i for i in range(least) if old[i] != new[i]), least)
    end = next((i for i in range(least - start) if old[-1 - i] != new[-1 - i]), least - start)
    return old[start : len(old) - end][:_ALIGNED], new[start : len(new) - end][:_ALIGNED]


def _rewritten(
    old: Sequence[Line], new: Sequence[Line], sources: SourceFiles, reshaped: _Reshaped, *, is_weak: bool
) -> list[Difference]:
    """Return what other operations there are, and the line of the program that most of them come from.

    Nothing if a weak type changed and they only convert.
    """
    matcher = difflib.SequenceMatcher(None, [line.name for line in old], [line.name for line in new], autojunk=False)
    changed = [codes for tag, *codes in matcher.get_opcodes() if tag != "equal"]
    gone = [line for start, end, _, _ in changed for line in old[start:end]]
    come = [line for _, _, start, end in changed for line in new[start:end]]
    if is_weak and {line.name for line in (*gone, *come)} <= _QUIET:
        return []
    place = _main_place(come) or _main_place(gone) or NOWHERE
    where, more = _place(place, sources)
    added, removed = Counter(line.name for line in come), Counter(line.name for line in gone)
    signs = (("+", added - removed), ("-", removed - added))
    changes = [f"{sign} {_listed(names)}" for sign, names in signs if names]
    words = "the computation changed" + f" at {where}" * bool(where)
    words += f" in {place.function}" if place.function not in {"", "<module>"} else ""
    found = [Difference("computation", ": ".join(filter(None, (words, "; ".join(changes)))), "", more)]
    if len(gone) + len(come) <= max(4, len(new) // 20):
        blocks = [(old[a : a + size], new[b : b + size]) for a, b, size in matcher.get_matching_blocks()]
        kept = [pair for block in blocks for pair in zip(*block, strict=True)]
        found += [each for each in _constant_differences(kept, sources, reshaped) if each.more]
    return found


def _listed(names: Counter[str]) -> str:
    """`while (a loop: …), 2 dot_general, tanh`: those that mean most first."""
    telling = names if set(names) <= _QUIET else Counter({name: n for name, n in names.items() if name not in _QUIET})
    ranked = sorted(telling.items(), key=lambda each: (_meaning(each[0]) == "", -each[1]))
    shown = [f"{n} {name}" if n > 1 else name for name, n in ranked]
    meant = [words for name, _ in ranked if (words := _meaning(name))]
    if meant:
        shown[0] += f" ({meant[0]})"
    return ", ".join(shown[:_SHOWN]) + ", \N{HORIZONTAL ELLIPSIS}" * (len(shown) > _SHOWN)


def _meaning(name: str) -> str:
    return next((words for part, words in _MEANING.items() if part in name), "")


def _main_place(lines: Sequence[Line]) -> Place | None:
    """The line of the program that most of these operations come from."""
    telling = [line for line in lines if line.name not in _QUIET and line.place.line]
    places = Counter(line.place for line in telling or lines if line.place.line)
    return places.most_common(1)[0][0] if places else None
