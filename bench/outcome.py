"""What a case found: times side by side, ratios against their bars, and what a reader must know beside them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bench.measure import Summary

__all__ = ["OURS", "Bar", "Line", "Outcome", "Ratio", "Split", "at_least", "at_most", "surely_at_least"]

OURS = "ejcache"
"""The contestant that the others are peers of."""


@dataclass(frozen=True, slots=True)
class Bar:
    """What a ratio has to reach: `at_most(1.02)`, `at_least(300)`.

    Attributes:
        by_interval: the whole interval of the ratio has to reach it, so that chance is ruled out.
    """

    sense: Literal["<=", ">="]
    value: float
    by_interval: bool = False

    def met_by(self, value: float) -> bool:
        if math.isnan(value):
            return False
        return value <= self.value if self.sense == "<=" else value >= self.value

    def __str__(self) -> str:
        return f"{'interval ' if self.by_interval else ''}{'≤' if self.sense == '<=' else '≥'} {self.value:g}"


def at_least(value: float) -> Bar:
    return Bar(">=", value)


def at_most(value: float) -> Bar:
    return Bar("<=", value)


def surely_at_least(value: float) -> Bar:
    """Not even the lower end of the ratio's interval lies below this."""
    return Bar(">=", value, by_interval=True)


@dataclass(frozen=True, slots=True)
class Ratio:
    """One comparison: `what` says which divided by which.

    Attributes:
        unit: "x", or "%" and "ms" where the comparison is a share or a difference.
        interval: where the ratio lies with a probability of 95 %, where that is known.
    """

    what: str
    value: float
    bar: Bar | None = None
    unit: str = "x"
    interval: tuple[float, float] | None = None

    @property
    def met(self) -> bool | None:
        if self.bar is None:
            return None
        worst = self.interval[self.bar.sense == "<="] if self.bar.by_interval and self.interval else self.value
        return self.bar.met_by(worst)

    def to_dict(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "value": self.value,
            "unit": self.unit,
            "interval": None if self.interval is None else list(self.interval),
            "bar": None if self.bar is None else f"{self.bar.sense} {self.bar.value:g}",
            "met": self.met,
        }


@dataclass(frozen=True, slots=True)
class Line:
    """One thing measured, by contestant."""

    what: str
    contestants: dict[str, Summary]


@dataclass(frozen=True, slots=True)
class Split:
    """Where a time goes, by contestant: the medians of its parts in seconds, and the order of the parts."""

    what: str
    parts: dict[str, dict[str, float]]
    order: list[str]


@dataclass(slots=True)
class Outcome:
    """What a case found; a case fills it in as it goes.

    Attributes:
        skipped: why the whole case did not run, in one sentence.
        failed: the kind of error that ended it.
        seconds: how long it took.
    """

    lines: list[Line] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    splits: list[Split] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    skipped: str | None = None
    failed: str | None = None
    seconds: float = 0.0

    def line(self, what: str, contestants: dict[str, Summary]) -> Line:
        line = Line(what, contestants)
        self.lines.append(line)
        return line

    def ratio(
        self,
        what: str,
        value: float,
        bar: Bar | None = None,
        *,
        unit: str = "x",
        interval: tuple[float, float] | None = None,
    ) -> None:
        self.ratios.append(Ratio(what, value, bar, unit, interval))

    def split(self, what: str, parts: dict[str, dict[str, float]], *, order: Iterable[str]) -> None:
        """Parts that no contestant has are left out."""
        here = {name for found in parts.values() for name in found}
        self.splits.append(Split(what, parts, [name for name in order if name in here]))

    def note(self, text: str) -> None:
        self.notes.append(text)

    def to_dict(self) -> dict[str, Any]:
        return {
            "skipped": self.skipped,
            "failed": self.failed,
            "seconds": self.seconds,
            "lines": [
                {"what": line.what, "contestant": name, **asdict(summary)}
                for line in self.lines
                for name, summary in line.contestants.items()
            ],
            "ratios": [ratio.to_dict() for ratio in self.ratios],
            "splits": [asdict(split) for split in self.splits],
            "notes": self.notes,
        }
