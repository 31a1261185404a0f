"""Says what changed from one program to another: arguments, constants, and the lines that do something else.

The texts of the two programs (`program_text`) are compared line by line. What is shown of a change is what the texts
say, and the source line that it comes from.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from ejcache.history.environment_difference import ARROW, Difference
from ejcache.history.program_text import ELIDED, Argument, Line, ProgramText
from ejcache.history.recorded_program import MOST_SIZES, Type, are_alike, argument_types
from ejcache.history.source_files import NOWHERE, Place, SourceFiles, is_installed
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from ejcache.journal.line import ProgramRecord


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
_SHOWN: Final = 5
_IN_CHANGE: Final = 2
_COMPARED: Final = 300
"""Characters of a line of which it is shown what differs."""
_LONGEST: Final = 100
"""Characters of a source line."""
_PART: Final = re.compile(r", (?![^\[(<]*(?:[\])]|(?<!-)>))| (?=\w+ = )")
_WHOLE_NUMBER: Final = re.compile(r"\d+")
_TYPE: Final = re.compile(r"\w+\[[^\]]*\]")


SHAPE: Final = "shape_varies"
TYPE: Final = "weak_type"
NUMBER: Final = "static_number"
CAPTURED: Final = "captured_array"
PLACEMENT: Final = "placement"
ARGUMENTS: Final = "signature"
MESH: Final = "mesh"
PRECISION: Final = "precision"
ORDER: Final = "order"
CODE: Final = "code"
"""The kinds of differences between two programs."""
SIGNATURE: Final = frozenset({SHAPE, TYPE, ARGUMENTS})


def program_differences(
    before: ProgramText,
    after: ProgramText,
    *,
    sources: SourceFiles,
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
        weak: what changed in the weak types of arguments.
        committed: the arguments whose commitment to devices changed.
    """
    found = list(weak)
    if before.meshes != after.meshes and not (committed and "" in {before.meshes, after.meshes}):
        sentence = f"the mesh changed: {before.meshes or 'none'} {ARROW} {after.meshes or 'none'}"
        found.append(Difference(MESH, sentence))
    found += _signature_differences(before.arguments, after.arguments, "argument", committed)
    # The results follow from the arguments.
    if not any(each.kind in SIGNATURE for each in found):
        found += _signature_differences(before.results, after.results, "result")
    retyped = any(each.kind in SIGNATURE for each in found)
    reshaped = _ShapeChanges.of(before.arguments, after.arguments)
    old, new = _middle(before.lines, after.lines)
    if [line.name for line in old] == [line.name for line in new]:
        pairs = list(zip(old, new, strict=True))
        found += _constant_differences(pairs, sources, reshaped)
        found += _line_differences(pairs, sources, reshaped, typed=not retyped)
    else:
        found += _rewritten(old, new, sources, reshaped, is_weak=bool(weak))
    if not found:
        found += _operand_differences(before, after, sources)
    if not found and before.module != after.module:
        found.append(Difference(CODE, f"the module changed: {before.module} {ARROW} {after.module}"))
    return found


def kind_of_signatures(before: str, after: str) -> str:
    """Return the kind of a difference between two signatures, where nothing else is known of the programs."""
    old, new = argument_types(before), argument_types(after)
    if [each.shape for each in old] == [each.shape for each in new]:
        return TYPE if old != new else ARGUMENTS
    return SHAPE if _sizes_vary(old, new) else ARGUMENTS


def does_the_same(before: ProgramText, after: ProgramText) -> bool:
    """True if two programs have the same arguments, results and operations, wherever these are in the source."""
    one, other = (
        text._replace(module="", lines=tuple(line._replace(place=NOWHERE) for line in text.lines))
        for text in (before, after)
    )
    return one == other


