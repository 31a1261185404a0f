"""A list of configurations as a space: its axes are the names that all of them have, nested ones too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ejcache.autotune.measure.points import around, located
from ejcache.autotune.records.json_values import canonical_json

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from ejcache.autotune.measure.points import Points

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
        inside = around(self._points[canonical_json(configuration)], self._sizes)
        found = [text for near in inside.tolist() for text in self._at.get(tuple(near), ())]
        return self._located(generator.sample(found, count) if len(found) > count else found)

    def drawn(self, generator: random.Random, count: int) -> Points:
        """Return so many configurations, or all."""
        return self._located(generator.sample(self._texts, min(count, len(self._texts))))

    def text(self, name: str) -> str:
        """Return the canonical JSON of a configuration, which is its name here."""
        return name

    def _located(self, texts: list[str]) -> Points:
        return located(texts, [self._points[text] for text in texts], self._sizes)


def flattened(value: Any, name: str = "") -> dict[str, Any]:
    """Return each value in a configuration that is neither a list nor an object, by its path."""
    if isinstance(value, dict) and value:
        return {path: item for key, inner in value.items() for path, item in flattened(inner, f"{name}.{key}").items()}
    return {name: value if isinstance(value, int | float | str) else canonical_json(value)}


def order(value: Any) -> tuple[bool, float, str]:
    """Return the order of the values on an axis: numbers by size, then texts."""
    number = isinstance(value, int | float)
    return not number, float(value) if number else 0.0, str(value)
