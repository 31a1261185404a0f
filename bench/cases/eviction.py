"""The order of eviction by cost: what it saves of compiling, and what a put takes in it."""

from __future__ import annotations

import os
import random
import statistics
from typing import TYPE_CHECKING, Final

from bench.contestants import key_of
from bench.context import support
from bench.measure import paired_ratio, summarize, take_turns
from bench.outcome import at_least, at_most
from bench.registry import case

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.context import Context
    from bench.outcome import Outcome
    from ejcache.stores.local.store import LocalStore

_BY_USE, _BY_COST = "by last use", "by cost"
_BARS: Final = {("loop", 1.1): 90, ("loop", 0.3): 70, ("team", 1.1): 85, ("team", 0.3): 78}
"""Per cent, by the trace and the spread of the seconds for each byte."""
_ENTRY_BYTES: Final = 10_000
"""A file of its own, as an executable is."""


@case("evict-replay", title="a cache that is too small: seconds of compiling that it saves, by its order", order=21)
def replay(context: Context, outcome: Outcome) -> None:
    """Uses of programs are replayed in stores with a limit: a suite in a loop, and the projects of a team."""
    traces, seeds = support("eviction_traces"), range(context.pick(12, 1))
    for (name, sigma), bar in _BARS.items():
        context.say(f"{name}, spread {sigma}")
        shares: dict[str, list[float]] = {_BY_USE: [], _BY_COST: []}
        for seed in seeds:
            uses, limit = getattr(traces, name)(sigma, seed)
            for order, found in shares.items():
                with context.directory() as place, _store(place, limit, order) as store:
                    found.append(100 * traces.saved(store, uses))
        for order, found in shares.items():
            what = f"{name}, spread {sigma}, {order}"
            outcome.ratio(what, statistics.fmean(found), at_least(bar) if order == _BY_COST else None, unit="%")
        least = min(shares[_BY_COST])
        outcome.note(f"{name}, spread {sigma}: the least of {len(seeds)} traces saves {least:.1f} % by cost.")
    outcome.note("Of the seconds that a cache without a limit would save; 0 % by last use is what a loop comes to.")


@case("evict-put", title="put with a size limit, by the order of eviction; every put evicts one", order=22)
def put(context: Context, outcome: Outcome) -> None:
    """A put by cost notes one number more, and evicts from another place than where it writes."""
    for count in context.pick([10_000, 100_000], [1_000]):
        rounds, repeats = context.pick((40, 25), (5, 10))
        with context.directory() as directory:
            calls = {}
            for order in (_BY_USE, _BY_COST):
                context.say(f"filling {count:,}, {order}")
                calls[order] = _putter(directory / order.replace(" ", "-"), order, count, rounds * repeats), repeats
            context.say(f"put beside {count:,}")
            found = take_turns(calls, rounds=rounds, between=os.sync)
        outcome.line(f"put {_ENTRY_BYTES // 1000} kB, {count:,} resident", {o: summarize(s) for o, s in found.items()})
        by_round = {
            order: [statistics.median(samples[n : n + repeats]) for n in range(0, len(samples), repeats)]
            for order, samples in found.items()
        }
        pairs = list(zip(by_round[_BY_COST], by_round[_BY_USE], strict=True))
        value, interval = paired_ratio(pairs)
        outcome.ratio(f"put at {count:,}: {_BY_COST} ÷ {_BY_USE}", value, at_most(1.2), interval=interval)


def _store(place: Path, limit: int, order: str) -> LocalStore:
    from ejcache.maintenance.worth import worth
    from ejcache.stores.local.store import LocalStore

    return LocalStore(place, max_size=limit, worth=worth if order == _BY_COST else None)


def _putter(place: Path, order: str, count: int, more: int) -> Callable[[], object]:
    traces, chance = support("eviction_traces"), random.Random(0)
    store = _store(place, count * _ENTRY_BYTES, order)

    def value(number: int) -> tuple[str, bytes, float]:
        key, seconds = key_of(number), chance.lognormvariate(0, 1)
        return key, traces.encoded(key, seconds=seconds, size=_ENTRY_BYTES), seconds

    def put_one(key: str, data: bytes, seconds: float) -> object:
        return store.put(key, data, worth=seconds)

    for number in range(count):
        put_one(*value(number))
    values = iter([value(number) for number in range(count, count + more)])  # made before the clock starts
    return lambda: put_one(*next(values))
