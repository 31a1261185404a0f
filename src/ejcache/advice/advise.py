"""What to change: all findings of some starts, the one that saves most first. Pure functions.

Advice is given only on evidence. The facts of a hit are those of the miss that stored it; where no record has that,
there is none. Of a function whose programs fit two kinds, the first one that finds something is said. Where a function
was quick with another version or commit, the change since then comes before what its text is estimated to cost.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Final

from ejcache.advice.asked_again import compiled_twice, made_anew
from ejcache.advice.evidence import Texts, asks_of, by_function, misses_by_key
from ejcache.advice.findings import ESTIMATED, KINDS, LARGE_CONSTANT, LEAST_SAVED, Advice, SmallerFindings
from ejcache.advice.history import slower_since
from ejcache.advice.signatures import shape_varies, weak_type
from ejcache.advice.single_operations import single_operations
from ejcache.advice.statements import Statements
from ejcache.advice.texts import large_constant, repeated_block, static_number, unused_loop
from ejcache.misses.program_text import is_installed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from ejcache.advice.evidence import Ask
    from ejcache.advice.history import Timed
    from ejcache.advice.statements import Lines
    from ejcache.journal.line import StartRecord

SMALLEST: Final = 0.005
"""Seconds that the smallest change saves that is shown at all: less is 0.00 s there."""
_EXPLAINED: Final = 0.5
"""The part of what another finding is estimated to save of tracing that a change of versions explains, at least."""
_FUNCTIONS: Final = 40
"""Functions whose texts are read, the costliest first."""
_IGNORE: Final = re.compile(r"#\s*ejcache:\s*ignore(?:\[([\w, ]*)\])?")


def advise(
    records: Iterable[StartRecord],
    fetch: Callable[[Collection[str]], Mapping[str, str]],
    *,
    lines_of: Lines = lambda _: (),
    ignore: Collection[str] = (),
    least: float = LEAST_SAVED,
    since: float = 0.0,
    only: str = "",
) -> list[Advice]:
    """The findings of the last start of each program, the one that saves most first.

    Args:
        records: start records of this host, the earliest first; those before the last start of a program say what its
            hits are, and how long it took.
        fetch: returns the texts of programs by the digests of their computations.
        lines_of: returns the lines of a source file, none if they are not known. They say which operations could be one
            function, and may silence a finding: `# ejcache: ignore[shape_varies]`.
        ignore: kinds that are left out.
        least: seconds that a change must save.
        since: in seconds since the epoch; an earlier start is not the last one.
        only: the id of the one process that is looked at.
    """
    every = [record for record in records if record.programs]
    by_key = misses_by_key(every)
    statements = Statements(lines_of)
    # Of the programs of one function, the first of these that applies is reported.
    of_one = functools.partial(made_anew, statements=statements), shape_varies, weak_type, compiled_twice, static_number
    looked_at = [each for each in every if each.process.began >= since and only in ("", each.process.id)]
    programs = {each.process.program for each in looked_at}
    slower = [each for each in slower_since(every, by_key) if each[0].program in programs] if not only else []
    found = [each for _, each in slower]
    ranks: dict[Advice, float] = {}
    starts = last_starts(looked_at)
    asked = [asks_of(record.programs, by_key) for record in starts]
    ordered = [by_function(asks) for asks in asked]
    texts = Texts([group for groups in ordered for group in groups[:_FUNCTIONS]], fetch)
    for record, asks, groups in zip(starts, asked, ordered, strict=True):
        for number, group in enumerate(groups):
            for kind in of_one:
                these = list(kind(group, texts))
                found += these
                if these:
                    break
            if number < _FUNCTIONS:
                found += large_constant(group, texts, statements)
                repeats = [*repeated_block(group, texts), *unused_loop(group, texts, statements)]
                found += repeats
                for each in _traced_slower(slower, record, group):
                    ranks[each] = max(ranks.get(each, each.saves), _explained(each, repeats))
        found += single_operations(asks, statements)
    kept = [each for each in found if _saves_enough(each, least)]
    wanted = _merged(each for each in kept if _is_wanted(each, lines_of, ignore))
    return sorted(wanted, key=lambda each: -ranks.get(each, each.saves))


def set_smaller_apart(findings: Iterable[Advice]) -> tuple[list[Advice], SmallerFindings]:
    """The findings that save enough to be shown unasked, and what the others are together."""
    shown: list[Advice] = []
    smaller: list[float] = []
    for each in findings:
        if _saves_enough(each, LEAST_SAVED):
            shown.append(each)
        else:
            smaller.append(each.saves)
    return shown, SmallerFindings(len(smaller), sum(smaller))


def _saves_enough(finding: Advice, least: float) -> bool:
    return finding.saves >= least or finding.kind == LARGE_CONSTANT


def last_starts(records: Sequence[StartRecord]) -> list[StartRecord]:
    """The last record of each program and rank."""
    return list({(each.process.program, each.process.rank): each for each in records}.values())


def of_function(findings: Iterable[Advice], name: str, *, file: str = "") -> list[Advice]:
    """The findings about the module of this name, such as `jit_step`, and of this file if one is given."""
    function = name.removeprefix("jit_")
    return [each for each in findings if function in {each.function, f"_{each.function}_"} and file in ("", each.file)]


def _is_wanted(finding: Advice, lines_of: Lines, ignore: Collection[str]) -> bool:
    if finding.kind in ignore or is_installed(finding.file) or "/lib/python" in finding.file:
        return False
    lines = lines_of(finding.file)
    match = _IGNORE.search(lines[finding.line - 1]) if 0 < finding.line <= len(lines) else None
    return match is None or (bool(match[1]) and finding.kind not in re.split(r"[ ,]+", match[1]))


def _traced_slower(
    slower: Iterable[tuple[Timed, Advice]], record: StartRecord, group: Sequence[Ask]
) -> Iterator[Advice]:
    """Those of these findings that are about tracing the function of these programs."""
    function = record.process.program, group[0].definition.file, group[0].program.name, "traced"
    for which, finding in slower:
        if (which.program, which.file, which.name, which.phase) == function:
            yield finding


def _explained(slower: Advice, others: Iterable[Advice]) -> float:
    """The most that one of these is estimated to save of the same seconds: those of which the change made most."""
    estimates = (each.saves for each in others if each.basis == ESTIMATED)
    return max((saves for saves in estimates if slower.saves >= _EXPLAINED * saves), default=0.0)


def _merged(findings: Iterable[Advice]) -> list[Advice]:
    """One finding for each kind, file and line: the one that saves most, because ranks repeat each other."""
    found: dict[tuple[str, str, int], Advice] = {}
    for each in findings:
        same = each.kind, each.file, each.line
        if same not in found or found[same].saves < each.saves:
            found[same] = each
    return list(found.values())


def check_kinds(kinds: Iterable[str]) -> list[str]:
    """The names among these that are not kinds of findings."""
    return [kind for kind in kinds if kind not in KINDS]
