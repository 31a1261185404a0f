"""Lists what to change in a program: all findings of some starts, the one that saves most first. Pure functions.

A finding is a cause that a change of the program removes, in the words of `causes`, or what costs without being one.
The facts of a hit are those of the miss that stored it; where no record has that, nothing is said of it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ejcache.cache.reasons import Miss
from ejcache.history.asked_again import committed_otherwise, made_anew
from ejcache.history.causes import AVOIDABLE, cause, cause_beside
from ejcache.history.difference import CAPTURED, NUMBER, ORDER, SHAPE
from ejcache.history.findings import (
    ABOUT,
    KINDS,
    LARGE_CONSTANT,
    LEAST_SAVED,
    SINGLE_OPERATIONS,
    Advice,
    Saving,
    SmallerFindings,
)
from ejcache.history.host_log import recall_programs
from ejcache.history.known_texts import BUDGET, Texts
from ejcache.history.large_constants import large_constant
from ejcache.history.nearest_program import Earlier
from ejcache.history.padding import buckets_of
from ejcache.history.recorded_program import (
    by_function,
    caller_of,
    function_of,
    is_of_jax,
    misses_by_key,
    spent,
    with_facts,
)
from ejcache.history.single_operations import single_operations
from ejcache.history.source_files import is_installed
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from ejcache.history.causes import Cause
    from ejcache.history.known_texts import Fetch
    from ejcache.journal.line import ProgramRecord
    from ejcache.journal.start_records import StartRecord

    Lines = Callable[[str], Sequence[str]]
    """Returns the lines of a source file by its path; none if they are not known."""

SMALLEST: Final = 0.005
"""Seconds that the smallest change saves that is shown at all: less is 0.00 s there."""
_FUNCTIONS: Final = 40
"""Functions whose texts are read, the costliest first."""
_LEAST_SPENT: Final = 0.5
"""Seconds that a finding must have cost of which nobody knows what a change saves."""
_TEXTS: Final = 4
"""Texts of one function that are read."""
_COMPARED: Final = 64
"""Programs of one function, the latest, with which another one is compared."""
_PATTERN: Final = {SHAPE: 2, NUMBER: 2, CAPTURED: 2}
"""How often a cause must have made a function compile in one process, of those where once is no pattern."""
_IGNORE: Final = re.compile(r"#\s*ejcache:\s*ignore(?:\[([\w, ]*)\])?")


def advise(
    records: Iterable[StartRecord],
    fetch: Fetch = recall_programs,
    *,
    lines_of: Lines = lambda _: (),
    ignore: Collection[str] = (),
    least: float = LEAST_SAVED,
    only: Collection[str] | None = None,
    earlier: Earlier | None = None,
) -> list[Advice]:
    """Return the findings of the last start of each program, the one that saves most first.

    Args:
        records: start records of this host, the earliest first; those before the last start of a program say what its
            hits are.
        fetch: returns the texts of programs by the digests of their computations.
        lines_of: returns the lines of a source file, none if they are not known. They may silence a finding:
            `# ejcache: ignore[shape_varies]`.
        ignore: kinds that are left out.
        least: seconds that a change must save.
        only: the ids of the processes that are looked at; by default those of the last start of each program.
        earlier: the misses of this host with their texts, if somebody has read them.
    """
    every = [record for record in records if record.programs]
    by_key = misses_by_key(every)
    looked_at = every if only is None else [each for each in every if each.process.id in only]
    starts = last_starts(looked_at) if only is None else looked_at
    asked = [with_facts(record.programs, by_key) for record in starts]
    ordered = [by_function(programs) for programs in asked]
    if earlier is None:
        earlier = Earlier(every, Texts(fetch, budget=BUDGET))
    read = [group for groups in ordered for group in groups[:_FUNCTIONS]]
    with earlier.texts.loaded(each for group in read for each in _representatives(group, earlier)):
        found = _found(asked, ordered, earlier, lines_of)
    kept = (_with_source(each, lines_of) for each in found if _saves_enough(each, least))
    wanted = _merged(each for each in kept if _is_wanted(each, lines_of, ignore))
    return sorted(wanted, key=lambda each: (-each.saved, -each.seconds))


def _found(
    asked: Sequence[Sequence[ProgramRecord]],
    ordered: Sequence[Sequence[Sequence[ProgramRecord]]],
    earlier: Earlier,
    lines_of: Lines,
) -> list[Advice]:
    """Return all findings about the programs of some processes, which are given as they were asked for, and by
    function.
    """
    found: list[Advice] = []
    for programs, groups in zip(asked, ordered, strict=True):
        for number, group in enumerate(groups):
            is_read = number < _FUNCTIONS
            of_one = list(made_anew(group, earlier.texts, lines_of)) or list(
                _caused(group, earlier if is_read else earlier.without_texts())
            )
            found += of_one or committed_otherwise(group)
            if is_read:
                found += large_constant(group, earlier.texts)
                found += _reordered(group, earlier)
        found += single_operations(programs)
    return found


def _representatives(group: Sequence[ProgramRecord], earlier: Earlier) -> Iterator[ProgramRecord]:
    """Yield the costliest program of a function with those of earlier starts, and the first ones and the last ones."""
    yield (costliest := max(group, key=spent))
    if costliest.reason == Miss.ABSENT and not is_of_jax(costliest):
        yield from earlier.first(costliest)[:_TEXTS]
    distinct = list({each.key: each for each in reversed(group) if each.components}.values())
    yield from {each.key: each for each in (*distinct[:_TEXTS], *distinct[-_TEXTS:])}.values()


def _caused(group: Sequence[ProgramRecord], earlier: Earlier) -> Iterator[Advice]:
    """Yield programs of one function that this process would not have needed, if it had called the function in one way.

    Each is compared with what the same process asked for before it.
    """
    last = group[-1]
    if is_of_jax(last) or len({each.key for each in group}) == 1:
        return
    asked: dict[str, ProgramRecord] = {}
    found: dict[str, list[tuple[ProgramRecord, Cause]]] = {}
    for program in group:
        if not program.key or not program.components or program.key in asked:
            continue
        why = cause_beside(program, [*asked.values()][-_COMPARED:], earlier)
        asked[program.key] = program
        if why.kind in AVOIDABLE and why.nearest is not None:
            found.setdefault(why.kind, []).append((program, why))
    for kind in AVOIDABLE:
        changed = found.get(kind, [])
        if len(changed) < _PATTERN.get(kind, 1):
            continue
        program, why = changed[-1]
        place = caller_of(program)
        if not why.is_avoidable or not place.file:
            continue
        file, _, line = (why.differences[0].place or f"{place.file}:{place.line}").rpartition(":")
        keys = {each.key for each, _ in changed} | {changed[0][1].nearest.key if changed[0][1].nearest else ""}
        concerned = [each for each in group if each.key in keys]
        seconds = sum(map(spent, concerned))
        again = sum(map(spent, (each for each in concerned if each.key in {one.key for one, _ in changed})))
        saving = Saving(ABOUT, again, "of these seconds: the programs after the first one")
        if kind == SHAPE:
            seen = buckets_of([each.signature for each in {each.key: each for each in concerned}.values()])
            if seen is None or seen.is_done:
                continue
            saves = seconds * (1 - seen.left / seen.programs)
            left = f"{plural(seen.left, 'program')} instead of {seen.programs}"
            saving = Saving(ABOUT, saves, f"of these seconds: {left}")
        yield Advice(
            kind,
            function_of(program),
            file,
            int(line),
            programs=len(keys),
            calls=len(concerned),
            seconds=seconds,
            saves=(saving,),
            sentence=why.reason,
            what_to_do=why.what_to_do,
        )
        return


def _reordered(group: Sequence[ProgramRecord], earlier: Earlier) -> Iterator[Advice]:
    """Yield a program that each start compiles, because the order of a set or dict is another one in each process."""
    program = max(group, key=spent)
    if program.reason != Miss.ABSENT or is_of_jax(program):
        return
    why, place = cause(program, earlier), caller_of(program)
    if why.kind == ORDER and place.file:
        seconds = spent(program)
        yield Advice(
            ORDER,
            function_of(program),
            place.file,
            place.line,
            programs=1,
            calls=1,
            seconds=seconds,
            saves=(Saving(ABOUT, program.compile_seconds, "of compiling"),),
            sentence=why.reason,
            what_to_do=why.what_to_do,
        )


def _with_source(finding: Advice, lines_of: Lines) -> Advice:
    lines = lines_of(finding.file)
    source = lines[finding.line - 1].strip() if 0 < finding.line <= len(lines) else ""
    return finding._replace(source=source)


def set_smaller_apart(findings: Iterable[Advice]) -> tuple[list[Advice], SmallerFindings]:
    """Return the findings that save enough to be shown unasked, and what the others are together."""
    shown: list[Advice] = []
    smaller: list[float] = []
    for each in findings:
        if _saves_enough(each, LEAST_SAVED):
            shown.append(each)
        else:
            smaller.append(each.saved)
    return shown, SmallerFindings(len(smaller), sum(smaller))


def _saves_enough(finding: Advice, least: float) -> bool:
    is_fact = finding.kind == LARGE_CONSTANT or (not finding.saves and finding.seconds >= _LEAST_SPENT)
    return finding.saved >= least or is_fact


def last_starts(records: Sequence[StartRecord]) -> list[StartRecord]:
    """Return the last record of each program and rank."""
    return list({(each.process.program, each.process.rank): each for each in records}.values())


def of_function(findings: Iterable[Advice], name: str) -> list[Advice]:
    """Return the findings about the module of this name, such as `jit_step`. Single operations are of no module."""
    function = name.removeprefix("jit_")
    found = (each for each in findings if each.kind != SINGLE_OPERATIONS)
    return [each for each in found if function in {each.function, f"_{each.function}_"}]


def _is_wanted(finding: Advice, lines_of: Lines, ignore: Collection[str]) -> bool:
    if finding.kind in ignore or is_installed(finding.file) or "/lib/python" in finding.file:
        return False
    lines = lines_of(finding.file)
    match = _IGNORE.search(lines[finding.line - 1]) if 0 < finding.line <= len(lines) else None
    return match is None or (bool(match[1]) and finding.kind not in re.split(r"[ ,]+", match[1]))


def _merged(findings: Iterable[Advice]) -> list[Advice]:
    """Return one finding for each kind, file and line: the one that saves most, because ranks repeat each other."""
    found: dict[tuple[str, str, int], Advice] = {}
    for each in findings:
        same = each.kind, each.file, each.line
        if same not in found or found[same].saved < each.saved:
            found[same] = each
    return list(found.values())


def check_kinds(kinds: Iterable[str]) -> list[str]:
    """Return the names among these that are not kinds of findings."""
    return [kind for kind in kinds if kind not in KINDS]
