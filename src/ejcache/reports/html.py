"""The report as one HTML file, which asks the network for nothing. Texts of programs are escaped."""

from __future__ import annotations

import shlex
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from ejcache.cache.starts import PHASES
from ejcache.reports.sections import NUMBERS, duration, headline, sections
from ejcache.util.text import plural, printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ejcache.reports.model import Bar, Report, Timeline
    from ejcache.reports.sections import Section

_ROWS: Final = 200
_UNFOLDED: Final = 8
_TICKS: Final = 5
_LONG: Final = 24
"""Characters from which a column may wrap."""


def html_page(report: Report) -> str:
    """The page; at most 1 MB, because each section has a limited number of rows, and the timeline of bars."""
    shown = sections(report, rows=_ROWS)
    worth, counts, _ = map(_text, headline(report))
    links = "".join(f'<a href="#{each.anchor}">{_text(each.question)}</a>' for each in shown if each.question)
    links += '<a href="#timeline">Where did a start spend its time?</a>'
    facts = "".join(f"<dt>{_text(name)}<dd>{_text(value)}" for name, value in report.facts if value)
    body = [
        f"<h1>{worth}</h1><p>{counts}</p><dl>{facts}</dl>",
        _phases(report.sums.phases),
        f"<nav>{links}</nav>",
        *(_section(each, _more(each, report)) for each in shown),
        _timelines(report),
    ]
    page = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    return page.substitute(body="\n".join(body))


def _text(text: str, *, keep: str = "") -> str:
    return escape(printable(text, keep=keep))


def _phases(phases: Mapping[str, float]) -> str:
    """A bar of all phases, and what each colour means."""
    total = sum(phases.values()) or 1.0
    kept = [phase for phase in PHASES if phases.get(phase)]
    parts = "".join(f'<span style="width:{100 * phases[p] / total:.2f}%;background:var(--{p})"></span>' for p in kept)
    words = "".join(f'<span><i style="background:var(--{p})"></i>{p} {duration(phases[p])}</span>' for p in kept)
    return f'<div class="bar">{parts}</div><div class="key">{words}</div>'


def _more(section: Section, report: Report) -> Sequence[str]:
    """What unfolds below each row: of a change, the code before and after; of a cause, its functions."""
    if section.anchor == "change":
        return [_code(each.before, "-") + _code(each.after, "+") for each in report.advice[: len(section.rows)]]
    if section.anchor == "first":
        return [_functions_of(cause.functions) for cause in report.causes[: len(section.rows)]]
    return ()


def _code(code: str, sign: str) -> str:
    return f"<pre>{_text(chr(10).join(f'{sign} {line}' for line in code.splitlines()), keep=chr(10))}</pre>"


def _functions_of(functions: Mapping[str, float]) -> str:
    """The functions of a cause, each with the command that shows the difference of two of its programs."""
    ranked = sorted(functions, key=lambda name: -functions[name])[:_UNFOLDED]
    rows = (
        f'<li><a href="#f-{_text(quote(name))}">{_text(name)}</a> {duration(functions[name])}: '
        f"<code>ejcache why {_text(shlex.quote(name))} --full</code>"
        for name in ranked
    )
    return f"<ul>{''.join(rows)}</ul>"


def _section(section: Section, more: Sequence[str] = ()) -> str:
    notes = "".join(f"<p{' class=bad' if note.startswith('!') else ''}>{_text(note)}</p>" for note in section.notes)
    table = _table(section.columns, section.rows, more) if section.rows else ""
    return f'<h2 id="{section.anchor}">{_text(section.title)}</h2>{table}<div class="notes">{notes}</div>'


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], more: Sequence[str] = ()) -> str:
    longest = [max(len(row[place]) for row in rows) for place in range(len(columns))]
    classes = [
        ' class="number"' if name in NUMBERS else ' class="wide"' if most > _LONG else ""
        for name, most in zip(columns, longest, strict=True)
    ]
    head = "".join(f"<th{kind} tabindex=0>{_text(name)}" for kind, name in zip(classes, columns, strict=True))
    unfolded = [f"<details><summary>more</summary>{each}</details>" for each in more] or [""] * len(rows)
    is_function = columns[0] == "function"
    body = "".join(
        (f'<tr id="f-{_text(quote(row[0]))}">' if is_function else "<tr>")
        + "".join(
            f'<td{kind} data-name="{_text(name)}">{_text(cell)}</td>'
            for kind, name, cell in zip(classes, columns, row, strict=True)
        )
        + (f'<td class="more">{extra}' if extra else "")
        for row, extra in zip(rows, unfolded, strict=True)
    )
    return f'<div class="scroll"><table><tr>{head}{body}</table></div>'


def _timelines(report: Report) -> str:
    """The last starts, of which one is shown."""
    options = "".join(f'<option value="{n}">{_text(each.title)}' for n, each in enumerate(report.timelines))
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
    return f'<p>{began}</p><div class="axis">{ticks}</div>{lanes}'


def _bar(bar: Bar, length: float) -> str:
    """A box for each phase, one behind the other; those that no eye could see are left out."""
    found, at = [], bar.at
    title = _text(f"{bar.name}: {bar.outcome}, {duration(sum(bar.seconds.values()))}")
    for phase in PHASES:
        took = bar.seconds.get(phase, 0.0)
        if took > length / 2000:
            kind = ' class="ahead"' if bar.preloaded else ""
            place = f"left:{100 * at / length:.2f}%;width:{100 * took / length:.2f}%"
            name = _text(bar.name) if took > length / 15 else ""
            found.append(f'<b{kind} title="{title}: {phase}" style="{place};background:var(--{phase})">{name}</b>')
        at += took
    return "".join(found)
