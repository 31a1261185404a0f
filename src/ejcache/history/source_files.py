"""Reads the source files of a program as they are now, and names lines in them (`Place`)."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from ejcache.util.files import read_regular

if TYPE_CHECKING:
    from collections.abc import Iterable

_INSTALLED: Final = ("/site-packages/", "/dist-packages/")

_WITHIN: Final = re.compile("|".join(_INSTALLED))


class Place(NamedTuple):
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
        """Return `train.py:12`, of a library with its path there, `optax/_src/update.py:12`; empty if it is unknown."""
        name = _WITHIN.split(self.file)[-1] if is_installed(self.file) else self.file.rpartition("/")[2]
        return f"{name}:{self.line}" if self.line else ""


NOWHERE: Final = Place()


def is_installed(file: str) -> bool:
    """True if the file is one of an installed library, which its user cannot change."""
    return any(part in file for part in _INSTALLED)


_LARGEST: Final = 2_000_000


class SourceFiles:
    """The source files of a program, as they are now.

    Args:
        until: seconds since the epoch; a file that changed later may hold another program and is not read.
    """

    def __init__(self, *, until: float) -> None:
        self._until = until
        self._lines: dict[str, list[str]] = {}

    def lines(self, file: str) -> list[str]:
        """Return the lines of a file; none if they are not known."""
        if file not in self._lines:
            self._lines[file] = self._read(file)
        return self._lines[file]

    def are_older(self, files: Iterable[str], time: float) -> bool:
        """True if all of these files exist and have not changed since `time`, in seconds since the epoch."""
        try:
            return all(os.stat(path).st_mtime <= time for path in files)  # noqa: PTH116
        except (OSError, ValueError):
            return False

    def line(self, place: Place) -> str:
        """Return the text of that line; empty if it is not known."""
        lines = self.lines(place.file)
        return lines[place.line - 1].strip() if 0 < place.line <= len(lines) else ""

    def lack(self, file: str, name: str) -> bool:
        """True if the file can be read and nothing in it has this name."""
        lines = self.lines(file)
        word = re.compile(rf"\b{re.escape(name)}\b")
        return bool(lines) and not any(word.search(line) for line in lines)

    def assigned(self, value: str, place: Place) -> tuple[str, Place]:
        """Find the name that the line at `place` reads, to which its file gives this number, and the line that does.

        `learning_rate = 0.01`, `learning_rate: float = 0.01` and `'learning_rate': 0.01` give a number. ("", NOWHERE)
        if there is no such name, or more than one.
        """
        found: dict[str, Place] = {}
        words = set(re.findall(r"[^\W\d]\w*", self.line(place)))
        for number, line in enumerate(self.lines(place.file) if words else (), 1):
            for match in re.finditer(r"([^\W\d]\w*)['\"]?\s*(?::[^=#]*?)?[=:]\s*([-+]?[\d.][\w.+-]*)", line):
                if match[1] in words and _is_number(match[2], value):
                    found.setdefault(match[1], Place(place.file, number))
        return next(iter(found.items())) if len(found) == 1 else ("", NOWHERE)

    def _read(self, path: str) -> list[str]:
        try:
            if not path.startswith("/") or os.stat(path).st_mtime > self._until + 1.0:  # noqa: PTH116
                return []
            return read_regular(path, max_size=_LARGEST).decode().splitlines()
        except (OSError, ValueError):
            return []


def _is_number(literal: str, value: str) -> bool:
    try:
        return abs(float(literal) - float(value)) <= abs(float(value)) * 1e-6
    except ValueError:
        return False
