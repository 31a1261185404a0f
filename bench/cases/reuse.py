"""A restart that takes the lowered program of earlier starts, beside one that traces it."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.measure import paired_ratio, summarize
from bench.outcome import Bar, at_least, at_most, surely_at_least
from bench.registry import case
from bench.starts import BEHIND, WHOLE

if TYPE_CHECKING:
    from pathlib import Path

    from bench.context import Context
    from bench.outcome import Outcome

TRACED, REUSED = "traced", "reused"
KEY = "processor time from the call to the key"
PARTS = (
    "import",
    "enable",
    "backend",
    "own work",
    "question",
    "imports",
    "read and build",
    "trace",
    "lower",
    "key",
    "fetch",
    "load",
    "compile",
    "store",
    "run",
    "exit",
)


@dataclass(frozen=True, slots=True)
class Program:
    """A training step of so many blocks, which is called after so many seconds of other work.

    Attributes:
        whole: the bar of the whole process, traced ÷ reused.
        has_key_bars: True if the time to the key has bars.
    """

    name: str
    blocks: int
    work: float
    whole: Bar | None
    has_key_bars: bool = True

    def __str__(self) -> str:
        return f"a step of {self.blocks} blocks{f' after {self.work:.0f} s of other work' if self.work else ''}"


PROGRAMS = (
    Program("reuse-12", 12, 0.0, surely_at_least(1.0)),
    Program("reuse-60", 60, 0.0, None),
    Program("reuse-12-later", 12, 4.0, at_least(1.1), has_key_bars=False),
)


def _measure(program: Program, context: Context, outcome: Outcome) -> None:
    """Both have everything in their caches, with preload on; they start by turns."""
    blocks = context.pick(program.blocks, 1)
    found: dict[str, list[dict[str, Any]]] = {TRACED: [], REUSED: []}
    with context.directory() as home:
        for number in range(2):
            context.say(f"start {number + 1}, which is not counted")
            _start(context, REUSED, blocks, program.work, home, is_known=False)
        for number in range(context.turns(10)):
            for who in (TRACED, REUSED) if number % 2 else (REUSED, TRACED):
                context.say(f"round {number + 1}: {who}")
                found[who].append(_start(context, who, blocks, program.work, home))
    for field, what in (("processor", KEY), ("first", "the first call"), (WHOLE, WHOLE)):
        outcome.line(what, {who: summarize(run[field] for run in runs) for who, runs in found.items()})
    has_bars = program.has_key_bars and not context.quick
    for what, most, left_out in (
        (KEY, 0.05, ()),
        (f"{KEY} without the question and imports", 0.02, ("question", "imports")),
    ):
        pairs = [
            (ours["processor"] - sum(ours[each] for each in left_out), theirs["processor"])
            for ours, theirs in zip(found[REUSED], found[TRACED], strict=True)
        ]
        ratio, interval = paired_ratio(pairs)
        outcome.ratio(f"{what}, {REUSED} ÷ {TRACED}", ratio, at_most(most) if has_bars else None, interval=interval)
    question = statistics.median(run["question"] for run in found[REUSED])
    outcome.ratio("processor time of the question", 1e3 * question, at_most(10), unit="ms")
    whole = [(theirs[WHOLE], ours[WHOLE]) for theirs, ours in zip(found[TRACED], found[REUSED], strict=True)]
    ratio, interval = paired_ratio(whole)
    bar = None if context.quick else program.whole
    outcome.ratio(f"{WHOLE}, {TRACED} ÷ {REUSED}", ratio, bar, interval=interval)
    parts = {who: _medians(runs) for who, runs in found.items()}
    outcome.split("milliseconds of a start, medians", parts, order=(*PARTS, WHOLE, *BEHIND))


def _medians(runs: list[dict[str, Any]]) -> dict[str, float]:
    samples = {
        **{name: [run["phases"].get(name, 0.0) for run in runs] for name in PARTS},
        **{name: [run["behind"].get(phase, 0.0) for run in runs] for name, phase in BEHIND.items()},
        WHOLE: [run[WHOLE] for run in runs],
    }
    return {name: statistics.median(taken) for name, taken in samples.items() if max(taken) >= 5e-4}


def _start(
    context: Context, who: str, blocks: int, work: float, home: Path, *, is_known: bool = True
) -> dict[str, Any]:
    env = {
        "WORD": "bench" if who == REUSED else "",
        "EJCACHE_REUSE_CHECK_ONE_IN": "0",
        "EJCACHE_REUSE_FLOOR": "0",
        "EJCACHE_PRELOAD": "1",
    }
    seconds, printed = context.start("-m", "bench.programs.reuse", blocks, work, home=home, env=env)
    ended = time.monotonic()
    answer: dict[str, Any] = json.loads(printed.splitlines()[-1])
    if who == REUSED and is_known and answer["traced"]:
        raise AssertionError("a start traced what two starts before it had traced")
    answer["phases"]["exit"] = ended - answer["ended"]
    return answer | {WHOLE: seconds}


for _program in PROGRAMS:
    case(
        _program.name,
        title=f"{_program}: a restart of the job that reuses the lowered program, beside one that traces it",
        order=116,
        when_named=True,
    )(partial(_measure, _program))
