"""A program with many small programs in a cache with a size limit that holds 11,000 entries already.

This is what a project of simulations met: its entries are small, so that the limit of bytes is never reached, and their
number grows. Nothing is evicted here; what is measured is what a limit costs.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

from bench.contestants import JAX, fill, key_of, open_contestant, value_of
from bench.measure import summarize, take_turns
from bench.outcome import OURS
from bench.registry import case

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.context import Context
    from bench.outcome import Outcome

_BYTES: Final = 3_000
_LIMIT: Final = 10_000_000_000
_PROGRAMS: Final = 79
"""So many the project's run compiled."""
_WITHOUT_MINIMUM: Final = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "JAX_COMPILATION_CACHE_MAX_SIZE": str(_LIMIT),
}


@case("bounded", title="79 small programs in a cache with a size limit and 11,000 entries", order=15)
def bounded(context: Context, outcome: Outcome) -> None:
    """JAX's put reads the time of every entry, so that the run becomes several times as long."""
    count = context.pick(11_000, 1_000)
    with context.directory() as directory:
        full = {who: directory / f"{who}-full" for who in (JAX, OURS)}
        for who, place in full.items():
            context.say(f"filling {who} with {count:,}")
            fill(who, place, count=count, size=_BYTES, step=lambda _: None)
        rounds, ours, theirs = context.pick((10, 30, 2), (3, 10, 1))
        calls = {
            who: (_putter(who, full[who], range(count, count + repeats * rounds)), repeats)
            for who, repeats in ((OURS, ours), (JAX, theirs))
        }
        context.say(f"put beside {count:,}")
        puts = {who: summarize(samples) for who, samples in take_turns(calls, rounds=rounds).items()}
        outcome.line(f"put {_BYTES // 1000} kB, {count:,} resident", puts)
        outcome.ratio(f"put at {count:,}, nothing evicted: JAX ÷ ejcache", puts[JAX].median / puts[OURS].median)
        _runs(context, outcome, directory, full, count)


def _runs(context: Context, outcome: Outcome, directory: Path, full: dict[str, Path], count: int) -> None:
    seconds: dict[str, list[float]] = {}
    processor: dict[str, list[float]] = {}
    for salt in range(context.turns(5)):
        places = {"no cache": ("none", directory)}
        for who, place in full.items():
            places[f"{who}, empty"] = who, directory / f"{who}-{salt}"
            places[f"{who}, {count:,} entries"] = who, place
        for name, (who, place) in places.items():
            context.say(f"run {salt + 1}, {name}")
            arguments = (who, place, _PROGRAMS, salt)
            answer = context.run(
                "bench.programs.many_puts", *arguments, home=directory, env=_WITHOUT_MINIMUM, timeout=1800.0
            )
            seconds.setdefault(name, []).append(answer["seconds"])
            processor.setdefault(name, []).append(answer["processor"])
    found = {name: summarize(samples) for name, samples in seconds.items()}
    outcome.line(f"calls of {_PROGRAMS} programs that are compiled", found)
    for who in full:
        before, after = found[f"{who}, empty"].median, found[f"{who}, {count:,} entries"].median
        outcome.ratio(f"calls beside {count:,} entries ÷ beside none: {who}", after / before)
    for what, samples in (("", seconds), (", processor time", processor)):
        theirs, ours = (statistics.median(samples[f"{who}, {count:,} entries"]) for who in (JAX, OURS))
        outcome.ratio(f"calls beside {count:,} entries{what}: JAX ÷ ejcache", theirs / ours)
    outcome.note(
        "JAX stores before a call returns; ejcache stores in the background, and has stored when a process ends."
    )


def _putter(who: str, place: Path, numbers: range) -> Callable[[], None]:
    """Return what puts one more entry at each call."""
    store = open_contestant(who, place, max_size=_LIMIT)
    left = iter([(key_of(number), value_of(number, _BYTES)) for number in numbers])

    def put() -> None:
        store.put(*next(left))

    return put
