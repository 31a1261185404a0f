"""Findings about functions that became slower with a version: of several starts, side by side."""

from __future__ import annotations

import itertools
from statistics import median
from typing import TYPE_CHECKING, Final

from ejcache.advice.evidence import Caller, read_caller
from ejcache.advice.findings import MEASURED, SLOWER_SINCE, Advice
from ejcache.misses.definitions import definition_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ejcache.cache.starts import ProgramRecord, StartRecord

_FACTOR: Final = 1.25
"""How much slower, at least."""
_SECONDS: Final = 0.1
_STARTS: Final = 2
"""Starts with each version."""
_VERSIONS: Final = ("jax", "jaxlib", "ejcache", "python")


def slower_since(records: Sequence[StartRecord], by_key: Mapping[str, ProgramRecord]) -> Iterator[Advice]:
    """Functions whose tracing or compiling takes longer with a version than with the one before, beyond the spread."""
    taken: dict[tuple[str, str, str, str, str], dict[tuple[str, ...], list[float]]] = {}
    callers: dict[tuple[str, str, str, str, str], Caller] = {}
    for record in records:
        versions = tuple(record.process.versions.get(name, "") for name in _VERSIONS)
        sums: dict[tuple[str, str, str, str, str], float] = {}
        for program in record.programs:
            miss = program if program.details else by_key.get(program.key, program)
            definition = definition_of(miss.details)
            for phase in ("traced", "compiled"):
                if phase in program.seconds:
                    which = record.process.program, definition.file, program.name, miss.signature, phase
                    sums[which] = sums.get(which, 0.0) + program.seconds[phase]
                    callers[which] = read_caller(program.caller)
        for which, seconds in sums.items():
            taken.setdefault(which, {}).setdefault(versions, []).append(seconds)
    for which, by_version in taken.items():
        sides = list(by_version.items())  # in the order of the starts
        for (old, before), (new, after) in itertools.pairwise(sides):
            found = _finding(which, callers[which], (old, before), (new, after))
            if found is not None:
                yield found


def _finding(
    which: tuple[str, str, str, str, str],
    caller: Caller,
    old: tuple[tuple[str, ...], Sequence[float]],
    new: tuple[tuple[str, ...], Sequence[float]],
) -> Advice | None:
    program, _, name, _, phase = which
    if min(len(old[1]), len(new[1])) < _STARTS or not caller.file:
        return None
    was, now = median(old[1]), median(new[1])
    if now < was * _FACTOR or now - was < _SECONDS or min(new[1]) <= max(old[1]):
        return None
    changed = ", ".join(_changes(old[0], new[0]))
    verb = {"traced": "tracing", "compiled": "compiling"}[phase]
    return Advice(
        SLOWER_SINCE,
        name.removeprefix("jit_"),
        caller.file,
        caller.line,
        programs=1,
        calls=len(new[1]),
        seconds=now,
        saves=now - was,
        basis=MEASURED,
        message=f"{verb} {name.removeprefix('jit_')} of {program} takes {now / was:.1f} times as long since {changed}: "
        f"{was:.2f} s before, {now:.2f} s now",
        before=f"# {changed}",
        after="# the version before, or a report to its authors with this function",
    )


def _changes(old: Iterable[str], new: Iterable[str]) -> Iterator[str]:
    for name, was, now in zip(_VERSIONS, old, new, strict=True):
        if was != now:
            yield f"{name} {was} became {now}"
