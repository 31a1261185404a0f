"""The report as one HTML file, which asks the network for nothing. Texts of programs are escaped."""

from __future__ import annotations

import shlex
from html import escape
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from ejcache.cache.start_records import PHASES
from ejcache.reports.program_differences import SHOWN
from ejcache.reports.sections import NUMBERS, duration, headline, sections
from ejcache.util.printable import printable
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ejcache.misses.explanation import Explanation
    from ejcache.reports.causes import Cause
    from ejcache.reports.model import Bar, Report, Timeline
    from ejcache.reports.program_differences import Pair
    from ejcache.reports.sections import Section

_ROWS: Final = 200
_DIFF_LINES: Final = 60
_WIDEST: Final = 240
"""Characters of a line of code."""
_TICKS: Final = 5
_LONGEST_SHOWN: Final = 4
_NONE: Final[Mapping[Pair, Explanation]] = MappingProxyType({})
_LONG: Final = 24
"""Characters from which a column may wrap."""


def html_page(report: Report, differences: Mapping[Pair, Explanation] = _NONE) -> str:
    """Return the page; at most 1 MB, because each section has a limited number of rows, and the timeline of bars.

    Args:
        report: what it shows.
        differences: what changed within the pairs of programs that its causes name.
    """
    shown = [each for each in sections(report, rows=_ROWS) if each.rows or each.notes]
    worth, counts, _ = map(_text, headline(report))
    links = "".join(f'<a href="#{each.anchor}">{_text(each.question)}</a>' for each in shown if each.question)
    links += '<a href="#timeline">Where did a start spend its time?</a>'
    facts = "".join(f"<div><dt>{_text(name)}<dd>{_text(value)}</div>" for name, value in report.facts if value)
    body = [
        f"<h1>{worth}</h1><p>{counts}</p><dl>{facts}</dl>",
        _phases(report.sums.phases),
        f"<nav>{links}</nav>",
        *(_section(each, _more(each, report, differences), report) for each in shown),
        _timelines(report),
    ]
    page = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    return page.substitute(body="\n".join(body))


def _text(text: str, *, keep: str = "") -> str:
    return escape(printable(text, keep=keep))


def _phases(phases: Mapping[str, float]) -> str:
    """Return a bar of all phases, and what each colour means."""
    total = sum(phases.values()) or 1.0
    kept = [phase for phase in PHASES if phases.get(phase)]
    parts = "".join(f'<span style="width:{100 * phases[p] / total:.2f}%;background:var(--{p})"></span>' for p in kept)
    words = "".join(f'<span><i style="background:var(--{p})"></i>{p} {duration(phases[p])}</span>' for p in kept)
    return f'<div class="bar">{parts}</div><div class="key">{words}</div>'


def _more(section: Section, report: Report, differences: Mapping[Pair, Explanation]) -> Sequence[tuple[str, str]]:
    """Make what unfolds below each row, with its title: of a change, the code; of a cause, its functions."""
    if section.anchor == "change":
        return [("before and after", _code(each.before, "-") + _code(each.after, "+")) for each in report.findings]
    if section.anchor == "first":
        return [
            (plural(len(cause.seconds_by_function), "function"), _functions_of(cause, differences))
            for cause in report.causes
        ]
    return ()


def _code(code: str, sign: str) -> str:
    return f"<pre>{_lines(f'{sign} {line}' for line in code.splitlines())}</pre>"


def _lines(lines: Iterable[str]) -> str:
    """Return the lines of code or of a difference: what begins with a sign has its colour."""
    kinds = {"+": "new", "-": "old"}
    shown = (
        (line[:1], _text(line if len(line) <= _WIDEST else line[:_WIDEST] + "\N{HORIZONTAL ELLIPSIS}"))
        for line in lines
    )
    return "\n".join(f"<i class={kinds[sign]}>{line}</i>" if sign in kinds else line for sign, line in shown)


def _functions_of(cause: Cause, differences: Mapping[Pair, Explanation]) -> str:
    """Return the functions of a cause, each with what changed between its last two programs."""
    rows = []
    for name in cause.ranked[:SHOWN]:
        found = differences.get(cause.pairs.get(name, ("", "")))
        link, took = f"#f-{_text(quote(name))}", duration(cause.seconds_by_function[name])
        if found is None:
            row = f'<a href="{link}">{_text(name)}</a> {took}'
        else:
            title = f"{_text(name)} {took}: what changed"
            row = f"<details><summary>{title}</summary>{_difference(name, found, link)}</details>"
        rows.append(f"<li>{row}")
    hidden = len(cause.seconds_by_function) - len(rows)
    return f"<ul>{''.join(rows)}</ul>" + (f"<p>{plural(hidden, 'more function')}</p>" if hidden > 0 else "")


def _difference(name: str, found: Explanation, link: str) -> str:
    """Show what changed from one program to another: in words, and in the lines of their texts."""
    said = "".join(f"<li>{_text(each.sentence)}" for each in found.differences[:SHOWN])
    lines = found.diff.splitlines()
    diff = f"<pre>{_lines(lines[:_DIFF_LINES])}</pre>" if lines else ""
    command = f"ejcache why {shlex.quote(name)} --full"
    rest = f"<p>{_text(f'{len(lines) - _DIFF_LINES} more lines: `{command}`')}</p>" if len(lines) > _DIFF_LINES else ""
    return f'<ul>{said}</ul>{diff}{rest}<a href="{link}">what {_text(name)} cost</a>'


