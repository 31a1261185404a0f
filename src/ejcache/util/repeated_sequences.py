"""Blocks that repeat in a sequence: runs of copies of one subsequence, one after another."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_COPIES: Final = 4
"""Copies of a block that make a run."""
_MOST_OF: Final = 0.5
"""The part of the sequence that all blocks must make up."""
_LEAST_OF: Final = 0.1
"""The part that one of several blocks must make up."""
_BLOCKS: Final = 3
_PERIODS: Final = 12
"""Lengths of a block that are tried, by each width."""
_WIDTHS: Final = (1, 4, 16)
"""Items that are looked at together: single ones repeat within a block, too."""


class Repetition(NamedTuple):
    """Copies of one block: its length, their number, and where each run of them begins."""

    period: int
    copies: int
    starts: list[int]

    @property
    def covers(self) -> int:
        """The items of all copies."""
        return self.period * self.copies

    @property
    def spared(self) -> float:
        """The items that are spared if each run is written once."""
        return self.period * (self.copies - len(self.starts))


def repetitions(
    tokens: Sequence[object], *, blocks: int = _BLOCKS, least_of: float = _LEAST_OF, most_of: float = _MOST_OF
) -> list[Repetition]:
    """Return the blocks whose copies make up most of a sequence, the one that makes up most first; empty if they do
    not.

    There may be several, because a layer has other operations backwards than forwards.

    Args:
        tokens: the sequence.
        blocks: how many there may be.
        least_of: the part of the sequence that each must make up.
        most_of: the part that all must make up.
    """
    left = list(tokens)
    found: list[Repetition] = []
    while len(found) < blocks and (block := _shortened(left, _longest(left))).covers > least_of * len(left):
        found.append(block)
        for start in block.starts:
            end = run_ends(left, start, block.period)
            left[start:end] = [object() for _ in range(start, end)]
    return found if sum(each.covers for each in found) >= most_of * len(left) else []


def run_ends(tokens: Sequence[object], start: int, period: int) -> int:
    """Return the end of the run of copies that begins at `start`; the last copy may be cut."""
    place = start
    while place + period < len(tokens) and tokens[place] == tokens[place + period]:
        place += 1
    return place + period


def shortest_period(run: Sequence[object], period: int) -> int:
    """Return the length of the shortest block of which a run consists, which repeats after `period`."""
    return next((each for each in range(1, period) if run_ends(run, 0, each) == len(run)), period)


def _shortened(tokens: Sequence[object], block: Repetition) -> Repetition:
    """Return the shortest block of the same runs."""
    ends = [run_ends(tokens, start, block.period) for start in block.starts]
    runs = [tokens[start:end] for start, end in zip(block.starts, ends, strict=True)]
    period = max((shortest_period(run, block.period) for run in runs), default=block.period)
    return Repetition(period, sum(len(run) // period for run in runs), block.starts) if runs else block


def _gaps(tokens: Sequence[object], width: int) -> list[int]:
    """Return the commonest distances between equal sequences of so many items."""
    last: dict[object, int] = {}
    gaps: Counter[int] = Counter()
    for place in range(len(tokens) - width + 1):
        window = hash(tuple(tokens[place : place + width]))
        if window in last:
            gaps[place - last[window]] += 1
        last[window] = place
    return [gap for gap, _ in gaps.most_common(_PERIODS)]


def _longest(tokens: Sequence[object]) -> Repetition:
    """Return the block whose copies make up most of these."""
    periods = {period * times for width in _WIDTHS for period in _gaps(tokens, width) for times in (1, 2, 3)}
    best = Repetition(0, 0, [])
    for period in sorted(each for each in periods if 2 <= each <= len(tokens) // _COPIES):
        copies, starts, place = 0, [], 0
        while place + period < len(tokens):
            end = run_ends(tokens, place, period)
            found = (end - place) // period
            if found >= _COPIES and len(set(tokens[place : place + period])) > 1:
                copies += found
                starts.append(place)
                place = end
            else:
                place = end - period + 1
        # A multiple of the shortest period covers no more.
        if copies * period > best.covers * 1.05:
            best = Repetition(period, copies, starts)
    return best
