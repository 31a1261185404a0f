"""Compares what a candidate computes with what the default computes, so that only right results win.

The comparison runs on the host, with numpy. JAX's operations would be compiled, and with PGLE profiled and compiled
again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

from ejcache.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Check = bool | float | Literal["rounded"] | Callable[[Any, Any], object]


_TOLERANCES: Final = {"float64": 1e-6, "float32": 1e-2, "float16": 1e-2, "bfloat16": 5e-2}
"""By the data type of a result. Float32 has that of TF32, in which devices multiply unless they are told otherwise."""

_COARSE: Final = 0.25
"""For smaller data types."""

_EXACT_FRACTION: Final = 3e-4
"""For float32, where devices multiply in it."""

_COARSEST_INPUT: Final = 5e-2
"""Steps between may be as coarse as the inputs are, but not coarser than bfloat16 if the result is finer."""

_EXACT_PRECISIONS: Final = frozenset({"highest", "float32"})

ROUNDED: Final = "rounded"
_FEW: Final = 0.01
"""The share of integers that may differ by one where they come from rounding."""

_PART: Final = 2**15
"""Values that are compared at once: few enough to stay in a processor's cache."""

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

    @cached_property
    def scales(self) -> list[float]:
        """The size of each array's values: many candidates are compared with one default."""
        return [_scale(array) for array in self.arrays]


def check_setting(check: Check) -> None:
    """Raise `SettingError` if `check` is neither a bool nor a tolerance nor "rounded" nor a function."""
    if isinstance(check, bool) or callable(check) or check == ROUNDED:
        return
    if not isinstance(check, int | float) or check <= 0:  # type: ignore[redundant-expr]  # a caller may have no types
        raise SettingError("check", check, 'True, False, "rounded", a positive tolerance, or a function of two results')


def outputs_text(results: Any) -> str:
    """Return the tree, shapes and data types of results, which may be tracers."""
    import jax

    leaves, treedef = jax.tree_util.tree_flatten(results)
    tree = str(treedef).removeprefix("PyTreeDef")
    return f"{tree} of {', '.join(map(_type_text, leaves))}"


def _type_text(leaf: Any) -> str:
    """Return a type that is weak counts: with it, what the program computes of the result has another type."""
    import jax
    import jax.numpy as jnp

    type_of = getattr(jax, "typeof", None) or vars(jax.core)["get_aval"]  # before JAX 0.6
    weak = "weak " if getattr(type_of(leaf), "weak_type", False) else ""
    return f"{weak}{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"


def results_of(value: Any, gradients: Any = ()) -> Results:
    """Copy results and gradients to the host."""
    import jax
    import jax.numpy as jnp

    arrays = [
        jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        for leaf in jax.tree_util.tree_leaves((value, gradients))
    ]
    return Results(jax.device_get(arrays), value)


def same_bits(one: Results, other: Results) -> bool:
    """True if two results are equal, bit by bit."""
    pairs = zip(one.arrays, other.arrays, strict=True)
    return all(ours.dtype == theirs.dtype and _are_same_bits(ours, theirs) for ours, theirs in pairs)


def _are_same_bits(one: Any, other: Any) -> bool:
    pairs = zip(_parts(one), _parts(other), strict=True)
    return one.size == other.size and all(ours.tobytes() == theirs.tobytes() for ours, theirs in pairs)


def has_nan(results: Results) -> bool:
    """True if a value is NaN."""
    import numpy as np

    floating = [array for array in results.arrays if _tolerance(array.dtype)]
    return any(bool(np.isnan(part).any()) for array in floating for part in _wide_parts(array))


def is_finite(found: Results, beside: Results) -> bool:
    """True if results have no value that is not finite; `beside` may have some, and then as many are allowed."""
    import numpy as np

    def infinite(results: Results) -> int:
        floating = [array for array in results.arrays if _tolerance(array.dtype)]
        return sum(int((~np.isfinite(part)).sum()) for array in floating for part in _wide_parts(array))

    return infinite(found) <= infinite(beside)


def check_results(
    found: Results,
    expected: Results,
    *,
    check: Check,
    inputs: Sequence[Any],
    share: float = 1.0,
    least: float = 0.0,
    nan: bool = False,
) -> None:
    """Raise `DifferentResultError` if a candidate's results differ from the default's.

    Args:
        found: of the candidate.
        expected: of the default.
        check: True compares within the tolerance of the data type of the result, a number within that tolerance,
            "rounded" as True but for few integers, False only looks for NaN where the default has none. A function gets
            both results and returns False or raises for a difference.
        inputs: the arrays of the call.
        share: of the tolerance.
        least: the tolerance is at least this.
        nan: where the default has NaN, a candidate must have it, too.
    """
    if callable(check):
        try:
            right = check(found.value, expected.value)
        except Exception as exc:
            raise DifferentResultError(f"check= raised {type(exc).__name__}: {exc}") from exc
        if right is False:
            raise DifferentResultError("check= says that its results differ from the default's")
        return
    if same_bits(found, expected):
        return
    exact = multiplies_exactly(inputs)
    coarsest = min(_COARSEST_INPUT, max((_tolerance(array.dtype, exact=exact) for array in inputs), default=0.0))
    scales = expected.scales
    largest = max(scales, default=0.0)
    for number, (ours, theirs, scale) in enumerate(zip(found.arrays, expected.arrays, scales, strict=True)):
        own = _tolerance(theirs.dtype, exact=exact)
        if not own:
            _check_exact(number, ours, theirs, check=check)
            continue
        by_type = check is True or check == ROUNDED
        tolerance = share * max(least, max(own, coarsest) if by_type else float(check))
        smallest = _SMALLEST_SCALE * largest * _tolerance(theirs.dtype) / own
        _check_array(
            number,
            ours,
            theirs,
            tolerance=tolerance if check else None,
            scale=max(scale, smallest),
            nan=nan,
        )


