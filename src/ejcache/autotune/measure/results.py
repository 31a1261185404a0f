"""Which candidate wins: the comparison of its timings, and of what it computes.

Decides which candidate wins, from samples that were taken in turns.

Candidates are timed in turns, so that other load on the machine affects all of them alike, and two candidates are
compared round by round. The comparison is Wilcoxon's signed-rank test of the logarithms of the ratios. It assumes that
noise is as likely to slow one of the two as the other, and no other shape of it (Lehmann, Nonparametrics, 2006, 3.2).

Compares what a candidate computes with what the default computes, so that only right results win.

The comparison runs on the host, with numpy. JAX's operations would be compiled, and with PGLE profiled and compiled
again.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.records.record import Timing
from ejcache.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Check = bool | float | Callable[[Any, Any], object]


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


_TOLERANCES: Final = {"float64": 1e-6, "float32": 1e-2, "float16": 1e-2, "bfloat16": 5e-2}
"""By the data type of a result. Float32 has that of TF32, in which devices multiply unless they are told otherwise."""

_COARSE: Final = 0.25
"""For smaller data types."""

_EXACT_FRACTION: Final = 3e-4
"""For float32, where devices multiply in it."""

_COARSEST_INPUT: Final = 5e-2
"""Steps between may be as coarse as the inputs are, but not coarser than bfloat16 if the result is finer."""

_EXACT_PRECISIONS: Final = frozenset({"highest", "float32"})

_PART: Final = 2**18
"""Values that are compared at once."""

_SMALLEST_SCALE: Final = 1e-4
"""An array that is far smaller than the others is rounding noise, as a gradient is that cancels out."""


class DifferentResultError(Exception):
    """A candidate computes another result than the default. The measurement catches this error."""


@dataclass(frozen=True)
class Results:
    """What one execution computed.

    Attributes:
        arrays: of the function's results and, under a gradient, of the gradients, on the host.
        value: the function's results as it returned them.
    """

    arrays: list[Any]
    value: Any


def check_setting(check: Check) -> None:
    """Raise `SettingError` if `check` is neither a bool nor a tolerance nor a function."""
    if isinstance(check, bool) or callable(check):
        return
    if not isinstance(check, int | float) or check <= 0:  # type: ignore[redundant-expr]  # a caller may have no types
        raise SettingError("check", check, "True, False, a positive tolerance, or a function of two results")


def outputs_text(results: Any) -> str:
    """The tree, shapes and data types of results, which may be tracers."""
    import jax
    import jax.numpy as jnp

    leaves, treedef = jax.tree_util.tree_flatten(results)
    tree = str(treedef).removeprefix("PyTreeDef")
    return f"{tree} of {', '.join(f'{jnp.result_type(leaf)}{list(jnp.shape(leaf))}' for leaf in leaves)}"


def results_of(value: Any, gradients: Any = ()) -> Results:
    """Copy results and gradients to the host."""
    import jax
    import jax.numpy as jnp

    arrays = [
        jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        for leaf in jax.tree_util.tree_leaves((value, gradients))
    ]
    return Results(jax.device_get(arrays), value)


def has_nan(results: Results) -> bool:
    """Whether a value is NaN."""
    import numpy as np

    floating = [array for array in results.arrays if _tolerance(array.dtype)]
    return any(bool(np.isnan(part).any()) for array in floating for part in _parts(array))


def check_results(found: Results, expected: Results, *, check: Check, inputs: Sequence[Any]) -> None:
    """Raise `DifferentResultError` if a candidate's results differ from the default's.

    Args:
        found: of the candidate.
        expected: of the default.
        check: True compares within the tolerance of the data type of the result, a number within that tolerance, False
            only looks for NaN where the default has none. A function gets both results and returns False or raises for
            a difference.
        inputs: the arrays of the call.
    """
    if callable(check):
        try:
            right = check(found.value, expected.value)
        except Exception as exc:
            raise DifferentResultError(f"check= raised {type(exc).__name__}: {exc}") from exc
        if right is False:
            raise DifferentResultError("check= says that its results differ from the default's")
        return
    exact = _multiplies_exactly(inputs)
    coarsest = min(_COARSEST_INPUT, max((_tolerance(array.dtype, exact=exact) for array in inputs), default=0.0))
    scales = [_scale(array) for array in expected.arrays]
    largest = max(scales, default=0.0)
    for number, (ours, theirs, scale) in enumerate(zip(found.arrays, expected.arrays, scales, strict=True)):
        own = _tolerance(theirs.dtype, exact=exact)
        tolerance = own and (max(own, coarsest) if check is True else float(check))
        smallest = _SMALLEST_SCALE * largest * (_tolerance(theirs.dtype) / own if own else 1.0)
        _check_array(number, ours, theirs, tolerance=tolerance if check else None, scale=max(scale, smallest))


def _check_array(number: int, ours: Any, theirs: Any, *, tolerance: float | None, scale: float) -> None:
    import numpy as np

    if not _tolerance(theirs.dtype):
        different = 0 if tolerance is None else int(np.count_nonzero(ours != theirs))
        if different:
            raise DifferentResultError(
                f"{different} of {theirs.size} values of array {number} differ from the default's; check= changes or "
                "disables this comparison"
            )
        return
    # Where results are not compared, as with random numbers, a NaN may be in another place.
    anywhere = tolerance is None and any(np.isnan(part).any() for part in _parts(theirs))
    count, worst = 0, 0.0
    for found, right in zip(_parts(ours), _parts(theirs), strict=True):
        may_be_nan = np.isnan(right) | anywhere
        if (np.isnan(found) & ~may_be_nan).any():
            raise DifferentResultError("it computes NaN, and the default does not")
        if tolerance is not None:
            with np.errstate(invalid="ignore", over="ignore"):
                # An infinity equals itself; its difference from itself is NaN.
                distance = np.where(found == right, 0.0, np.abs(found - right))
                wrong = (distance > tolerance * (np.abs(right) + scale)) & ~may_be_nan
                wrong |= np.isinf(right) & (found != right)
            count += int(wrong.sum())
            worst = max(worst, float(np.max(np.where(wrong, distance, 0.0), initial=0.0)))
    if count:
        raise DifferentResultError(
            f"{count} of {theirs.size} values of array {number} differ from the default's, by {worst:.3g} "
            f"at most, which is more than {tolerance:g} of their size; check= changes or disables this comparison"
        )


def _tolerance(dtype: Any, *, exact: bool = False) -> float:
    """The tolerance of a data type; 0 if it is compared exactly.

    Args:
        dtype: of a result or an input.
        exact: float32 is multiplied as such.
    """
    import jax.numpy as jnp
    import numpy as np

    if not jnp.issubdtype(dtype, jnp.inexact):
        return 0.0
    name = np.zeros(0, dtype).real.dtype.name if jnp.issubdtype(dtype, jnp.complexfloating) else dtype.name
    return _EXACT_FRACTION if exact and name == "float32" else _TOLERANCES.get(name, _COARSE)


def _multiplies_exactly(inputs: Sequence[Any]) -> bool:
    """Whether float32 numbers are multiplied as such: always on CPUs, elsewhere if the program asks for it."""
    import jax

    device = next((min(array.devices(), key=lambda one: one.id) for array in inputs), None)
    platform = jax.default_backend() if device is None else device.platform
    return platform == "cpu" or str(jax.config.jax_default_matmul_precision).lower() in _EXACT_PRECISIONS


def _scale(array: Any) -> float:
    """The root mean square of the finite values."""
    import numpy as np

    if not _tolerance(array.dtype):
        return 0.0
    total, count = 0.0, 0
    for part in _parts(array):
        size = np.abs(part)
        size = size[np.isfinite(size)]
        total, count = total + float(np.sum(np.square(size, dtype=np.float64))), count + size.size
    return math.sqrt(total / count) if count else 0.0


def _parts(array: Any) -> Iterator[Any]:
    """The values in order, in pieces: comparing all of a large array at once would take its memory eight times."""
    flat = array.reshape(-1)
    for start in range(0, flat.size, _PART):
        yield _wide(flat[start : start + _PART])


def _wide(array: Any) -> Any:
    """The array in a data type that numpy computes with."""
    import numpy as np

    return array if array.dtype.kind in "fc" and array.dtype.itemsize >= 4 else array.astype(np.float32)
