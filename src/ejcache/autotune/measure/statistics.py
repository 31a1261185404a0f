"""Decides which candidate wins, from samples that were taken in turns.

Candidates are timed in turns, so that other load on the machine affects all of them alike, and two candidates are
compared round by round. The comparison is Wilcoxon's signed-rank test of the logarithms of the ratios. It assumes that
noise is as likely to slow one of the two as the other, and no other shape of it (Lehmann, Nonparametrics, 2006, 3.2).
"""

from __future__ import annotations

import itertools
import math
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Final

from ejcache.autotune.records.record import Timing

if TYPE_CHECKING:
    from collections.abc import Sequence


_LEVEL: Final = 0.01
_SUSPICION: Final = 0.1
_EXACT: Final = 25
"""Up to so many samples the distribution of the test is counted, and beyond it is nearly normal."""

_COUNTED: Final = 200
_OBVIOUS: Final = 1.5
_OBVIOUS_ROUNDS: Final = 4
_SLOW: Final = 1.3
"""A run is slow if it takes so many times the median of its candidate's samples."""


class GainVerdict(Enum):
    """The result of comparing a candidate with the default."""

    BETTER = "better"
    NOT_BETTER = "not better"
    OPEN = "open"


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two middle values."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def quantile(values: Sequence[float], fraction: float) -> float:
    """The value below which `fraction` of the values lie, interpolated."""
    ordered = sorted(values)
    place = fraction * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def timing(samples: Sequence[float]) -> Timing:
    """The quantiles for a record."""
    return Timing(quantile(samples, 0.2), median(samples), quantile(samples, 0.8), len(samples))


def gains(candidate: Sequence[float], reference: Sequence[float]) -> list[float]:
    """For each round that both have, the share of the reference's time that the candidate saves."""
    return [1.0 - ours / theirs for ours, theirs in zip(candidate, reference, strict=False)]


def verdict(saved: Sequence[float], *, min_gain: float) -> GainVerdict:
    """Whether the gains are large enough to replace the default.

    A candidate is better if the estimate of its gain reaches the minimum, and the one-sided 99 % confidence interval
    lies above half of it. It is not better if the interval lies below the minimum.

    Args:
        saved: the result of `gains`.
        min_gain: a share of the default's time, such as 0.03.
    """
    ratios = [-math.log(max(1.0 - gain, 1e-12)) for gain in saved]
    whole, half = -math.log(1.0 - min_gain), -math.log(1.0 - min_gain / 2)
    if _chance([ratio - half for ratio in ratios]) < _LEVEL and _chance([ratio - whole for ratio in ratios]) < 0.5:
        return GainVerdict.BETTER
    if _chance([whole - ratio for ratio in ratios]) < _LEVEL:
        return GainVerdict.NOT_BETTER
    return GainVerdict.OPEN


def compare(
    candidate: Sequence[float],
    reference: Sequence[float],
    *,
    runs: tuple[Sequence[float], Sequence[float]],
    min_gain: float,
) -> GainVerdict:
    """`verdict`, which also counts slow runs: a candidate that is slow more often is judged by the mean of all runs.

    Args:
        candidate: one sample for each round, the best of the round's runs.
        reference: the same of the default.
        runs: all runs of the candidate and of the default.
        min_gain: a share of the default's time.
    """
    if min(len(candidate), len(reference)) >= _OBVIOUS_ROUNDS:
        if max(runs[0]) * _OBVIOUS < min(runs[1]):
            return GainVerdict.BETTER
        if min(candidate) > _OBVIOUS * max(reference):
            return GainVerdict.NOT_BETTER
    found = verdict(gains(candidate, reference), min_gain=min_gain)
    if found is not GainVerdict.NOT_BETTER and slow_more_often(*runs):
        return _verdict_of_means(*runs, min_gain=min_gain)
    if found is GainVerdict.BETTER and slow_more_often(*runs, level=_SUSPICION) and mean_gain(*runs) < 0:
        # More runs will tell whether this is chance.
        return GainVerdict.OPEN
    return found


def slow_more_often(ours: Sequence[float], theirs: Sequence[float], *, level: float = _LEVEL) -> bool:
    """Whether one candidate has significantly more slow runs than the other."""
    # Their own medians: a candidate is not slow because the other one is faster.
    slow = [sum(run > _SLOW * median(runs) for run in runs) for runs in (ours, theirs)]
    return slow[0] > slow[1] and _tail(sum(slow), slow[0], len(ours) / (len(ours) + len(theirs))) < level


def mean_gain(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The share of the mean time that is saved."""
    return 1.0 - (sum(ours) / len(ours)) / (sum(theirs) / len(theirs))


def faster(one: Sequence[float], other: Sequence[float], *, by: float = 0.0) -> float:
    """The chance of seeing these samples, one for each round, if `one` is not faster than `other` by this share."""
    margin = -math.log(1.0 - by)
    return _chance([math.log(theirs / ours) - margin for ours, theirs in zip(one, other, strict=False)])


def hopeless(samples: Sequence[float], best: Sequence[float]) -> bool:
    """Whether a candidate is so much slower than the best one that it need not be timed further."""
    return quantile(samples, 0.2) > 1.3 * quantile(best, 0.8)


@cache
def fewest_rounds() -> int:
    """The smallest number of rounds that can give a verdict, unless it is obvious."""
    return next(count for count in itertools.count(1) if 0.5**count < _LEVEL)


def _chance(differences: Sequence[float]) -> float:
    """The chance that the differences are this large, if they are as likely to be positive as negative."""
    count = len(differences)
    order = sorted(range(count), key=lambda index: abs(differences[index]))
    ranks = sum(rank for rank, index in enumerate(order, 1) if differences[index] > 0)
    if count <= _EXACT:
        return _rank_sums(count)[ranks]
    mean, deviation = count * (count + 1) / 4, math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    return _beyond((ranks - 0.5 - mean) / deviation)


@cache
def _rank_sums(count: int) -> list[float]:
    """For each sum of ranks, the chance of at least this sum."""
    ways = [1]
    for rank in range(1, count + 1):
        ways = [
            (ways[total] if total < len(ways) else 0) + (ways[total - rank] if total >= rank else 0)
            for total in range(len(ways) + rank)
        ]
    return [chance / 2**count for chance in itertools.accumulate(reversed(ways))][::-1]


def _tail(count: int, least: int, share: float) -> float:
    """The chance of at least `least` of `count` events, each of this chance."""
    if count > _COUNTED:
        return _beyond((least - 0.5 - count * share) / math.sqrt(count * share * (1 - share)))
    return sum(math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(least, count + 1))


def _beyond(deviations: float) -> float:
    """The chance that a normal variable is so many standard deviations above its mean."""
    return 0.5 * math.erfc(deviations / math.sqrt(2))


def _verdict_of_means(ours: Sequence[float], theirs: Sequence[float], *, min_gain: float) -> GainVerdict:
    mean = sum(theirs) / len(theirs)
    error = math.sqrt(_variance(ours) / len(ours) + _variance(theirs) / len(theirs)) or 1e-12
    saved = mean_gain(ours, theirs)
    if saved >= min_gain and _beyond((saved - min_gain / 2) * mean / error) < _LEVEL:
        return GainVerdict.BETTER
    return GainVerdict.NOT_BETTER if _beyond((min_gain - saved) * mean / error) < _LEVEL else GainVerdict.OPEN


def _variance(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)
