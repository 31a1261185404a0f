"""Times candidates in turns until it is clear enough which one wins.

Candidates are timed in turns, so that other load on the machine affects all of them alike, and two candidates are
compared round by round. The comparison is Wilcoxon's signed-rank test of the logarithms of the ratios. It assumes that
noise is as likely to slow one of the two as the other, and no other shape of it (Lehmann, Nonparametrics, 2006, 3.2).

A race ends when the winner is surely within two per cent of the best candidate, or when it has taken as long as twenty
runs of each candidate. Only while the noise of a busy machine may hide a candidate that saves much, it goes on.
"""

from __future__ import annotations

import itertools
import math
from enum import Enum
from functools import cache
from statistics import median
from typing import TYPE_CHECKING, Final

from ejcache.autotune.records.record import quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ejcache.autotune.measure.trial import Trial
    from ejcache.autotune.measure.tuning_run import TuningRun


_LEVEL: Final = 0.01
_DROPPED: Final = 0.03
"""The chance that a candidate which saves enough is dropped. The default stays then, so this may be larger."""

_LAST_DROPPED: Final = 0.25
"""The same when the race is over and the candidate does not seem to save half of that."""

_EXACT: Final = 25
"""Up to so many samples the distribution of the test is counted, and beyond it is nearly normal."""

_OBVIOUS: Final = 1.5
_OBVIOUS_ROUNDS: Final = 4

_LOOKS: Final = (2, 4, 8, 11, 14, 20, 30, 44, 66, 100, 150, 200)
"""Rounds after which the samples are judged, so that a clear case ends early."""

_QUIET: Final = 8
"""So many rounds decide a clear case on a quiet machine with one run of each candidate. In later ones it has two."""

_EQUAL: Final = 0.02
"""A winner may be slower than the best candidate by this share."""

_RUNS: Final = 20
"""A race takes as long as so many runs of each candidate."""

_MOST_RUNS: Final = 80
"""On a busy machine it takes up to so many, while a candidate may save twice what a winner must."""

_HOPELESS: Final = 2.0
_HOPELESS_RUNS: Final = 4
"""A candidate is dropped whose so many runs all took so many times the best one's fastest run."""

_FAR_BEHIND: Final = 4.0
"""The same for the runs of the warm-up alone."""

_CLEAR_GAIN: Final = 0.1


class GainDecision(Enum):
    """The result of comparing a candidate with the default."""

    BETTER = "better"
    NOT_BETTER = "not better"
    OPEN = "open"


def gains(candidate: Sequence[float], reference: Sequence[float]) -> list[float]:
    """Return for each round that both have the share of the reference's time that the candidate saves."""
    return [1.0 - ours / theirs for ours, theirs in zip(candidate, reference, strict=False)]


def decide(saved: Sequence[float], *, min_gain: float) -> GainDecision:
    """Say whether the gains are large enough to replace the default.

    A candidate is better if the estimate of its gain reaches the minimum, and the one-sided 99 % confidence interval
    lies above half of it. It is not better if the 97 % interval lies below the minimum.

    Args:
        saved: the result of `gains`.
        min_gain: a share of the default's time, such as 0.03.
    """
    ratios = [-math.log(max(1.0 - gain, 1e-12)) for gain in saved]
    whole, half = -math.log(1.0 - min_gain), -math.log(1.0 - min_gain / 2)
    if _chance([ratio - half for ratio in ratios]) < _LEVEL and _chance([ratio - whole for ratio in ratios]) < 0.5:
        return GainDecision.BETTER
    if _chance([whole - ratio for ratio in ratios]) < _DROPPED:
        return GainDecision.NOT_BETTER
    return GainDecision.OPEN


def saves_little(saved: Sequence[float], *, min_gain: float) -> bool:
    """True if the gains of all rounds say that a candidate probably saves less than half of the minimum."""
    ratios = [-math.log(max(1.0 - gain, 1e-12)) for gain in saved]
    whole, half = -math.log(1.0 - min_gain), -math.log(1.0 - min_gain / 2)
    little = _chance([half - ratio for ratio in ratios]) < 0.5
    return little and _chance([whole - ratio for ratio in ratios]) < _LAST_DROPPED


def faster(one: Sequence[float], other: Sequence[float], *, by: float = 0.0) -> float:
    """Compute the chance of these samples, one for each round, if `one` is not faster than `other` by this share."""
    margin = -math.log(1.0 - by)
    return _chance([math.log(theirs / ours) - margin for ours, theirs in zip(one, other, strict=False)])


