"""Appends lines to logs of this user on this host, in the background, and reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ejcache.settings.directories import state_directory
from ejcache.util.files import append_regular, make_private, read_regular
from ejcache.util.lifecycle import ExitPhase, at_exit
from ejcache.util.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_PATIENCE: Final = 5.0
"""Seconds that a reader and an exit wait for one task of `write_later`."""

_scheduler: Final = Scheduler(threads=1, name="ejcache-logs")


def write_later(task: Callable[[], object]) -> None:
    """Run `task`, which appends to logs, in the background: before this process reads a log, and before it exits."""
    if not _scheduler.submit(task):
        task()


def write_now() -> None:
    """Run what `write_later` was given, and wait for it: before a log is read, and before this process exits."""
    if _scheduler.waiting:
        _scheduler.drain(patience=_PATIENCE, limit=float("inf"))


at_exit(ExitPhase.WRITE, write_now)

_CUT: Final = b'{"cut":true}'
"""A line of a log that had more before; it is of no version, so that readers skip it."""


class AppendedLog(NamedTuple):
    """A log in the user's directory on this host, that many processes append to, that later runs read, and that stays
    small.

    A line is written by one append. When the file has reached its limit, it is renamed and replaces the one that was
    renamed before, so that there are at most two files.

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
                former = path.with_suffix(".old.jsonl")
                is_lost = former.exists()
                path.replace(former)
                if is_lost:
                    append_regular(path, _CUT + b"\n")
        except OSError:
            return

    def is_cut(self) -> bool:
        """True if lines were lost, because the log would have become too large."""
        return any(line == _CUT for line in self.lines())

    def lines(self) -> Iterator[bytes]:
        """Yield the lines, the latest first; none if the file cannot be read."""
        write_now()
        path = self.path
        for file in (path, path.with_suffix(".old.jsonl")):
            try:
                lines = read_regular(file, max_size=2 * self.limit).splitlines()
            except OSError:
                continue
            yield from reversed(lines)
