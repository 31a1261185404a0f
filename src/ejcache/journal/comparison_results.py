"""Describes what `ejcache run --compare` has found: the field `differences` of a line, and its sums.

difference := an object of: program (name), key (of the entry; empty if there is none), fault (see `Fault`),
output (position among the results, from 0; null for a difference of modules), differing, elements
(numbers of elements), largest (difference; null if the values are no numbers, or one of two is NaN),
fresh (largest difference of two fresh compilations; null likewise)
"""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Fault(enum.StrEnum):
    """What is at fault where a loaded executable gives another result than a fresh one."""

    CACHE = "cache"
    """Fresh compilations agree, and the loaded executable differs from them."""
    XLA = "xla"
    """Fresh compilations differ among themselves as much."""
    CALLS = "call_to_call"
    """One executable gives other results in another call with the same arguments."""
    WORD = "word"
    """A trace gives another module than the one that is stored for the word of the function."""


_IN_WORDS: Final = {
    Fault.CACHE: "THE CACHE: fresh compilations agree with each other, and what was loaded differs from them",
    Fault.XLA: "XLA is not deterministic here: fresh compilations differ from each other as much",
    Fault.CALLS: "it differs from call to call, with the same executable and the same arguments",
    Fault.WORD: "THE WORD: the trace gives another module than the one that is stored for its word",
}
BLAMED: Final = frozenset({Fault.CACHE, Fault.WORD})
"""The faults for which a program fails that has succeeded otherwise."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramDifference:
    """A program whose loaded executable, or whose stored module, differs from a fresh one; see the grammar above."""

    program: str
    key: str
    fault: Fault
    output: int | None = None
    differing: int = 0
    elements: int = 0
    largest: float | None = None
    fresh: float | None = None

    def encode(self) -> dict[str, Any]:
        """Return the object for a line."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    def sentence(self) -> str:
        """Say what differs, whose fault it is, and which command takes the entry out of use."""
        parts = [f"{self.program} differs"]
        if self.output is not None:
            parts = [
                f"{self.program} differs: output {self.output}, {self.differing:,} of {self.elements:,} elements",
                "" if self.largest is None else f", by at most {self.largest:.3g}",
                "" if not self.fresh else f" (two fresh compilations by {self.fresh:.3g})",
            ]
        said = f"{''.join(parts)}. {_IN_WORDS[self.fault]}"
        if self.fault is Fault.CACHE:
            said += f". Entry {self.key}; to take it out of use: ejcache recall {self.key}"
        if self.fault is Fault.WORD:
            said += ". Give it a word that changes with what it reads"
        return said


def decode_differences(value: Iterable[Mapping[str, Any]]) -> list[ProgramDifference]:
    """Return the differences of a line.

    Raises:
        ValueError, TypeError, KeyError: it is damaged.
    """
    found = []
    for each in value:
        numbers = {name: each.get(name) for name in ("output", "largest", "fresh")}
        if any(number is not None and not math.isfinite(number) for number in numbers.values()):
            raise ValueError(each)
        found.append(
            ProgramDifference(
                program=str(each["program"]),
                key=str(each["key"]),
                fault=Fault(each["fault"]),
                differing=int(each["differing"]),
                elements=int(each["elements"]),
                **numbers,
            )
        )
    return found


here: Final[list[ProgramDifference]] = []
"""What this process has found."""


# -- counters --------------------------------------------------------------------------------------------------------

COMPARED: Final = "compared_"
"""How the counters begin: `programs`, `calls`, `equal`, and each fault."""
LEFT_OUT: Final = "not_compared_"
"""How the counters of programs and calls that were not compared begin; the reason follows."""


def comparison_line(amounts: Mapping[str, float]) -> str:
    """Return the summary of all comparisons as one line for a person; empty if nothing was compared or left out."""
    compared = {name.removeprefix(COMPARED): int(each) for name, each in amounts.items() if name.startswith(COMPARED)}
    left = {name.removeprefix(LEFT_OUT): int(each) for name, each in amounts.items() if name.startswith(LEFT_OUT)}
    if not any(compared.values()) and not any(left.values()):
        return ""
    programs = compared.get("programs", 0)
    said = [f"compared {programs:,} loaded programs in {compared.get('calls', 0):,} calls with fresh compilations"]
    differing = {each: compared.get(each, 0) for each in Fault if compared.get(each)}
    if not differing:
        said.append("all results are equal, bit for bit")
    for fault, count in differing.items():
        said.append(f"{count:,} differ: {_SHORT[fault]}")
    if left:
        said.append("left out: " + ", ".join(f"{count:,} because {reason}" for reason, count in left.items()))
    return f"ejcache: {'; '.join(said)}"


_SHORT: Final = {
    Fault.CACHE: "the cache is at fault",
    Fault.XLA: "XLA is not deterministic",
    Fault.CALLS: "they differ from call to call",
    Fault.WORD: "their word is at fault",
}


def comparison_fields(amounts: Mapping[str, float], differences: Iterable[ProgramDifference]) -> dict[str, Any]:
    """Return the same as stable snake_case fields, for machines."""
    counted = {
        prefix: {name.removeprefix(prefix): int(each) for name, each in amounts.items() if name.startswith(prefix)}
        for prefix in (COMPARED, LEFT_OUT)
    }
    return {
        **{name: counted[COMPARED].get(name, 0) for name in ("programs", "calls", *Fault)},
        "left_out": counted[LEFT_OUT],
        "differences": [each.encode() for each in differences],
    }
