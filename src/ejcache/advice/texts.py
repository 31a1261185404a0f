"""Findings that the text of a program shows: a static number, a block that repeats, a large constant."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from ejcache.advice.evidence import first_asks
from ejcache.advice.findings import COUNTED, ESTIMATED, LARGE_CONSTANT, REPEATED_BLOCK, STATIC_NUMBER, Advice
from ejcache.advice.places import CallChains, common_place
from ejcache.misses.program_text import ELIDED
from ejcache.util.repeated_sequences import repetitions
from ejcache.util.units import format_size, plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ejcache.advice.evidence import Ask, Texts
    from ejcache.advice.statements import Statements
    from ejcache.misses.program_text import Line, Place, ProgramText

    _LargeConstant = tuple[int, str, str, list[str], int]
    """Size, type, name, the lines of the text, and the line number of a constant."""

_NUMBERS: Final = 3
"""Programs of a function that differ in one number."""
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


def static_number(group: Sequence[Ask], texts: Texts) -> Iterator[Advice]:
    """Programs of one function with equal arguments, whose texts differ in one scalar constant."""
    if group[0].is_of_jax:
        return
    alike = [ask for ask in first_asks(group) if ask.signature == group[-1].signature and ask.computation]
    if len(alike) < _NUMBERS:
        return
    compared = alike[:_NUMBERS]
    read = [text for text in map(texts.read, compared) if text is not None]
    if len(read) < _NUMBERS:
        return
    found = [_one_number(read[0], other) for other in read[1:]]
    lines = {(line.place, line.name) for each in found if each is not None for line, _, _ in (each,)}
    if None in found or len(lines) != 1:
        return
    line, was, _ = found[0] or (read[0].lines[0], "", "")
    caller, function = compared[-1].caller, compared[0].function
    place = line.place if line.place.line else caller
    seconds = sum(ask.seconds for ask in alike)
    values = ", ".join(dict.fromkeys([was, *(each[2] for each in found if each is not None)]))
    at = f"{caller.file.rpartition('/')[2]}:{caller.line}"
    code = function if function.isidentifier() and function != "_lambda" else "step"
    yield Advice(
        STATIC_NUMBER,
        function,
        place.file,
        place.line,
        programs=len(alike),
        calls=len(group),
        seconds=seconds,
        saves=seconds * (1 - 1 / len(alike)),
        basis=COUNTED,
        message=f"pass the number as an array argument of {function}, which was compiled for each of its values "
        f"({values}, \N{HORIZONTAL ELLIPSIS}); or mark it static on purpose, if there are few; called at {at}",
        before=f"{code} = jax.jit({code}, static_argnames='number')\n{code}(x, number=step)",
        after=f"{code} = jax.jit({code})\n{code}(x, number=jnp.asarray(step))",
    )


def _one_number(one: ProgramText, other: ProgramText) -> tuple[Line, str, str] | None:
    """The line whose scalar constant differs, and both values; None if anything else differs, or more than one."""
    if [line.name for line in one.lines] != [line.name for line in other.lines]:
        return None
    changes = []
    for old, new in zip(one.lines, other.lines, strict=True):
        if old.text != new.text or old.type != new.type:
            return None
        changes += [(new, a, b) for a, b in zip(old.constants, new.constants, strict=False) if a != b]
    pairs = {(was, now) for _, was, now in changes}
    if len(pairs) != 1 or not all(_is_number(each) for each in next(iter(pairs))):
        return None
    return changes[0]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text in {"true", "false"}
    return True


def repeated_block(group: Sequence[Ask], texts: Texts) -> Iterator[Advice]:
    """Copies of one sequence of operations, by their names and types, that make up most of a program.

    What a loop saves of tracing is about the part of it that the copies make up. What it saves of compiling nobody can
    tell by the text: on CPU it is often nothing, elsewhere most of it.
    """
    ask = max(group, key=lambda each: each.seconds)
    if ask.is_of_jax:
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
    blocks = max(1, round(forwards.copies / len(forwards.starts)))
    others = sum(each.copies for each in found) - forwards.copies
    again = f", with {plural(others, 'copy', 'copies')} of other operations" if others else ""
    if not others and blocks != forwards.copies:
        again = f", forwards and backwards {forwards.copies} times"
    spent = ask.program.seconds
    traced, compiled = spent.get("traced", 0.0), ask.program.compile_seconds
    saves = traced * part
    yield Advice(
        REPEATED_BLOCK,
        ask.function,
        place.file,
        place.line,
        programs=len({each.program.key for each in group}),
        calls=len(group),
        seconds=traced + spent.get("lowered", 0.0) + spent.get("loaded", 0.0) + compiled,
        saves=saves,
        basis=ESTIMATED,
        message=f"write the block once, with jax.lax.scan over stacked layers: {plural(blocks, 'copy', 'copies')} of "
        f"{plural(forwards.period, 'operation')} make up {part:.0%} of {ask.function}{again}; that saves about "
        f"{saves:.2f} s of tracing, and at most {compiled:.2f} s of compiling",
        before="for layer in layers:\n    x = block(layer, x)",
        after="stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)\n"
        "x, _ = jax.lax.scan(lambda x, layer: (block(layer, x), None), x, stacked)",
    )


def unused_loop(group: Sequence[Ask], texts: Texts, statements: Statements) -> Iterator[Advice]:
    """A function with one loop, of which tracing takes far longer than what remains of it explains.

    Lowering takes as long as the program is large, so that the two can be compared on any machine. JAX leaves out
    operations whose results nothing needs.
    """
    ask = max(group, key=lambda each: each.traced)
    lowered = ask.program.seconds.get("lowered", 0.0)
    if not ask.is_of_user or not lowered or ask.traced < max(_UNEXPLAINED, _TRACING * lowered):
        return
    text = texts.read(ask)
    loops = statements.loops(ask.definition.file, ask.definition.line)
    if text is None or len(text.lines) > _REMAIN or len(loops) != 1:
        return
    yield Advice(
        REPEATED_BLOCK,
        ask.function,
        ask.definition.file,
        loops[0],
        programs=len({each.program.key for each in group}),
        calls=len(group),
        seconds=ask.seconds,
        saves=ask.traced - _MOST_TRACING * lowered,
        basis=ESTIMATED,
        message=f"leave out what {ask.function} does not return, or write the loop with jax.lax.fori_loop: JAX runs it "
        f"each time it traces {ask.function}, which takes {ask.traced:.2f} s, and the program has "
        f"{plural(len(text.lines), 'operation')} of all that",
        before=f"@jax.jit\ndef {ask.function}(x):\n    for i in range(n):\n        unused = block(x, i)",
        after=f"@jax.jit\ndef {ask.function}(x):\n    return jax.lax.fori_loop(0, n, lambda i, x: block(x, i), x)",
    )


def _is_layer(lines: Sequence[Line]) -> bool:
    return any(part in line.name for line in lines for part in _HEAVY)


def _block_place(texts: Texts, ask: Ask, text: ProgramText, start: int, period: int) -> Place | None:
    """The line of the user's program that makes the block: in a loop, or calling what the loop has."""
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
    """The lines of a text that are operations, as `misses.program_text` reads them."""
    for line in map(str.strip, raw.splitlines()):
        is_operation = line and not line.startswith(("module @", "func.func", "#", "/", "^", "}"))
        if is_operation and "sdy.mesh @" not in line and not re.match(r"^%[\w#:]+ = \S*constant\b", line):
            yield line


