"""Samples and what is said of them, timed calls, and the comparison of contestants that take turns."""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

__all__ = ["Summary", "interval_of_median", "paired_ratio", "quiet_collector", "summarize", "take_turns", "timed"]


@dataclass(frozen=True, slots=True)
class Summary:
    """What is said of the samples of one contestant.

    Attributes:
        count: how many samples.
        median: in `unit`, as all that follow.
        p95: the sample that 95 % of them do not exceed.
        worst: the largest, or the smallest where more is better.
        best: the smallest, or the largest where more is better.
        unit: "s", "B" or "op/s".
    """

    count: int
    median: float
    p95: float
    worst: float
    best: float
    unit: str = "s"


def summarize(samples: Iterable[float], *, unit: str = "s") -> Summary:
    """The samples' summary; rates ("op/s") are worse when lower, so their 95th percentile counts from the top.

    Raises:
        ValueError: there are no samples.
    """
    ordered = sorted(samples, reverse=unit == "op/s")
    if not ordered:
        raise ValueError("nothing was measured")
    rank = math.ceil(0.95 * len(ordered)) - 1
    return Summary(len(ordered), statistics.median(ordered), ordered[rank], ordered[-1], ordered[0], unit)


def paired_ratio(*pairs: Iterable[tuple[float, float]]) -> tuple[float, tuple[float, float]]:
    """The median of what the first divided by the second is in a round, and its interval of 95 %, by a bootstrap.

    Args:
        pairs: by round, the time of the first contestant and of the second. Given several such series, of several
            programs, the answer is the geometric mean of their medians.
    """
    logarithms = [[math.log(first / second) for first, second in series] for series in pairs]

    def mean(series: Iterable[list[float]]) -> float:
        return math.exp(statistics.fmean(statistics.median(one) for one in series))

    chosen = random.Random(0)
    drawn = sorted(mean([chosen.choices(one, k=len(one)) for one in logarithms]) for _ in range(2000))
    return mean(logarithms), (drawn[50], drawn[-51])


def interval_of_median(samples: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """The median, and its interval of 95 %, by a bootstrap."""
    chosen = random.Random(0)
    drawn = sorted(statistics.median(chosen.choices(samples, k=len(samples))) for _ in range(2000))
    return statistics.median(samples), (drawn[50], drawn[-51])


def timed(call: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def take_turns(
    calls: Mapping[str, tuple[Callable[[], object], int]],
    *,
    rounds: int,
    between: Callable[[], object] = gc.collect,
) -> dict[str, list[float]]:
    """Time every contestant in every round, so that what else the machine does meets all of them.

    Args:
        calls: by contestant, the call and how often it is made in a round; each call is a sample.
        rounds: every second one goes through the contestants backwards.
        between: called before every round.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    with quiet_collector():
        for number in range(rounds):
            between()
            for name in names if number % 2 == 0 else reversed(names):
                call, repeats = calls[name]
                samples[name].extend(timed(call) for _ in range(repeats))
    return samples


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Keep the garbage collector from running inside somebody's sample."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
