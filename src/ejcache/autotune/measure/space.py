"""Holds the configurations among which a search chooses: a list of them, or a `Space`, which its axes describe.

A search sees the points of a space, which are steps on axes of so many values, and makes configurations of few of them.
"""

from __future__ import annotations

import bisect
import itertools
import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ejcache.autotune.records.json_values import ConfigurationError, canonical_json, json_digest, to_json
from ejcache.errors import UsageError

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Hashable, Iterator, Sequence

    Point = tuple[int, ...]


_TRIES: Final = 20
"""Random points that are drawn for each one that is wanted, where constraints refuse nearly all."""

_ENOUGH: Final = 0.25
"""Where they allow at least this share, no more are drawn than are wanted."""

_PROBES: Final = 8
_PROBED: Final = 100
"""Constraints are asked of so many random points at a time, and of so many in all, for the share that they allow."""


class Points(NamedTuple):
    """Points of a space, none of which is a configuration yet.

    Attributes:
        names: what the space calls each.
        places: an array with the coordinates of each, between 0 and 1 on each axis.
    """

    names: Sequence[Hashable]
    places: Any


def powers_of_two(least: int, most: int) -> list[int]:
    """Return the powers of two from `least` to `most`, both included."""
    if not 0 < least <= most or least & (least - 1) or most & (most - 1):
        raise UsageError(f"powers_of_two({least}, {most}) needs two powers of two, the smaller one first")
    return [1 << bit for bit in range(least.bit_length() - 1, most.bit_length())]


