"""Finds arrays of 1 MiB or more in the text of a program, which its function has captured."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from ejcache.history.definitions import definition_of
from ejcache.history.findings import AT_MOST, LARGE_CONSTANT, Advice, Saving
from ejcache.history.program_text import ELIDED, Places
from ejcache.history.recorded_program import function_of, is_of_jax, is_of_user, spent
from ejcache.util.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ejcache.history.known_texts import Texts
    from ejcache.history.source_files import Place
    from ejcache.journal.line import ProgramRecord

    _LargeConstant = tuple[int, str, str, list[str], int]
    """Size, type, name, the lines of the text, and the line number of a constant."""

_LARGE: Final = 1 << 20
"""Bytes of a constant."""
_CONSTANT: Final = re.compile(r"^\s*(%[\w#]+) = \S*constant\b.*: tensor<((?:\d+x)+)([a-z]+)(\d+)[^ ]*> loc\(#loc\d*\)")
_USE_LOCATION: Final = re.compile(r" loc\(#(loc\d*)\)$")


def large_constant(group: Sequence[ProgramRecord], texts: Texts) -> Iterator[Advice]:
    """Yield constants of 1 MiB or more in the text: an array that the function captured."""
    ask = max(group, key=spent)
    if is_of_jax(ask):
        return
    raw = texts.raw(ask)
    found = list(_large_constants(raw)) if raw else []
    if not found:
        return
    size, shape, *_ = max(found)
    places = Places(raw.splitlines())
    qualified = texts.qualified_name(ask)
    place = _entrance([_use_of(each, places) for each in sorted(found, reverse=True)], qualified)
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


def _use_of(found: _LargeConstant, places: Places) -> tuple[Place, ...]:
    """Return the lines of the user's program from which the operation that uses a constant comes, the innermost
    first.
    """
    _, _, name, lines, at = found
    used = next((line for line in lines[at + 1 :] if re.search(rf"{re.escape(name)}\b(?!#)", line)), lines[at])
    match = _USE_LOCATION.search(used)
    return places.chain(match[1]) if match else ()


def _entrance(uses: Sequence[tuple[Place, ...]], function: str) -> Place | None:
    """Return the innermost line within a function from which all of these constants come, or else the first of them.

    Args:
        uses: for each constant, the lines from which the operation that uses it comes, the innermost first.
        function: the qualified name of the jitted function; lines that call it are not within it.
    """
    ends = [number for number, place in enumerate(uses[0], 1) if place.function == function]
    within = uses[0][: ends[0] if ends else 1]
    shared = [place for place in within if all(place in use for use in uses)]
    return next(iter(shared or within), None)


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
