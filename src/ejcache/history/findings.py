"""Describes a finding, and writes it in the forms in which it is shown.

document := {"findings": [finding …], "smaller_findings": {"number", "saves"}}
finding  := {"kind", "function", "file", "line", "source", "programs", "calls", "seconds",
             "saves": [{"known", "seconds", "of"} …], "sentence", "what_to_do", "help"}
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ejcache.history.causes import AVOIDABLE, title_of
from ejcache.history.difference import ORDER
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Iterable

LEAST_SAVED: Final = 0.05
"""Seconds that a change must save to be shown unasked; of a large constant, its bytes count."""
AT_LEAST: Final = "at least"
"""So many seconds were spent, and would not be."""
ABOUT: Final = "about"
"""So many by a reckoning that stands beside it."""
AT_MOST: Final = "at most"
"""So many were spent, and how many of them remain nobody knows."""

MADE_ANEW: Final = "made_anew"
LARGE_CONSTANT: Final = "large_constant"
SINGLE_OPERATIONS: Final = "single_operations"
KINDS: Final = {
    MADE_ANEW: "a jitted function is made anew",
    **{kind: title_of(kind) for kind in (*AVOIDABLE, ORDER)},
    LARGE_CONSTANT: "a constant is large",
    SINGLE_OPERATIONS: "one operation at a time",
}
"""The kinds of findings, each with its heading on the page of what to change: causes that a change of the program
removes, and what costs without being one."""


class Saving(NamedTuple):
    """Seconds of a start that a change saves: how that is known, how many, and of what."""

    known: str = ABOUT
    seconds: float = 0.0
    of: str = ""

    def __str__(self) -> str:
        """Return `about 3.10 s of tracing`."""
        return f"{self.known} {self.seconds:.2f} s {self.of}"


class Advice(NamedTuple):
    """One thing to change in a program.

    Attributes:
        kind: one of `KINDS`.
        function: the function as its author calls it.
        file: the path of the file to change.
        line: the line to change in it.
        source: that line as it stands there; empty if it is not known.
        programs: how many programs there were.
        calls: how often JAX asked for one.
        seconds: what they cost a start.
        saves: what the change saves of that, as far as it is known; the first one decides the order.
        sentence: why it costs that; of a cause, the sentence of the program that was compiled last.
        what_to_do: one sentence.
    """

    kind: str
    function: str
    file: str
    line: int
    source: str = ""
    programs: int = 1
    calls: int = 1
    seconds: float = 0.0
    saves: tuple[Saving, ...] = ()
    sentence: str = ""
    what_to_do: str = ""

    @property
    def title(self) -> str:
        """The heading of its kind on the page of advice."""
        return KINDS[self.kind]

    @property
    def help(self) -> str:
        """The command that prints the part of the documentation about its kind."""
        return f"ejcache help {self.kind}"

    @property
    def place(self) -> str:
        """`train.py:14`, with the directories below the working directory."""
        return f"{shown_path(self.file)}:{self.line}"

    @property
    def saved(self) -> float:
        """The seconds by which findings are ordered."""
        return self.saves[0].seconds if self.saves else 0.0

    @property
    def costs(self) -> str:
        """Put into words how many programs and calls there were, how long they took, and what the change saves."""
        counts = f"{plural(self.programs, 'program')}, {plural(self.calls, 'call')}"
        saves = f"; saves {', and '.join(map(str, self.saves))}" if self.saves else ""
        return f"{counts}, {self.seconds:.2f} s a start{saves}"

    @property
    def message(self) -> str:
        """Why, and what to do."""
        return f"{self.sentence}; {self.what_to_do}"

    def to_dict(self) -> dict[str, Any]:
        """Return stable snake_case fields, for machines."""
        saves = [{"known": each.known, "seconds": round(each.seconds, 6), "of": each.of} for each in self.saves]
        return {**self._asdict(), "seconds": round(self.seconds, 6), "saves": saves, "help": self.help}


class SmallerFindings(NamedTuple):
    """The findings that are not shown, because each saves little: how many they are, and what they save together."""

    number: int = 0
    saves: float = 0.0

    @property
    def words(self) -> str:
        """The sentence about them; empty if there are none."""
        together, them = (" together", "them") if self.number > 1 else ("", "it")
        what = plural(self.number, "smaller finding")
        return (
            f"{what} would save {self.saves:.2f} s{together}: ejcache advise --all shows {them}" if self.number else ""
        )

    def to_dict(self) -> dict[str, Any]:
        """Return stable snake_case fields, for machines."""
        return {"number": self.number, "saves": round(self.saves, 6)}


def said_of_none(smaller: SmallerFindings) -> list[str]:
    """Say that nothing large was found, and what the smaller findings are."""
    nothing = "nothing to change was found"
    return [f"{nothing} that saves {LEAST_SAVED} s or more", smaller.words] if smaller.number else [nothing]


def document(findings: Iterable[Advice], smaller: SmallerFindings) -> dict[str, Any]:
    """Return the findings for machines."""
    return {"findings": [each.to_dict() for each in findings], "smaller_findings": smaller.to_dict()}


def annotation(finding: Advice) -> str:
    """Return a warning as GitHub's workflows read it from the output of a step."""
    title = _escaped(f"ejcache: {finding.title}").replace(":", "%3A").replace(",", "%2C")
    file = _escaped(shown_path(finding.file)).replace(":", "%3A").replace(",", "%2C")
    words = _escaped(f"{finding.message} ({finding.costs})")
    return f"::warning file={file},line={finding.line},title={title}::{words}"


def shown_path(path: str) -> str:
    """Return a path without the working directory, if it is below that."""
    try:
        inner = os.path.relpath(path)
    except ValueError:  # another drive
        return path
    return path if inner.startswith("..") else inner


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
