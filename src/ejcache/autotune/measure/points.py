"""Points of a space: steps on axes of so many values, and coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence


class Points(NamedTuple):
    """Points of a space, none of which is a configuration yet.

    Attributes:
        names: what the space calls each.
        places: an array with the coordinates of each, between 0 and 1 on each axis.
    """

    names: Sequence[Hashable]
    places: Any


def located(names: Sequence[Hashable], steps: Any, sizes: Sequence[int]) -> Points:
    """Return the points with these names, a row of steps for each: a coordinate is a share of the length of an axis."""
    import numpy as np

    rows = np.asarray(steps).reshape(len(names), len(sizes))
    return Points(names, rows / (np.asarray(sizes) - 1))


def steps_of(numbers: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Return the steps of each number, of which the last axis counts the ones."""
    import numpy as np

    # One more axis, of one value, because a space may have none.
    steps = np.transpose(np.unravel_index(numbers, [*sizes, 1])[:-1])
    return steps.reshape(len(numbers), len(sizes)).tolist()


def around(point: Sequence[int], sizes: Sequence[int]) -> Any:
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
