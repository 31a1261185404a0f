"""A log of lines in a file of this user on this host, that many processes append to and that stays small.

A line is written by one append. When the file has reached its limit, it is renamed and replaces the one that was
renamed before, so that there are at most two files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ejcache.settings.directories import state_directory
from ejcache.util.files import append_regular, make_private, read_regular
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class AppendedLog(NamedTuple):
    """A log in the user's directory, which later runs read.

    Attributes:
        name: of the file, without its suffix.
        limit: bytes after which the file is renamed.
    """

    name: str
    limit: int

    @property
    def path(self) -> Path:
        """The file to which lines are appended."""
        return state_directory() / f"{self.name}.jsonl"

    def append(self, line: bytes) -> None:
        """Append a line, which holds no line break; does nothing if the file cannot be written."""
        path = self.path
        try:
            try:
                written = append_regular(path, line + b"\n")
            except FileNotFoundError:
                make_private(path.parent)
                written = append_regular(path, line + b"\n")
            # Another process may have renamed it meanwhile; renaming that process's fresh log would lose the renamed
            # one.
            if written.st_size > self.limit and path.stat().st_ino == written.st_ino:
                path.replace(path.with_suffix(".old.jsonl"))
        except OSError:
            return

    def lines(self) -> Iterator[bytes]:
        """Yield the lines, the latest first; none if the file cannot be read."""
        from ejcache.journal.late_writes import write_now

        write_now()
        path = self.path
        for file in (path, path.with_suffix(".old.jsonl")):
            try:
                lines = read_regular(file, max_size=2 * self.limit).splitlines()
            except OSError:
                continue
            yield from reversed(lines)
