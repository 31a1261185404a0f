"""The numbers of the last runs: `results.json` has every table, and `RESULTS.md` the ones that README and docs claim.

    results.json := object: case → {title, when, seconds, machine, tables, notes}
    table        := {headings: [text, …], rows: [[text, …], …]}, as a terminal shows it

The first table of a case with bars is its comparisons: what, value, bar, and whether it was met.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["CLAIMS", "page", "with_numbers", "write_results"]

CLAIMS: Final = (
    ("A put beside 10,000 entries with a size limit", "put", "put at 10,000: JAX ÷ ejcache"),
    ("A put beside 100,000 entries, against one beside 100", "put", "put at 100,000 ÷ at 100, ejcache"),
    ("A suite six times in a cache for 87 % of it: seconds saved", "evict-replay", "loop, spread 0.3, by cost"),
    ("The same, evicted by last use", "evict-replay", "loop, spread 0.3, by last use"),
    ("Eight processes that get and put at once", "mixed", "throughput: ejcache ÷ JAX"),
    ("A call through `@ejit`", "call", "one array: ejcache ejit ÷ jax.jit"),
    ("`import ejcache`", "import", "import ejcache, beyond bare Python"),
    ("JAX's first backend with the entry point and `EJCACHE` unset", "unset", "ejcache in JAX's first backend"),
    ("The key of a program", "key", "a key: ejcache ÷ JAX"),
    ("Six real programs, warm, whole process", "start-real", "whole process, geometric mean: JAX ÷ ejcache, preload"),
    (
        "The same, both with their default settings",
        "start-real",
        "whole process, geometric mean: JAX, defaults ÷ ejcache, defaults",
    ),
    ("The same without preload", "start-real", "whole process, geometric mean: JAX ÷ ejcache, no preload"),
    ("150 tiny programs, warm", "start-tiny", "whole process, at once: JAX ÷ ejcache, preload"),
    (
        "A training step of 24 blocks, to its call",
        "start-24",
        "enable() to the first call's return, at once: JAX ÷ ejcache, preload",
    ),
    ("Five trainers with `reuse_lowering`, warm, whole process", "word", "mean of the five, wall clock"),
    ("The same in processor time", "word", "mean of the five, processor time"),
    ("Compile seconds that the default floors serve", "floors-served", "10 programs: compile seconds served"),
    ("Requests to a bucket for a hit", "shared", "requests for the entry, a hit"),
    ("Requests of a warm start of 200 programs", "shared", "requests of a warm start of 200: JAX ÷ ejcache"),
    (
        "Compilations, if four hosts start with one program",
        "shared",
        "compilations, four hosts begin with one program, ejcache",
    ),
    ("Listings of a prune of 100,000 entries", "shared", "100,000 entries pruned to half: listings"),
    (
        "A start with an unreachable bucket, seconds longer",
        "shared",
        "bucket unreachable from the start: slower than without",
    ),
    ("A new host of NumPyro on a bucket at 30 ms", "floors-bucket", "whole process, another host: ejcache ÷ no cache"),
    ("False gains in 1,200 trials of tuning", "tuned-verdicts", "false gains in 1,200 trials: ejcache"),
)
"""What README and docs claim: the claim, and the case and comparison that it stands on."""
README_ROWS: Final = (
    (
        "a later start of six programs, with the default settings of each cache",
        "ejcache is {} times as fast",
        "start-real",
        "whole process, geometric mean: JAX, defaults ÷ ejcache, defaults",
    ),
    (
        "the third start of five trainers with `reuse_lowering`",
        "ejcache is {} times as fast",
        "word",
        "mean of the five, wall clock",
    ),
    (
        "storing one more program in a cache of 10,000 programs with a size limit",
        "ejcache is {} times as fast",
        "put",
        "put at 10,000: JAX ÷ ejcache",
    ),
    (
        "a run that compiles 79 small programs, in a cache of 11,000 programs with a size limit",
        "ejcache is {} times as fast",
        "bounded",
        "calls beside 11,000 entries: JAX ÷ ejcache",
    ),
    (
        "requests to a bucket in a start that loads 200 programs",
        "JAX's cache sends {} times as many",
        "shared",
        "requests of a warm start of 200: JAX ÷ ejcache",
    ),
)
"""The numbers on the first screen of the README: what, how its ratio is said, and the case and comparison."""

_HEAD: Final = """\
# Results

