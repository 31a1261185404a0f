"""Compares two sets of starts: what compiles more, and what compiles longer.

    side := FILE | NAME "=" VALUE | AGE ".." AGE

FILE holds lines of start records, such as a copy of `starts.jsonl`. NAME is `program`, `host`, or one of the versions
(`jax`, `jaxlib`, `ejcache`, `python`, `platform`, `commit`); VALUE is its beginning. Ages are counted back from now.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.cli import output
from ejcache.errors import NotFoundError, UsageError
from ejcache.journal.start_records import decode_lines
from ejcache.reports.build import build
from ejcache.util.units import parse_age, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ejcache.journal.start_records import StartRecord

_SLOWER: Final = 1.1
_SECONDS: Final = 0.1
"""A side compiles longer if a start compiles a tenth longer, and by this much."""


@dataclass(frozen=True, slots=True)
class Side:
    """What one start of a side comes to, on the average; `by_function` has compile seconds and misses by name."""

    name: str
    total_starts: int
    compile_seconds: float
    misses: float
    by_function: dict[str, tuple[float, float]]


def is_slower(before: Side, after: Side) -> bool:
    """True if a start of `after` compiles a tenth longer, and by a tenth of a second, or a tenth more programs."""
    is_longer = (
        after.compile_seconds > before.compile_seconds * _SLOWER
        and after.compile_seconds - before.compile_seconds > _SECONDS
    )
    return is_longer or after.misses > before.misses * _SLOWER


def changes(before: Side, after: Side) -> list[tuple[str, float, float, float, float]]:
    """Return each function with its compile seconds and its misses, before and after, the largest change first."""
    nothing = (0.0, 0.0)
    found = []
    for name in before.by_function.keys() | after.by_function.keys():
        old, new = before.by_function.get(name, nothing), after.by_function.get(name, nothing)
        found.append((name, old[0], new[0], old[1], new[1]))
    return sorted(found, key=lambda row: (-abs(row[2] - row[1]), row[0]))


def choose_records(side: str, records: Sequence[StartRecord], *, now: float) -> list[StartRecord]:
    """Pick the records of a side; raises UsageError if it has none of the three forms, or cannot be read."""
    young, separator, old = side.partition("..")
    name, is_version, value = side.partition("=")
    if Path(side).is_file():
        return decode_lines(Path(side).read_bytes().splitlines())
    if is_version:
        return [each for each in records if _fact(each, name).startswith(value)]
    if separator:
        since, until = (now - parse_age(text, setting="--compare") for text in (young, old))
        return [each for each in records if since <= each.process.began < until]
    raise UsageError(f"--compare {side}: pass a file of records, such as jax=0.12, or a time such as 2d..1d")


def _fact(record: StartRecord, name: str) -> str:
    process = record.process
    return {"program": process.program, "host": process.host}.get(name, process.versions.get(name, ""))


def sum_up(name: str, records: Sequence[StartRecord]) -> Side:
    """Sum up what one start of these records comes to; raises UsageError if there is none."""
    report = build(records)
    starts = len(report.starts)
    if not starts:
        raise NotFoundError(f"--compare: no start is recorded for {name}")
    functions = {
        each.name: (each.sums.compile_seconds / starts, each.sums.misses / starts) for each in report.functions
    }
    return Side(name, starts, report.sums.compile_seconds / starts, report.sums.misses / starts, functions)


def print_comparison(before: Side, after: Side) -> None:
    """Print both sides as a table, the functions that changed most first."""
    total = ("all", before.compile_seconds, after.compile_seconds, before.misses, after.misses)
    columns = ("function", "seconds A", "seconds B", "misses A", "misses B")
    shown = (total, *changes(before, after)[:20])
    rows = [[name, *(f"{number:.3f}" for number in numbers)] for name, *numbers in shown]
    output.print_table(columns, rows, right=columns[1:])
    said = "slower" if is_slower(before, after) else "not slower"
    for letter, side in (("A", before), ("B", after)):
        output.say(f"{letter}: {side.name}, per start, of {plural(side.total_starts, 'start')}")
    output.say(f"B is {said}")
