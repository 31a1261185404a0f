"""Compares what a candidate computes with what the default computes, so that only right results win.

The comparison runs on the host, with numpy. JAX's operations would be compiled, and with PGLE profiled and compiled
again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ejcache.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Check = bool | float | Callable[[Any, Any], object]

__all__ = ["DifferentResultError", "Results", "check_results", "check_setting", "has_nan", "outputs_text", "results_of"]

_TOLERANCES: Final = {8: 1e-6, 4: 1e-2, 2: 5e-2, 1: 0.25}
"""By the bytes of a real number. Float32 has that of TF32, in which devices multiply unless they are told otherwise."""

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

    return any(bool(np.isnan(_wide(array)).any()) for array in results.arrays if _tolerance(array.dtype))


def check_results(found: Results, expected: Results, *, check: Check, inputs: Sequence[Any]) -> None:
    """Raise `DifferentResultError` if a candidate's results differ from the default's.

    Args:
        found: of the candidate.
        expected: of the default.
        check: True compares within the tolerance of the coarsest data type of the result and the inputs, a number
            within that tolerance, False only looks for NaN where the default has none. A function gets both results
            and returns False or raises for a difference.
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
    coarsest = max((_tolerance(array.dtype) for array in inputs), default=0.0)
    scales = [_scale(array) for array in expected.arrays]
    smallest = _SMALLEST_SCALE * max(scales, default=0.0)
    for number, (ours, theirs, scale) in enumerate(zip(found.arrays, expected.arrays, scales, strict=True)):
        tolerance = max(coarsest, _tolerance(theirs.dtype)) if check is True else float(check)
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
    ours, theirs = _wide(ours), _wide(theirs)
    may_be_nan = np.isnan(theirs)
    if tolerance is None:
        # Where results are not compared, as with random numbers, a NaN may be in another place.
        may_be_nan = may_be_nan.any()
    if (np.isnan(ours) & ~may_be_nan).any():
        raise DifferentResultError("it computes NaN, and the default does not")
    if tolerance is None:
        return
    with np.errstate(invalid="ignore", over="ignore"):
        # An infinity equals itself; its difference from itself is NaN.
        distance = np.where(ours == theirs, 0.0, np.abs(ours - theirs))
        wrong = (distance > tolerance * (np.abs(theirs) + scale)) & ~may_be_nan
        wrong |= np.isinf(theirs) & (ours != theirs)
    if wrong.any():
        worst = float(np.max(np.where(wrong, distance, 0.0)))
        raise DifferentResultError(
            f"{int(wrong.sum())} of {theirs.size} values of array {number} differ from the default's, by {worst:.3g} "
            f"at most, which is more than {tolerance:g} of their size; check= changes or disables this comparison"
        )


def _tolerance(dtype: Any) -> float:
    """The tolerance of a data type; 0 if it is compared exactly."""
    import jax.numpy as jnp

    if not jnp.issubdtype(dtype, jnp.inexact):
        return 0.0
    size = dtype.itemsize // 2 if jnp.issubdtype(dtype, jnp.complexfloating) else dtype.itemsize
    return _TOLERANCES.get(size, _TOLERANCES[1])


def _scale(array: Any) -> float:
    """The root mean square of the finite values."""
    import numpy as np

    if not _tolerance(array.dtype):
        return 0.0
    size = np.abs(_wide(array))
    size = size[np.isfinite(size)]
    return float(np.sqrt(np.mean(np.square(size, dtype=np.float64)))) if size.size else 0.0


def _wide(array: Any) -> Any:
    """The array in a data type that numpy computes with."""
    import numpy as np

    return array if array.dtype.kind in "fc" and array.dtype.itemsize >= 4 else array.astype(np.float32)
