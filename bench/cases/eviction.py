"""The order of eviction by cost: what it saves of compiling, and what a put takes in it."""

from __future__ import annotations

import os
import random
import statistics
import time
from typing import TYPE_CHECKING, Final

from bench.contestants import key_of
from bench.context import support
from bench.measure import paired_ratio, summarize, take_turns
from bench.outcome import at_least, at_most
from bench.registry import case

if TYPE_CHECKING:
    from pathlib import Path

    from bench.context import Context
    from bench.outcome import Outcome
    from ejcache.stores.local.store import LocalStore

_BY_USE, _BY_COST = "by last use", "by cost"
_BARS: Final = {("loop", 1.1): 90, ("loop", 0.3): 70, ("team", 1.1): 85, ("team", 0.3): 78}
"""Per cent, by the trace and the spread of the seconds for each byte."""
_BYTES: Final = 20_000
"""Of an entry."""


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
    rounds, repeats = context.pick((40, 50), (5, 10))
    for count in context.pick([10_000, 100_000], [1_000]):
        putters = {}
        with context.directory() as directory:
            for order in (_BY_USE, _BY_COST):
                context.say(f"filling {count:,} of {_BYTES // 1000} kB, {order}")
                place = directory / order.replace(" ", "-")
                putters[order] = _Putter(place, order, count=count, size=_BYTES, more=rounds * repeats)
            context.say(f"put beside {count:,}")
            calls = {order: (putter, repeats) for order, putter in putters.items()}
            found = take_turns(calls, rounds=rounds, between=os.sync)
        outcome.line(
            f"put {_BYTES // 1000} kB, {count:,} resident", {o: summarize(taken) for o, taken in found.items()}
        )
        processor = {order: putter.processor for order, putter in putters.items()}
        for what, samples in (("", found), (", processor time", processor)):
            means = [_means(samples[order], repeats) for order in (_BY_COST, _BY_USE)]
            value, interval = paired_ratio(list(zip(*means, strict=True)))
            name = f"put at {count:,}{what}: {_BY_COST} ÷ {_BY_USE}"
            outcome.ratio(name, value, at_most(1.2), interval=interval)
    outcome.note(f"Compared are the means of {repeats} puts.")


def _store(place: Path, limit: int, order: str) -> LocalStore:
    from ejcache.stores.local.store import LocalStore
    from ejcache.stores.worth import worth

    return LocalStore(place, max_size=limit, worth=worth if order == _BY_COST else None)


class _Putter:
    """Puts one more entry into a full store at each call.

    Attributes:
        processor: seconds of processor time, by call.
    """

    def __init__(self, place: Path, order: str, *, count: int, size: int, more: int) -> None:
        traces, chance = support("eviction_traces"), random.Random(0)
        self.processor: list[float] = []
        self._store = _store(place, count * size, order)

        def value(number: int) -> tuple[str, bytes]:
            key, seconds = key_of(number), chance.lognormvariate(0, 1)
            return key, traces.encoded(key, seconds=seconds, size=size)

        for number in range(count):
            self._store.put(*value(number))
        self._values = iter([value(number) for number in range(count, count + more)])  # made before the clock starts

    def __call__(self) -> None:
        key, data = next(self._values)
        began = time.thread_time()
        self._store.put(key, data)
        self.processor.append(time.thread_time() - began)


def _means(samples: list[float], number: int) -> list[float]:
    """The mean of each `number` samples."""
    return [statistics.fmean(samples[start : start + number]) for start in range(0, len(samples), number)]
