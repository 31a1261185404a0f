"""Writes the report as one HTML file, which asks the network for nothing."""

from __future__ import annotations

import math
import re
import shlex
from html import escape
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from ejcache.history.causes import IN_SENTENCE
from ejcache.journal.line import HIT, PHASES
from ejcache.journal.start_records import beginning_of
from ejcache.reports.sections import MEANINGS, NUMBERS, SECONDS, headline, sections
from ejcache.util.printable import printable
from ejcache.util.units import duration, plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ejcache.history.causes import Cause
    from ejcache.journal.line import ProgramRecord
    from ejcache.reports.model import CauseGroup, Report, Timeline
    from ejcache.reports.sections import Section

_WORDS: Final = {
    "hit": "a program that was loaded from the cache",
    "miss": "a program that was not loaded from the cache, so that XLA compiled it",
    "lost": f"seconds {MEANINGS['lost']}",
    "net": "seconds of compiling that hits saved, less those for keys, waiting and failing storage; a start that finds "
    "nothing is below zero",
}
"""Words of the page's tables that are no phase."""
_SHOWN: Final = 8
"""Functions of a cause that the page shows."""
_ROWS: Final = 200
_DIFF_LINES: Final = 60
_WIDEST: Final = 240
"""Characters of a line of code."""
_TICKS: Final = 7
"""The most ticks of an axis."""
_STEPS: Final = (1.0, 2.0, 5.0, 10.0)
"""Seconds between two ticks, times a power of ten."""
_LONGEST_SHOWN: Final = 10
_LAST_TICK: Final = 0.88
"""A tick further along the axis has no room for its number."""
_NOWHERE: Final[Mapping[tuple[int, str], str]] = MappingProxyType({})
_LONG: Final = 24
"""Characters from which a column may wrap."""


def html_page(report: Report) -> str:
    """Return the page, of about 1 MB at most: each section has a limited number of rows, and the timeline of bars."""
    shown = [each for each in sections(report, rows=_ROWS) if each.rows or each.notes]
    worth, *summed, _ = map(_text, headline(report))
    links = "".join(f'<a href="#{each.anchor}">{_text(each.question)}</a>' for each in shown if each.question)
    links += '<a href="#timeline">Where did a start spend its time?</a>'
    facts = "".join(f"<div><dt>{_text(name)}<dd>{_text(value)}</div>" for name, value in report.facts if value)
    program = report.starts[0].program if report.starts else ""
    body = [
        f"<header><h1>{worth}</h1>{''.join(f'<p>{each}</p>' for each in summed)}<dl>{facts}</dl>",
        f"<p>Seconds of all starts together:</p>{_phases(report.sums.phases)}{_meanings(report.sums.phases)}",
        f"<nav>{links}</nav></header><main>",
        *(_section(each, report) for each in shown),
        f"{_timelines(report)}</main>",
    ]
    page = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    return page.substitute(program=_text(program), body="\n".join(body))


def _text(text: str, *, keep: str = "") -> str:
    return escape(printable(text, keep=keep))


