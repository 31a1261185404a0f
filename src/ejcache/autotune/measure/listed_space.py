"""A list of configurations as a space: its axes are the names that all of them have, nested ones too."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from ejcache.autotune.records.json_values import canonical_json

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

    from ejcache.autotune.measure.search import Located

    Point = tuple[int, ...]


class ListedSpace:
    """Configurations, JSON values, of which the search measures some."""

    def __init__(self, configurations: Sequence[Any]) -> None:
        flat = [flattened(item) for item in configurations]
        names = sorted(set(flat[0]).intersection(*flat[1:]))
        values = {name: sorted({item[name] for item in flat}, key=order) for name in names}
        names = [name for name in names if len(values[name]) > 1]
        steps = {name: {value: step for step, value in enumerate(values[name])} for name in names}
        self._sizes = [len(values[name]) for name in names]
        self._points: dict[str, Point] = {}
        # Several configurations are at one point if they differ in names that not all have.
        self._at: dict[Point, list[Any]] = {}
        self._located: list[tuple[Any, Point]] = []
        for configuration, item in zip(configurations, flat, strict=True):
            point = tuple(steps[name][item[name]] for name in names)
            self._points[canonical_json(configuration)] = point
            self._at.setdefault(point, []).append(configuration)
            self._located.append((configuration, point))

    def place(self, configuration: Any) -> tuple[float, ...] | None:
        """Return the steps on each axis, as shares of its length."""
        point = self._points.get(canonical_json(configuration))
        if point is None:
            return None
        return self._share(point)

    def near(self, configuration: Any, generator: random.Random, count: int) -> list[Located]:
        """Return one or two steps on each axis, and one step on each pair of axes: so many of these, at random."""
        point = self._points[canonical_json(configuration)]
        found = [(each, self._share(near)) for near in around(point, self._sizes) for each in self._at.get(near, ())]
        return generator.sample(found, count) if len(found) > count else found

    def drawn(self, generator: random.Random, count: int) -> list[Located]:
        """Up to so many configurations."""
        found = generator.sample(self._located, min(count, len(self._located)))
        return [(configuration, self._share(point)) for configuration, point in found]

    def _share(self, point: Point) -> tuple[float, ...]:
        return tuple(step / (size - 1) for step, size in zip(point, self._sizes, strict=True))


def around(point: Sequence[int], sizes: Sequence[int]) -> Iterator[Point]:
    """Up to two steps on each axis of so many values, and one on each pair of axes: parameters depend on each other."""
    for axis, step in itertools.product(range(len(point)), (-1, 1, -2, 2)):
        if 0 <= point[axis] + step < sizes[axis]:
            yield (*point[:axis], point[axis] + step, *point[axis + 1 :])
    for one, other in itertools.combinations(range(len(point)), 2):
        for step, step_other in itertools.product((-1, 1), repeat=2):
            if 0 <= point[one] + step < sizes[one] and 0 <= point[other] + step_other < sizes[other]:
                moved = list(point)
                moved[one] += step
                moved[other] += step_other
                yield tuple(moved)


def flattened(value: Any, name: str = "") -> dict[str, Any]:
    """Return each value in a configuration that is neither a list nor an object, by its path."""
    if isinstance(value, dict) and value:
        return {path: item for key, inner in value.items() for path, item in flattened(inner, f"{name}.{key}").items()}
    return {name: value if isinstance(value, int | float | str) else canonical_json(value)}


def order(value: Any) -> tuple[bool, float, str]:
    """Return the order of the values on an axis: numbers by size, then texts."""
    number = isinstance(value, int | float)
    return not number, float(value) if number else 0.0, str(value)
