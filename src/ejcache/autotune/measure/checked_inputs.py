"""Collects the inputs on which one tuning compares candidates, and asks how steady the default is on them."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.measure.output_comparison import DifferentResultError, is_finite, multiplies_exactly
from ejcache.autotune.measure.spanning import equations_of
from ejcache.autotune.measure.varied_arrays import Style, Variations, perturbed
from ejcache.autotune.measure.worker_thread import TookTooLongError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ejcache.autotune.measure.output_comparison import Results
    from ejcache.autotune.measure.trial import Trial


LONG_SHARE: Final = 0.05
"""A run is long if it takes this share of the budget. Long runs need no second warm-up, and are compared less."""

SHARE: Final = 0.1
"""The search for varied inputs, and the last comparison of a winner, may take this share of the budget."""

_STEADY: Final = 0.25
"""Rounding errors of the inputs may change the results of the default by this share of the tolerance."""

_MANY_BYTES: Final = 2**28
"""Larger arrays are varied in one style only, because each style takes as much memory again."""

_MORE: Final = 2
_FAR_SHARE: Final = 0.1
"""Far from zero, results may differ by this share: what the default computes there has few right digits itself."""


class VariedInputs:
    """Sets of inputs, the caller's first.

    Args:
        tuning: runs candidates, a `TuningRun`.

    Attributes:
        sets: lists of arrays, the caller's first and then those of the operation's author; empty until the first
            candidate has run.
        noisy: what the default computes from the caller's inputs is rounding noise, and there are others.
        far: the set that is far from zero; empty if there is none.
    """

    def __init__(self, tuning: Any) -> None:
        self.sets: list[Sequence[Any]] = []
        self.noisy = False
        self.far: Sequence[Any] = ()
        self._given: list[list[Any]] = []
        self._tuning = tuning
        self._has_more = False
        self._style = Style.RANDOM
        self._multiplies = True

    def ask_author(self) -> None:
        """Make the inputs that the author of the operation gives; raises `UsageError` if they are none of the call."""
        inputs, tuner = self._tuning.inputs, self._tuning.tuner
        if tuner.check_inputs is not None and not self._given:
            run = self._tuning.thread.run
            self._given = inputs.given(self._tuning.arrays, tuner.check_inputs, seed=tuner.seed, run=run)

    def is_given(self, arrays: Sequence[Any]) -> bool:
        """True if the author of the operation gives these inputs."""
        return any(arrays is given for given in self._given)

    def found_by(self, trial: Trial, first: Results) -> list[Results]:
        """Find the sets on which a candidate can be trusted, and return what it computes from each but the caller's.

        Args:
            trial: the default or, where none works, the first candidate that does.
            first: what it computes from the caller's inputs.
        """
        tuning = self._tuning
        self.sets = [tuning.arrays, *self._given]
        # The author's are compared like the caller's, whatever the default makes of them.
        computed = [tuning.first_run(trial, arrays) for arrays in self._given]
        if trial.jaxpr is None or trial.warm[-1] > LONG_SHARE * tuning.tuner.budget:
            return computed
        self._multiplies = _multiplies(trial.jaxpr)
        large = sum(array.size * array.dtype.itemsize for array in tuning.arrays) > _MANY_BYTES
        styles = (Style.RANDOM,) if large else tuple(Style)
        found = self._found(trial, first, styles, seed=tuning.tuner.seed)
        # Where the caller's inputs give rounding noise, as the variance of equal values is, other inputs decide.
        self.noisy = bool(found) and not self.is_steady(partial(tuning.first_run, trial), first, tuning.arrays)
        return [*computed, *found]

    def add_more(self, default: Trial, expected: list[Results]) -> None:
        """Add random inputs of other seeds, once, for the few candidates that are about to win.

        What the default computes from them is added to `expected`.
        """
        if self._has_more or default.jaxpr is None or default.warm[-1] > LONG_SHARE * self._tuning.tuner.budget:
            return
        self._has_more = True
        for number in range(_MORE):
            seed = self._tuning.tuner.seed + number + 1
            expected += self._found(default, expected[0], (Style.RANDOM,), seed=seed)

    def _found(self, trial: Trial, first: Results, styles: Sequence[Style], *, seed: int) -> list[Results]:
        tuning, started = self._tuning, monotonic()
        usable: list[Results] = []

        def is_usable(arrays: Sequence[Any]) -> bool:
            if tuning.hung or monotonic() - started > SHARE * tuning.tuner.budget:
                return False
            results = self._trusted(trial, first, arrays, seed)
            if results is not None:
                usable[:] = [results]
            return results is not None

        variations = Variations(
            tuning.arrays,
            fixed=tuning.inputs.fixed(tuning.tuner.initialisers),
            distinct=_writes_in_no_order(trial.jaxpr),
            ordered=_needs_order(trial.jaxpr),
            usable=is_usable,
            run=tuning.thread.run,
            seed=seed,
        )
        computed = []
        for style in styles:
            self._style = style
            if (arrays := variations.in_style(style)) is not None:
                self.sets.append(arrays)
                computed += usable
                self.far = arrays if style is Style.FAR else self.far
        return computed

    def tolerance_of(self, arrays: Sequence[Any]) -> float:
        """Return the share by which results may differ on these arrays, if that is more than their type says."""
        return _FAR_SHARE if arrays is self.far else 0.0

    def _trusted(self, trial: Trial, first: Results, arrays: Sequence[Any], seed: int) -> Results | None:
        """Run a candidate on these arrays and return its results; None if it is not made for them."""
        tuning, style = self._tuning, self._style
        least = _FAR_SHARE if style is Style.FAR else 0.0
        try:
            results: Results = tuning.first_run(trial, arrays)
            run = partial(tuning.first_run, trial)
            alike = style is Style.EDGE
            if not is_finite(results, first) or not self.is_steady(
                run, results, arrays, seed=seed, alike=alike, least=least
            ):
                return None
        except Exception as exc:
            if isinstance(exc, TookTooLongError) and tuning.hung:
                raise
            return None
        return results

    def is_steady(
        self,
        run: Callable[[Sequence[Any]], Results],
        results: Results,
        arrays: Sequence[Any],
        *,
        seed: int = 0,
        alike: bool = False,
        least: float = 0.0,
    ) -> bool:
        """True if rounding errors of the arrays hardly change the results, as `run` computes them; see `perturbed`."""
        tuning, exact = self._tuning, not self._multiplies or multiplies_exactly(self._tuning.arrays)

        def with_rounding() -> list[Any]:
            return perturbed(arrays, seed=seed, exact=exact, alike=alike)

        try:
            tuning.compare(run(tuning.thread.run(with_rounding)), results, arrays, share=_STEADY, least=least)
        except DifferentResultError:
            return False
        return True


def _writes_in_no_order(closed: Any) -> bool:
    """True if a jaxpr writes at positions of which no two may be equal."""
    equations = equations_of(closed)
    return any(each.primitive.name == "scatter" or each.params.get("unique_indices") for each in equations)


def _needs_order(closed: Any) -> bool:
    """True if a jaxpr says that positions are sorted."""
    return any(each.params.get("indices_are_sorted") for each in equations_of(closed))


def _multiplies(closed: Any) -> bool:
    """True if a jaxpr has products of matrices, which devices compute with fewer digits than their inputs have."""
    return any(each.primitive.name in {"dot_general", "conv_general_dilated"} for each in equations_of(closed))
