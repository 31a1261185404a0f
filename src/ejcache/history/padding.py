"""Chooses sizes to pad to, where programs of one function differ in a dimension of an argument."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

from ejcache.history.recorded_program import MOST_SIZES, are_alike, argument_types
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ejcache.history.recorded_program import Type

_SHAPES: Final = 3
"""Programs of a function with other sizes from which on sizes to pad to are named."""
_APART: Final = 2.0
"""How many times as large as the next smaller one each size to pad to is, at least; sizes so far apart are padded."""
_SHOWN: Final = 6


class Buckets(NamedTuple):
    """What padding one dimension would make of some programs.

    Attributes:
        argument: the number of the argument.
        axis: of its dimensions.
        seen: the sizes that were asked for, once each.
        sizes: those to pad to; the same as `seen` if these are far enough apart.
        programs: how many there were.
        left: how many there would be.
        padding: the part by which the arguments would be larger.
    """

    argument: int
    axis: int
    seen: tuple[int, ...]
    sizes: tuple[int, ...]
    programs: int
    left: int
    padding: float

    @property
    def is_done(self) -> bool:
        """True if the sizes that were asked for are buckets already."""
        return self.sizes == self.seen

    def words(self, name: str) -> str:
        """Say what to do, where the argument has this name."""
        seen = ", ".join(map(str, self.seen[:_SHOWN])) + ", \N{HORIZONTAL ELLIPSIS}" * (len(self.seen) > _SHOWN)
        if self.is_done:
            return f"nothing: sizes this far apart ({seen}) are buckets already"
        listed = ", ".join(map(str, self.sizes))
        return (
            f"pad dimension {self.axis} of {name} to {listed}: {plural(self.left, 'program')} instead of "
            f"{self.programs} for the sizes {seen}, with {self.padding:.0%} of padding"
        )


def buckets_of(signatures: Iterable[str]) -> Buckets | None:
    """Return the sizes to pad to, by the signatures of a function's programs, the latest last; None if that is no
    pattern.

    They are a pattern if three or more differ in one or two sizes, and in nothing else.
    """
    types = [each for each in map(argument_types, signatures) if each]
    types = [each for each in types if are_alike(each, types[-1])]
    if len(types) < _SHAPES:
        return None
    columns = _varying(types)
    if not 1 <= len(set(columns.values())) <= MOST_SIZES:
        return None
    (argument, axis), sizes = next(iter(columns.items()))
    seen = tuple(sorted(set(sizes)))
    if len(seen) < _SHAPES:
        return None
    bounds = seen if all(b >= _APART * a for a, b in itertools.pairwise(seen)) else tuple(buckets(seen))
    chosen = [min(bound for bound in bounds if bound >= size) for size in sizes]
    return Buckets(argument, axis, seen, bounds, len(types), len(set(chosen)), sum(chosen) / max(1, sum(sizes)) - 1)


def _varying(types: Sequence[Sequence[Type]]) -> dict[tuple[int, int], tuple[int, ...]]:
    """Return the sizes of each dimension that varies, by number of the argument and axis; the first argument first."""
    found = {}
    for argument, each in enumerate(types[0]):
        for axis in range(len(each.shape)):
            sizes = tuple(others[argument].shape[axis] for others in types)
            if len(set(sizes)) > 1:
                found[argument, axis] = sizes
    return found


def buckets(sizes: Sequence[int]) -> list[int]:
    """Choose the sizes to pad to: the largest, and of the others each that is far enough below the next one.

    What is chosen is chosen again where only these sizes are seen, so that who pads is told nothing more.
    """
    bounds: list[int] = []
    for size in sorted(set(sizes), reverse=True):
        if not bounds or _APART * _round(size) <= bounds[-1]:
            bounds.append(_round(size))
    return bounds[::-1]


def _round(size: int) -> int:
    """Return the next multiple of 8, or of 64 above 512, which hardware likes; small sizes are rounded less."""
    unit = 64 if size > 512 else 8 if size > 64 else 4 if size > 8 else 1
    return -(-size // unit) * unit
