"""Which candidate wins: pure statistics over interleaved samples.

Candidates are timed in turns, so that whatever else the machine does hits all of them alike, and compared round by
round with the default. A candidate wins if the median of its gains is at least the minimum and the whole one-sided
confidence interval of that median is, too: the order statistic below which the median lies in one case of a hundred. It
assumes nothing about the shape of the noise (David and Nagaraja, Order Statistics, 3rd ed., 7.1).
"""

from __future__ import annotations

import itertools
import math
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Final

from ejcache.autotune.records import Timing

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Verdict", "fewest_rounds", "gains", "hopeless", "median", "timing", "verdict"]

_LEVEL: Final = 0.01


class Verdict(Enum):
    """What the samples say so far."""

    BETTER = "better"
    NOT_BETTER = "not better"
    OPEN = "open"


def median(values: Sequence[float]) -> float:
    """The middle one, or the mean of the two in the middle."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def quantile(values: Sequence[float], fraction: float) -> float:
    """The value below which `fraction` of the others are, interpolated."""
    ordered = sorted(values)
    place = fraction * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def timing(samples: Sequence[float]) -> Timing:
    """The quantiles that a record keeps."""
    return Timing(quantile(samples, 0.2), median(samples), quantile(samples, 0.8), len(samples))


def gains(candidate: Sequence[float], reference: Sequence[float]) -> list[float]:
    """Round by round, the share of the reference's time that the candidate saves; rounds that only one has are left."""
    return [1.0 - ours / theirs for ours, theirs in zip(candidate, reference, strict=False)]


@cache
def _order(count: int) -> int | None:
    """The largest k such that the median is below the k-th smallest of `count` samples in one case of a hundred."""
    total, k = 0.0, None
    for below in range(count):
        total += math.comb(count, below) * 0.5**count
        if total > _LEVEL:
            break
        k = below
    return k


@cache
def fewest_rounds() -> int:
    """The rounds that a verdict takes at least, however clear the case."""
    return next(count for count in itertools.count(1) if _order(count) is not None)


def verdict(saved: Sequence[float], *, min_gain: float) -> Verdict:
    """Whether the gains are enough to replace the default.

    Args:
        saved: what `gains` gave.
        min_gain: a share of the default's time, such as 0.03.
    """
    k = _order(len(saved))
    if k is None:
        return Verdict.OPEN
    ordered = sorted(saved)
    if ordered[k] >= min_gain:
        return Verdict.BETTER
    return Verdict.NOT_BETTER if ordered[-1 - k] < min_gain else Verdict.OPEN


def hopeless(samples: Sequence[float], best: Sequence[float]) -> bool:
    """Whether a candidate is so much slower than the best one that timing it further is a waste."""
    return quantile(samples, 0.2) > 1.3 * quantile(best, 0.8)
