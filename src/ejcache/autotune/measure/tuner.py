"""`Tuner` measures the configurations of a call by running them, and chooses one.

It always times the execution of a compiled executable on concrete inputs, in a thread of its own. If the caller is
being traced, nothing is added to the caller's program.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.key_environment import device_of
from ejcache.autotune.measure.inputs import split_arguments
from ejcache.autotune.measure.output_comparison import check_setting
from ejcache.autotune.measure.provenance import provenance
from ejcache.autotune.measure.race import Race
from ejcache.autotune.measure.search import Search
from ejcache.autotune.measure.space import ListedSpace
from ejcache.autotune.measure.spanning import refuse_spanning
from ejcache.autotune.measure.trial import Trial
from ejcache.autotune.measure.tuning_run import TuningRun
from ejcache.autotune.progress import Progress
from ejcache.autotune.records.json_values import canonical_json, to_json
from ejcache.autotune.records.record import (
    INTERRUPTED,
    NO_CONFIGURATION,
    SPACE,
    WITH_PROFILE,
    Candidate,
    CandidateOrigin,
    Record,
    Source,
    Status,
    fastest_first,
    space_digest,
)
from ejcache.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ejcache.autotune.measure.output_comparison import Check
    from ejcache.autotune.measure.search import Times
    from ejcache.autotune.measure.space import CallSpace
    from ejcache.autotune.records.record_key import RecordKey


TUNER_VERSION: Final = 4
"""Changes with how candidates are measured and compared, so that a record says how much its times are worth."""

_FEW: Final = 8
_MOST: Final = 1_000
"""At most so many configurations of a large space are measured. A search ends before, when it stops to improve."""

_FINALISTS: Final = 6
_COMPARED: Final = 3
"""At most so many candidates that won the race are compared again: the first one that is right is the winner."""


@dataclass(frozen=True)
class Tuner:
    """The settings of a measurement.

    Attributes:
        warmup: executions before the first sample, at least two; one if it takes a twentieth of the budget.
        rounds: the most samples of each candidate; clear cases end earlier.
        sample_seconds: how long the executions of one run take. A sample is one such run or, where few rounds do not
            decide, the shorter of two.
        min_gain: the share of the default's time that a winner must save.
        timeout: seconds for compiling a candidate, and for one sample.
        budget: seconds for running candidates, the warm-up included. The run that exceeds it is the last one, but
            for those that compare the winner's results once more.
        compile_budget: seconds for compiling candidates. Those that compile then are the last ones.
        workers: candidates that compile at the same time.
        gradient: time the function with its gradient.
        seed: of the random inputs and of the order within each round.
        initialisers: how to make inputs, by argument name; see `Inputs.concrete`.
        check: how the results of a candidate are compared with those of the default. True: within the tolerance of
            their data type, which grows if an input is coarser. A number: within this share of their size, integers
            too. "rounded": as True, but few integers may differ by one, as those that come from rounding do. False:
            only trees, shapes, data types and NaN. A function of (the candidate's results, the default's): it returns
            False or raises for a difference.
        check_inputs: a function of the call's arguments and `key=`, a key of `jax.random`, that returns lists of
            arguments of the same shapes, on which candidates are compared as on the caller's own.
        exhaustive: up to so many candidates are all measured. Of more, a search measures as many, or half as many where
            there are records of the operation, and then more until it has stopped to improve, or until a budget ends.
            Their axes are the names that all of them have.
    """

    warmup: int = 2
    rounds: int = 300
    sample_seconds: float = 0.001
    min_gain: float = 0.03
    timeout: float = 120.0
    budget: float = 60.0
    compile_budget: float = 600.0
    workers: int = 4
    gradient: bool = False
    seed: int = 0
    initialisers: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    check: Check = True
    check_inputs: Callable[..., Any] | None = None
    exhaustive: int = 64

    def __post_init__(self) -> None:
        check_setting(self.check)

    def tune(
        self,
        build: Callable[[Any], Callable[..., Any]],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        key: RecordKey,
        candidates: Iterable[Any],
        default: Any = NO_CONFIGURATION,
        known: Record | None = None,
        names: Sequence[str] = (),
        differentiated: bool | None = None,
        starts: Callable[[], Mapping[str, CandidateOrigin]] = dict,
        history: Callable[[], Sequence[tuple[Times, CandidateOrigin]]] = tuple,
        space: CallSpace | None = None,
        keep: Callable[[Record], object] = bool,
    ) -> Record:
        """Measure the candidates and choose one.

        Args:
            build: returns the function to time for a configuration.
            args: of the call; arrays may be tracers or stand-ins.
            kwargs: of the call.
            key: of the record.
            candidates: the configurations.
            default: a winner must beat it. If it is not given or fails, the fastest candidate wins.
            known: an earlier record of the call. Its candidates are not measured again.
            names: of the positional arguments.
            differentiated: the winner's gradient has to be right, too; None to look at the tracers.
            starts: returns configurations, canonical JSON, that many candidates begin with, and why.
            history: returns the times in records of the operation, and the origin of candidates from there.
            space: what the search may measure beside the candidates.
            keep: gets what a search has measured so far, for a process that goes on with it.

        Returns:
            A record with the time or the error of each candidate that was tried; `Record.works` is False if all failed.

        Raises:
            SpansProcessesError: the call runs on devices of other processes.
            UsageError: there are no candidates, or one still runs on the device.
        """
        inputs = split_arguments(args, kwargs, names, differentiated=differentiated)
        refuse_spanning(inputs.leaves, name=key.operation)
        trials = [*_trials(candidates, default), *_measured_before(space, known, default)]
        progress = Progress(key.operation)
        tuning = TuningRun(self, inputs, progress, digest=key.digest, count=len(trials))
        try:
            _recall(trials, known, tuning.journal.crashed)
            likely = starts() if space is not None or len(trials) > _FEW else {}
            _put_first(trials, likely)
            return _Contest(tuning, trials, build, likely, history, space).record(key, known, keep)
        finally:
            progress.close()
            tuning.close()

    def agrees(
        self,
        build: Callable[[Any], Callable[..., Any]],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        default: Any,
        other: Any,
        names: Sequence[str] = (),
        differentiated: bool | None = None,
        operation: str = "",
    ) -> bool:
        """True if a configuration computes for this call what the default computes. Nothing is timed.

        Args:
            build: returns the function for a configuration.
            args: of the call.
            kwargs: of the call.
            default: the operation's own configuration.
            other: the configuration.
            names: of the positional arguments.
            differentiated: its gradient has to be right, too; None to look at the tracers.
            operation: the name, for messages.
        """
        inputs = split_arguments(args, kwargs, names, differentiated=differentiated)
        refuse_spanning(inputs.leaves, name=operation)
        trials = _trials([other], default)
        if len(trials) == 1:
            return True
        progress = Progress(operation)
        tuning = TuningRun(self, inputs, progress, count=len(trials))
        try:
            tuning.compile_and_warm(trials, build, trials[0])
            return trials[1].ready and tuning.still_right(trials[1])
        finally:
            progress.close()
            tuning.close()


def _has_profile(tuning: TuningRun, winner: Trial | None, known: Record | None) -> bool:
    """True if PGLE took a profile of the winner: where the profiler is not available, its trace is empty."""
    if not tuning.pgle or winner is None:
        return False
    from ejcache.jax_integration.seam.autotune.pgle import has_pgle_profile  # JAX itself

    if winner.known is not None:
        return known is not None and known.with_profile
    return has_pgle_profile(winner.jaxpr)


def _trials(candidates: Iterable[Any], default: Any) -> list[Trial]:
    trials: dict[str, Trial] = {}
    listed = list(candidates)
    for configuration in listed if default is NO_CONFIGURATION else [default, *listed]:
        stored = to_json(configuration)
        trials.setdefault(canonical_json(stored), Trial(configuration, stored))
    if not trials:
        raise UsageError("there are no configurations to measure")
    if default is not NO_CONFIGURATION:
        trials[canonical_json(to_json(default))].is_default = True
    return list(trials.values())


def _measured_before(space: CallSpace | None, known: Record | None, default: Any) -> list[Trial]:
    """Return the configurations of a space that an earlier record has, which nobody lists."""
    if space is None or known is None:
        return []
    stored = [item.configuration for item in known.candidates if item.configuration != to_json(default)]
    return [Trial(each, each) for each in stored if space.allows(each)]


def _recall(trials: Sequence[Trial], known: Record | None, crashed: Mapping[str, str]) -> None:
    """Give the trials the results of an earlier record, unless they have expired, and those of the crash journal."""
    now = time.time()
    for trial in trials:
        held = None if known is None else known.candidate(trial.stored)
        if held is not None and not held.expired(now):
            trial.known, trial.origin = held, held.origin or trial.origin
        # The default is what the program runs without tuning, so it is tried whatever ended a process.
        if (reason := crashed.get(canonical_json(trial.stored))) is not None and not trial.is_default:
            trial.known = Candidate(
                trial.stored,
                Status.CRASHED,
                error=reason,
                transient=True,
                measured=now,
                reason="crash",
                origin=trial.origin,
            )
    if known is None or (not known.interrupted and all(trial.known is not None for trial in trials)):
        return
    # What is new is compared with the default and the present choice. Their times of another day would not do.
    choice = canonical_json(known.configuration)
    for trial in trials:
        counts = trial.is_default or canonical_json(trial.stored) == choice
        if counts and trial.known is not None and trial.known.status is Status.OK:
            trial.known = None


def _put_first(trials: list[Trial], likely: Mapping[str, CandidateOrigin]) -> None:
    """Sort the trials: the default, the configurations that are probably good, and the others."""
    for trial in trials:
        trial.origin = likely.get(canonical_json(trial.stored), trial.origin)
    trials.sort(key=lambda trial: (not trial.is_default, canonical_json(trial.stored) not in likely))


class _Contest:
    """Tries the candidates that are not known, and chooses the winner."""

    def __init__(
        self,
        tuning: TuningRun,
        trials: list[Trial],
        build: Callable[[Any], Callable[..., Any]],
        likely: Mapping[str, CandidateOrigin],
        history: Callable[[], Sequence[tuple[Times, CandidateOrigin]]],
        space: CallSpace | None,
    ) -> None:
        self.likely = likely
        self.space = space
        self.history = history
        self.tuning = tuning
        self.trials = trials
        self.build = build
        self.searched = 0
        self.before: Record | None = None
        self.keep_part: Callable[[], None] = lambda: None
        self.default = next((trial for trial in trials if trial.is_default), None)

    @property
    def goes_on(self) -> bool:
        """True if a search goes on that had no end."""
        return self.before is not None

    def record(self, key: RecordKey, known: Record | None, keep: Callable[[Record], object]) -> Record:
        """Return the record of the tuning; `known` is an earlier one, and `keep` gets what is known meanwhile."""
        started = time.monotonic()
        self.before = known if known is not None and known.interrupted else None

        def keep_part() -> None:
            # The default stays until the search has ended: no part of it says what is best.
            evidence = {INTERRUPTED: True, "unsure": "the search has not ended"}
            if self.default is not None and self.default.works:
                keep(self._record(key, known, self.default, evidence, started))

        self.keep_part = keep_part
        winner, evidence = self._result()
        return self._record(key, known, winner, evidence, started)

    def _record(
        self, key: RecordKey, known: Record | None, winner: Trial | None, evidence: dict[str, Any], started: float
    ) -> Record:
        tuning, tuner = self.tuning, self.tuning.tuner
        return Record(
            key=key,
            configuration=None if winner is None else winner.stored,
            source=Source.TUNED,
            default=None if self.default is None else self.default.stored,
            candidates=fastest_first(trial.candidate() for trial in self.trials if trial.tried),
            measurement={
                "mode": "forward and backward" if tuning.gradient else "forward",
                "min_gain": tuner.min_gain,
                "warmup": tuner.warmup,
                "seed": tuner.seed,
                "tolerance": "a function" if callable(tuner.check) else tuner.check,
                "tuner": TUNER_VERSION,
                SPACE: space_digest(t.stored for t in self.trials) if self.space is None else self.space.space.digest,
                **({WITH_PROFILE: True} if _has_profile(tuning, winner, known) else {}),
                "measured": sum(trial.known is None and trial.tried for trial in self.trials),
                **evidence,
                "seconds": round(time.monotonic() - started, 3),
            },
            provenance=provenance(device_of(tuning.inputs.leaves)),
            created=time.time(),
        )

    def _result(self) -> tuple[Trial | None, dict[str, Any]]:
        """Return the winner, None if there is none, and evidence for the record."""
        fresh = [trial for trial in self.trials if trial.known is None]
        race = self._race(fresh)
        winner, evidence = self._winner(race)
        if winner is None:
            evidence["failed"] = True
        for reason in self.tuning.doubts():
            evidence["unsure"] = "; ".join(filter(None, (evidence.get("unsure"), reason)))
        untried = sum(not trial.tried for trial in self.trials)
        if self.searched:
            evidence["searched"] = self.searched
        elif untried:
            evidence["untried"] = untried
            end = self.tuning.ended or f"the budget of {self.tuning.tuner.compile_budget:g} s for compiling ended"
            reason = f"{untried} candidates were not tried, because {end}"
            evidence["unsure"] = "; ".join(filter(None, (reason, evidence.get("unsure"))))
        if self.tuning.hung:
            # The next process goes on with the candidates that were not tried.
            evidence[INTERRUPTED] = True
        return winner or self.default, evidence

    def _race(self, fresh: list[Trial]) -> Race:
        reference = self.default if self.default in fresh else None
        if self.space is not None or self.goes_on or len(fresh) > self.tuning.tuner.exhaustive:
            finalists = self._search(fresh, reference)
        else:
            finalists = fresh
            self.tuning.compile_and_warm(fresh, self.build, reference)
            self.tuning.settle()
        race = Race(self.tuning, finalists, reference)
        race.run()
        for trial in fresh:
            if trial.ready:
                self.tuning.progress.candidate(trial.stored, trial.seconds)
        return race

    def _search(self, fresh: list[Trial], reference: Trial | None) -> list[Trial]:
        """Measure some of many candidates, and return the best of them and the default."""
        by_text = {canonical_json(trial.stored): trial for trial in self.trials}
        likely = [json.loads(text) for text in self.likely if self.space is not None or text in by_text]
        history = self.history()
        search = Search(
            self.space or ListedSpace([trial.stored for trial in self.trials]),
            starts=[*([] if reference is None else [reference.stored]), *likely],
            limit=_MOST,
            history=[times for times, _ in history],
            seed=self.tuning.tuner.seed,
            enough=self.tuning.tuner.exhaustive,
        )
        # The first record that has a configuration says where it comes from.
        told = {text: origin for times, origin in reversed(history) for text in times} | dict(self.likely)
        origins = {text: told.get(text, CandidateOrigin.CONFIGS) for text in search.starts}
        if not self.goes_on:
            known = [(trial, trial.known) for trial in self.trials if trial.known is not None]
            known.sort(key=lambda pair: pair[1].measured)
            search.tell({canonical_json(trial.stored): self._told(trial) for trial, _ in known})
        like = 0.0
        while asked := search.ask():
            batch = {canonical_json(stored): self._trial(stored, by_text, fresh) for stored in asked}
            for text, trial in batch.items():
                trial.origin = origins.get(text, trial.origin)
            # A search that goes on asks for what it asked for before, and is told what it was told then.
            new = [trial for trial in batch.values() if trial.known is None]
            self.tuning.compile_and_warm(new, self.build, reference)
            for trial in new:
                if trial.ready and not self.tuning.ended:
                    like = like or min(trial.warm)
                    self.tuning.sample(trial, like=like, twice=True)
            search.tell({text: self._told(trial) for text, trial in batch.items()})
            self.searched = len(search.times)
            if new:
                self.keep_part()
            if self.tuning.ended or self.tuning.out_of_compile_time():
                break
        self.tuning.settle()
        leaders = sorted((trial for trial in self.trials if trial.works), key=lambda trial: trial.seconds)[:_FINALISTS]
        if self.goes_on and (again := [trial for trial in leaders if trial.known is not None]):
            # A race compares times of one process.
            for trial in again:
                trial.known = None
            self.tuning.compile_and_warm(again, self.build, reference)
        best = [trial for trial in leaders if trial.ready]
        finalists = [*best, *([] if reference is None or reference in best else [reference])]
        for trial in finalists:
            # A race compares rounds, and these samples are of none.
            trial.samples, trial.runs = [], []
        return finalists

    def _told(self, trial: Trial) -> float:
        """Return the seconds of a candidate as a record has them; infinite if it failed."""
        before = None if self.before is None else self.before.candidate(trial.stored)
        seconds = (before or trial.candidate()).seconds
        return math.inf if seconds is None else seconds.p20

    def _trial(self, stored: Any, by_text: dict[str, Trial], fresh: list[Trial]) -> Trial:
        """Return the trial of a configuration; of a space, trials are made when they are asked for."""
        text = canonical_json(stored)
        if text not in by_text:
            by_text[text] = Trial(stored, stored)
            self.trials.append(by_text[text])
            fresh.append(by_text[text])
        return by_text[text]

    def _winner(self, race: Race) -> tuple[Trial | None, dict[str, Any]]:
        working = sorted((trial for trial in self.trials if trial.works), key=lambda trial: trial.seconds)
        if not working:
            return None, {}
        evidence: dict[str, Any] = {"rounds": race.rounds, "gain": 0.0}
        if race.unsure:
            evidence["unsure"] = race.unsure
        if self.default is None or not self.default.works:
            del evidence["gain"]
            unsure = "; ".join(filter(None, (race.unsure, self.tuning.reference_failed)))
            winners = [*race.better, *(trial for trial in working if trial not in race.better)]
            winner = next((each for each in winners if each.known is not None or self.tuning.still_right(each)), None)
            return winner, evidence | ({"unsure": unsure} if unsure else {})
        if self.default.known is not None:
            # Nothing is new, so the times of the record decide.
            gain = 1.0 - working[0].seconds / self.default.seconds
            won = gain >= self.tuning.tuner.min_gain
            return (working[0], evidence | {"gain": round(gain, 4)}) if won else (self.default, evidence)
        for rival in race.better[:_COMPARED]:
            if self.tuning.still_right(rival):
                return rival, evidence | {"gain": round(race.gain(rival), 4)}
        return self.default, evidence
