"""Warm starts of trainers whose step has a word of `reuse_lowering`, beside the same with JAX's own cache."""

from __future__ import annotations

import json
import resource
import time
from typing import TYPE_CHECKING

from bench.measure import paired_ratio, summarize
from bench.outcome import at_least, surely_at_least
from bench.registry import case

if TYPE_CHECKING:
    from pathlib import Path

    from bench.context import Context
    from bench.outcome import Outcome

TRAINERS = ("optax", "nnx", "linen", "equinox", "24 blocks")
WHO = ("jax", "word")


@case(
    "word", title="warm starts of five trainers, JAX's own cache ÷ a word of reuse_lowering", order=117, when_named=True
)
def measure(context: Context, outcome: Outcome) -> None:
    """Both have everything in their caches; they start by turns, and the word's start traces nothing."""
    series: dict[str, list[list[tuple[float, float]]]] = {"processor time": [], "wall clock": []}
    for name in TRAINERS:
        found: dict[str, list[tuple[float, float]]] = {who: [] for who in WHO}
        with context.directory() as home:
            for _ in range(2):
                for who in WHO:
                    _start(context, who, name, home, is_known=False)
            for number in range(context.turns(10)):
                for who in WHO if number % 2 else reversed(WHO):
                    context.say(f"{name}, round {number + 1}: {who}")
                    found[who].append(_start(context, who, name, home))
        for position, what in enumerate(series):
            pairs = [
                (theirs[position], ours[position]) for theirs, ours in zip(found["jax"], found["word"], strict=True)
            ]
            ratio, interval = paired_ratio(pairs)
            outcome.line(f"{name}, {what}", {who: summarize(run[position] for run in found[who]) for who in WHO})
            bar = None if context.quick or position else surely_at_least(1.1)
            outcome.ratio(f"{name}, {what}", ratio, bar, interval=interval)
            series[what].append(pairs)
    for what, all_pairs in series.items():
        ratio, interval = paired_ratio(*all_pairs)
        bar = None if context.quick or what != "processor time" else at_least(1.3)
        outcome.ratio(f"mean of the five, {what}", ratio, bar, interval=interval)


def _start(context: Context, who: str, name: str, home: Path, *, is_known: bool = True) -> tuple[float, float]:
    """Return the processor time and the wall clock of a whole process, in seconds."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    env = {"CACHE": who, "EJCACHE_REUSE_CHECK_ONE_IN": "0"}
    _, printed = context.start("-m", "bench.programs.word", name, home=home, env=env)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if who == "word" and is_known and json.loads(printed.splitlines()[-1])["traced"]:
        raise AssertionError("a start traced what two starts before it had traced")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall
