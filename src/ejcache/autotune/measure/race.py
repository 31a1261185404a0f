"""Times candidates in turns until it is clear which one wins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ejcache.autotune.measure.bench import HOPELESS
from ejcache.autotune.measure.results import (
    GainVerdict,
    compare,
    faster,
    fewest_rounds,
    gains,
    hopeless,
    mean_gain,
    median,
    slow_more_often,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ejcache.autotune.measure.bench import Bench
    from ejcache.autotune.measure.trial import Trial


_LOOKS: Final = (4, 8, 12, 18, 27, 40, 60, 90, 135, 200)
"""Rounds after which the samples are judged, so that a clear case ends early."""

_LEVEL: Final = 0.01
_EQUAL: Final = 0.005
"""Candidates whose times differ by less than this share are equally good."""

_MANY: Final = 8
_FAR: Final = 1.1
"""Of many candidates, those whose best sample exceeds the leader's by this factor are dropped at the first look."""

_CLEAR_GAIN: Final = 0.1


class Race:
    """One race.

    Args:
        bench: runs the candidates.
        trials: the candidates, warmed up.
        reference: the default; None if there is none, or if it does not work.

    Attributes:
        rounds: how many were finished.
        better: the candidates that beat the reference, best first.
        unsure: why the result may be wrong; empty if it is sure.
    """

    def __init__(self, bench: Bench, trials: Sequence[Trial], reference: Trial | None) -> None:
        self.bench = bench
        self.reference = reference if reference is not None and reference.ready else None
        best = min((min(trial.warm) for trial in trials if trial.ready), default=0.0)
        self.alive = [
            trial for trial in trials if trial.ready and (trial is self.reference or min(trial.warm) <= HOPELESS * best)
        ]
        self._fastest = best
        self.rounds = 0
        self.better: list[Trial] = []
        self.unsure = ""

    def run(self) -> None:
        """Add samples until a candidate beats the reference, none can, or time or rounds run out."""
        rounds = self.bench.tuner.rounds
        for look in [*(n for n in _LOOKS if n < rounds), rounds]:
            while self.rounds < look:
                if not self._round():
                    self._end_early()
                    return
            if self._decided():
                return
        self._end_open()

    @property
    def rivals(self) -> list[Trial]:
        """The candidates that are still in the race, other than the reference."""
        return [trial for trial in self.alive if trial is not self.reference]

    def gain(self, trial: Trial) -> float:
        """The share of the reference's time that a candidate saves."""
        reference = self.reference
        if reference is None or not (trial.samples and reference.samples):
            return 0.0
        if slow_more_often(trial.runs, reference.runs):
            return mean_gain(trial.runs, reference.runs)
        return median(gains(trial.samples, reference.samples))

    def _round(self) -> bool:
        """Time each candidate once; False if there is no time for that."""
        self.bench.progress.step("round", self.rounds + 1, self.bench.tuner.rounds)
        self.bench.order.shuffle(self.alive)
        for trial in list(self.alive):
            if self.bench.ended:
                return False
            self.bench.sample(trial, like=self._fastest)
            if not trial.ready:
                self.alive.remove(trial)
                if trial is self.reference:
                    self.reference = None
        self.rounds += 1
        return bool(self.alive)

    def _verdict(self, trial: Trial) -> GainVerdict:
        reference = self.reference
        if reference is None:
            return GainVerdict.BETTER
        return compare(
            trial.samples,
            reference.samples,
            runs=(trial.runs, reference.runs),
            min_gain=self.bench.tuner.min_gain,
        )

    def _decided(self) -> bool:
        verdicts = {id(trial): self._verdict(trial) for trial in self.rivals}
        self._drop([trial for trial in self.rivals if verdicts[id(trial)] is GainVerdict.NOT_BETTER])
        rivals = self.rivals
        if not rivals:
            return True
        leader = _leader(rivals)
        self.bench.progress.best(leader.stored, median(leader.samples))
        self._drop([trial for trial in rivals if trial is not leader and self._beaten(trial, leader, len(rivals))])
        better = verdicts[id(leader)] is GainVerdict.BETTER
        if self.reference is None and self.rounds < fewest_rounds():
            return False
        if better and all(trial is leader or _equal(trial, leader) for trial in self.rivals):
            winners = [trial for trial in self.rivals if verdicts[id(trial)] is GainVerdict.BETTER]
            self.better = _least_memory_first(_best_first(winners))
            return True
        return False

    def _beaten(self, trial: Trial, leader: Trial, rivals: int) -> bool:
        if self.rounds >= fewest_rounds() and _is_faster(leader, trial):
            return True
        if rivals > _MANY and min(trial.samples) > _FAR * min(leader.samples):
            return True
        return hopeless(trial.samples, leader.samples)

    def _drop(self, trials: Sequence[Trial]) -> None:
        self.alive = [trial for trial in self.alive if not any(trial is dropped for dropped in trials)]

    def _end_open(self) -> None:
        """All rounds are over."""
        rivals = self.rivals
        winners = [trial for trial in rivals if self._verdict(trial) is GainVerdict.BETTER]
        self.better = _least_memory_first(_best_first(winners))
        if rivals and not self.better and self.reference is not None:
            share = 100 * self.bench.tuner.min_gain
            self.unsure = f"after {self.rounds} rounds it is open whether a candidate saves {share:g} %"

    def _end_early(self) -> None:
        """Time is over. A candidate that was far faster in each of the few runs wins, although that is not sure."""
        reason = self.bench.ended
        if not reason:
            return
        rivals = [trial for trial in self.rivals if trial.samples]
        self.unsure = f"{reason} after {self.rounds} rounds"
        if self.reference is None:
            self.better = _best_first(rivals)
            return
        far = [trial for trial in rivals if self.reference.runs and _far_faster(trial, self.reference)]
        self.better = _best_first([t for t in rivals if t in far or self._verdict(t) is GainVerdict.BETTER])