def large_constant(group: Sequence[Ask], texts: Texts, statements: Statements) -> Iterator[Advice]:
    """Elements of more than 1 MB in the text: an array that the function captured."""
    ask = max(group, key=lambda each: each.seconds)
    if ask.is_of_jax:
        return
    raw = texts.raw(ask)
    found = list(_large_constants(raw)) if raw else []
    if not found:
        return
    size, shape, *_ = max(found)
    chains = CallChains(raw)
    function = texts.qualified_name(ask)
    place = _entrance([_use_of(each, chains) for each in sorted(found, reverse=True)], function, statements)
    if place is None:
        if not ask.is_of_user:
            return
        file, line_number = ask.definition.file, ask.definition.line
    else:
        file, line_number = place.file, place.line
    entered = f" in {place.function}" if place is not None and place.function not in {"", function} else ""
    total = sum(each[0] for each in found)
    others = f", and {len(found) - 1} more" if len(found) > 1 else ""
    spent = ask.program.seconds
    saves = spent.get("lowered", 0.0) + spent.get("keyed", 0.0)
    yield Advice(
        LARGE_CONSTANT,
        ask.function,
        file,
        line_number,
        programs=len({each.program.key for each in group}),
        calls=len(group),
        seconds=ask.seconds,
        saves=saves,
        basis=ESTIMATED,
        message=f"pass the array {shape} ({format_size(size)}) as an argument of {ask.function}: it is a constant in "
        f"the program{entered}, which has {format_size(total)} of constants{others}",
        before=f"@jax.jit\ndef {ask.function}(x):\n    return x @ table",
        after=f"@jax.jit\ndef {ask.function}(x, table):\n    return x @ table\n{ask.function}(x, table)",
    )


def _use_of(found: _LargeConstant, chains: CallChains) -> tuple[Place, ...]:
    """The lines of the user's program from which the operation that uses a constant comes, the innermost first."""
    _, _, name, lines, at = found
    used = next((line for line in lines[at + 1 :] if re.search(rf"{re.escape(name)}\b(?!#)", line)), lines[at])
    match = _USE_LOCATION.search(used)
    return chains.of(match[1]) if match else ()


def _entrance(uses: Sequence[tuple[Place, ...]], function: str, statements: Statements) -> Place | None:
    """The line at which a function takes in the first of these constants, which may pass it on to what it calls.

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
    """Size, type, name, the lines of the text, and the line number of each large constant."""
    lines = raw.splitlines()
    for number, line in enumerate(lines):
        match = _CONSTANT.match(line)
        if match and ("__elided__" in line or 'dense<"0x' in line or ELIDED in line):
            sizes = [int(each) for each in match[2].split("x") if each]
            size = math.prod(sizes) * max(1, int(match[4]) // 8)
            if size >= _LARGE:
                kind = {"i1": "bool"}.get(match[3] + match[4], match[3] + match[4])
                yield size, f"{kind}[{','.join(map(str, sizes))}]", match[1], lines, number
