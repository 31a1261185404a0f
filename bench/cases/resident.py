"""get and put beside many entries, under a size limit that is just reached: every put evicts one entry."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

from bench.contestants import JAX, JAX_PLAIN, JAX_UNBOUNDED, fill, key_of, open_contestant, peers, value_of
from bench.measure import Summary, summarize, take_turns
from bench.outcome import OURS, at_least, at_most
from bench.registry import case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from bench.context import Context
    from bench.outcome import Outcome

VALUE_BYTES = 50_000
SMALL_BYTES = 10_000
"""For 100,000 entries: 1 GB rather than 5."""


@case("put", title="put with a size limit, beside N resident entries; every put evicts one", order=10)
def put(context: Context, outcome: Outcome) -> None:
    """JAX's put reads the time stamp of every entry; ours must not care how many there are."""
    for count, (rounds, ours, theirs) in context.pick(
        {100: (12, 25, 5), 1_000: (12, 25, 2), 10_000: (10, 30, 1)}, {100: (3, 10, 2), 1_000: (3, 10, 1)}
    ).items():
        names = [OURS, *peers(), JAX_UNBOUNDED]
        with context.directory() as directory:
            places = _filled(context, directory, names, count, VALUE_BYTES)
            context.say(f"put beside {count:,}")
            calls = {}
            first = count
            for name in names:
                repeats = ours if name == OURS else theirs
                calls[name] = (
                    _putter(name, places[name], count, VALUE_BYTES, range(first, first + repeats * rounds)),
                    repeats,
                )
                first += repeats * rounds
            found = _summaries(take_turns(calls, rounds=rounds, between=os.sync))
        outcome.line(f"put 50 kB, {count:,} resident", found)
        for peer in names[1:]:
            bar = at_least(300) if count == 10_000 and peer != JAX_UNBOUNDED else None
            outcome.ratio(f"put at {count:,}: {peer} ÷ {OURS}", found[peer].median / found[OURS].median, bar)
    outcome.note(
        f"{JAX_UNBOUNDED} looks at no other entry and evicts nothing, whatever is resident; it is what no limit costs."
    )
    outcome.note(
        "The file system is synchronised before every round: evicted are entries that have reached the disk, as those "
        "that are evicted in life have, and nothing waits behind the writes that filled the store."
    )
    if not context.quick:
        _put_beside_100000(context, outcome)


def _put_beside_100000(context: Context, outcome: Outcome) -> None:
    small, large = 100, 100_000
    rounds, repeats = 24, 25
    with context.directory() as directory:
        calls = {}
        for count in (small, large):
            place = _filled(context, directory, [OURS], count, SMALL_BYTES)[OURS]
            numbers = range(count, count + rounds * repeats)
            name = f"put {SMALL_BYTES // 1000} kB, {count:,} resident"
            calls[name] = _putter(OURS, place, count, SMALL_BYTES, numbers), repeats
        context.say(f"put beside {large:,}")
        taken = _summaries(take_turns(calls, rounds=rounds, between=os.sync))
    for what, summary in taken.items():
        outcome.line(what, {OURS: summary})
    at_small, at_large = (summary.median for summary in taken.values())
    outcome.ratio(f"put at {large:,} ÷ at {small:,}, {OURS}", at_large / at_small, at_most(1.5))
    outcome.note("Both sides of the ratio for 100,000 entries have values of 10 kB: 1 GB, where 50 kB would make 5.")


def _filled(context: Context, directory: Path, names: Iterable[str], count: int, size: int) -> dict[str, Path]:
    """Directories that hold `count` entries; JAX's cache in its two forms, one format, shares one."""
    places: dict[str, Path] = {}
    for name in names:
        if name == JAX_PLAIN and JAX in places:
            places[name] = places[JAX]
            continue
        places[name] = directory / f"{name}-{count}-{size}"
        fill(
            name,
            places[name],
            count=0 if name == JAX_UNBOUNDED else count,
            size=size,
            step=lambda number, name=name: context.say(f"filling {name}: {number:,} of {count:,}"),  # type: ignore[misc]
        )
    return places


def _putter(name: str, place: Path, count: int, size: int, numbers: range) -> Callable[[], object]:
    store = open_contestant(name, place, max_size=count * size)
    # Made before the clock starts.
    values = iter([(key_of(number), value_of(number, size)) for number in numbers])
    return lambda: store.put(*next(values))


@case("get", title="get with a size limit, beside N resident entries", order=20)
def get(context: Context, outcome: Outcome) -> None:
    """A get notes that the entry was used, in ours and in JAX's with a limit; without a limit JAX's does not."""
    counts = context.pick([100, 1_000, 10_000], [100, 1_000])
    for count in counts:
        names = [OURS, *peers()]
        with context.directory() as directory:
            places = _filled(context, directory, names, count, VALUE_BYTES)
            places[JAX_UNBOUNDED] = places[JAX]
            os.sync()
            context.say(f"get beside {count:,}")
            calls = {name: (_getter(name, places[name], count), 5) for name in (*names, JAX_UNBOUNDED)}
            found = _summaries(take_turns(calls, rounds=context.pick(100, 10)))
        outcome.line(f"get 50 kB, {count:,} resident", found)
        for peer in (*names[1:], JAX_UNBOUNDED):
            outcome.ratio(f"get at {count:,}: {peer} ÷ {OURS}", found[peer].median / found[OURS].median)
    outcome.note(f"{JAX_UNBOUNDED} keeps no record of use and takes no lock.")


def _getter(name: str, place: Path, count: int) -> Callable[[], object]:
    store = open_contestant(name, place, max_size=count * VALUE_BYTES)
    chosen = random.Random(0)

    def get_one() -> object:
        data = store.get(key_of(chosen.randrange(count)))
        if data is None:
            raise AssertionError(f"{name} lost an entry")
        return data

    return get_one


def _summaries(samples: dict[str, list[float]]) -> dict[str, Summary]:
    return {name: summarize(taken) for name, taken in samples.items()}
