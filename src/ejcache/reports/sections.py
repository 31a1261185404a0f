"""Writes the sections of a report as texts, which the terminal and the HTML page draw."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ejcache.cli import output
from ejcache.cli.commands.advise import lines_of
from ejcache.history.findings import said_of_none, shown_path
from ejcache.journal.line import PHASES
from ejcache.util.units import duration, format_size, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ejcache.reports.model import CauseGroup, Report
    from ejcache.reports.sums import Sums

SECONDS: Final = frozenset({"spent", "costs now", "compiled", "saved", "waited", "lost", "net"})
"""Columns of seconds."""
NUMBERS: Final = SECONDS | {"hits", "misses", "size", "entries"}
"""Columns that are aligned to the right."""
MEANINGS: Final = {
    "traced": "JAX ran the Python function to find its operations",
    "lowered": "JAX wrote these operations as a program for XLA",
    "keyed": "ejcache made the key of the program",
    "fetched": "the entry was read from the cache",
    "loaded": "XLA loaded the executable",
    "waited": "for leases, for other processes that compiled the same program, and for the answers of other ranks",
    "compiled": "XLA compiled the program",
    "stored": "the executable was written to the cache",
    "lost": "for storage that failed",
}
"""What each phase of a program is."""
_RIGHT: Final = (*(f"{name} s" for name in SECONDS), *(NUMBERS - SECONDS))
_LEAST: Final = ("commit", "lost s", "waited s", "process")
"""Columns that a narrow terminal does not get; there, those of seconds have a heading with their unit."""
_PATH: Final = re.compile(r"/[^:]*(?=:\d+ in )")
_ROWS: Final = 10
"""Rows of each table in the terminal."""
_COMMIT: Final = 10
"""Characters of a commit that a table shows."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, the question that it answers, a table, and sentences below it.

    Attributes:
        anchor: its name in links.
        title: its heading.
        question: what a reader asks; empty for none.
        columns: of the table.
        rows: of the table.
        notes: sentences; one that begins with "!" is a warning.
        below: sentences below each row, where there are any.
    """

    anchor: str
    title: str
    question: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    below: Sequence[Sequence[str]] = ()


def headline(report: Report) -> list[str]:
    """Say in four sentences what the cache was worth, how that was summed, what was recorded, and where time went."""
    sums, starts = report.sums, report.starts
    hosts = {row.process["host"] for row in report.processes}
    is_worth = sums.net >= 0
    worth = (
        f"ejcache saved {duration(sums.net)}" if is_worth else f"ejcache took {duration(-sums.net)} more than it saved"
    )
    less = [
        f"{duration(sums.phases.get('keyed', 0.0))} for keys",
        f"{duration(sums.waited)} of waiting for leases and other processes",
        f"{duration(sums.lost)} lost to failing storage",
    ]
    counts = f"{plural(sums.hits, 'hit')} ({sums.preloaded:,} preloaded), {plural(sums.misses, 'miss', 'misses')}"
    where = f"{plural(len(report.processes), 'process', 'processes')} in {plural(len(starts), 'start')}"
    return [
        worth,
        f"{duration(sums.seconds_saved)} of compiling saved, less {less[0]}, {less[1]} and {less[2]}",
        f"{where} on {plural(len(hosts), 'host')}: {counts}, {duration(sums.compile_seconds)} of compiling",
        "spent: " + ", ".join(f"{duration(sums.phases[each])} {each}" for each in PHASES if each in sums.phases),
    ]


def sections(report: Report, *, rows: int) -> list[Section]:
    """Return the sections, with at most so many rows each."""
    found = [
        _advice(report, rows),
        _causes(report, rows),
        _outcomes(report, rows),
        _functions(report, rows),
        _ranks(report, rows),
        _days(report, rows),
        _disk(report),
    ]
    found = [each for each in found if each.rows or each.notes]
    if report.tuned:
        found.append(Section("tuned", "Tuned operations", "", report.tuned[0], report.tuned[1 : rows + 1]))
    return found


def _advice(report: Report, most: int) -> Section:
    shown = report.findings[:most]
    rows = [
        [
            each.place,
            each.function,
            each.title,
            f"{each.seconds:.2f}",
            f"{each.saves[0].known} {each.saved:.2f} s" if each.saves else "-",
        ]
        for each in shown
    ]
    below = [[f"{each.sentence}.", f"What to do: {each.what_to_do}."] for each in shown]
    columns = ("change", "function", "because", "costs now", "would save")
    notes = ["The seconds are those of one start; `ejcache help what-to-change` has an example of each kind."]
    notes += _hidden(len(report.findings) - most, "change")
    notes = [*notes, *filter(None, [report.smaller_findings.words])] if rows else said_of_none(report.smaller_findings)
    title = "What to change in the programs"
    return Section("change", title, "What should I change first?", columns, rows, notes, below)


def _causes(report: Report, most: int) -> Section:
    rows = _groups([each for each in report.causes if each.is_change][:most])
    notes = () if report.causes else ("every program was loaded",)
    return Section("first", "What still compiles, and why", "What still compiles?", _OF_GROUPS, rows, notes)


def _outcomes(report: Report, most: int) -> Section:
    """Make the table of what compiled although nothing had changed, or was not stored."""
    rows = _groups([each for each in report.causes if not each.is_change][:most])
    return Section("again", "Compiled although nothing had changed", "", _OF_GROUPS, rows)


_OF_GROUPS: Final = ("why", "compiled", "misses", "most of it", "because", "what to do")


def _groups(groups: Sequence[CauseGroup]) -> list[list[str]]:
    return [
        [
            each.title,
            f"{each.seconds:.2f}",
            f"{each.misses:,}",
            each.ranked[0],
            each.first.reason,
            each.first.what_to_do,
        ]
        for each in groups
    ]


def _functions(report: Report, most: int) -> Section:
    rows = []
    for each in report.functions[:most]:
        seconds = (f"{number:.2f}" for number in (each.sums.cost, each.sums.compile_seconds, each.sums.seconds_saved))
        source = _PATH.sub(lambda found: shown_path(found[0]), each.source)
        why = each.cause.reason if each.cause is not None else ""
        rows.append([each.name, *seconds, f"{each.sums.hits:,}", f"{each.sums.misses:,}", source, why])
    columns = ("function", "spent", "compiled", "saved", "hits", "misses", "called from", "compiled because")
    notes = _hidden(len(report.functions) - most, "function")
    return Section("cost", "Functions by cost", "What cost most?", columns, rows, notes)


def _ranks(report: Report, most: int) -> Section:
    warnings = [f"! {text}" for start in report.starts for text in start.warnings]
    warnings += [f"! could not {kind}: {plural(number, 'time')}" for kind, number in report.trouble.items()]
    if report.dropped:
        warnings.append(f"no record has {plural(report.dropped, 'more program')}: their processes had too many")
    found = [(start, row) for start in report.starts for row in start.processes]
    rows = []
    for start, row in found[:most]:
        commit = str(row.process["versions"].get("commit", ""))[:_COMMIT]
        who = [output.moment(row.process["began"]), str(row.process["host"]), row.role, start.program, commit]
        rows.append([str(start.number), *who, *_cells(row.sums)])
    notes = [*warnings[:most], *_hidden(len(warnings) - most, "warning"), *_hidden(len(found) - most, "process", "es")]
    columns = ("start", "began", "host", "process", "program", "commit", *_COLUMNS)
    return Section("ranks", "Starts, hosts and ranks", "Which host was it?", columns, rows, notes)


def _days(report: Report, most: int) -> Section:
    rows = [[day, *_cells(sums)] for day, sums in list(report.days.items())[:most]]
    note = "`ejcache report --compare 2d..1d 1d..0s` compares the functions of two days, or of two versions"
    return Section("days", "Day by day", "Did yesterday's commit make it slower?", ("day", *_COLUMNS), rows, (note,))


def _disk(report: Report) -> Section:
    rows = [[format_size(use.total_size), f"{use.total_entries:,}", use.what, use.command] for use in report.disk]
    columns = ("size", "entries", "what", "command that frees it")
    return Section("disk", "What fills the disk", "What fills the disk?", columns, rows)


def print_report(report: Report) -> None:
    """Print the page in the terminal."""
    first, *others = headline(report)
    output.say(first, style="bold")
    for line in others:
        output.say(line)
    is_apart = False
    for section in sections(report, rows=_ROWS):
        if not is_apart:
            output.say()
        output.say(section.title, style="bold")
        is_apart = False
        if section.anchor == "change":
            output.print_lines(lines_of(report.findings[:_ROWS], report.smaller_findings))
            continue
        if section.rows:
            # Sentences in narrow columns cannot be read: what does not fit becomes a block for each row.
            headings = [f"{name} s" if name in SECONDS else name for name in section.columns]
            is_apart = output.print_table(headings, section.rows, right=_RIGHT, least=_LEAST)
        for note in section.notes:
            output.say(note, style="red" if note.startswith("!") else "")
            is_apart = False


_COLUMNS: Final = ("hits", "misses", "compiled", "waited", "lost", "net")


def _cells(sums: Sums) -> list[str]:
    seconds = (sums.compile_seconds, sums.waited, sums.lost, sums.net)
    return [f"{sums.hits:,}", f"{sums.misses:,}", *(f"{each:.2f}" for each in seconds)]


def _hidden(number: int, what: str, end: str = "s") -> list[str]:
    return [f"{plural(number, f'more {what}', f'more {what}{end}')}: --json has them all"] if number > 0 else []
