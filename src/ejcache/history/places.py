"""The lines of the user's program that an operation in a module's text comes from, all of them, the innermost first.

`text` describes the locations of a text. Here a location is followed through every call, because the
line to change is often that of a call: the one in a loop, rather than the one in the function that the loop calls.
"""

from __future__ import annotations

import re
from typing import Final

from ejcache.history.text import Place, is_installed

_DEFINITION: Final = re.compile(r"^#(loc\d*) = loc\((.*)\)$", re.MULTILINE)
_FILE: Final = re.compile(r'^"([^"\n]*)":(\d{1,9}):\d')
_CALL: Final = re.compile(r"^callsite\(#(loc\d+) at #(loc\d+)\)$")
_NAMED: Final = re.compile(r'^"((?:[^"\\]|\\.)*)"\(#(loc\d+)\)$')
_DEEPEST: Final = 200


class CallChains:
    """The chains of calls that a module's text has."""

    def __init__(self, text: str) -> None:
        self._texts = {match[1]: match[2] for match in _DEFINITION.finditer(text)}
        self._known: dict[str, tuple[Place, ...]] = {}

    def of(self, name: str, depth: int = _DEEPEST) -> tuple[Place, ...]:
        """Return the lines of the user's program of the location with this name, the innermost first."""
        if name not in self._known:
            self._known[name] = ()  # a text that others wrote may name itself
            self._known[name] = self._chain(self._texts.get(name, ""), depth)
        return self._known[name]

    def _chain(self, text: str, depth: int) -> tuple[Place, ...]:
        if not depth:
            return ()
        if match := _CALL.match(text):
            return self.of(match[1], depth - 1) + self.of(match[2], depth - 1)
        if match := _NAMED.match(text):
            inner = self.of(match[2], depth - 1)
            if len(inner) == 1 and not inner[0].function:
                return (inner[0]._replace(function=match[1]),)
            return inner
        if match := _FILE.match(text):
            return () if is_installed(match[1]) else (Place(match[1], int(match[2])),)
        return ()


def common_place(chains: list[tuple[Place, ...]], function: str) -> Place | None:
    """Return the innermost line of the user's program from which all of these operations come, within this function.

    Args:
        chains: of each operation.
        function: the qualified name of the jitted function; lines that call it are not within it.
    """
    if not chains:
        return None
    shared = set(chains[0]).intersection(*chains[1:])
    for place in chains[0]:
        if place in shared:
            return place
        if place.function == function:
            break
    # Operations of several lines of one loop: the first line that the function itself has.
    own = [place for chain in chains for place in chain if place.function == function]
    return min(own, key=lambda place: place.line, default=chains[0][0] if chains[0] else None)
