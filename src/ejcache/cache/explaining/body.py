"""What changed in the operations of a program: constants, precision, data types, and the lines that were rewritten."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ejcache.cache.explaining.locations import NOWHERE, Place
from ejcache.keys.difference import ARROW, Difference
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ejcache.cache.explaining.outline import Operation, Outline

__all__ = ["body_changes", "first_reordered", "likeness"]

_TYPES: Final = re.compile(r"\b((?:bf|[fiu]|c)\d\w*|bool)\[([\d,]*)\]")
_SIZE: Final = re.compile(r"\d+")
_PRECISION: Final = re.compile(r"precision = \[([^\]]*)\]")
_ALGORITHM: Final = re.compile(r"algorithm = (<[^>]*>|\w+)")
_NUMBER: Final = re.compile(r"(?<![\w.%])-?\d+(?:\.\d+)?")
_SEPARATOR: Final = re.compile(r"[\s,()]+")
_ALIGNED: Final = 3000
"""Operations that are aligned with one another; of more, only how often each occurs is compared."""
_QUIET: Final = frozenset({"broadcast_in_dim", "reshape", "convert", "constant", "cond", "return", "bitcast_convert"})
"""Operations that say little about what the author wrote."""
_RANDOM: Final = ("threefry", "rng_bit_generator", "rng_uniform")


@dataclass(frozen=True, slots=True)
class _Constants:
    """Constants that changed alike: the variable that they come from, if it is known, and the two values."""

    name: str
    place: Place
    old: str
    new: str
    type: str


def likeness(before: Outline, after: Outline) -> float:
    """How much of two programs is the same, from 0 to 1, whatever the shapes are."""
    counts = [Counter(_shapeless(o) for o in outline.operations) for outline in (before, after)]
    total = max(counts[0].total(), counts[1].total())
    return (counts[0] & counts[1]).total() / total if total else 1.0


def first_reordered(before: Outline, after: Outline) -> Place | None:
    """Where two programs first differ, if they have the same operations in another order or of other values.

    None if they have other operations, or the same ones from other lines.
    """
    counts = [
        Counter((o.place, *sorted(_SEPARATOR.split(o.text))) for o in outline.operations) for outline in (before, after)
    ]
    if counts[0] != counts[1]:
        return None
    pairs = zip(before.operations, after.operations, strict=True)
    return next((new.place for old, new in pairs if old != new and new.place.line), None)


def body_changes(
    before: Outline,
    after: Outline,
    *,
    moves: set[tuple[str, str]],
    dtypes_changed: bool,
    name_of: Callable[[str, Place], tuple[str, Place]],
) -> list[Difference]:
    """What changed in the operations, the most telling change first.

    Args:
        before: the nearest program.
        after: the compiled one.
        moves: the sizes of arguments that changed, before and after; other shapes and counts inside follow from them.
        dtypes_changed: arguments or results have other data types; others inside follow from them.
        name_of: the variable that holds a constant made on a line, and where it is assigned; an empty name if unknown.
    """
    removed, added = _unlike(before, after, _structure)
    if removed or added:
        rewritten = _rewritten(before, after, removed, added)
        return rewritten + (
            _constant_changes(before, after, moves, name_of) if _is_small(removed, added, after) else []
        )
    found = _constant_changes(before, after, moves, name_of)
    found += [] if moves else _attribute_changes(before, after)
    found += [] if moves or dtypes_changed else _type_changes(before, after, name_of)
    # Constants that no line is known of follow from something else.
    found.sort(key=lambda each: ".py:" not in each.sentence)
    return found or _rewired(before, after)


def _shapeless(operation: Operation) -> str:
    return _TYPES.sub("", operation.text)


def _structure(operation: Operation) -> str:
    """What an operation does, without numbers, types and precision."""
    return operation.name


def _unlike(before: Outline, after: Outline, of: Callable[[Operation], str]) -> tuple[list[Operation], list[Operation]]:
    """The operations that only the first, and that only the second program has."""
    old, new = before.operations, after.operations
    if max(len(old), len(new)) <= _ALIGNED:
        matcher = difflib.SequenceMatcher(None, [of(o) for o in old], [of(o) for o in new], autojunk=False)
        blocks = [b for b in matcher.get_opcodes() if b[0] != "equal"]
        return [o for b in blocks for o in old[b[1] : b[2]]], [o for b in blocks for o in new[b[3] : b[4]]]
    counts = [Counter(of(o) for o in each) for each in (old, new)]
    return _left_over(old, counts[0] - counts[1], of), _left_over(new, counts[1] - counts[0], of)


def _left_over(
    operations: Iterable[Operation], surplus: Counter[str], of: Callable[[Operation], str]
) -> list[Operation]:
    found = []
    for operation in operations:
        if surplus[of(operation)] > 0:
            surplus[of(operation)] -= 1
            found.append(operation)
    return found


def _is_small(removed: list[Operation], added: list[Operation], after: Outline) -> bool:
    return len(removed) + len(added) <= max(4, len(after.operations) // 20)


# -- the same operations -------------------------------------------------------------------------------------------


def _constant_changes(
    before: Outline, after: Outline, moves: set[tuple[str, str]], name_of: Callable[[str, Place], tuple[str, Place]]
) -> list[Difference]:
    old = [o for o in before.operations if o.constant]
    new = [o for o in after.operations if o.constant]
    matcher = difflib.SequenceMatcher(None, [o.text for o in old], [o.text for o in new], autojunk=False)
    groups: dict[tuple[str, str, str], list[Operation]] = {}
    for tag, a0, a1, b0, b1 in matcher.get_opcodes() if max(len(old), len(new)) <= _ALIGNED else ():
        if tag == "replace" and a1 - a0 == b1 - b0:
            for a, b in zip(old[a0:a1], new[b0:b1], strict=True):
                if a.type == b.type and not _follows(a.constant, b.constant, moves):
                    groups.setdefault((a.constant, b.constant, b.type), []).append(b)
    return [_constant_change(values, made) for values, made in _named_groups(groups, name_of)]


def _follows(old: str, new: str, moves: set[tuple[str, str]]) -> bool:
    """Whether a constant counts elements whose number changed with the shape of an argument."""
    if (old, new) in moves:
        return True
    try:
        ratio = float(new) / float(old)
        sizes = [float(b) / float(a) for a, b in moves]
    except (ValueError, ZeroDivisionError):
        return False
    return any(abs(ratio / size**power - 1) < 1e-4 for size in sizes for power in (1, -1, 2, -2, 0.5, -0.5) if size)


def _named_groups(
    groups: dict[tuple[str, str, str], list[Operation]], name_of: Callable[[str, Place], tuple[str, Place]]
) -> list[tuple[_Constants, list[Operation]]]:
    """Groups of constants that changed alike, those whose variable is known first."""
    named = []
    for (old, new, type_), made in groups.items():
        name, place = "", NOWHERE
        for each in dict.fromkeys(operation.place for operation in made):
            name, place = name_of(new, each)
            if name:
                break
        named.append((_Constants(name, place, old, new, type_), made))
    return sorted(named, key=lambda each: (not each[0].name, not each[1][0].place.line, -len(each[1])))


def _constant_change(what: _Constants, made: list[Operation]) -> Difference:
    place = made[0].place
    where = f", {place}" if place.line else ""
    times = f" ({len(made)} places)" if len(made) > 1 else ""
    if what.old.startswith("contents ") or what.new.startswith("contents "):
        sentence = f"the contents of a constant {what.type} changed{times}{where}"
        advice = "an array that the function captures is compiled into the program: pass it as an argument"
        return Difference("computation", sentence, advice)
    moved = f"changed: {what.old} {ARROW} {what.new}{times}"
    advice = f"a Python value is compiled into the program: pass {what.name or 'it'} as an argument"
    if what.name:
        return Difference("computation", f"{what.name} {moved}, {what.place}", advice)
    likely = f" ({what.new} is {what.place.function} on line {what.place.line})" if what.place.line else ""
    return Difference("computation", f"a constant {moved}{where}{likely}", advice)


def _attribute_changes(before: Outline, after: Outline) -> list[Difference]:
    """Differences in what is neither a type nor a constant: precision, dimensions, the sharding of a value."""
    pairs = list(zip(before.operations, after.operations, strict=False))
    found: dict[str, list[Operation]] = {}
    advice: dict[str, str] = {}
    for old, new in pairs:
        a, b = _shapeless(old), _shapeless(new)
        if a == b or old.constant:
            continue
        for pattern, words in ((_PRECISION, "the precision"), (_ALGORITHM, "the algorithm")):
            was, now = (match[1] if (match := pattern.search(text)) else "none" for text in (a, b))
            if was != now:
                was, now = was.partition(",")[0], now.partition(",")[0]
                sentence = f"{words} of {new.name} changed: {was} {ARROW} {now}"
                advice[sentence] = "jax_default_matmul_precision and precision=… decide it"
                found.setdefault(sentence, []).append(new)
                break
        else:
            was, now = _apart(a, b)
            found.setdefault(f"{new.name} changed: {was} {ARROW} {now}", []).append(new)
    return [
        Difference("computation", f"{sentence}{_times(made)}{_at(made)}", advice.get(sentence, ""))
        for sentence, made in found.items()
    ]


def _rewired(before: Outline, after: Outline) -> list[Difference]:
    """The first operation that is the same and uses other values."""
    for old, new in zip(before.operations, after.operations, strict=False):
        if old.uses != new.uses and new.place.line:
            sentence = f"the computation changed at {new.place} in {new.place.function}: {new.name} uses other values"
            return [Difference("computation", sentence)]
    return []


def _type_changes(
    before: Outline, after: Outline, name_of: Callable[[str, Place], tuple[str, Place]]
) -> list[Difference]:
    moves: Counter[tuple[str, str]] = Counter()
    made: dict[tuple[str, str], list[Operation]] = {}
    dtypes: Counter[tuple[str, str]] = Counter()
    for old, new in zip(before.operations, after.operations, strict=False):
        for a, b in zip(_TYPES.findall(old.type), _TYPES.findall(new.type), strict=False):
            if a[0] != b[0]:
                dtypes[a[0], b[0]] += 1
            if a != b:
                move = f"{a[0]}[{a[1]}]", f"{b[0]}[{b[1]}]"
                moves[move] += 1
                made.setdefault(move, []).append(new)
    if not moves:
        return []
    first = next(iter(made))
    if dtypes:
        shown = ", ".join(f"{a} {ARROW} {b}" for (a, b), _ in dtypes.most_common(2))
        first = next(move for move in made if move[0].partition("[")[0] != move[1].partition("[")[0])
        return [Difference("computation", f"the dtype used inside changed: {shown}{_at(made[first])}")]
    for (was, now), operations in made.items():
        for a, b in zip(_SIZE.findall(was.partition("[")[2]), _SIZE.findall(now.partition("[")[2]), strict=False):
            name, place = name_of(b, operations[0].place) if a != b else ("", NOWHERE)
            if name:
                sentence = f"{name} changed: {a} {ARROW} {b}, {place} (a shape inside: {was} {ARROW} {now})"
                return [Difference("computation", sentence)]
    return [Difference("computation", f"a shape inside changed: {first[0]} {ARROW} {first[1]}{_at(made[first])}")]


# -- other operations ----------------------------------------------------------------------------------------------


def _rewritten(before: Outline, after: Outline, removed: list[Operation], added: list[Operation]) -> list[Difference]:
    special = _known_rewrite(before, after)
    place = _main_place(added) or _main_place(removed) or NOWHERE
    function = place.function
    gone, come = _names(removed), _names(added)
    repeated = _repeated(before, after, place) if not gone or not come else ""
    if repeated:
        return [*special, Difference("computation", f"{place}{f' in {function}' if function else ''} {repeated}")]
    common = Counter(come) & Counter(gone)
    come, gone = list((Counter(come) - common).elements()), list((Counter(gone) - common).elements())
    where = f" at {place}" if place.line else ""
    inside = f" in {function}" if function and function != "<module>" else ""
    parts = [f"+ {_listed(come)}"] * bool(come) + [f"- {_listed(gone)}"] * bool(gone)
    sentence = f"the computation changed{where}{inside}"
    if parts:
        sentence += f": {'; '.join(parts)}"
    return [*special, Difference("computation", sentence)]


def _repeated(before: Outline, after: Outline, place: Place) -> str:
    """How many times the line is in each program, if all of its operations are repeated more often or less often."""
    if not place.line:
        return ""
    counts = [
        Counter(o.name for o in outline.operations if o.place == place and o.name not in _QUIET)
        for outline in (before, after)
    ]
    if counts[0].keys() != counts[1].keys() or len(counts[0]) < 2 or counts[0] == counts[1]:
        return ""
    least = [min(each.values()) for each in counts]
    same = all(counts[0][name] * least[1] == counts[1][name] * least[0] for name in counts[0])
    return f"is {least[1]} times in the program, not {least[0]} (a loop that is unrolled)" if same else ""


def _known_rewrite(before: Outline, after: Outline) -> list[Difference]:
    """Rewrites that have a name of their own."""
    counts = [Counter(o.name for o in outline.operations) for outline in (before, after)]
    found = []
    for operation, words in (
        ("optimization_barrier", "rematerialisation (jax.checkpoint, jax.remat)"),
        ("while", "a loop (scan, fori_loop, while_loop)"),
        ("case", "a branch (cond, switch)"),
    ):
        if bool(counts[0][operation]) != bool(counts[1][operation]):
            is_new = bool(counts[1][operation])
            made = [o for o in (after if is_new else before).operations if o.name == operation]
            found.append(Difference("computation", f"{words} was {'added' if is_new else 'removed'}{_at(made)}"))
    callbacks = [sum("callback" in name for name in each) for each in counts]
    if bool(callbacks[0]) != bool(callbacks[1]):
        verb = "added" if callbacks[1] else "removed"
        found.append(Difference("computation", f"a callback into Python (jax.debug.print, pure_callback) was {verb}"))
    generators = [{name for name in _RANDOM for o in each.operations if name in o.name} for each in (before, after)]
    if generators[0] != generators[1] and all(generators):
        was, now = (" and ".join(sorted(each)) for each in generators)
        found.insert(
            0, Difference("computation", f"the random number generator changed: {was} {ARROW} {now}", _RNG_ADVICE)
        )
    return found


_RNG_ADVICE: Final = "jax_default_prng_impl and jax.random.key(…, impl=…) decide it"


def _names(operations: list[Operation]) -> list[str]:
    names = [o.name for o in operations if o.name not in _QUIET and not o.function]
    return names or [o.name for o in operations if o.name not in {"cond", "return"}]


def _listed(names: list[str]) -> str:
    counts = Counter(names).most_common()
    shown = ", ".join(f"{number} {name}" if number > 1 else name for name, number in counts[:5])
    return shown + (", \N{HORIZONTAL ELLIPSIS}" if len(counts) > 5 else "")


def _main_place(operations: list[Operation]) -> Place | None:
    places = Counter(o.place for o in operations if o.place.line and o.name not in _QUIET and not o.function)
    places = places or Counter(o.place for o in operations if o.place.line)
    return places.most_common(1)[0][0] if places else None


def _times(made: list[Operation]) -> str:
    return f" ({plural(len(made), 'operation')})" if len(made) > 1 else ""


def _at(made: list[Operation]) -> str:
    place = next((o.place for o in made if o.place.line), NOWHERE)
    return f", {place}" if place.line else ""


def _apart(old: str, new: str) -> tuple[str, str]:
    """The parts of two texts between what they begin and end with, cut to whole words."""
    a, b = old.split(), new.split()
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    a, b = a[start:], b[start:]
    while len(a) > 1 and len(b) > 1 and a[-1] == b[-1]:
        a.pop()
        b.pop()
    was, now = (" ".join(words).strip(", ")[:40] or "(none)" for words in (a, b))
    return was, now
