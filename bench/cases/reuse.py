"""A restart that takes the lowered program of earlier starts, beside one that traces it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bench.measure import paired_ratio, summarize
from bench.outcome import Bar, at_least, at_most
from bench.registry import case

if TYPE_CHECKING:
    from pathlib import Path

    from bench.context import Context
    from bench.outcome import Outcome

TRACED, REUSED = "traced", "reused"
KEY = "processor time from the call to the key"
PROGRAMS: tuple[tuple[int, float, Bar | None], ...] = (
    (12, 0.0, at_least(1.0)),
    (60, 0.0, None),
    (12, 4.0, at_least(1.1)),
)
"""How many blocks, how many seconds of other work before, and the bar of the whole process."""


@case(
    "reuse",
    title="a restart of the same job that reuses the lowered program, beside one that traces it",
    order=116,
    when_named=True,
)
def reuse(context: Context, outcome: Outcome) -> None:
    """Both have everything in their caches, with preload on; they start by turns."""
    for blocks, work, bar in PROGRAMS if not context.quick else ((1, 0.0, None),):
        name = f"{blocks} blocks{f' after {work:.0f} s' if work else ''}"
        found: dict[str, list[dict[str, Any]]] = {TRACED: [], REUSED: []}
        with context.directory() as home:
            for number in range(2):
                context.say(f"{name}: start {number + 1}, which is not counted")
                _start(context, REUSED, blocks, work, home, is_known=False)
            for number in range(context.pick(10, 1)):
                order = (TRACED, REUSED) if number % 2 else (REUSED, TRACED)
                for who in order:
                    context.say(f"{name}, round {number + 1}: {who}")
                    found[who].append(_start(context, who, blocks, work, home))
        for field, what in (("processor", KEY), ("first", "the first call"), ("process", "whole process")):
            outcome.line(f"{name}: {what}", {who: summarize(run[field] for run in runs) for who, runs in found.items()})
        keys = [(a["processor"], b["processor"]) for a, b in zip(found[REUSED], found[TRACED], strict=True)]
        ratio, interval = paired_ratio(keys)
        is_bar = not work and not context.quick
        what = f"{name}: {KEY}, {REUSED} ÷ {TRACED}"
        outcome.ratio(what, ratio, at_most(0.05) if is_bar else None, interval=interval)
        whole = [(a["process"], b["process"]) for a, b in zip(found[TRACED], found[REUSED], strict=True)]
        ratio, interval = paired_ratio(whole)
        outcome.ratio(f"{name}: whole process, {TRACED} ÷ {REUSED}", ratio, bar, interval=interval)


def _start(
    context: Context, who: str, blocks: int, work: float, home: Path, *, is_known: bool = True
) -> dict[str, Any]:
    env = {
        "EJCACHE_REUSE_LOWERING": "1" if who == REUSED else "0",
        "EJCACHE_REUSE_CHECK_ONE_IN": "0",
        "EJCACHE_REUSE_FLOOR": "0",
    }
    seconds, printed = context.start("-m", "bench.programs.reuse", blocks, work, home=home, env=env)
    answer: dict[str, Any] = json.loads(printed.splitlines()[-1])
    if who == REUSED and is_known and answer["traced"]:
        raise AssertionError("a start traced what two starts before it had traced")
    return answer | {"process": seconds}
