"""Finds where the function of a program is defined.

defined := file ":" line " " name      a detail of a compilation; an entry has the last two parts of the file's path
"""

from __future__ import annotations

import functools
import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_DEFINED: Final = re.compile(r"^(.+):(\d{1,9}) (\S+)$")
_LAMBDA: Final = "<lambda>"
_LIBRARIES: Final = frozenset({"site-packages", "dist-packages"})
_FRAME: Final = re.compile(r'loc\("([^"\n]*)"\(#(loc\d+)\)\)$', re.MULTILINE)
_PLACE: Final = re.compile(r'^#(loc\d+) = loc\("([^"\n]*)":(\d{1,9})[: ]', re.MULTILINE)


@functools.lru_cache(4096)
def _is_library(file: str) -> bool:
    return not _LIBRARIES.isdisjoint(PurePath(file).parts)


class Definition(NamedTuple):
    """Where a function begins.

    Attributes:
        file: its path; empty if that is not known.
        line: from 1.
        name: of the function, without those around it.
        source: the line itself, of a lambda.
    """

    file: str = ""
    line: int = 0
    name: str = ""
    source: str = ""

    @property
    def is_library(self) -> bool:
        """True if an installed library defines it, which many functions of the user may go through."""
        return _is_library(self.file)

    @property
    def is_lambda(self) -> bool:
        """True if it has no name of its own."""
        return self.name == _LAMBDA

    def __str__(self) -> str:
        """Return `train.py:14`; empty if it is not known."""
        return f"{PurePath(self.file).name}:{self.line}" if self.line else ""


UNKNOWN: Final = Definition()


def definition_of(details: Mapping[str, str]) -> Definition:
    """Return the definition in the details of a compilation; `UNKNOWN` without one."""
    return _read(details.get("defined", ""), details.get("source", ""))


@functools.lru_cache(4096)
def _read(defined: str, source: str) -> Definition:
    match = _DEFINED.match(defined)
    return Definition(match[1], int(match[2]), match[3], source) if match else UNKNOWN


def qualified_name(text: str, place: Definition) -> str:
    """Find the name of a function with those around it, `Trainer.step`, in a module's text; empty if it has none."""
    places = {match[1]: (match[2], int(match[3])) for match in _PLACE.finditer(text)}
    found = []
    for match in _FRAME.finditer(text):
        file, line = places.get(match[2], ("", 0))
        if match[1].rpartition(".")[2] == place.name and end_of(file) == end_of(place.file) and line >= place.line:
            found.append((line, match[1]))
    return min(found, default=(0, ""))[1]


def end_of(path: str) -> str:
    """Return the last two parts of a path: a checkout is in another directory on another host."""
    return "/".join(PurePath(path).parts[-2:])