def hopeless(samples: Sequence[float], best: Sequence[float]) -> bool:
    """True if a candidate is so much slower than the best one that it need not be timed further."""
    return quantile(samples, 0.2) > 1.3 * quantile(best, 0.8)


_FEWEST_ROUNDS: Final = next(count for count in itertools.count(1) if 0.5**count < _LEVEL)
"""The smallest number of rounds that can give a decision, unless it is obvious."""


def _chance(differences: Sequence[float]) -> float:
    """Return the chance that the differences are this large, if they are as likely to be positive as negative."""
    count = len(differences)
    order = sorted(range(count), key=lambda index: abs(differences[index]))
    ranks = sum(rank for rank, index in enumerate(order, 1) if differences[index] > 0)
    if count <= _EXACT:
        return _rank_sums(count)[ranks]
    mean, deviation = count * (count + 1) / 4, math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    return 0.5 * math.erfc((ranks - 0.5 - mean) / deviation / math.sqrt(2))


@cache
def _rank_sums(count: int) -> list[float]:
    """Return for each sum of ranks the chance of at least this sum."""
    ways = [1]
    for rank in range(1, count + 1):
        ways = [
            (ways[total] if total < len(ways) else 0) + (ways[total - rank] if total >= rank else 0)
            for total in range(len(ways) + rank)
        ]
    return [chance / 2**count for chance in itertools.accumulate(reversed(ways))][::-1]


