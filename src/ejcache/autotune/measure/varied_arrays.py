"""Makes other arrays from the caller's, on which candidates are compared: of four styles, or with rounding errors.

`perturbed` adds the rounding errors, with which `checked_inputs` asks how steady the default is.

The caller may hold constant what others vary: a mask that is full, indices in order, values that are all positive. A
candidate that is right for these only must not win. So the arrays of a call are varied in four styles: as random
values, as large ones, with what programs meet at edges, and far from zero. Which variation an array can have, the
default decides: `Variations` tries the boldest one first, and keeps the first one on which the default stays finite and
steady.

Integers count as positions, such as indexes, offsets, lengths and segments, and stay within what the caller's values
and the sizes of the arrays say: nobody has declared for which other integers an operation is meant.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    _Way = Callable[[Any], Any]


class Style(Enum):
    """How inputs are varied."""

    RANDOM = "random"
    """Both signs, any mask, any position."""
    LARGE = "large"
    """Of large size; positions are ragged."""
    EDGE = "edge"
    """Equal values, rows of zeros, large values in last places, masks with an empty row, labels that are all a mark."""
    FAR = "far"
    """Ten thousand times as far from zero as the values differ; integers and masks in another order."""


_PERIOD: Final = 65_521
"""Of more values, this many are random and repeat. It is a prime, so that rows of an array differ."""

_LARGE: Final = (200.0, 40.0, 16.0)
_POSITIONS: Final = 128
_MARKS: Final = 2
"""An array has at most so many different negative values that are marks, such as -1 and -100."""

_FAR: Final = (1e4, 100.0)
"""How far values are from zero, which differ by about one. What adds up their squares loses all that they differ by."""

_FAR_STEPS: Final = 64
"""They differ by at least so many steps of their data type, so coarse types are less far from zero."""

_SPIKE: Final = 500.0
_COMMON: Final = 7 / 8
_ROUNDING: Final = 4
"""A float has this many times its rounding error, and the results of the default must stay the same."""


@dataclass(frozen=True)
class VariedArray:
    """One array of a call, and what the other arrays allow.

    Attributes:
        array: of JAX.
        extents: of all arrays of the call, but for those of 1.
        distinct: positions that differ stay different: equal ones would write one place in an order that nobody
            defines.
        ordered: positions that are sorted stay sorted.
    """

    array: Any
    extents: frozenset[int]
    distinct: bool = False
    ordered: bool = False

    def ways(self, style: Style) -> list[_Way]:
        """Return functions of a generator of numpy's that return other values, the boldest first."""
        import jax
        import jax.numpy as jnp
        import numpy as np

        dtype = self.array.dtype
        if jnp.issubdtype(dtype, jax.dtypes.prng_key):
            return [partial(_other_keys, self.array)]
        if not self.array.size:
            return []
        if jnp.issubdtype(dtype, jnp.inexact):
            return _float_ways(_wide(self.array), style, float(jnp.finfo(dtype).eps))
        values = _host(self.array)
        if jnp.issubdtype(dtype, jnp.bool_):
            return _bool_ways(values, style)
        if jnp.issubdtype(dtype, jnp.integer):
            values = values.astype(np.int64)
            differ = np.unique(values).size == values.size
            rise = bool(values.ndim) and bool((np.diff(values, axis=0) >= 0).all())
            ways = _position_ways(values, style, self.extents)
            return [
                partial(_kept, way, distinct=self.distinct and differ, ordered=self.ordered and rise) for way in ways
            ]
        return []

    def placed(self, values: Any) -> Any:
        """Return `values` as an array like this one."""
        import jax

        if isinstance(values, jax.Array):
            return values
        # An array that is committed to its devices and one that is not are two calls for `jax.jit`.
        place = self.array.sharding if self.array.committed else None
        return jax.device_put(values.astype(self.array.dtype), place)


def perturbed(arrays: Sequence[Any], *, seed: int, exact: bool, alike: bool = False) -> list[Any]:
    """Return the arrays with other rounding errors: the results of a right candidate may differ by what these change.

    Args:
        arrays: of JAX.
        seed: of the random errors.
        exact: float32 is multiplied as such, and not as TF32.
        alike: equal values have equal errors, so that they stay equal.
    """
    import numpy as np

    generator = np.random.default_rng(seed)
    return [_with_errors(array, generator, exact=exact, alike=alike) for array in arrays]


