"""What a bucket costs that cannot be reached: the first starts of a host, beside programs without a cache."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from bench.context import ROOT, support
from bench.measure import summarize
from bench.outcome import OURS, at_most
from bench.registry import case

if TYPE_CHECKING:
    from pathlib import Path

    from bench.context import Context
    from bench.outcome import Outcome

NONE = "no cache"
JITS = "bench.programs.shared_jits"
PROGRAMS = 4
STARTS = (10.0, 3.0, 3.0)
"""What each start of a host may take more than one without a cache."""
AT_ONCE = 2
"""They wait more than they work."""


@case("unreachable", title="a bucket that cannot be reached: three starts of one host, beside no cache", order=89)
def unreachable(context: Context, outcome: Outcome) -> None:
    """Each start has one program more than the one before. All programs are asked for, however quick they are."""
    ends = support("dead_ends")
    storages = context.pick(tuple(ends.URLS), ("gs",))
    tried = context.pick(ends.TROUBLES, ("no network, silent", "portal, a page"))
    with context.directory() as home, ThreadPoolExecutor(AT_ONCE) as side:
        context.say("programs without a cache")
        alone = [side.submit(_start, home / f"none {n}", NONE, "", n % 3, {}) for n in range(context.pick(9, 3))]
        without = [ended.result()[0] for ended in alone]
        outcome.line("programs without a cache", {NONE: summarize(without)})
        started = {
            (storage, trouble): side.submit(_three_starts, home, storage, trouble)
            for storage in storages
            for trouble in tried
        }
        for (storage, trouble), ended in started.items():
            context.say(f"{storage}://, {trouble}")
            for number, (seconds, lines) in enumerate(ended.result()):
                slower = seconds - statistics.median(without)
                what = f"{storage}://, {trouble}: start {number + 1} slower than without"
                outcome.ratio(what, slower, at_most(STARTS[number]), unit="s")
                outcome.note(f"{storage}://, {trouble}, start {number + 1}, said: {' / '.join(lines) or 'nothing'}")


def _three_starts(home: Path, storage: str, trouble: str) -> list[tuple[float, list[str]]]:
    ends = support("dead_ends")
    place = home / f"{storage} {trouble}"
    with ends.Trouble(trouble, storage, place / "names") as here:
        env = here.variables | {"PYTHONPATH": f"{here.variables['PYTHONPATH']}:{ROOT}"}
        return [_start(place, OURS, ends.URLS[storage], number, env) for number in range(len(STARTS))]


def _start(home: Path, who: str, url: str, number: int, env: dict[str, str]) -> tuple[float, list[str]]:
    """Seconds from where the program begins with its cache to its end, and what it said."""
    from bench.buckets import Program

    count = PROGRAMS + number
    program = Program(JITS, who, url or "-", count, home=home, env=env)
    program.expect("ready")
    began = time.perf_counter()
    program.go_on()
    if program.answer(timeout=180)["right"] != count:
        raise AssertionError(f"{who} computed wrong values")
    seconds = time.perf_counter() - began
    said = [line for line in (home / "stderr").read_text().splitlines() if line.strip()]
    return seconds, [f"{line[:200]}" for line in said]
