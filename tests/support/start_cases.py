"""Starts of tests/history/start_cases.toml and programs of planted.toml beside it, which say what their fields are."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from typing import Any, Final

from helpers import ROOT
from why_pairs import edited

__all__ = ["CASES", "PLANTED", "Case", "Planted", "Start"]


@dataclass(frozen=True)
class Start:
    """One start: the text of a script or of a cell, and other files that it reads."""

    text: str
    script: str = "main.py"
    files: dict[str, str] = field(default_factory=dict)
    cell: str = ""
    goes_on: bool = False


@dataclass(frozen=True)
class Case:
    """Starts, and patterns of what is said: one for each program that the last start compiles."""

    title: str
    function: str
    starts: tuple[Start, ...]
    says: tuple[str, ...] = ()
    denies: str = ""
    advise: bool = False


@dataclass(frozen=True)
class Planted:
    """A program in which one thing is to be changed."""

    kind: str
    style: str
    text: str

    @property
    def title(self) -> str:
        """The name of the test."""
        return f"{self.kind}-{self.style}"

    @property
    def line(self) -> int:
        """The line to change, from 1."""
        return next(number for number, line in enumerate(self.text.splitlines(), 1) if line.endswith("# <-"))

    @property
    def case(self) -> Case:
        """Its only start, of which the findings are asked for."""
        return Case(self.title, "", (Start(self.text, "train.py"),), advise=True)


def _tables(name: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / "tests" / "history" / name).read_text())


def _case(row: dict[str, Any], programs: dict[str, str]) -> Case:
    program, says, each = programs[row.pop("program")], tuple(row.pop("says")), row.pop("each", 1)
    starts = [Start(edited(program, start.pop("edits", ()), row["title"]), **start) for start in row.pop("starts")]
    return Case(starts=tuple(starts), says=says * each, **row)


def _planted(row: dict[str, Any], styles: dict[str, str]) -> Planted:
    title = f"{row['kind']}-{row['style']}"
    head = edited(styles[row["style"].partition("-")[0]], row.get("edits", ()), title)
    return Planted(row["kind"], row["style"], head + row["text"])


_starts, _programs = _tables("start_cases.toml"), _tables("planted.toml")
CASES: Final = [_case(row, _starts["programs"]) for row in _starts["case"]]
PLANTED: Final = [_planted(row, _programs["styles"]) for row in _programs["planted"]]