def _section(section: Section, more: Sequence[tuple[str, str]], report: Report) -> str:
    notes = "".join(f"<p{' class=bad' if note.startswith('!') else ''}>{_text(note)}</p>" for note in section.notes)
    timelines = {str(each.number): n for n, each in enumerate(report.timelines)}
    table = _table(section.columns, section.rows, more, timelines) if section.rows else ""
    below = f'<div class="notes">{notes}</div>' if notes else ""
    return f'<h2 id="{section.anchor}">{_text(section.title)}</h2>{table}{below}'


def _table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    more: Sequence[tuple[str, str]],
    timelines: Mapping[str, int],
) -> str:
    """Make a table in which each row is a body with what unfolds below it, so that both are sorted together."""
    longest = [max(len(row[place]) for row in rows) for place in range(len(columns))]
    classes = [
        ' class="number"' if name in NUMBERS else ' class="wide"' if most > _LONG else ""
        for name, most in zip(columns, longest, strict=True)
    ]
    head = "".join(f"<th{kind} tabindex=0>{_text(name)}" for kind, name in zip(classes, columns, strict=True))
    bodies = []
    for number, row in enumerate(rows):
        cells = "".join(
            f'<td{kind} data-name="{_text(name)}">{_cell(name, cell, timelines)}</td>'
            for kind, name, cell in zip(classes, columns, row, strict=True)
        )
        anchor = f' id="f-{_text(quote(row[0]))}"' if columns[0] == "function" else ""
        unfolded = ""
        if number < len(more):
            title, extra = more[number]
            unfolded = (
                f'<tr><td class="more" colspan={len(columns)}><details><summary>{title}</summary>{extra}</details>'
            )
        bodies.append(f"<tbody><tr{anchor}>{cells}</tr>{unfolded}")
    return f'<div class="scroll"><table><thead><tr>{head}</thead>{"".join(bodies)}</table></div>'


def _cell(name: str, cell: str, timelines: Mapping[str, int]) -> str:
    """Show a cell; the number of a start leads to its timeline."""
    if name == "start" and cell in timelines:
        return f'<a href="#timeline" data-start={timelines[cell]}>{_text(cell)}</a>'
    return _text(cell)


def _timelines(report: Report) -> str:
    """Return the last starts, of which one is shown."""
    options = "".join(
        f'<option value="{n}">{_text(f"start {each.number}: {each.title}")}' for n, each in enumerate(report.timelines)
    )
    choice = f'<select id="start" aria-label="start">{options}</select>' if report.timelines else ""
    shown = "".join(
        f'<div class="start"{" hidden" * bool(number)}>{_timeline(each)}</div>'
        for number, each in enumerate(report.timelines)
    )
    return f'<h2 id="timeline">Timeline of a start</h2>{choice}{shown}'


def _timeline(timeline: Timeline) -> str:
    length = timeline.length or 1.0
    ticks = "".join(
        f'<span style="left:{100 * n / _TICKS:.1f}%">{duration(length * n / _TICKS)}</span>' for n in range(_TICKS)
    )
    lanes = "".join(
        f'<div class="lane">{_text(name)}<div class="track">{"".join(_bar(bar, length) for bar in bars)}</div></div>'
        for name, bars in timeline.lanes.items()
    )
    more = f" {plural(timeline.left_out, 'shorter program')} left out." if timeline.left_out else ""
    began = f"{duration(length)} until its last program was ready. A half bar was preloaded.{more}"
    said = f"<p>{began}</p><p>{_text(_longest(timeline))}</p>"
    return f'{said}{_phases(timeline.sums.phases)}<div class="axis">{ticks}</div>{lanes}'


def _longest(timeline: Timeline) -> str:
    """Return the programs that took longest, and what they spent most on."""
    bars = sorted((bar for bars in timeline.lanes.values() for bar in bars), key=lambda bar: -sum(bar.phases.values()))
    said = (
        f"{bar.name} {duration(sum(bar.phases.values()))} ({max(bar.phases, key=lambda phase: bar.phases[phase])})"
        for bar in bars[:_LONGEST_SHOWN]
        if bar.phases
    )
    return f"Longest: {', '.join(said)}"


def _bar(bar: Bar, length: float) -> str:
    """Return a box for each phase, one behind the other; those that no eye could see are left out."""
    found, at = [], bar.at
    title = _text(f"{bar.name}: {bar.outcome}, {duration(sum(bar.phases.values()))}")
    for phase in PHASES:
        took = bar.phases.get(phase, 0.0)
        if took > length / 2000:
            kind = ' class="ahead"' if bar.was_preloaded else ""
            place = f"left:{100 * at / length:.2f}%;width:{100 * took / length:.2f}%"
            name = _text(bar.name) if took > length / 15 else ""
            found.append(f'<b{kind} title="{title}: {phase}" style="{place};background:var(--{phase})">{name}</b>')
        at += took
    return "".join(found)
