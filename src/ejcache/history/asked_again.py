"""Finds programs that one process asks for again, although JAX could have kept what it made of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ejcache.history.causes import what_to_do
from ejcache.history.definitions import definition_of
from ejcache.history.difference import PLACEMENT
from ejcache.history.findings import ABOUT, AT_LEAST, MADE_ANEW, Advice, Saving
from ejcache.history.recorded_program import caller_of, function_of, is_of_jax, is_of_user, spent, traced
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ejcache.history.known_texts import Texts
    from ejcache.journal.line import ProgramRecord

_AGAIN: Final = 3
"""How often a program is asked for before the function counts as made anew."""


def made_anew(group: Sequence[ProgramRecord], texts: Texts, lines: Callable[[str], Sequence[str]]) -> Iterator[Advice]:
    """Find keys that one line asks for and traces again and again: the function is another object each time.

    The line to change is that of the definition, if that is within a function, or else the one line of the file that
    gives what `jit` returns the name that is called, or the one that calls it.
    """
    asked: dict[tuple[str, object], list[ProgramRecord]] = {}
    for program in group:
        if program.key and not is_of_jax(program):
            asked.setdefault((program.key, caller_of(program)), []).append(program)
    repeated = [
        programs
        for programs in asked.values()
        if len(programs) >= _AGAIN and all(traced(each) > 0 for each in programs[1:]) and caller_of(programs[0]).file
    ]
    if not repeated:
        return
    first = max(repeated, key=lambda programs: sum(map(spent, programs[1:])))[0]
    definition, caller = definition_of(first.details), caller_of(first)
    is_local = definition.is_lambda or "<locals>" in texts.qualified_name(first)
    is_there = is_of_user(first) and is_local
    file = definition.file if is_there else caller.file
    line = definition.line if is_there else _line_of_jit(lines(file), caller.line)
    is_elsewhere = is_there or line != caller.line
    where = f", and called at {caller.file.rpartition('/')[2]}:{caller.line}" if is_elsewhere else ""
    calls = sum(map(len, repeated))
    name = "a lambda" if definition.is_lambda else function_of(first)
    # Each time it is traced and loaded again takes as long as the quickest of these times, at least.
    least = sum((len(programs) - 1) * min(map(spent, programs[1:])) for programs in repeated)
    yield Advice(
        MADE_ANEW,
        function_of(first),
        file,
        line,
        programs=len(repeated),
        calls=calls,
        seconds=sum(spent(each) for programs in repeated for each in programs),
        saves=(Saving(AT_LEAST, least, "of tracing and loading again"),),
        sentence=f"{name} is another object each time: it was traced {calls} times for "
        f"{plural(len(repeated), 'program')}{where}",
        what_to_do="make the jitted function once, outside of the loop or the method that calls it",
    )


def _line_of_jit(lines: Sequence[str], called: int) -> int:
    """Return the one line that is `NAME = …jit(…`, where the line that is `called` has `NAME(`; else that line."""
    names = re.findall(r"[A-Za-z_][\w.]*(?=\()", lines[called - 1]) if 0 < called <= len(lines) else []
    given = [re.compile(rf"\s*{re.escape(name)}\s*=[^=].*\bjit\(") for name in names]
    found = [number for number, line in enumerate(lines, 1) if any(each.match(line) for each in given)]
    return found[0] if len(found) == 1 else called


def committed_otherwise(group: Sequence[ProgramRecord]) -> Iterator[Advice]:
    """Yield a program that JAX asked for again although it had its trace: its own look-up of the executable failed.

    The arguments are committed to a device in one call, and not in the other.
    """
    first, second = group[0], group[-1]
    if is_of_jax(first) or not 2 <= len(group) <= _AGAIN or len({each.key for each in group}) != 1:
        return
    place = caller_of(second) if caller_of(second).file else caller_of(first)
    if any(traced(each) > 0 for each in group[1:]) or not place.file or place.is_library:
        return
    yield Advice(
        PLACEMENT,
        function_of(first),
        place.file,
        place.line,
        programs=1,
        calls=len(group),
        seconds=sum(map(spent, group)),
        saves=(Saving(ABOUT, sum(map(spent, group[1:])), "of lowering and loading again"),),
        sentence=f"the arguments of {function_of(first)} are committed to a device in one call and not in the other",
        what_to_do=what_to_do(PLACEMENT),
    )