def _with_errors(array: Any, generator: Any, *, exact: bool, alike: bool) -> Any:
    import jax
    import jax.numpy as jnp
    import numpy as np

    if not jnp.issubdtype(array.dtype, jnp.inexact) or array.dtype.itemsize < 2:
        return array
    values = _wide(array)
    step = float(jnp.finfo(array.dtype).eps)
    if array.dtype.itemsize >= 4:
        step = step * _ROUNDING if exact or array.dtype.itemsize > 4 else 2.0**-11
    place = array.sharding if array.committed else None
    # Some values are infinite, or too large for an integer. Any sign is right for these.
    with np.errstate(over="ignore", invalid="ignore"):
        if alike:
            # A different multiple of the values, rounded, is as good as random.
            whole = np.round(1e3 * np.abs(values).astype(np.float64)).astype(np.int64)
            factors = (1 + step * (whole * 2_654_435_761 % 1_009 % 3 - 1)).astype(values.real.dtype)
        else:
            made = 1 + step * generator.integers(-1, 2, min(values.size, _PERIOD))
            factors = _repeated(made.astype(values.real.dtype), values.shape)
        return jax.device_put((values * factors).astype(array.dtype), place)


def _float_ways(values: Any, style: Style, step: float) -> list[_Way]:
    import numpy as np

    finite = np.isfinite(values)
    known = values[finite]
    own: _Way = partial(_reordered, values)
    positive: list[_Way] = []
    if known.size and (np.real(known) >= 0).all():
        positive.append(partial(_normal, values, positive=True))
    if style is Style.FAR:
        most = 1 / (_FAR_STEPS * step)
        return [partial(_offset, values, by=by) for by in dict.fromkeys(min(by, most) for by in _FAR)]
    if style is Style.EDGE:
        ways = [partial(_edges, values, zeros=zeros, spikes=spikes) for zeros, spikes in _EDGES]
        return [*ways, *([partial(_edges, values, positive=True)] if positive else [])]
    random: list[_Way] = [partial(_normal, values), *positive, own]
    return random if style is Style.RANDOM else [*(partial(_normal, values, scale=scale) for scale in _LARGE), *random]


def _normal(values: Any, generator: Any, *, scale: float = 1.0, positive: bool = False) -> Any:
    """Return normal values, one of them zero; what is not finite, as masks have it, stays."""
    import numpy as np

    made = generator.standard_normal(min(values.size, _PERIOD), dtype=np.float32) * scale
    if positive:
        made = np.abs(made) + np.float32(0.01)
    elif made.size > 1:
        made[generator.integers(made.size)] = 0.0
    found = _repeated(made, values.shape).astype(values.dtype)
    if values.dtype.kind == "c":
        found = found + 1j * _repeated(generator.permutation(made), values.shape)
    # An infinity is a mask. A NaN is an accident, which would hide what is compared.
    return np.where(np.isinf(values), values, found)


_EDGES: Final = ((True, True), (False, True), (True, False), (False, False))


def _edges(values: Any, generator: Any, *, zeros: bool = False, spikes: bool = False, positive: bool = False) -> Any:
    """Return few different values, zeros among them; a row of zeros, and a large value at the end of each axis."""
    import numpy as np

    found = np.round(2 * _normal(values, generator).real) / 2
    # Of an array without axes, arithmetic makes a number, which cannot be written to.
    found = np.array(np.abs(found) if positive else found, values.dtype)
    if spikes:
        for axis in range(found.ndim):
            place = [int(generator.integers(size)) for size in found.shape]
            place[axis] = -1
            found[tuple(place)] = _SPIKE
        found[(-1,) * found.ndim] = _SPIKE
    if zeros and found.ndim > 1 and found.shape[-2] > 1:
        found[(*(generator.integers(size) for size in found.shape[:-2]), generator.integers(found.shape[-2] - 1))] = 0
    return np.where(np.isinf(values), values, found)


def _offset(values: Any, generator: Any, *, by: float) -> Any:
    import numpy as np

    return np.where(np.isinf(values), values, _normal(values, generator) + np.float32(by))