class Space:
    """Configurations with one value of each axis.

        Space({"block": powers_of_two(16, 256), "stages": [1, 2, 3], "transposed": [False, True]},
              constraints=[lambda config, x: config["block"] <= x.shape[0]], default={…})

    Args:
        axes: the values of each name, numbers and texts and booleans; of a nested field, its own axes.
        default: the configuration for a call that was not measured, which a winner must beat.
        constraints: functions of a configuration and the call, which return whether the configuration may be used.

    Raises:
        UsageError: an axis has no values, or the default has other names.
        ConfigurationError: a value has no form in JSON.
    """

    def __init__(
        self,
        axes: Mapping[str, Any],
        *,
        default: Mapping[str, Any],
        constraints: Sequence[Callable[..., bool]] = (),
    ) -> None:
        self.axes = {path: sorted({*values}, key=_order) for path, values in _paths(axes)}
        self.default = dict(default)
        self.constraints = tuple(constraints)
        for path, values in self.axes.items():
            if not values:
                raise UsageError(f"the axis {'.'.join(path)} has no values")
            to_json(values)
        if _values(to_json(self.default), self.axes) is None:
            names = ", ".join(".".join(path) for path in self.axes)
            raise UsageError(
                f"the default {canonical_json(to_json(self.default))} has not the names of the axes: {names}"
            )

    @property
    def names(self) -> frozenset[str]:
        """The names of a configuration."""
        return frozenset(path[0] for path in self.axes)

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that are equal for equal axes."""
        return json_digest([[list(path), values] for path, values in sorted(self.axes.items())])[:16]

    def of_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallSpace:
        """Return the configurations that a call may use."""
        return CallSpace(self, args, kwargs)


class CallSpace:
    """The configurations of a space that one call may use, as the search measures them."""

    def __init__(self, space: Space, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.space = space
        self._args = args
        self._kwargs = kwargs
        self._axes = [(path, values) for path, values in space.axes.items() if len(values) > 1]
        self._sizes = [len(values) for _, values in self._axes]
        self._asked = self._allowed = 1

    def allows(self, configuration: Any) -> bool:
        """True if a configuration has the names of the axes and fulfils the constraints. Its values may be others."""
        return _values(configuration, self.space.axes) is not None and self._fulfils(configuration)

    def _fulfils(self, configuration: Any) -> bool:
        return all(check(configuration, *self._args, **self._kwargs) for check in self.space.constraints)

    def checked(self, configuration: Any) -> Any:
        """Return the configuration; raises `ConfigurationError` if the call may not use it."""
        if not self.allows(configuration):
            raise ConfigurationError(f"{canonical_json(configuration)} is outside of the constraints of this call")
        return configuration

    def place(self, configuration: Any) -> tuple[float, ...] | None:
        """Return the coordinates; a number beside the axis lies between its neighbours."""
        if not self.allows(configuration):
            return None
        found = _values(configuration, dict(self._axes)) or []
        return tuple(
            _step(values, value) / (len(values) - 1) for (_, values), value in zip(self._axes, found, strict=True)
        )

    def near(self, configuration: Any, generator: random.Random, count: int) -> Points:
        """Return up to two steps on each axis, and one on each pair of axes: so many of these, at random."""
        found = _values(configuration, dict(self._axes)) or []
        point = [round(_step(values, value)) for (_, values), value in zip(self._axes, found, strict=True)]
        inside = _around(point, self._sizes)
        return self._located(inside[generator.sample(range(len(inside)), min(count, len(inside)))].tolist())

    def drawn(self, generator: random.Random, count: int) -> Points:
        """Return so many random points, or all; more where constraints refuse nearly all."""
        if self._asked <= _PROBED:
            # What the search asks for says less of the share: it prefers what it knows least of, as refused points are.
            self._asked += _PROBES
            self._allowed += sum(self._fulfils(self._at(point)) for point in self._steps(generator, _PROBES))
        more = min(_TRIES, max(1.0, _ENOUGH * self._asked / self._allowed))
        return self._located(self._steps(generator, math.ceil(count * more)))

    def _steps(self, generator: random.Random, count: int) -> list[list[int]]:
        """Draw random points, each once, or return all."""
        number = math.prod(self._sizes)
        if number > sys.maxsize:
            return [[*map(generator.randrange, self._sizes)] for _ in range(count)]
        return _steps_of(generator.sample(range(number), min(count, number)), self._sizes)

    def text(self, name: tuple[int, ...]) -> str | None:
        """Return the canonical JSON of the configuration at these steps; None if the constraints refuse it."""
        made = self._at(name)
        return canonical_json(made) if self._fulfils(made) else None

    def some(self, generator: random.Random, count: int) -> list[Any]:
        """Return up to so many random configurations."""
        made = (self._at(point) for point in self.drawn(generator, _TRIES * count).names)
        return list(itertools.islice(filter(self._fulfils, made), count))

    def _located(self, steps: list[list[int]]) -> Points:
        return _located([*map(tuple, steps)], steps, self._sizes)

    def _at(self, point: Any) -> Any:
        made: dict[str, Any] = {}
        steps = iter(point)
        for path, values in self.space.axes.items():
            held = made
            for name in path[:-1]:
                held = held.setdefault(name, {})
            held[path[-1]] = values[next(steps) if len(values) > 1 else 0]
        return made


class ListedSpace:
    """Configurations, JSON values, of which the search measures some."""

    def __init__(self, configurations: Sequence[Any]) -> None:
        flat = [_flattened(item) for item in configurations]
        names = sorted(set(flat[0]).intersection(*flat[1:]))
        values = {name: sorted({item[name] for item in flat}, key=_order) for name in names}
        names = [name for name in names if len(values[name]) > 1]
        steps = {name: {value: step for step, value in enumerate(values[name])} for name in names}
        self._sizes = [len(values[name]) for name in names]
        self._points: dict[str, Point] = {}
        # Several configurations are at one point if they differ in names that not all have.
        self._at: dict[Point, list[str]] = {}
        for configuration, item in zip(configurations, flat, strict=True):
            point = tuple(steps[name][item[name]] for name in names)
            text = canonical_json(configuration)
            self._points[text] = point
            self._at.setdefault(point, []).append(text)
        self._texts = [*self._points]

    def place(self, configuration: Any) -> tuple[float, ...] | None:
        """Return the steps on each axis, as shares of its length."""
        point = self._points.get(canonical_json(configuration))
        if point is None:
            return None
        return tuple(step / (size - 1) for step, size in zip(point, self._sizes, strict=True))

    def near(self, configuration: Any, generator: random.Random, count: int) -> Points:
        """Return one or two steps on each axis, and one step on each pair of axes: so many of these, at random."""
        inside = _around(self._points[canonical_json(configuration)], self._sizes)
        found = [text for near in inside.tolist() for text in self._at.get(tuple(near), ())]
        return self._located(generator.sample(found, count) if len(found) > count else found)

    def drawn(self, generator: random.Random, count: int) -> Points:
        """Return so many configurations, or all."""
        return self._located(generator.sample(self._texts, min(count, len(self._texts))))

    def text(self, name: str) -> str:
        """Return the canonical JSON of a configuration, which is its name here."""
        return name

    def _located(self, texts: list[str]) -> Points:
        return _located(texts, [self._points[text] for text in texts], self._sizes)


def _paths(axes: Mapping[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, values in axes.items():
        if isinstance(values, Mapping):
            yield from _paths(values, (*before, name))
        else:
            yield (*before, name), values


def _values(configuration: Any, axes: Mapping[tuple[str, ...], Any]) -> list[Any] | None:
    """Return the value on each axis; None if the configuration lacks one."""
    found = []
    for path in axes:
        held = configuration
        for name in path:
            if not isinstance(held, Mapping) or name not in held:
                return None
            held = held[name]
        found.append(held)
    return found


def _step(values: Sequence[Any], value: Any) -> float:
    """Return the place of a value on an axis, counted in steps."""
    below = bisect.bisect_right(values, _order(value), key=_order)
    step = max(0, below - 1)
    if values[step] == value or not isinstance(value, int | float) or not below or step + 1 == len(values):
        return float(step)
    return step + 0.5


def _located(names: Sequence[Hashable], steps: Any, sizes: Sequence[int]) -> Points:
    """Return the points with these names, a row of steps for each: a coordinate is a share of the length of an axis."""
    import numpy as np

    rows = np.asarray(steps).reshape(len(names), len(sizes))
    return Points(names, rows / (np.asarray(sizes) - 1))


def _steps_of(numbers: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Return the steps of each number, of which the last axis counts the ones."""
    import numpy as np

    # One more axis, of one value, because a space may have none.
    steps = np.transpose(np.unravel_index(numbers, [*sizes, 1])[:-1])
    return steps.reshape(len(numbers), len(sizes)).tolist()