def _far_faster(trial: Trial, reference: Trial) -> bool:
    return len(trial.runs) > 1 and max(trial.runs) < (1 - _CLEAR_GAIN) * min(reference.runs)


def _best_first(trials: Sequence[Trial]) -> list[Trial]:
    if not trials:
        return []
    leader = _leader(trials)
    return [leader, *_best_first([trial for trial in trials if trial is not leader])]


def _least_memory_first(trials: list[Trial]) -> list[Trial]:
    """The candidates, with the one first that needs the least memory of those that are as fast as the first one."""
    alike = [
        trial
        for trial in trials
        if trial is trials[0] or (_equal(trials[0], trial) and not slow_more_often(trial.runs, trials[0].runs))
    ]
    if any(trial.memory_bytes is None for trial in alike):
        return trials
    thrifty = min(alike, key=lambda trial: trial.memory_bytes or 0, default=None)
    return sorted(trials, key=lambda trial: trial is not thrifty)


def _leader(trials: Sequence[Trial]) -> Trial:
    """The fastest candidate, by comparing rounds."""
    leader, *others = sorted(trials, key=lambda trial: median(trial.samples))
    for trial in others:
        if _prefers(trial, leader):
            leader = trial
    return leader


def _prefers(one: Trial, other: Trial) -> bool:
    if slow_more_often(one.runs, other.runs) or slow_more_often(other.runs, one.runs):
        return mean_gain(one.runs, other.runs) > 0
    return faster(one.samples, other.samples) < 1 - faster(one.samples, other.samples)


def _is_faster(one: Trial, other: Trial) -> bool:
    """Whether this is significant."""
    if slow_more_often(one.runs, other.runs):
        return False
    return faster(one.samples, other.samples) < _LEVEL


def _equal(trial: Trial, leader: Trial) -> bool:
    """Whether the candidate is surely not faster than the leader by more than a share that does not matter."""
    return faster(leader.samples, trial.samples, by=-_EQUAL) < _LEVEL
