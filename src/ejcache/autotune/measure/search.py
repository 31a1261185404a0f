"""Chooses which configurations of a large space to measure: coordinate descent, with restarts, along its axes."""

from __future__ import annotations

import itertools
import math
import random
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.records.json_values import canonical_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["AxisSearch"]

_RANDOM_STARTS: Final = 12
_BATCH: Final = 8

Point = tuple[int, ...]


class AxisSearch:
    """Asks for the times of some configurations, learns them, and asks for more near the best ones.

    The axes are the names that all configurations have, nested ones too, and the values that occur. The search measures
    the starts and some random configurations. From the best one it goes to the best neighbour on all axes, then on all
    pairs of axes, because parameters depend on each other. Where no neighbour is better, it starts again from the next
    best configuration.

    Args:
        configurations: JSON values.
        starts: positions of configurations to measure first, such as the default.
        limit: at most so many configurations are measured.
        seed: of the random ones.

    Attributes:
        times: seconds by position; infinite for one that failed.
    """

    def __init__(self, configurations: Sequence[Any], *, starts: Iterable[int], limit: int, seed: int = 0) -> None:
        self.times: dict[int, float] = {}
        self._limit = limit
        flat = [_flattened(item) for item in configurations]
        names = sorted(set(flat[0]).intersection(*flat[1:]))
        values = {name: sorted({item[name] for item in flat}, key=_order) for name in names}
        names = [name for name in names if len(values[name]) > 1]
        places = {name: {value: place for place, value in enumerate(values[name])} for name in names}
        self._points: list[Point] = [tuple(places[name][item[name]] for name in names) for item in flat]
        # Several configurations are at one point if they differ in names that not all have.
        self._at: dict[Point, list[int]] = {}
        for position, point in enumerate(self._points):
            self._at.setdefault(point, []).append(position)
        self._sizes = [len(values[name]) for name in names]
        self._exhausted: set[Point] = set()
        first = list(dict.fromkeys(starts))
        rest = [position for position in range(len(flat)) if position not in first]
        random.Random(seed).shuffle(rest)  # noqa: S311 (not a secret)
        self._queue = first + rest[:_RANDOM_STARTS]
        self._rest = rest[_RANDOM_STARTS:]

    def ask(self) -> list[int]:
        """The positions to measure next; empty at the end."""
        left = self._limit - len(self.times)
        if left <= 0:
            return []
        if not self._queue:
            self._queue = self._near_best()
        batch = [position for position in self._queue[: min(_BATCH, left)] if position not in self.times]
        self._queue = self._queue[_BATCH:]
        return batch or (self.ask() if self._queue or self._rest else [])

    def tell(self, times: Mapping[int, float]) -> None:
        """Learn the seconds of positions; infinite for one that failed."""
        best = min(self.times.values(), default=math.inf)
        self.times.update(times)
        if min(times.values(), default=math.inf) < best and self._exhausted:
            # Go on from there at once, not after all neighbours of the former best one.
            self._queue = []

    def _near_best(self) -> list[int]:
        for position in sorted(self.times, key=self.times.__getitem__):
            if self.times[position] == math.inf:
                break
            point = self._points[position]
            if point in self._exhausted:
                continue
            for neighbours in (self._along_axes(point, 1), self._along_axes(point, 2), self._along_pairs(point)):
                if found := self._unknown(neighbours):
                    return found
            self._exhausted.add(point)
        found, self._rest = self._rest[:_BATCH], self._rest[_BATCH:]
        return found

    def _unknown(self, points: Iterable[Point]) -> list[int]:
        found = [position for point in points for position in self._at.get(point, ())]
        return [position for position in found if position not in self.times]

    def _along_axes(self, point: Point, reach: int) -> list[Point]:
        """The neighbours on each axis, `reach` steps away."""
        steps = {sign * reach for sign in (-1, 1)}
        return [
            (*point[:axis], place, *point[axis + 1 :])
            for axis, size in enumerate(self._sizes)
            for place in range(size)
            if place - point[axis] in steps
        ]

    def _along_pairs(self, point: Point) -> list[Point]:
        """One step on each of two axes."""
        found = []
        for one, other in itertools.combinations(range(len(point)), 2):
            for step, step_other in itertools.product((-1, 1), repeat=2):
                moved = list(point)
                moved[one] += step
                moved[other] += step_other
                found.append(tuple(moved))
        return found


def _flattened(value: Any, name: str = "") -> dict[str, Any]:
    if isinstance(value, dict) and value:
        return {path: item for key, inner in value.items() for path, item in _flattened(inner, f"{name}.{key}").items()}
    return {name: value if isinstance(value, int | float | str) else canonical_json(value)}


def _order(value: Any) -> tuple[bool, float, str]:
    """Numbers by size, then texts."""
    number = isinstance(value, int | float)
    return not number, float(value) if number else 0.0, str(value)