def _reordered(values: Any, generator: Any) -> Any:
    """Return the finite values in another order; equal ones become different, and NaN zero."""
    import numpy as np

    values = np.where(np.isnan(values), 0, values)
    finite = np.isfinite(values)
    chosen = values[finite]
    if not chosen.size:
        return values
    if np.any(chosen != chosen[0]):
        generator.shuffle(chosen)
    elif chosen[0]:
        chosen *= generator.uniform(0.5, 1.5, chosen.size).astype(chosen.dtype)
    else:
        chosen[:] = generator.standard_normal(chosen.size, dtype=np.float32)
    values[finite] = chosen
    return values


def _bool_ways(values: Any, style: Style) -> list[_Way]:
    mixed = values.any() and not values.all()
    mostly = partial(_flags, values, share=_COMMON)
    if style is Style.EDGE:
        return [partial(_with_empty_rows, values), mostly]
    if style is Style.RANDOM:
        return [partial(_flags, values, share=0.5), mostly]
    return [partial(_shuffled, values), mostly] if mixed and style is Style.FAR else [mostly]


def _flags(values: Any, generator: Any, *, share: float) -> Any:
    """Return booleans of which this share is true, and at least one is not what it was."""
    import numpy as np

    made = np.asarray(generator.random(values.shape) < share)
    place = generator.integers(values.size)
    made.reshape(-1)[place] = not values.reshape(-1)[place]
    return made


def _with_empty_rows(values: Any, generator: Any) -> Any:
    """Return booleans, half of them true, with one row, one column and so on that are all false."""
    import numpy as np

    made = np.asarray(generator.random(values.shape) < 0.5)
    for axis in range(made.ndim if made.ndim > 1 else 0):
        place: list[Any] = [int(generator.integers(size)) for size in made.shape]
        place[axis] = slice(None)
        made[tuple(place)] = False
    return made