def find_reordering(before: ProgramText, after: ProgramText) -> Place | None:
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
    committed: Collection[str] = (),
) -> list[Difference]:
    """List what changed in arguments or results (`what`): which there are, their types, their shardings and so on."""
    old, new = ({each.name: each for each in side} for side in (before, after))
    found = []
    for verb, names, of in (("added", new.keys() - old.keys(), new), ("removed", old.keys() - new.keys(), old)):
        if names:
            shown = [f"{each.name} {each.type}" for each in of.values() if each.name in names]
            words = f"{plural(len(shown), what)} {'was' if len(shown) == 1 else 'were'} {verb}: {', '.join(shown[:3])}"
            found.append(Difference(ARGUMENTS, words + ", \N{HORIZONTAL ELLIPSIS}" * (len(shown) > 3)))
    pairs = [(old[name], new[name]) for name in new if name in old]
    changed = [pair for pair in pairs if pair[0].type != pair[1].type]
    if changed:
        # An array that is an argument by itself says more than one of many parameters.
        changed.sort(key=lambda pair: len(pair[1].name))
        more = tuple(f"{a.name} {a.type} {ARROW} {b.type}" for a, b in changed[:6]) if len(changed) > 1 else ()
        a, b = changed[0]
        words = f"{_called(b, what)} changed: {a.type} {ARROW} {b.type}{_and_more(changed)}"
        types = [_type(pair[0]) for pair in changed], [_type(pair[1]) for pair in changed]
        is_sized = a.type.partition("[")[2] != b.type.partition("[")[2]
        kind = TYPE if not is_sized else SHAPE if what == "argument" and _sizes_vary(*types) else ARGUMENTS
        found.append(Difference(kind, words, b.name, more))
    return found + _attribute_differences(pairs, what, committed)


def _sizes_vary(before: Sequence[Type], after: Sequence[Type]) -> bool:
    """True if one or two sizes changed and nothing else, each along the same axis of all arguments that have it.

    A graph has another number of nodes and of edges. The width of a model is along one axis of a layer's weights, and
    along another one of the next layer's.
    """
    if not are_alike(before, after):
        return False
    axes: dict[tuple[int, int], set[int]] = {}
    for old, new in zip(before, after, strict=True):
        found: dict[tuple[int, int], set[int]] = {}
        for axis, size in enumerate(zip(old.shape, new.shape, strict=True)):
            if size[0] != size[1]:
                found.setdefault(size, set()).add(axis)
        for size, on in found.items():
            axes[size] = axes.get(size, on) & on
    return 1 <= len(axes) <= MOST_SIZES and all(axes.values())


def _type(argument: Argument) -> Type:
    return Type(_dimensions(argument.type), argument.type.partition("[")[0])


def _dimensions(type_: str) -> tuple[int, ...]:
    """Return `(32, 64)` of `f32[32,64]`."""
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


class _ShapeChanges(NamedTuple):
    """Sizes that changed with the shapes of arguments: pairs of dimensions, and of products of dimensions."""

    sizes: frozenset[tuple[float, float]] = frozenset()
    is_any: bool = False

    @staticmethod
    def of(before: Sequence[Argument], after: Sequence[Argument]) -> _ShapeChanges:
        """Return the sizes that changed from these arguments to those."""
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
        return _ShapeChanges(frozenset(sizes), is_any)

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

    def explain_text(self, was: str, now: str) -> bool:
        """True if two texts differ in numbers alone, and these follow from the sizes."""
        if not self.is_any or _WHOLE_NUMBER.sub("#", was) != _WHOLE_NUMBER.sub("#", now):
            return False
        numbers = zip(_WHOLE_NUMBER.findall(was), _WHOLE_NUMBER.findall(now), strict=True)
        return all(old == new or self.explain(old, new) for old, new in numbers)


_AXES_READ: Final = 6
"""Dimensions of which all products are made."""