def _check_exact(number: int, ours: Any, theirs: Any, *, check: Check) -> None:
    """Compare integers and booleans, which are exact unless the author says otherwise."""
    import numpy as np

    if check is False:
        return
    different = int(np.count_nonzero(ours != theirs))
    if not different:
        return
    whole = theirs.dtype.kind in "iu"
    said = f"{different} of {theirs.size} values of array {number} differ from the default's"
    if not whole:
        raise DifferentResultError(f"{said}; check=False, or a function of both results, accepts that")
    distance = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
    if distance.max() <= 1 and different <= _FEW * theirs.size:
        if check == ROUNDED:
            return
        accepts = 'check="rounded", for integers that come from rounding,'
    else:
        size = np.abs(theirs.astype(np.float64))
        share = float((distance / (size + math.sqrt(float(np.mean(size * size))) + 1e-300)).max())
        if check is not True and check != ROUNDED and not callable(check) and share <= check:
            return
        accepts = f"check={_rounded_up(share)}"
    raise DifferentResultError(f"{said}, by {distance.max():.3g} at most; {accepts} accepts that, if it is right")


def _rounded_up(share: float) -> str:
    """Return a tolerance that accepts this difference, for a message."""
    return f"{share * 1.1:.2g}"


def _check_array(number: int, ours: Any, theirs: Any, *, tolerance: float | None, scale: float, nan: bool) -> None:
    import numpy as np

    # Where results are not compared, as with random numbers, a NaN may be in another place.
    anywhere = tolerance is None and any(np.isnan(part).any() for part in _wide_parts(theirs))
    count, worst, share = 0, 0.0, 0.0
    for found, right in zip(_wide_parts(ours), _wide_parts(theirs), strict=True):
        if tolerance is not None and _is_near(found, right, tolerance, scale):
            continue
        may_be_nan = np.isnan(right) | anywhere
        if (np.isnan(found) & ~may_be_nan).any():
            raise DifferentResultError("it computes NaN, and the default does not")
        if nan and (np.isnan(right) & ~np.isnan(found)).any():
            raise DifferentResultError("it computes no NaN where the default does")
        if tolerance is not None:
            with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
                # An infinity equals itself; its difference from itself is NaN.
                distance = np.where(found == right, 0.0, np.abs(found - right))
                size = np.abs(right) + scale
                wrong = (distance > tolerance * size) & ~may_be_nan
                wrong |= np.isinf(right) & (found != right)
                if wrong.any():
                    share = max(share, float(np.max(np.where(wrong, distance / size, 0.0), initial=0.0)))
            count += int(wrong.sum())
            worst = max(worst, float(np.max(np.where(wrong, distance, 0.0), initial=0.0)))
    if count:
        accepts = (
            f"check={_rounded_up(share)}" if math.isfinite(share) else "check=False, or a function of both results,"
        )
        raise DifferentResultError(
            f"{count} of {theirs.size} values of array {number} differ from the default's, by {worst:.3g} "
            f"at most, which is more than {tolerance:g} of their size; {accepts} accepts that, if it is right"
        )


def _is_near(found: Any, right: Any, tolerance: float, scale: float) -> bool:
    """True if all values are finite and within the tolerance; most results are, and then no other question is asked."""
    import numpy as np

    with np.errstate(invalid="ignore", over="ignore"):
        return bool((np.abs(found - right) < tolerance * (np.abs(right) + scale)).all())


def _tolerance(dtype: Any, *, exact: bool = False) -> float:
    """Return the tolerance of a data type; 0 if it is compared exactly.

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


def multiplies_exactly(inputs: Sequence[Any]) -> bool:
    """True if float32 numbers are multiplied as such: always on CPUs, elsewhere if the program asks for it."""
    import jax

    device = next((min(array.devices(), key=lambda one: one.id) for array in inputs), None)
    platform = jax.default_backend() if device is None else device.platform
    return platform == "cpu" or str(jax.config.jax_default_matmul_precision).lower() in _EXACT_PRECISIONS


def _scale(array: Any) -> float:
    """Return the root mean square of the finite values."""
    import numpy as np

    if not _tolerance(array.dtype):
        return 0.0
    total, count = 0.0, 0
    for part in _wide_parts(array):
        size = np.abs(part)
        size = size[np.isfinite(size)]
        total, count = total + float(np.sum(np.square(size, dtype=np.float64))), count + size.size
    return math.sqrt(total / count) if count else 0.0


def _parts(array: Any) -> Iterator[Any]:
    """Yield the values in order, in pieces: to compare a large array at once would take its memory eight times."""
    flat = array.reshape(-1)
    for start in range(0, flat.size, _PART):
        yield flat[start : start + _PART]


def _wide_parts(array: Any) -> Iterator[Any]:
    return map(_wide, _parts(array))


def _wide(array: Any) -> Any:
    """Return the array in a data type that numpy computes with."""
    import numpy as np

    return array if array.dtype.kind in "fc" and array.dtype.itemsize >= 4 else array.astype(np.float32)
