"""The report as one HTML file, which asks the network for nothing. Texts of programs are escaped."""

from __future__ import annotations

from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Final

from ejcache.cache.starts import PHASES
from ejcache.reports.sections import NUMBERS, duration, headline, sections
from ejcache.util.text import plural, printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ejcache.reports.model import Bar, Report
    from ejcache.reports.sections import Section

_ROWS: Final = 200
_LONG: Final = 24
"""Characters from which a column may wrap."""


def html_page(report: Report) -> str:
    """The page; at most 1 MB, because each section has a limited number of rows, and the timeline of bars."""
    shown = sections(report, rows=_ROWS)
    worth, counts, _ = map(_text, headline(report))
    links = "".join(f'<a href="#{each.anchor}">{_text(each.question)}</a>' for each in shown if each.question)
    links += '<a href="#timeline">Where did the last start spend its time?</a>'
    body = [
        f"<h1>{worth}</h1><p>{counts}</p>",
        _phases(report.sums.phases),
        f"<nav>{links}</nav>",
        *map(_section, shown),
        _timeline(report),
    ]
    page = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    return page.substitute(body="\n".join(body))


def _text(text: str) -> str:
    return escape(printable(text))


def _phases(phases: Mapping[str, float]) -> str:
    """A bar of all phases, and what each colour means."""
    total = sum(phases.values()) or 1.0
    kept = [phase for phase in PHASES if phases.get(phase)]
    parts = "".join(f'<span style="width:{100 * phases[p] / total:.2f}%;background:var(--{p})"></span>' for p in kept)
    words = "".join(f'<span><i style="background:var(--{p})"></i>{p} {duration(phases[p])}</span>' for p in kept)
    return f'<div class="bar">{parts}</div><div class="key">{words}</div>'


def _section(section: Section) -> str:
    notes = "".join(f"<p{' class=bad' if note.startswith('!') else ''}>{_text(note)}</p>" for note in section.notes)
    table = _table(section.columns, section.rows) if section.rows else ""
    return f'<h2 id="{section.anchor}">{_text(section.title)}</h2>{table}<div class="notes">{notes}</div>'


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    longest = [max(len(row[place]) for row in rows) for place in range(len(columns))]
    classes = [
        ' class="number"' if name in NUMBERS else ' class="wide"' if most > _LONG else ""
        for name, most in zip(columns, longest, strict=True)
    ]
    head = "".join(f"<th{kind}>{_text(name)}" for kind, name in zip(classes, columns, strict=True))
    body = "".join(
        "<tr>"
        + "".join(
            f'<td{kind} data-name="{_text(name)}">{_text(cell)}</td>'
            for kind, name, cell in zip(classes, columns, row, strict=True)
        )
        for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}{body}</table></div>'


def _timeline(report: Report) -> str:
    timeline = report.timeline
    length = timeline.length or 1.0
    lanes = "".join(
        f'<div class="lane">{_text(name)}<div class="track">{"".join(_bar(bar, length) for bar in bars)}</div></div>'
        for name, bars in timeline.lanes.items()
    )
    more = f" {plural(timeline.left_out, 'shorter program')} left out." if timeline.left_out else ""
    began = f"The last start: {duration(length)} until its last program was ready. A half bar was preloaded.{more}"
    return f'<h2 id="timeline">Timeline of a start</h2><p>{began}</p>{lanes}'


def _bar(bar: Bar, length: float) -> str:
    """A box for each phase, one behind the other; those that no eye could see are left out."""
    found, at = [], bar.at
    title = _text(f"{bar.name}: {bar.outcome}, {duration(sum(bar.seconds.values()))}")
    for phase in PHASES:
        took = bar.seconds.get(phase, 0.0)
        if took > length / 2000:
            kind = ' class="ahead"' if bar.preloaded else ""
            place = f"left:{100 * at / length:.2f}%;width:{100 * took / length:.2f}%"
            found.append(f'<b{kind} title="{title}: {phase}" style="{place};background:var(--{phase})"></b>')
        at += took
    return "".join(found)
