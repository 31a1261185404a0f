"""What a compilation leaves in a log of this host is written in the background.

To make and to write the lines takes as long as to store a small executable. A killed process loses what it compiled
last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ejcache.util.lifecycle import ExitPhase, at_exit
from ejcache.util.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable

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