class Race:
    """One race.

    Args:
        tuning: runs the candidates.
        trials: the candidates, warmed up.
        reference: the default; None if there is none, or if it does not work.

    Attributes:
        rounds: how many were finished.
        better: the candidates that beat the reference, best first.
        unsure: why the result may be wrong; empty if it is sure.
    """

    def __init__(self, tuning: TuningRun, trials: Sequence[Trial], reference: Trial | None) -> None:
        self.tuning = tuning
        self.reference = reference if reference is not None and reference.ready else None
        self._fastest = best = min((min(trial.warm) for trial in trials if trial.ready), default=0.0)
        self.alive = [
            trial
            for trial in trials
            if trial.ready and (trial is self.reference or min(trial.warm) <= _FAR_BEHIND * best)
        ]
        self._all = tuple(self.alive)
        self.rounds = 0
        self.better: list[Trial] = []
        self.unsure = ""

    def run(self) -> None:
        """Add samples until a candidate beats the reference, none can, or time or rounds run out."""
        rounds = self.tuning.tuner.rounds
        for look in [*(n for n in _LOOKS if n < rounds), rounds]:
            while self.rounds < look:
                if not self._round():
                    self._end_early()
                    return
            if self._decided():
                return
            if self._runs() >= _RUNS and not self._may_go_on():
                break
        self._end_open()

    @property
    def rivals(self) -> list[Trial]:
        """The candidates that are still in the race, other than the reference."""
        return [trial for trial in self.alive if trial is not self.reference]

    def gain(self, trial: Trial) -> float:
        """Return the share of the reference's time that a candidate saves."""
        reference = self.reference
        if reference is None or not (trial.samples and reference.samples):
            return 0.0
        return median(gains(trial.samples, reference.samples))

    def _round(self) -> bool:
        """Time each candidate once; False if there is no time for that."""
        self.tuning.progress.step("round", self.rounds + 1, self.tuning.tuner.rounds)
        self.tuning.order.shuffle(self.alive)
        for trial in list(self.alive):
            if self.tuning.ended:
                return False
            self.tuning.sample(trial, like=self._fastest, twice=self.rounds >= _QUIET)
            if not trial.ready:
                self.alive.remove(trial)
                if trial is self.reference:
                    self.reference = None
        self.rounds += 1
        return bool(self.alive)

    def _runs(self) -> float:
        """Return the time of the race, in runs of each candidate. Other load on the machine does not count."""
        fastest = [min(trial.warm + trial.runs) for trial in self._all]
        taken = sum(len(trial.runs) * seconds for trial, seconds in zip(self._all, fastest, strict=True))
        return taken / sum(fastest)

    def _may_go_on(self) -> bool:
        """True if nobody has won yet and a candidate may save much: one that saves little is not worth more runs."""
        reference = self.reference
        if reference is None or self._runs() >= _MOST_RUNS:
            return False
        if all(self._decision(trial) is GainDecision.BETTER for trial in self.rivals):
            return False
        much = 2 * self.tuning.tuner.min_gain
        return any(faster(reference.samples, trial.samples, by=-much) >= _DROPPED for trial in self.rivals)

    def _decision(self, trial: Trial) -> GainDecision:
        reference = self.reference
        if reference is None:
            return GainDecision.BETTER
        if self.rounds >= _OBVIOUS_ROUNDS:
            if max(trial.runs) * _OBVIOUS < min(reference.runs):
                return GainDecision.BETTER
            if min(trial.samples) > _OBVIOUS * max(reference.samples):
                return GainDecision.NOT_BETTER
        return decide(gains(trial.samples, reference.samples), min_gain=self.tuning.tuner.min_gain)

    def _decided(self) -> bool:
        best = min(min(trial.warm + trial.runs) for trial in self.alive)
        self._drop([trial for trial in self.rivals if _is_hopeless(trial, best)])
        if self.rounds < _OBVIOUS_ROUNDS:
            return False
        decisions = {id(trial): self._decision(trial) for trial in self.rivals}
        self._drop([trial for trial in self.rivals if decisions[id(trial)] is GainDecision.NOT_BETTER])
        rivals = self.rivals
        if not rivals:
            return True
        leader = _leader(rivals)
        self._drop([trial for trial in rivals if trial is not leader and self._beaten(trial, leader)])
        better = decisions[id(leader)] is GainDecision.BETTER
        if self.reference is None and self.rounds < _FEWEST_ROUNDS:
            return False
        if better and all(trial is leader or _equal(trial, leader) for trial in self.rivals):
            self.better = _best_first([t for t in self.rivals if decisions[id(t)] is GainDecision.BETTER])
            return True
        return False

    def _beaten(self, trial: Trial, leader: Trial) -> bool:
        if self.rounds >= _FEWEST_ROUNDS and faster(leader.samples, trial.samples) < _LEVEL:
            return True
        return hopeless(trial.samples, leader.samples)

    def _drop(self, trials: Sequence[Trial]) -> None:
        self.alive = [trial for trial in self.alive if not any(trial is dropped for dropped in trials)]

    def _end_open(self) -> None:
        """End without a clear result."""
        rivals = self.rivals
        self.better = _best_first([trial for trial in rivals if self._decision(trial) is GainDecision.BETTER])
        reference = self.reference
        if reference is None:
            return
        gain = self.tuning.tuner.min_gain
        rivals = [each for each in rivals if not saves_little(gains(each.samples, reference.samples), min_gain=gain)]
        if rivals and not self.better:
            self.unsure = f"after {self.rounds} rounds it is open whether a candidate saves {100 * gain:g} %"

    def _end_early(self) -> None:
        """Time is over. A candidate that was far faster in each of the few runs wins, although that is not sure."""
        reason = self.tuning.ended
        if not reason:
            return
        rivals = [trial for trial in self.rivals if trial.samples]
        self.unsure = f"{reason} after {self.rounds} rounds"
        if self.reference is None:
            self.better = _best_first(rivals)
            return
        far = [trial for trial in rivals if self.reference.runs and _far_faster(trial, self.reference)]
        self.better = _best_first([t for t in rivals if t in far or self._decision(t) is GainDecision.BETTER])


def _is_hopeless(trial: Trial, best: float) -> bool:
    runs = trial.warm + trial.runs
    return len(runs) >= _HOPELESS_RUNS and min(runs) > _HOPELESS * best


def _far_faster(trial: Trial, reference: Trial) -> bool:
    return len(trial.runs) > 1 and max(trial.runs) < (1 - _CLEAR_GAIN) * min(reference.runs)


def _best_first(trials: Sequence[Trial]) -> list[Trial]:
    if not trials:
        return []
    leader = _leader(trials)
    return [leader, *_best_first([trial for trial in trials if trial is not leader])]


def _leader(trials: Sequence[Trial]) -> Trial:
    """Return the fastest candidate, by comparing rounds."""
    leader, *others = sorted(trials, key=lambda trial: median(trial.samples))
    for trial in others:
        if faster(trial.samples, leader.samples) < 1 - faster(trial.samples, leader.samples):
            leader = trial
    return leader


def _equal(trial: Trial, leader: Trial) -> bool:
    """True if the candidate is surely not faster than the leader by more than a share that does not matter."""
    return faster(leader.samples, trial.samples, by=-_EQUAL) < _LEVEL