def weak_differences(
    before: ProgramRecord, after: ProgramRecord, text: ProgramText | None = None, *, former: ProgramText | None = None
) -> list[Difference]:
    """List what changed in the weak types of arguments, of those that the program uses if its text is known.

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
    return [Difference(TYPE, words, name, tuple(changed[:6]) if len(changed) > 1 else ())]


def _noted(before: ProgramRecord, after: ProgramRecord, what: str) -> tuple[set[str], set[str]] | None:
    """Return the paths of arguments that two compilations note as this; None if one of them does not say."""
    old, new = (each.details.get(what) for each in (before, after))
    return (set(old.split("\n")) - {""}, set(new.split("\n")) - {""}) if old is not None and new is not None else None


def commitment_changes(before: ProgramRecord, after: ProgramRecord) -> list[str]:
    """Return the paths of the arguments that are committed to devices in one of two compilations only."""
    old, new = _noted(before, after, "committed") or (set(), set())
    return sorted(old ^ new, key=lambda name: (len(name), name))


def commitment_differences(before: ProgramRecord, after: ProgramRecord) -> list[Difference]:
    """List what changed in the commitment of arguments, by what the two compilations note."""
    names = commitment_changes(before, after)
    if not names:
        return []
    is_new = names[0] not in before.details["committed"].split("\n")
    return [_commitment(f"argument {names[0]}{_and_more(names)}", is_new=is_new)]


def _commitment(of: str, *, is_new: bool) -> Difference:
    sides = ("uncommitted", "committed") if is_new else ("committed", "uncommitted")
    return Difference(PLACEMENT, f"the commitment of {of} changed: {sides[0]} {ARROW} {sides[1]}")


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
        found.append(Difference(PLACEMENT, sentence))
    return found


def _called(argument: Argument, what: str) -> str:
    return f"argument {argument.name}" if what == "argument" else argument.name


def _and_more(items: Sequence[object]) -> str:
    return f" and {len(items) - 1} more" if len(items) > 1 else ""


# -- the same operations -----------------------------------------------------------------------------------------------


def _constant_differences(
    pairs: Iterable[tuple[Line, Line]], sources: SourceFiles, reshaped: _ShapeChanges
) -> list[Difference]:
    """Return constants of lines that do what they did, unless they follow from a shape; first those that have a
    name.
    """
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
        at = f"{place.file}:{place.line}" if place.line and not is_installed(place.file) else ""
        where = f"{_times(lines)}{where and ', '}{where}"
        if was.startswith(ELIDED):
            kind, sentence = CAPTURED, f"the contents of a captured array changed{where}"
        else:
            sentence = f"{name or 'a constant'} changed: {was} {ARROW} {now}{where}"
            # Beside another shape, a constant without a name may follow from that in a way that is not known.
            kind = CODE if reshaped.is_any and not name else NUMBER
        is_library = bool(place.line) and not at
        change = Difference(kind, sentence, name or "the number", more, at, is_library)
        ranked.append((not name, not place.line, change))
    return [difference for *_, difference in sorted(ranked, key=lambda each: each[:2])]


def _line_differences(
    pairs: Sequence[tuple[Line, Line]], sources: SourceFiles, reshaped: _ShapeChanges, *, typed: bool
) -> list[Difference]:
    """Return precision, dimensions and the like of lines that do what they did, or else, if `typed`, the first other
    shape. Sizes that follow from another shape are left out.
    """
    groups: dict[tuple[str, str, str], list[Line]] = {}
    for old, new in pairs:
        if old.text != new.text and new.name != "return" and not reshaped.explain_text(old.text, new.text):
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
        kind = PRECISION if "precision" in key else CODE
        found.append(Difference(kind, f"{sentence}{where and ', '}{where}", more=more))
    return found


def _operand_differences(before: ProgramText, after: ProgramText, sources: SourceFiles) -> list[Difference]:
    """Return the first line that uses other values, or in another order, of programs whose lines say the same."""
    for line, was, now in zip(after.lines, before.operands, after.operands, strict=False):
        if was == now or not line.place.line:
            continue
        where, more = _place(line.place, sources)
        inside = f" in {line.place.function}" if line.place.function not in {"", "<module>"} else ""
        what = "takes its operands in another order" if sorted(was) == sorted(now) else "takes other values"
        return [Difference(CODE, f"the computation changed at {where}{inside}: {line.name} {what}", more=more)]
    return []


def _apart(old: Sequence[str], new: Sequence[str]) -> tuple[str, str]:
    """Return the first words of two lists that differ, side by side."""
    pairs = [(a, b) for a, b in itertools.zip_longest(old, new, fillvalue="") if a != b][:_IN_CHANGE]
    return ", ".join(a for a, _ in pairs), ", ".join(b for _, b in pairs)


def _times(lines: Sequence[Line]) -> str:
    return f" ({len(lines)} places)" if len(lines) > 1 else ""


def _place(place: Place, sources: SourceFiles) -> tuple[str, tuple[str, ...]]:
    """Return `train.py:12`, or nothing if it is not known, and the source line, for the lines below the sentence."""
    source = sources.line(place)
    return str(place), (f"{place}: {source[:_LONGEST]}",) if source else ()


# -- other operations --------------------------------------------------------------------------------------------------


def _middle(old: Sequence[Line], new: Sequence[Line]) -> tuple[Sequence[Line], Sequence[Line]]:
    """Return both programs without the lines with which they begin and end alike, and no more than can be aligned."""
    least = min(len(old), len(new))
    start = next((i for i in range(least) if old[i] != new[i]), least)
    end = next((i for i in range(least - start) if old[-1 - i] != new[-1 - i]), least - start)
    return old[start : len(old) - end][:_ALIGNED], new[start : len(new) - end][:_ALIGNED]


def _rewritten(
    old: Sequence[Line], new: Sequence[Line], sources: SourceFiles, reshaped: _ShapeChanges, *, is_weak: bool
) -> list[Difference]:
    """Name the operations that changed, and the line of the program that most of them come from.

    Nothing if a weak type or a shape changed and they only convert and spread.
    """
    matcher = difflib.SequenceMatcher(None, [line.name for line in old], [line.name for line in new], autojunk=False)
    changed = [codes for tag, *codes in matcher.get_opcodes() if tag != "equal"]
    gone = [line for start, end, _, _ in changed for line in old[start:end]]
    come = [line for _, _, start, end in changed for line in new[start:end]]
    if (is_weak or reshaped.is_any) and {line.name for line in (*gone, *come)} <= _QUIET:
        return []
    place = _main_place(come) or _main_place(gone) or NOWHERE
    where, more = _place(place, sources)
    added, removed = Counter(line.name for line in come), Counter(line.name for line in gone)
    signs = (("+", added - removed), ("-", removed - added))
    changes = [f"{sign} {_listed(names)}" for sign, names in signs if names]
    words = "the computation changed" + f" at {where}" * bool(where)
    words += f" in {place.function}" if place.function not in {"", "<module>"} else ""
    found = [Difference(CODE, ": ".join(filter(None, (words, "; ".join(changes)))), more=more)]
    if len(gone) + len(come) <= max(4, len(new) // 20):
        blocks = [(old[a : a + size], new[b : b + size]) for a, b, size in matcher.get_matching_blocks()]
        kept = [pair for block in blocks for pair in zip(*block, strict=True)]
        found += [each for each in _constant_differences(kept, sources, reshaped) if each.more]
    return found


def _listed(names: Counter[str]) -> str:
    """Return `while (a loop: …), 2 dot_general, tanh`: those that mean most first."""
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
    """Return the line of the program that most of these operations come from."""
    telling = [line for line in lines if line.name not in _QUIET and line.place.line]
    places = Counter(line.place for line in telling or lines if line.place.line)
    return places.most_common(1)[0][0] if places else None
