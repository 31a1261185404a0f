"""The long tests take turns: in CI each file that has some runs on one day of ten, so that nothing is run by nobody.

A part is a file with tests that are marked `soak`. `SOAK_TURN=today` selects the parts whose day it is, a number from
0 to 9 those of that turn; without the variable every part runs. With `SOAK_SECONDS` no test begins after so many, and
what has not run is left out. The parts of a turn begin one later each time, so that the same one is not left out again.
The last lines of the run say which parts ran, how long each took, and when each is next.
"""

from __future__ import annotations

import datetime as dt
import os
import time
import zlib
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _pytest.mark import ParameterSet

TURNS: Final = 10
_VARIABLE: Final = "SOAK_TURN"
_SECONDS: Final = "SOAK_SECONDS"


MOVED: Final = {
    "tests/cache/test_fleet_soak.py": 7,
    "tests/hostile/test_hostile_stores.py": 1,
    "tests/reuse/test_reuse_ranks.py": 2,
    "tests/test_fuzz_formats.py": 8,
}
"""Parts of minutes whose names give them the day of other such parts: together they would not end in time."""


def turns_of(parts: Iterable[str]) -> dict[str, int]:
    """Give each part a turn by its name, so that none changes its day when another one comes or goes."""
    return {part: MOVED.get(part, zlib.crc32(part.encode()) % TURNS) for part in sorted(set(parts))}


def turn_on(day: dt.date) -> int:
    """The turn of a day: every ten days it comes again."""
    return day.toordinal() % TURNS


def next_day(turn: int, today: dt.date) -> dt.date:
    """The first day after today that has this turn."""
    return today + dt.timedelta(days=(turn - turn_on(today) - 1) % TURNS + 1)


def asked_turn(text: str, today: dt.date) -> int | None:
    """The turn that the variable names: none if it is empty, so that all parts run.

    Raises:
        pytest.UsageError: the text is neither `today` nor a number from 0 to 9.
    """
    if not text:
        return None
    if text == "today":
        return turn_on(today)
    if text.isdecimal() and int(text) < TURNS:
        return int(text)
    raise pytest.UsageError(f"{_VARIABLE} is {text!r}; it is `today` or a number from 0 to {TURNS - 1}")


def rotated(parts: list[str], by: int) -> list[str]:
    """The same parts, of which another one is the first each time."""
    first = by % max(1, len(parts))
    return parts[first:] + parts[:first]


def some(names: Iterable[object], *, every: int) -> list[ParameterSet]:
    """All names as parameters, of which `make test` uses one in `every`, and `make soak` the others.

    A tuple is a row of several parameters.
    """
    return [
        pytest.param(*(name if type(name) is tuple else (name,)), marks=[pytest.mark.soak] if number % every else [])
        for number, name in enumerate(names)
    ]


class SoakTurns:
    """Selects the parts of one turn, and reports about all of them."""

    def __init__(self) -> None:
        self._today = dt.datetime.now(tz=dt.UTC).date()
        self._turn = asked_turn(os.environ.get(_VARIABLE, ""), self._today)
        self._ends = time.monotonic() + float(os.environ.get(_SECONDS) or "inf")
        self._turns: dict[str, int] = {}
        self._parts: defaultdict[str, Part] = defaultdict(Part)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        soak = [item for item in items if item.get_closest_marker("soak")]
        self._turns = turns_of(_part(item.nodeid) for item in soak)
        if self._turn is None:
            return
        left_out = {item for item in soak if self._turns[_part(item.nodeid)] != self._turn}
        chosen = [item for item in items if item not in left_out]
        order = rotated(sorted({_part(item.nodeid) for item in chosen}), self._today.toordinal() // TURNS)
        items[:] = sorted(chosen, key=lambda item: order.index(_part(item.nodeid)))
        config.hook.pytest_deselected(items=list(left_out))
        for item in items:
            self._parts[_part(item.nodeid)].tests += 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self._turn is not None and time.monotonic() >= self._ends:
            self._parts[_part(item.nodeid)].is_left_out = True
            pytest.skip("left out")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._turn is not None:
            self._parts[_part(report.nodeid)].add(report)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._turn is None or not self._turns:
            return
        terminalreporter.section(f"long tests: turn {self._turn} of {TURNS}, {self._today}")
        for part, turn in self._turns.items():
            said = f"{self._parts[part].said}, " if part in self._parts else ""
            terminalreporter.write_line(f"{part}: {said}next on {next_day(turn, self._today)}")


class Part:
    """What has been seen of a part that has so many tests."""

    def __init__(self, tests: int = 0) -> None:
        self.tests = tests
        self.is_left_out = False
        self._seconds = 0.0
        self._ended: Counter[str] = Counter()

    def add(self, report: pytest.TestReport) -> None:
        self._seconds += report.duration
        if report.outcome != "passed" or report.when == "call":
            self._ended[report.outcome] += 1

    @property
    def said(self) -> str:
        """How it went."""
        if self._ended["failed"]:
            how = "FAILED in"
        elif self.is_left_out or self._ended.total() < self.tests:
            how = "left out after"
        else:
            how = "passed in" if self._ended["passed"] else "skipped in"
        return f"{how} {self._seconds:.0f} s"


def _part(nodeid: str) -> str:
    return nodeid.partition("::")[0]
