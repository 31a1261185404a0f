"""Outcomes for people: tables on a terminal, and the same as data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from bench.outcome import Outcome, Ratio, Split
    from bench.registry import Case

__all__ = ["case_as_data", "case_as_tables", "format_quantity", "machine_as_text"]

_SCALES = {
    "s": (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)),
    "B": (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)),
}
_HEADINGS = ("what", "who", "median", "p95", "worst", "best", "samples")


def format_quantity(value: float, unit: str) -> str:
    """`value` with three digits and the prefix that suits it."""
    if math.isnan(value):
        return "-"
    for name, scale in _SCALES.get(unit, ()):
        if abs(value) >= scale:
            return f"{_digits(value / scale)} {name}"
    scales = _SCALES.get(unit)
    return f"{_digits(value / scales[-1][1])} {scales[-1][0]}" if scales else f"{_digits(value)} {unit}"


def machine_as_text(machine: Mapping[str, Any]) -> str:
    """One line: the processor, then the versions."""
    versions = [
        f"{name} {machine[name]}"
        for name in ("python", "jax", "jaxlib", "diskcache", "zstandard", "ejkernel")
        if machine.get(name)
    ]
    etils = "etils installed" if machine.get("etils") else "no etils"
    memory = f", {machine['memory_gb']} GB" if machine.get("memory_gb") else ""
    filesystem = f", {machine['filesystem']}" if machine.get("filesystem") else ""
    return f"{machine['cpu']}, {machine['cores']} cores{memory}{filesystem}; {', '.join([*versions, etils])}"


def case_as_tables(case: Case, outcome: Outcome) -> RenderableType:
    """What a terminal shows of a case."""
    parts: list[RenderableType] = [Text(f"\n{case.name}: {case.title}", style="bold")]
    if outcome.lines:
        times = Table(*_HEADINGS[:2], *(), box=None, header_style="dim", pad_edge=False)
        for heading in _HEADINGS[2:]:
            times.add_column(heading, justify="right")
        for row in _time_rows(outcome):
            times.add_row(*row)
        parts.append(times)
    if outcome.ratios:
        ratios = Table("comparison", box=None, header_style="dim", pad_edge=False)
        for heading in ("value", "bar", ""):
            ratios.add_column(heading, justify="right")
        for ratio in outcome.ratios:
            style = {None: "", True: "green", False: "bold red"}[ratio.met]
            ratios.add_row(ratio.what, _ratio(ratio), str(ratio.bar or ""), Text(_verdict(ratio), style=style))
        parts.append(ratios)
    for split in outcome.splits:
        shares = Table(split.what, box=None, header_style="dim", pad_edge=False)
        for name in split.parts:
            shares.add_column(name, justify="right", max_width=12)
        for row in _split_rows(split):
            shares.add_row(*row)
        parts.append(shares)
    parts.extend(Text(note, style="dim") for note in _notes(outcome))
    return Group(*parts)


def case_as_data(case: Case, outcome: Outcome, *, machine: Mapping[str, Any], when: str) -> dict[str, Any]:
    """What `results.json` holds of a case."""
    tables: list[tuple[Sequence[str], Sequence[Sequence[str]]]] = []
    if outcome.ratios:
        found = [(ratio.what, _ratio(ratio), str(ratio.bar or ""), _verdict(ratio)) for ratio in outcome.ratios]
        tables.append((("comparison", "value", "bar", "met"), found))
    if outcome.lines:
        tables.append((_HEADINGS, _time_rows(outcome)))
    tables.extend(((split.what, *split.parts), _split_rows(split)) for split in outcome.splits)
    return {
        "title": f"{case.title[0].upper()}{case.title[1:]}",
        "when": when,
        "seconds": round(outcome.seconds),
        "machine": machine_as_text(machine),
        "tables": [{"headings": list(headings), "rows": [list(row) for row in rows]} for headings, rows in tables],
        "notes": _notes(outcome),
    }


def _time_rows(outcome: Outcome) -> list[tuple[str, ...]]:
    rows = []
    for line in outcome.lines:
        what = line.what
        for name, summary in line.contestants.items():
            quantities = (
                format_quantity(value, summary.unit)
                for value in (summary.median, summary.p95, summary.worst, summary.best)
            )
            rows.append((what, name, *quantities, f"{summary.count:,}"))
            what = ""
    return rows


def _split_rows(split: Split) -> list[tuple[str, ...]]:
    return [
        (name, *(f"{1e3 * parts[name]:,.0f}" if name in parts else "" for parts in split.parts.values()))
        for name in split.order
    ]


def _notes(outcome: Outcome) -> list[str]:
    notes = list(outcome.notes)
    if outcome.skipped:
        notes.append(f"Skipped: {outcome.skipped}")
    if outcome.failed:
        notes.append(f"Failed: {outcome.failed}")
    return notes


def _ratio(ratio: Ratio) -> str:
    if ratio.unit != "x":
        value = f"{_digits(ratio.value)} {ratio.unit}"
        if ratio.interval is None:
            return value
        return f"{value} ({_digits(ratio.interval[0])} to {_digits(ratio.interval[1])})"
    value = f"{ratio.value:.3f} x" if 0.5 < ratio.value < 2 else f"{_digits(ratio.value)} x"
    return value if ratio.interval is None else f"{value} ({ratio.interval[0]:.2f} to {ratio.interval[1]:.2f})"


def _verdict(ratio: Ratio) -> str:
    return {None: "", True: "yes", False: "NO"}[ratio.met]


def _digits(value: float) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(decimals, 6)}f}"