def _prose(text: str) -> str:
    """Escape a sentence; what stands in backticks is code."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", _text(text))


def _phases(phases: Mapping[str, float]) -> str:
    """Return a bar of all phases, and what each colour means."""
    total = sum(phases.values()) or 1.0
    kept = [phase for phase in PHASES if duration(phases.get(phase, 0.0)) != duration(0.0)]
    parts = "".join(f'<span class={p} style="width:{100 * phases[p] / total:.2f}%"></span>' for p in kept)
    words = "".join(f'<span title="{MEANINGS[p]}"><i class={p}></i>{p} {duration(phases[p])}</span>' for p in kept)
    return f'<div class="bar" aria-hidden="true">{parts}</div><div class="key">{words}</div>'


def _meanings(phases: Mapping[str, float]) -> str:
    kept = [phase for phase in PHASES if phases.get(phase)]
    words = {phase: MEANINGS[phase] for phase in kept} | _WORDS
    said = "".join(f"<li><b>{word}</b>: {meaning}" for word, meaning in words.items())
    return f"<details><summary>what these words mean</summary><ul>{said}</ul></details>"


def _more(section: Section, report: Report) -> Sequence[tuple[str, str]]:
    """Make what unfolds below each row, with its title: of a cause, its functions."""
    if section.anchor not in {"first", "again"}:
        return ()
    numbers = _numbers(report)
    groups = [each for each in report.causes if each.is_change is (section.anchor == "first")]
    return [_functions_of(group, report, numbers) for group in groups]


def _numbers(report: Report) -> dict[str, int]:
    """Return the number of each comparison that the page shows, by the key of the later program."""
    found: dict[str, int] = {}
    for group in report.causes:
        for name in group.ranked[:_SHOWN]:
            why = group.causes[name]
            if why.differences and why.key:
                found.setdefault(why.key, len(found))
    return found


def _links(section: Section, report: Report) -> dict[tuple[int, str], str]:
    """Return where cells lead, by the number of their row and the name of their column."""
    found: dict[tuple[int, str], str] = {}
    costs = {each.name for each in report.functions[:_ROWS]}
    numbers = _numbers(report)
    timelines = {str(each.number) for each in report.timelines}
    for n, row in enumerate(section.rows):
        cells = dict(zip(section.columns, row, strict=True))
        if section.anchor == "ranks" and cells["start"] in timelines:
            found[n, "start"] = f"#start-{cells['start']}"
        for column, name in (("most of it", cells.get("most of it")), ("function", f"jit_{cells.get('function')}")):
            if name in costs and section.anchor in {"first", "again", "change"}:
                found[n, column] = f"#f-{quote(name)}"
        why = report.functions[n].cause if section.anchor == "cost" else None
        if why is not None and why.key in numbers:
            found[n, "compiled because"] = f"#d-{numbers[why.key]}"
    return found


def _lines(lines: Iterable[str]) -> str:
    """Return the lines of code or of a difference: what begins with a sign has its colour."""
    kinds = {"+": "new", "-": "old"}
    shown = (
        (line[:1], _text(line if len(line) <= _WIDEST else line[:_WIDEST] + "\N{HORIZONTAL ELLIPSIS}"))
        for line in lines
    )
    return "\n".join(f"<i class={kinds[sign]}>{line}</i>" if sign in kinds else line for sign, line in shown)


def _functions_of(group: CauseGroup, report: Report, numbers: Mapping[str, int]) -> tuple[str, str]:
    """Return how many functions a cause has, and these, each with what changed between its last two programs.

    The first change is unfolded, so that one click on the cause shows it.
    """
    rows = []
    compared = 0
    for name in group.ranked[:_SHOWN]:
        why = group.causes[name]
        link, took = f"#f-{_text(quote(name))}", duration(group.seconds_by_function[name])
        if why.differences and why.key in numbers:
            title = f"{_text(name)} {took}: what changed"
            told = _difference(why, report.compiled_in)
            cost = f'<a href="{link}">what {_text(name)} cost</a>'
            is_open = "" if compared else " open"
            row = (
                f"<details{is_open}><summary>{title}</summary><div id=d-{numbers[why.key]}>{told}{cost}</div></details>"
            )
            compared += 1
        else:
            row = f'<a href="{link}">{_text(name)}</a> {took}: {_text(why.reason)}'
        rows.append(f"<li>{row}")
    hidden = len(group.seconds_by_function) - len(rows)
    more = f"<p>{plural(hidden, 'more function')}</p>" if hidden > 0 else ""
    title = plural(len(group.seconds_by_function), "function") + (", and what changed" if compared else "")
    return title, f"<ul>{''.join(rows)}</ul>{more}"


def _difference(why: Cause, compiled_in: Mapping[str, str]) -> str:
    """Show what changed from one program to another: in words, and in the lines of their texts."""
    said = [why.reason, *(each.sentence for each in why.differences[IN_SENTENCE:_SHOWN])]
    before, after = (compiled_in.get(key, "") for key in (why.nearest.key if why.nearest else "", why.key))
    which = f"<p>From the program of {_text(before)} to that of {_text(after)}:</p>" if before and after else ""
    lines = why.diff.splitlines()
    diff = f"<pre>{_lines(lines[:_DIFF_LINES])}</pre>" if lines else ""
    command = f"ejcache why {shlex.quote(why.name)} --full"
    rest = f"<p>{_prose(f'{len(lines) - _DIFF_LINES} more lines: `{command}`')}</p>" if len(lines) > _DIFF_LINES else ""
    what_to_do = f"<p>{_prose(why.what_to_do)}</p>" if why.what_to_do else ""
    return f"{which}<ul>{''.join(f'<li>{_text(each)}' for each in said)}</ul>{what_to_do}{diff}{rest}"


def _section(section: Section, report: Report) -> str:
    notes = "".join(f"<p{' class=bad' if note.startswith('!') else ''}>{_prose(note)}</p>" for note in section.notes)
    table = ""
    if section.rows:
        table = _table(
            section.columns,
            section.rows,
            _more(section, report),
            _links(section, report),
            said=section.below,
        )
    below = f'<div class="notes">{notes}</div>' if notes else ""
    return f'<h2 id="{section.anchor}">{_text(section.title)}</h2>{table}{below}'


def _table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    more: Sequence[tuple[str, str]] = (),
    links: Mapping[tuple[int, str], str] = _NOWHERE,
    *,
    said: Sequence[Sequence[str]] = (),
    anchored: bool = True,
) -> str:
    """Make a table in which each row is a body with what unfolds below it, so that both are sorted together.

    Args:
        columns: their names.
        rows: of texts.
        more: what unfolds below the rows, with its title.
        links: where cells lead.
        said: sentences below each row.
        anchored: whether other tables lead to the row of a function.
    """
    longest = [max(len(row[place]) for row in rows) for place in range(len(columns))]
    classes = [
        f' class="{_kind(name, most)}"' if _kind(name, most) else ""
        for name, most in zip(columns, longest, strict=True)
    ]
    head = "".join(
        f'<th{kind} scope="col"><button type="button">{_text(name)}</button>'
        for kind, name in zip(classes, columns, strict=True)
    )
    bodies = []
    for number, row in enumerate(rows):
        cells = "".join(
            f'<td{kind} data-name="{_text(name)}">{_cell(cell, links.get((number, name), ""))}</td>'
            for kind, name, cell in zip(classes, columns, row, strict=True)
        )
        anchor = f' id="f-{_text(quote(row[0]))}"' if anchored and columns[0] == "function" else ""
        below = ""
        if number < len(said):
            sentences = "".join(f"<p>{_prose(each)}</p>" for each in said[number])
            below = f'<tr><td class="more" colspan={len(columns)}>{sentences}'
        if number < len(more):
            title, extra = more[number]
            below = f'<tr><td class="more" colspan={len(columns)}><details><summary>{title}</summary>{extra}</details>'
        bodies.append(f"<tbody><tr{anchor}>{cells}</tr>{below}")
    return f'<div class="scroll"><table><thead><tr>{head}</thead>{"".join(bodies)}</table></div>'


def _kind(name: str, longest: int) -> str:
    """Return the classes of a column."""
    if name in NUMBERS:
        return "number seconds" if name in SECONDS else "number"
    return "wide" if longest > _LONG else ""


def _cell(cell: str, link: str) -> str:
    """Show a cell, which may lead somewhere; a path may wrap behind a slash."""
    text = _prose(cell).replace("/", "/<wbr>") if "<" not in _prose(cell) else _prose(cell)
    return f'<a href="{_text(link)}">{text}</a>' if link else text


def _timelines(report: Report) -> str:
    """Return the last starts, of which one is shown."""
    options = "".join(
        f'<option value="{each.number}">{_text(f"start {each.number}: {each.title}")}' for each in report.timelines
    )
    label = '<label for="start">Start to show</label>'
    choice = f'{label} <select id="start">{options}</select>' if report.timelines else ""
    shown = "".join(
        f'<div class="start" id="start-{each.number}"{" hidden" * bool(number)}>{_timeline(each)}</div>'
        for number, each in enumerate(report.timelines)
    )
    return f'<h2 id="timeline">Timeline of a start</h2>{choice}{shown}'


def _timeline(timeline: Timeline) -> str:
    length = timeline.length or 1.0
    tracks = {
        name: "".join(_bar(each, timeline.began, length) for each in programs)
        for name, programs in timeline.lanes.items()
    }
    lanes = "".join(
        f'<div class="lane">{_text(name)}<div class="track">{bars}</div></div>' for name, bars in tracks.items()
    )
    more = f" {plural(timeline.left_out, 'shorter program')} left out." if timeline.left_out else ""
    ahead = " Programs that were loaded before they were called have low bars." if timeline.sums.preloaded else ""
    title = _text(f"Start {timeline.number}: {timeline.title}.")
    said = f"<p>{title} It took {duration(length)} until its last program was ready.{ahead}{more}</p>"
    return f"{said}{_phases(timeline.sums.phases)}{axis(length)}{lanes}{_longest(timeline)}"


def axis(length: float) -> str:
    """Return an axis of seconds with a few round numbers."""
    power = 10.0 ** math.floor(math.log10(length / _TICKS))
    step = next(power * each for each in _STEPS if power * each * _TICKS >= length)
    ticks = "".join(
        f'<span style="left:{100 * n * step / length:.1f}%">{f"{n * step:.6g}"} s</span>'
        for n in range(math.ceil(length / step))
        if n * step < length * _LAST_TICK
    )
    return f'<div class="axis" aria-hidden="true">{ticks}</div>'


def _longest(timeline: Timeline) -> str:
    """Return a table of the functions that took longest in a start, and what they spent most on."""
    rows = [
        [
            each.name,
            f"{each.sums.cost:.2f}",
            max(each.sums.phases, key=lambda phase: each.sums.phases[phase]),
            f"{each.sums.hits:,}",
            f"{each.sums.misses:,}",
        ]
        for each in timeline.functions[:_LONGEST_SHOWN]
        if each.sums.phases
    ]
    columns = ("function", "spent", "mostly", "hits", "misses")
    return (
        f"<h3>What took longest in start {timeline.number}</h3>{_table(columns, rows, anchored=False)}" if rows else ""
    )


def _outcome(program: ProgramRecord) -> str:
    if program.outcome != HIT:
        return "compiled"
    return "loaded ahead" if program.preloaded else "loaded"


def _bar(program: ProgramRecord, began: float, length: float) -> str:
    """Return a box for a program, with a part for each phase; one that no eye could see is left out."""
    took = program.seconds
    total = sum(took.values())
    if total <= length / 2000:
        return ""
    phases = [phase for phase in PHASES if took.get(phase)]
    words = ", ".join(f"{phase} {duration(took[phase])}" for phase in phases)
    title = _text(f"{program.name}: {_outcome(program)}, {duration(total)}: {words}")
    parts = "".join(f'<b class={phase} style="width:{100 * took[phase] / total:.2f}%"></b>' for phase in phases)
    is_named = total > length / 20 and not program.preloaded
    name = f"<u></u><span>{_text(program.name)}</span>" if is_named else ""
    at = max(0.0, beginning_of(program) - began)
    place = f"left:{100 * at / length:.2f}%;width:{100 * total / length:.2f}%"
    kind = ' class="ahead"' if program.preloaded else ""
    return f'<div{kind} title="{title}" style="{place}">{parts}<em>{name}</em></div>'
