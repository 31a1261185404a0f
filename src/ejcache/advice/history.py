"""Findings about functions that became slower with a version: of several starts, side by side."""

from __future__ import annotations

import itertools
from statistics import median
from typing import TYPE_CHECKING, Final

from ejcache.advice.evidence import Caller, read_caller
from ejcache.advice.findings import MEASURED, SLOWER_SINCE, Advice
from ejcache.misses.definitions import definition_of
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ejcache.journal.line import ProgramRecord, StartRecord

_FACTOR: Final = 1.25
"""How much slower, at least."""
_SECONDS: Final = 0.1
_STARTS: Final = 2
"""Starts with each version."""
_VERSIONS: Final = ("jax", "jaxlib", "ejcache", "python")
_COMMIT: Final = (*_VERSIONS, "commit")


class Timed(NamedTuple):
    """Whose seconds are compared.

    Attributes:
        program: the program of the start.
        file: the file of the function.
        name: of the function's module, such as `jit_step`.
        signature: the types of its arguments and results.
        phase: what took the seconds: `traced` or `compiled`.
    """

    program: str
    file: str
    name: str
    signature: str
    phase: str


def slower_since(records: Sequence[StartRecord], by_key: Mapping[str, ProgramRecord]) -> Iterator[tuple[Timed, Advice]]:
    """Functions whose tracing or compiling takes longer with a version than with the one before, beyond the spread.

    Where no version of a library explains it, the commits of the program are compared.
    """
    explained: set[Timed] = set()
    for names in (_VERSIONS, _COMMIT):
        taken, callers = _taken(records, by_key, names)
        for which, by_version in taken.items():
            sides = list(by_version.items())  # in the order of the starts
            for (old, before), (new, after) in itertools.pairwise(sides) if which not in explained else ():
                changed = ", ".join(_changes(names, old, new))
                found = _finding(which, callers[which], changed, before, after)
                if found is not None:
                    explained.add(which)
                    yield which, found


def _taken(
    records: Sequence[StartRecord], by_key: Mapping[str, ProgramRecord], names: Sequence[str]
) -> tuple[dict[Timed, dict[tuple[str, ...], list[float]]], dict[Timed, Caller]]:
    """Sum up the seconds of each function in each start, by these versions, with the last line that called it."""
    taken: dict[Timed, dict[tuple[str, ...], list[float]]] = {}
    callers: dict[Timed, Caller] = {}
    for record in records:
        versions = tuple(record.process.versions.get(name, "") for name in names)
        sums: dict[Timed, float] = {}
        for program in record.programs:
            miss = program if program.details else by_key.get(program.key, program)
            definition = definition_of(miss.details)
            for phase in ("traced", "compiled"):
                if phase in program.seconds:
                    which = Timed(record.process.program, definition.file, program.name, miss.signature, phase)
                    sums[which] = sums.get(which, 0.0) + program.seconds[phase]
                    callers[which] = read_caller(program.caller)
        for which, seconds in sums.items():
            taken.setdefault(which, {}).setdefault(versions, []).append(seconds)
    return taken, callers


def _finding(
    which: Timed, caller: Caller, changed: str, before: Sequence[float], after: Sequence[float]
) -> Advice | None:
    program, name = which.program, which.name
    if min(len(before), len(after)) < _STARTS or not caller.file:
        return None
    was, now = median(before), median(after)
    if now < was * _FACTOR or now - was < _SECONDS or min(after) <= max(before):
        return None
    verb = {"traced": "tracing", "compiled": "compiling"}[which.phase]
    return Advice(
        SLOWER_SINCE,
        name.removeprefix("jit_"),
        caller.file,
        caller.line,
        programs=1,
        calls=len(after),
        seconds=now,
        saves=now - was,
        basis=MEASURED,
        message=f"{verb} {name.removeprefix('jit_')} of {program} takes {now / was:.1f} times as long since {changed}: "
        f"{was:.2f} s before, {now:.2f} s now",
        before=f"# {changed}",
        after="# the version before, or a report to its authors with this function",
    )


def _changes(names: Iterable[str], old: Iterable[str], new: Iterable[str]) -> Iterator[str]:
    for name, was, now in zip(names, old, new, strict=True):
        if was != now:
            yield f"{name} {was} became {now}"