def _position_ways(values: Any, style: Style, extents: frozenset[int]) -> list[_Way]:
    """Return positions within what the caller's values and the extents of the arrays say. A negative value is a mark
    and stays. Where negative ones differ, the integers are numbers, and any up to the caller's largest will do.
    """
    import numpy as np

    kept = values < 0
    if values.size and np.unique(values[kept]).size > _MARKS:
        most = int(np.abs(values).max())
        low = max(-most, int(values.min()))
        return [
            lambda generator: generator.integers(low, most, values.shape, endpoint=True),
            partial(_shuffled, values),
        ]
    if kept.all():
        return []
    if style is Style.EDGE and kept.any():
        mark = values[kept].min()
        return [lambda _: np.full_like(values, mark)]
    most = int(values.max())
    shuffled = partial(_shuffled, values)
    differs = bool((values != values.flat[0]).any())
    if values.ndim == 1 and values.size > 2 and differs and not kept.any():
        steps = np.diff(values)
        if values[0] == 0 and (steps >= 0).all() and most in extents and most != values.size - 1:
            return [partial(_other_bounds, values)]
        if (values.sum() in extents) and not (steps == 1).all():
            return [partial(_other_shares, values), shuffled]
    if values.size > 1 and not differs and int(values.sum()) in extents and most > 1 and most not in extents:
        return [partial(_other_shares, values)]

    def below(top: int, generator: Any, *, least: int = 0) -> Any:
        made = generator.integers(least, max(top, least + 1), values.shape)
        if values.size == 1 and made.flat[0] == values.flat[0] and top > least + 1:
            made = np.full_like(made, top - 1 if made.flat[0] != top - 1 else least)
        return np.where(kept, values, made)

    smallest = max(2, min([*extents, _POSITIONS]))
    tops = sorted({max(most + 1, smallest), smallest, max(2, smallest // 4), 2}, reverse=True)
    ragged = [partial(below, most + 1, least=1)] if most > 1 else []
    own = [shuffled] if differs else []
    random: list[_Way] = [partial(below, top) for top in tops]
    if style is Style.EDGE:
        return [partial(below, 1), partial(below, 2), *random]
    if style is Style.FAR:
        return [*own, *ragged, *random]
    return [*ragged, *own, *random] if style is Style.LARGE else [*random, *ragged, *own]


def _other_bounds(values: Any, generator: Any) -> Any:
    """Return other sorted positions between the first and the last, as those at which the rows of a batch begin."""
    import numpy as np

    between = np.sort(generator.integers(values[0], values[-1] + 1, values.size - 2))
    return np.concatenate([values[:1], between, values[-1:]])


def _other_shares(values: Any, generator: Any) -> Any:
    """Return other sizes of groups, with the same sum, and with none that is zero unless one was."""
    import numpy as np

    least = min(1, int(values.min()))
    shares = generator.multinomial(int(values.sum()) - least * values.size, np.full(values.size, 1 / values.size))
    found = (shares + least).reshape(values.shape)
    return _shuffled(found, generator)


def _kept(way: _Way, generator: Any, *, distinct: bool, ordered: bool) -> Any:
    """Return the positions of a way; distinct or sorted if they have to be."""
    import numpy as np

    values = way(generator)
    if distinct and np.unique(values).size < values.size:
        top = max(int(values.max()) + 1, values.size)
        values = generator.permutation(top)[: values.size].reshape(values.shape)
    return np.sort(values, axis=0) if ordered else values


def _shuffled(values: Any, generator: Any) -> Any:
    """Return all values in another order, in which not all are where they were, if that is possible."""
    found = generator.permutation(values.reshape(-1)).reshape(values.shape)
    if (found == values).all():
        found = values.reshape(-1)[::-1].reshape(values.shape)
    return found


def _other_keys(array: Any, generator: Any) -> Any:
    import jax

    data = jax.random.key_data(array)
    bits = generator.integers(0, 2**32, data.shape, dtype="uint32")
    return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(array))


def _repeated(made: Any, shape: tuple[int, ...]) -> Any:
    import numpy as np

    return np.resize(made, shape)


def _host(array: Any) -> Any:
    import numpy as np

    return np.array(array, order="C")


def _wide(array: Any) -> Any:
    """Return a copy on the host, in a data type that numpy computes with."""
    import numpy as np

    values = _host(array)
    return values if values.dtype.kind in "fc" and values.dtype.itemsize >= 4 else values.astype(np.float32)


class Variations:
    """Finds inputs on which the default can be trusted.

    Args:
        arrays: of the caller, or what stands for them.
        fixed: for each, whether it has to stay as it is.
        distinct: positions that differ stay different.
        ordered: positions that are sorted stay sorted.
        usable: whether the default can be trusted on these arrays.
        run: calls a function where arrays may be made: not in a trace.
        seed: of the random values.
    """

    def __init__(
        self,
        arrays: Sequence[Any],
        *,
        fixed: Sequence[bool],
        distinct: bool,
        ordered: bool,
        usable: Callable[[Sequence[Any]], bool],
        run: Callable[[Callable[[], Any]], Any],
        seed: int,
    ) -> None:
        extents = frozenset(size for array in arrays for size in array.shape if size > 1)
        self._arrays = list(arrays)
        self._varied = [
            None if stays else VariedArray(array, extents, distinct, ordered)
            for array, stays in zip(arrays, fixed, strict=True)
        ]
        self._usable = usable
        self._run = run
        self._seed = seed

    def in_style(self, style: Style) -> list[Any] | None:
        """Vary the arrays in this style, or in a milder way where the default bears no other. None if none changes."""
        ways = self._run(lambda: [[] if varied is None else varied.ways(style) for varied in self._varied])
        if not any(ways):
            return None
        boldest = [self._made(index, own, 0, style) for index, own in enumerate(ways)]
        if self._usable(boldest):
            return boldest
        found = list(self._arrays)
        for index, own in enumerate(ways):
            for number in range(len(own)):
                trial = list(found)
                trial[index] = boldest[index] if number == 0 else self._made(index, own, number, style)
                # All at their boldest were tried, as they are where one array alone is varied.
                if not _same(trial, boldest) and self._usable(trial):
                    found = trial
                    break
        return None if _same(found, self._arrays) else found

    def _made(self, index: int, ways: Sequence[_Way], number: int, style: Style) -> Any:
        import numpy as np

        varied = self._varied[index]
        if varied is None or not ways:
            return self._arrays[index]
        generator = np.random.default_rng([self._seed, index, number, list(Style).index(style) + 1])
        return self._run(lambda: varied.placed(ways[number](generator)))


def _same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return all(one is other for one, other in zip(some, others, strict=True))
