"""Findings that the text of a program shows: a block that repeats, a loop that leaves nothing, a large constant."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from ejcache.history.definitions import definition_of
from ejcache.history.findings import ABOUT, AT_MOST, LARGE_CONSTANT, REPEATED_BLOCK, Advice, Saving
from ejcache.history.places import CallChains, common_place
from ejcache.history.program import function_of, is_of_jax, is_of_user, spent, traced
from ejcache.history.text import ELIDED
from ejcache.util.repeated_sequences import repetitions
from ejcache.util.units import format_size, plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ejcache.history.earlier import Texts
    from ejcache.history.statements import Statements
    from ejcache.history.text import Line, Place, ProgramText
    from ejcache.journal.line import ProgramRecord

    _LargeConstant = tuple[int, str, str, list[str], int]
    """Size, type, name, the lines of the text, and the line number of a constant."""

_FEWEST: Final = 4
"""Copies of a block."""
_LARGE: Final = 1 << 20
"""Bytes of a constant."""
_HEAVY: Final = ("dot", "conv", "while", "call", "reduce", "gather", "scatter", "sort", "fft")
"""Parts of the names of operations that a layer has, and the update of a parameter has not."""
_UNEXPLAINED: Final = 0.5
"""Seconds of tracing from which on they must be explained: a function that is traced first also imports modules."""
_TRACING: Final = 60
"""How many times as long as lowering tracing takes, at least, if little remains of what it traced."""
_MOST_TRACING: Final = 20
"""How many times as long it takes otherwise, at most: 22 in 120 programs of users, and 1 to 5 in most."""
_REMAIN: Final = 50
"""Operations of a program of which little remains, at most."""
_CONSTANT: Final = re.compile(r"^\s*(%[\w#]+) = \S*constant\b.*: tensor<((?:\d+x)+)([a-z]+)(\d+)[^ ]*> loc\(#loc\d*\)")
_USE_LOCATION: Final = re.compile(r" loc\(#(loc\d*)\)$")


def repeated_block(group: Sequence[ProgramRecord], texts: Texts) -> Iterator[Advice]:
    """Yield copies of one sequence of operations, by their names and types, that make up most of a program.

    What a loop saves of tracing is about the part of it that the copies make up. What it saves of compiling nobody can
    tell by the text: on CPU it is often nothing, elsewhere most of it.
    """
    ask = max(group, key=spent)
    if is_of_jax(ask):
        return
    text = texts.read(ask)
    if text is None:
        return
    found = repetitions([(line.name, line.type) for line in text.lines])
    if not any(_is_layer(text.lines[each.starts[0] : each.starts[0] + each.period]) for each in found):
        return
    part = sum(each.covers for each in found) / len(text.lines)
    forwards = min(found, key=lambda each: each.starts[0])
    # The second copy: the first may begin with an operation before the loop, such as those that the block ends with.
    place = _block_place(texts, ask, text, forwards.starts[0] + forwards.period, forwards.period)
    if place is None:
        return
    function, times = function_of(ask), _times(texts.raw(ask), place)
    if times < _FEWEST:  # operations of several lines, which no line of the program has so often
        times = max(1, round(forwards.copies / len(forwards.starts)))
    tracing = ask.seconds.get("traced", 0.0)
    compiling = Saving(AT_MOST, ask.compile_seconds, "of compiling")
    of_tracing = Saving(ABOUT, tracing * part, f"of tracing: the copies' {part:.0%} of {tracing:.2f} s")
    yield Advice(
        REPEATED_BLOCK,
        function,
        place.file,
        place.line,
        programs=len({each.key for each in group}),
        calls=len(group),
        seconds=tracing + sum(ask.seconds.get(each, 0.0) for each in ("lowered", "loaded")) + ask.compile_seconds,
        # JAX looks for the plug-in that enables the cache only after it has traced a first program of NumPy's arrays.
        saves=(of_tracing, compiling) if "traced" in ask.seconds else (compiling,),
        sentence=f"the operations of this line are {times} times in the program of {function}; such copies make up "
        f"{part:.0%} of its {plural(len(text.lines), 'operation')}",
        what_to_do="stack the parameters of the copies, and write the block once, with jax.lax.scan",
    )


def _times(raw: str, place: Place) -> int:
    """Count how often the program has the operations of this line: most are there as often as the line has run."""
    chains = CallChains(raw)
    located = Counter(match[1] for line in _operations(raw) if (match := _USE_LOCATION.search(line)))
    # Flax numbers its layers in the names of operations, which then are there once each.
    counts = Counter(times for name, times in located.items() if times >= _FEWEST and place in chains.of(name))
    return counts.most_common(1)[0][0] if counts else 0


def unused_loop(group: Sequence[ProgramRecord], texts: Texts, statements: Statements) -> Iterator[Advice]:
    """Yield a function with one loop, of which tracing takes far longer than what remains of it explains.

    Lowering takes as long as the program is large, so that the two can be compared on any machine. JAX leaves out
    operations whose results nothing needs.
    """
    ask = max(group, key=traced)
    lowered, definition, function = ask.seconds.get("lowered", 0.0), definition_of(ask.details), function_of(ask)
    if not is_of_user(ask) or not lowered or traced(ask) < max(_UNEXPLAINED, _TRACING * lowered):
        return
    text = texts.read(ask)
    loops = statements.loops(definition.file, definition.line)
    if text is None or len(text.lines) > _REMAIN or len(loops) != 1:
        return
    yield Advice(
        REPEATED_BLOCK,
        function,
        definition.file,
        loops[0],
        programs=len({each.key for each in group}),
        calls=len(group),
        seconds=spent(ask),
        saves=(Saving(ABOUT, traced(ask) - _MOST_TRACING * lowered, "of tracing: more than what remains explains"),),
        sentence=f"JAX runs this loop each time it traces {function}, which takes {traced(ask):.2f} s, and the program "
        f"has {plural(len(text.lines), 'operation')} of all that",
        what_to_do=f"leave out what {function} does not return, or write the loop with jax.lax.fori_loop",
    )


def _is_layer(lines: Sequence[Line]) -> bool:
    return any(part in line.name for line in lines for part in _HEAVY)


def _block_place(texts: Texts, ask: ProgramRecord, text: ProgramText, start: int, period: int) -> Place | None:
    """Return the line of the user's program that makes the block: in a loop, or calling what the loop has."""
    raw = texts.raw(ask)
    chains = CallChains(raw)
    located = [match[1] for line in _operations(raw) if (match := _USE_LOCATION.search(line))]
    if len(located) == len(text.lines):
        found = [chain for name in located[start : start + period] if (chain := chains.of(name))]
        place = common_place(found, texts.qualified_name(ask))
        if place is not None:
            return place
    places = [line.place for line in text.lines[start : start + period] if line.place.line]
    return places[0] if places else None


