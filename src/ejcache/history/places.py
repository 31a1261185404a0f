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
