"""Pairs of real programs of tests/history/why_pairs.toml, which says what its fields are."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import Any, Final

from helpers import ROOT

__all__ = ["MISLEADING", "PAIRS", "WhyPair", "edited"]

_Two = tuple[dict[str, Any], dict[str, Any]]


@dataclass(frozen=True)
class WhyPair:
    """Two programs, of which the second one is the first one with `edits`."""

    title: str
    says: str
    program: str
    edits: tuple[tuple[str, str], ...] = ()
    env: _Two = ({}, {})
    config: _Two = ({}, {})
    argv: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    function: str = "train_step"
    quick: bool = False
    denies: str = ""
    misleading: bool = False

    @property
    def is_alone(self) -> bool:
        """Whether the two programs need processes of their own."""
        return any((*self.env, *self.argv))

    @property
    def texts(self) -> tuple[str, str]:
        """The texts of the two programs."""
        return self.program, edited(self.program, self.edits, self.title)


def edited(text: str, edits: Any, title: str) -> str:
    """The text with these replacements, each of which finds what it replaces; `title` names the program if not."""
    for old, new in edits:
        assert old in text, (title, old)
        text = text.replace(old, new)
    return text


def _pair(row: dict[str, Any], programs: dict[str, str]) -> WhyPair:
    named = row.pop("program", "mlp")
    program = edited(programs.get(named, named), row.pop("first", ()), row["title"])
    lists = {name: tuple(map(tuple, row.pop(name, default))) for name, default in (("edits", ()), ("argv", ((), ())))}
    twos = {name: tuple(row.pop(name)) for name in ("env", "config") if name in row}
    return WhyPair(program=program, **lists, **twos, **row)


def _read() -> list[WhyPair]:
    tables = tomllib.loads((ROOT / "tests" / "history" / "why_pairs.toml").read_text())
    return [_pair(row, tables["programs"]) for row in tables["pair"]]


PAIRS: Final = _read()
MISLEADING: Final = [pair for pair in PAIRS if pair.misleading]
"""Each names one cause, and denies the one that a comparison of two texts would give."""