def _around(point: Sequence[int], sizes: Sequence[int]) -> Any:
    """Return up to two steps on each axis of so many values, and one on each pair of axes: parameters depend on each
    other.
    """
    import numpy as np

    count = len(point)
    unit = np.eye(count, dtype=np.int64)
    steps = np.asarray((-1, 1, -2, 2))
    single = (unit[:, None, :] * steps[:, None]).reshape(4 * count, count)
    one, other = (unit[axes][:, None, :] for axes in np.triu_indices(count, 1))
    pairs = one * np.asarray((-1, -1, 1, 1))[:, None] + other * np.asarray((-1, 1, -1, 1))[:, None]
    both = pairs.reshape(2 * count * (count - 1), count)
    found = np.asarray(point, dtype=np.int64) + np.concatenate([single, both])
    return found[((found >= 0) & (found < np.asarray(sizes))).all(1)]


def _flattened(value: Any, name: str = "") -> dict[str, Any]:
    """Return each value in a configuration that is neither a list nor an object, by its path."""
    if isinstance(value, dict) and value:
        return {path: item for key, inner in value.items() for path, item in _flattened(inner, f"{name}.{key}").items()}
    return {name: value if isinstance(value, int | float | str) else canonical_json(value)}


def _order(value: Any) -> tuple[bool, float, str]:
    """Return the order of the values on an axis: numbers by size, then texts."""
    number = isinstance(value, int | float)
    return not number, float(value) if number else 0.0, str(value)