This page is written by `python -m bench --page` from `results.json`, which has every table of the last runs.
Contestants take turns on one machine, so that ratios are worth more than times. A bar is what the project promises;
"NO" is one that was missed. An interval is that of 95 %. All of it is on CPU: [a page of its own](../bench/GPU.md) has
what one H200 showed, where a warm start is slower than with JAX's cache.

| what | comparison | value | bar | met | measured |
|---|---|---:|---:|---:|---|
"""
_MISSED: Final = """
## Missed

Every bar that the last runs missed:

| case | comparison | value | bar | measured |
|---|---|---:|---:|---|
"""
_LOST: Final = """
## Lost

Comparisons without a bar in which the peer is better than ejcache:

| case | comparison | value |
|---|---|---:|
"""
_LOST_BELOW: Final = 0.97


def write_results(path: Path, measured: Mapping[str, Mapping[str, Any]], *, order: Sequence[str]) -> dict[str, Any]:
    """Bring the data at `path` up to date, and return it; what was measured by other runs stays, in `order`."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known.update(measured)
    data = {name: known[name] for name in order if name in known}
    path.write_text(_encode(data), encoding="utf-8")
    return data


def _encode(data: Mapping[str, Mapping[str, Any]]) -> str:
    """JSON with a line for each row of a table, so that a change of it reads well."""

    def line(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    cases = []
    for name, case in data.items():
        tables = []
        for table in case["tables"]:
            rows = ",\n".join(f"    {line(row)}" for row in table["rows"])
            tables.append(f'   {{"headings": {line(table["headings"])}, "rows": [\n{rows}\n   ]}}')
        about = ", ".join(f"{line(key)}: {line(case[key])}" for key in ("title", "when", "seconds", "machine"))
        notes = ",\n".join(f"   {line(note)}" for note in case["notes"])
        inner = ",\n".join(tables)
        cases.append(f' {line(name)}: {{\n  {about},\n  "tables": [\n{inner}\n  ],\n  "notes": [\n{notes}\n  ]\n }}')
    return "{\n" + ",\n".join(cases) + "\n}\n"


def page(data: Mapping[str, Mapping[str, Any]]) -> str:
    """`RESULTS.md`: the claims, every bar that was missed, and what the peer does better."""
    rows = {(name, row[0]): row for name, case in data.items() for row in _comparisons(case)}
    text = _HEAD
    for claim, name, what in CLAIMS:
        found = rows.get((name, what))
        value = found[1:] if found is not None else ("not measured", "", "")
        text += f"| {claim} | {what} | {' | '.join(value)} | {data[name]['when'] if name in data else ''} |\n"
    missed = [(key, row) for key, row in rows.items() if row[3] == "NO"]
    text += _MISSED
    for (name, what), row in missed:
        text += f"| {name} | {what} | {row[1]} | {row[2]} | {data[name]['when']} |\n"
    text += _LOST
    for (name, what), row in rows.items():
        if not row[2] and "÷ ejcache" in what and _is_lost(row[1]):
            text += f"| {name} | {what} | {row[1]} |\n"
    return text


def with_numbers(readme: str, data: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text of the README with the numbers of the last runs between its two marks.

    A comparison that was not measured has no row.
    """
    rows = {(name, row[0]): row for name, case in data.items() for row in _comparisons(case)}
    lines = ["| what | result |", "|---|---|"]
    for what, said, name, comparison in README_ROWS:
        if row := rows.get((name, comparison)):
            lines.append(f"| {what} | {said.format(row[1].partition(' ')[0])} |")
    table = "\n".join(lines)
    return re.sub(
        r"^(<!-- numbers: .*? -->\n).*?^(<!-- end of numbers -->)$",
        lambda found: f"{found[1]}\n{table}\n\n{found[2]}",
        readme,
        flags=re.MULTILINE | re.DOTALL,
    )


def _comparisons(case: Mapping[str, Any]) -> list[list[str]]:
    return [row for table in case["tables"] if table["headings"][0] == "comparison" for row in table["rows"]]


def _is_lost(value: str) -> bool:
    number, _, unit = value.partition(" ")
    return unit.startswith("x") and float(number.replace(",", "")) < _LOST_BELOW
