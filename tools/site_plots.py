"""Plots of bench/results.json as SVG: each bar is a median that the benchmark printed."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from site_drawing import picture, text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

RESULTS: Final = Path(__file__).resolve().parents[1] / "bench" / "results.json"
_UNITS: Final = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "requests": 1.0}
_BAR, _LEFT, _WIDTH = 16, 190, 410


def amount(shown: str) -> float:
    """The number of a cell such as `650 µs` or `1,168 requests`."""
    number, _, unit = shown.partition(" ")
    return float(number.replace(",", "")) * _UNITS.get(unit, 1.0)


def medians(case: Mapping[str, Any], what: str) -> dict[str, str]:
    """The medians of all contestants for one measurement of a case."""
    for table in case["tables"]:
        if table["headings"][:3] != ["what", "who", "median"]:
            continue
        found: dict[str, str] = {}
        name = ""
        for row in table["rows"]:
            name = row[0] or name
            if name == what:
                found[row[1]] = row[2]
        if found:
            return found
    raise KeyError(what)


def bars(title: str, groups: Mapping[str, Mapping[str, str]], *, logarithmic: bool = False) -> str:
    """Horizontal bars in groups; the length is the amount, or its logarithm where amounts differ a thousandfold."""
    values = [amount(shown) for group in groups.values() for shown in group.values()]
    low, high = min(values) / 2, max(values)

    def length(value: float) -> float:
        part = math.log(value / low) / math.log(high / low) if logarithmic else value / high
        return max(2.0, _WIDTH * part)

    parts, y = [], 10.0
    for name, group in groups.items():
        parts.append(text(_LEFT - 130, y + len(group) * (_BAR + 4) / 2, name.replace(", ", ",\n"), anchor="middle"))
        for who, shown in group.items():
            kind = "ours" if who.startswith("ejcache") else "theirs" if who.startswith("JAX") else "none"
            size = length(amount(shown))
            parts.append(text(_LEFT + 42, y + _BAR / 2 - 1, who, kind="label", anchor="end"))
            parts.append(
                f'<rect class="bar {kind}" x="{_LEFT + 50}" y="{y}" width="{size:.1f}" height="{_BAR}" rx="2"/>'
            )
            parts.append(text(_LEFT + 56 + size, y + _BAR / 2 - 1, shown, kind="label", anchor="start"))
            y += _BAR + 4
        y += 12
    return picture(_LEFT + _WIDTH + 170, int(y), title, parts)


def real_programs(results: Mapping[str, Any]) -> str:
    """Whole processes of six programs."""
    names = [name for name in results if re.fullmatch(r"start-real-\w+", name)]
    shown = {
        "no cache": "no cache",
        "JAX, defaults": "JAX, defaults",
        "JAX": "JAX, minimum 0",
        "ejcache, defaults": "ejcache",
    }
    groups = {}
    for name in names:
        found = medians(results[name], "whole process, at once")
        groups[name.removeprefix("start-real-")] = {to: found[who] for who, to in shown.items() if who in found}
    return bars("Seconds of whole processes of six programs, warm, with no cache, JAX's cache and ejcache", groups)


def puts(results: Mapping[str, Any]) -> str:
    """Writing an entry into a cache with a limit."""
    groups = {}
    for number in ("100", "1,000", "10,000"):
        found = medians(results["put"], f"put 50 kB, {number} resident")
        groups[f"{number} entries"] = {who: found[who] for who in ("ejcache", "JAX")}
    return bars(
        "Time to write an entry of 50 kB into a cache with a size limit (logarithmic)", groups, logarithmic=True
    )


def bucket(results: Mapping[str, Any]) -> str:
    """A warm start of 200 programs from a bucket."""
    whats = {"requests of a warm start of 200": "requests", "in the cache, all 200": "time"}
    parts = []
    for what, name in whats.items():
        found = medians(results["shared"], what)
        parts.append(bars(f"200 programs from a bucket 30 ms away: {name}", {name: found}))
    return "\n".join(parts)


PLOTS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "real-programs": real_programs,
    "puts": puts,
    "bucket": bucket,
}


def plot(name: str) -> str:
    """The SVG of one plot, and where its numbers are from."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    case = {"real-programs": "start-real", "puts": "put", "bucket": "shared"}[name]
    about = results[case]
    return f"{PLOTS[name](results)}\n\n*Measured on {about['when']}: {about['machine']}.*"