def _operations(raw: str) -> Iterator[str]:
    """Yield the lines of a text that are operations, as `text.read_text` does."""
    for line in map(str.strip, raw.splitlines()):
        is_operation = line and not line.startswith(("module @", "func.func", "#", "/", "^", "}"))
        if is_operation and "sdy.mesh @" not in line and not re.match(r"^%[\w#:]+ = \S*constant\b", line):
            yield line


def large_constant(group: Sequence[ProgramRecord], texts: Texts, statements: Statements) -> Iterator[Advice]:
    """Yield elements of more than 1 MB in the text: an array that the function captured."""
    ask = max(group, key=spent)
    if is_of_jax(ask):
        return
    raw = texts.raw(ask)
    found = list(_large_constants(raw)) if raw else []
    if not found:
        return
    size, shape, *_ = max(found)
    chains = CallChains(raw)
    qualified = texts.qualified_name(ask)
    place = _entrance([_use_of(each, chains) for each in sorted(found, reverse=True)], qualified, statements)
    if place is None:
        if not is_of_user(ask):
            return
        definition = definition_of(ask.details)
        file, line_number = definition.file, definition.line
    else:
        file, line_number = place.file, place.line
    function = function_of(ask)
    total = sum(each[0] for each in found)
    others = f" and {len(found) - 1} more, {format_size(total)} in all" if len(found) > 1 else ""
    saves = ask.seconds.get("lowered", 0.0) + ask.seconds.get("keyed", 0.0)
    yield Advice(
        LARGE_CONSTANT,
        function,
        file,
        line_number,
        programs=len({each.key for each in group}),
        calls=len(group),
        seconds=spent(ask),
        saves=(Saving(AT_MOST, saves, "of lowering and of making the key"),),
        sentence=f"the array {shape} ({format_size(size)}){others} is a constant in the program of {function}, which "
        "takes it in at this line",
        what_to_do=f"pass the array as an argument of {function}",
    )


def _use_of(found: _LargeConstant, chains: CallChains) -> tuple[Place, ...]:
    """Return the lines of the user's program from which the operation that uses a constant comes, the innermost
    first.
    """
    _, _, name, lines, at = found
    used = next((line for line in lines[at + 1 :] if re.search(rf"{re.escape(name)}\b(?!#)", line)), lines[at])
    match = _USE_LOCATION.search(used)
    return chains.of(match[1]) if match else ()


def _entrance(uses: Sequence[tuple[Place, ...]], function: str, statements: Statements) -> Place | None:
    """Return the line at which a function takes in the first of these constants, which may pass it on to what it calls.

    It is the innermost line that reads a variable from outside of the function in which it is. The arrays of one tree
    are taken in at a line from which all of them come.

    Args:
        uses: for each constant, the lines from which the operation that uses it comes, the innermost first.
        function: the qualified name of the jitted function; lines that call it are not within it.
        statements: of the program.
    """
    ends = [number for number, place in enumerate(uses[0], 1) if place.function == function]
    within = uses[0][: ends[0] if ends else 1]
    shared = [place for place in within if all(place in use for use in uses)]
    candidates = shared or within
    reads = [place for place in candidates if statements.reads_from_outside(place.file, place.line)]
    return next(iter(reads or candidates), None)


def _large_constants(raw: str) -> Iterator[_LargeConstant]:
    """Yield size, type, name, the lines of the text, and the line number of each large constant."""
    lines = raw.splitlines()
    for number, line in enumerate(lines):
        match = _CONSTANT.match(line)
        if match and ("__elided__" in line or 'dense<"0x' in line or ELIDED in line):
            sizes = [int(each) for each in match[2].split("x") if each]
            size = math.prod(sizes) * max(1, int(match[4]) // 8)
            if size >= _LARGE:
                kind = {"i1": "bool"}.get(match[3] + match[4], match[3] + match[4])
                yield size, f"{kind}[{','.join(map(str, sizes))}]", match[1], lines, number
