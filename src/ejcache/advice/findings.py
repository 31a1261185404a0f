"""What a finding is, and the forms in which it is shown.

document := {"schema": 1, "findings": [finding …], "smaller_findings": {"number", "saves"}}
finding  := {"kind", "function", "file", "line", "programs", "calls", "seconds", "saves", "basis", "message",
             "fix": {"before", "after"}, "link"}
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from ejcache.util.tuples import NamedTuple
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Iterable

_SCHEMA: Final = 1
LEAST_SAVED: Final = 0.05
"""Seconds that a change must save to be shown unasked; of a large constant, its bytes count."""
MEASURED: Final = "measured"
"""The seconds that are saved were spent, and would not be."""
COUNTED: Final = "counted"
"""The seconds were spent, and how many of the programs remain was counted."""
ESTIMATED: Final = "estimated"
"""The seconds are a part of what was spent, by the size of the program."""
BASES: Final = {
    MEASURED: "these seconds were spent, and would not be",
    COUNTED: "the seconds were spent, and the programs that remain were counted",
    ESTIMATED: "a part of what was spent, by the size of the program",
}
"""How the seconds that a change saves are known, in words."""

MADE_ANEW: Final = "made_anew"
SHAPE_VARIES: Final = "shape_varies"
STATIC_NUMBER: Final = "static_number"
COMPILED_TWICE: Final = "compiled_twice"
WEAK_TYPE: Final = "weak_type"
REPEATED_BLOCK: Final = "repeated_block"
LARGE_CONSTANT: Final = "large_constant"
SINGLE_OPERATIONS: Final = "single_operations"
SLOWER_SINCE: Final = "slower_since"
KINDS: Final = {
    MADE_ANEW: "a jitted function is made anew",
    SHAPE_VARIES: "a shape varies",
    STATIC_NUMBER: "a number is static",
    COMPILED_TWICE: "a function is compiled twice",
    WEAK_TYPE: "a type varies",
    REPEATED_BLOCK: "a block repeats",
    LARGE_CONSTANT: "a constant is large",
    SINGLE_OPERATIONS: "one operation at a time",
    SLOWER_SINCE: "slower than before",
}
"""The kinds of findings, each with its heading on the page of advice."""


class Advice(NamedTuple):
    """One thing to change in a program.

    Attributes:
        kind: one of `KINDS`.
        function: the function as its author calls it.
        file: the path of the file to change.
        line: the line to change in it.
        programs: how many programs there were.
        calls: how often JAX asked for one.
        seconds: what they cost a start.
        saves: what the change saves of that.
        basis: how `saves` is known: `MEASURED`, `COUNTED` or `ESTIMATED`.
        message: what to change, one sentence.
        before: the code as it is, in a few lines.
        after: the code as it would be.
    """

    kind: str
    function: str
    file: str
    line: int
    programs: int = 1
    calls: int = 1
    seconds: float = 0.0
    saves: float = 0.0
    basis: str = MEASURED
    message: str = ""
    before: str = ""
    after: str = ""

    @property
    def title(self) -> str:
        """The heading of its kind on the page of advice."""
        return KINDS[self.kind]

    @property
    def link(self) -> str:
        """The part of the documentation about its kind."""
        return f"docs/advice.md#{self.title.replace(' ', '-')}"

    @property
    def place(self) -> str:
        """`train.py:14`, with the directories below the working directory."""
        return f"{shown_path(self.file)}:{self.line}"

    @property
    def costs(self) -> str:
        """Put into words how many programs and calls there were, how long they took, and what the change saves."""
        counts = f"{plural(self.programs, 'program')}, {plural(self.calls, 'call')}"
        return f"{counts}, {self.seconds:.2f} s a start; saves {self.saves:.2f} s ({self.basis})"

    def to_dict(self) -> dict[str, Any]:
        """Stable snake_case fields, for machines."""
        fields = self._asdict()
        fix = {"before": fields.pop("before"), "after": fields.pop("after")}
        fields["seconds"], fields["saves"] = round(self.seconds, 6), round(self.saves, 6)
        return {**fields, "fix": fix, "link": self.link}


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
        """Stable snake_case fields, for machines."""
        return {"number": self.number, "saves": round(self.saves, 6)}


def said_of_none(smaller: SmallerFindings) -> list[str]:
    """Say that nothing large was found, and what the smaller findings are."""
    nothing = "nothing to change was found"
    return [f"{nothing} that saves {LEAST_SAVED} s or more", smaller.words] if smaller.number else [nothing]


def document(findings: Iterable[Advice], smaller: SmallerFindings) -> dict[str, Any]:
    """Return the findings for machines."""
    found = [finding.to_dict() for finding in findings]
    return {"schema": _SCHEMA, "findings": found, "smaller_findings": smaller.to_dict()}


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
