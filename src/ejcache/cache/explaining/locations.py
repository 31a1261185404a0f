"""Where in the user's program an operation comes from, read of the locations in a module's text.

    location := '"' file '":' line ':' column …          a place in a source file
              | '"' name '"(' location ')'                a function, or a scope such as `jit(train)/mul`, and its place
              | 'callsite(' location ' at ' location ')'  a place, and the place that called it
              | '"' name '"' | 'unknown'

A module's text names each location once (`#loc7 = loc(…)`), and operations refer to these names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["NOWHERE", "Locations", "Place"]

_DEFINITION: Final = re.compile(r"^#(loc\d*) = loc\((.*)\)$")
_FILE: Final = re.compile(r'^"([^"\n]*)":(\d+):\d+')
_CALL: Final = re.compile(r"^callsite\(#(loc\d*) at #(loc\d*)\)$")
_NAMED: Final = re.compile(r'^"((?:[^"\\]|\\.)*)"\(#(loc\d*)\)$')
_FUSED: Final = re.compile(r"^fused(?:<[^>]*>)?\[#(loc\d*)")
_INSTALLED: Final = ("/site-packages/", "/dist-packages/")
_DEEPEST: Final = 100
"""Names that are followed from one location; a text that we did not write may name itself."""


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a Python program.

    Attributes:
        file: its path.
        line: from 1; 0 if it is not known.
        function: the qualified name of the function around it.
    """

    file: str = ""
    line: int = 0
    function: str = ""

    def __str__(self) -> str:
        """`train.py:12`; empty if it is not known."""
        return f"{self.file.rpartition('/')[2]}:{self.line}" if self.line else ""


NOWHERE: Final = Place()


class Locations:
    """The locations that a module's text defines.

    Args:
        lines: of the text.
    """

    def __init__(self, lines: list[str]) -> None:
        found = (_DEFINITION.match(line) for line in lines if line.startswith("#loc"))
        self._texts = {match[1]: match[2] for match in found if match}
        self._places: dict[str, Place] = {}
        self._names: dict[str, str] = {}

    def place(self, name: str) -> Place:
        """The innermost line of the user's own program: not of an installed library, if another one is there."""
        if name not in self._places:
            frames: list[Place] = []
            self._collect(name, "", frames, _DEEPEST)
            own = [frame for frame in frames if not any(part in frame.file for part in _INSTALLED)]
            self._places[name] = next(iter(own or frames), NOWHERE)
        return self._places[name]

    def label(self, name: str) -> str:
        """The name that the location has itself, as arguments have theirs; empty if it has none."""
        text = self._texts.get(name, "")
        match = _NAMED.match(text)
        return match[1] if match else text.strip('"') if text.startswith('"') and not _FILE.match(text) else ""

    def _collect(self, name: str, function: str, frames: list[Place], depth: int) -> None:
        text = self._texts.get(name, "")
        if depth <= 0 or not text:
            return
        if match := _FILE.match(text):
            frames.append(Place(match[1], int(match[2]), function))
        elif match := _CALL.match(text):
            self._collect(match[1], function, frames, depth - 1)
            self._collect(match[2], "", frames, depth - 1)
        elif match := _NAMED.match(text):
            self._collect(match[2], match[1], frames, depth - 1)
        elif match := _FUSED.match(text):
            self._collect(match[1], function, frames, depth - 1)
