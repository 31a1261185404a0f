"""Shows how far a tuning is: a bar on a terminal, or one line of the log."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any, Final

from ejcache.autotune.ejkernel_variables import logs_candidates, shows_progress
from ejcache.autotune.log import logger

_LATE: Final = 2.0
"""Seconds of tuning after which a terminal shows the bar, and a log a line, if nothing says whether to."""

_PAUSE: Final = 0.1
"""Seconds between two bars."""

_shown: bool | None = None


def show_progress(shown: bool | None = True) -> None:  # noqa: FBT001, FBT002  # reads as a switch
    """Show bars in this process or not; None follows `EJKERNEL_AUTOTUNE_PROGRESS`."""
    global _shown
    _shown = shown


class Progress:
    """The progress of tuning one call, drawn by rich.

    Without `show_progress` and `EJKERNEL_AUTOTUNE_PROGRESS`, the bar appears if the tuning takes longer than two
    seconds and stderr is a terminal; if it is none, one line is logged then. `EJKERNEL_LOG_AUTOTUNE` logs each
    candidate, as the level INFO of the logger does.

    Args:
        title: the operation.
        late: seconds of tuning after which the bar or the line appears, if nothing says whether to.
    """

    def __init__(self, title: str, *, late: float = _LATE) -> None:
        self.title = title
        self._bar: Any = None
        self._next = 0.0
        shown = shows_progress() if _shown is None else _shown
        self._late = time.monotonic() + (late if shown is None else 0.0) if shown is not False else None
        self._everywhere = bool(shown)
        if logs_candidates() and not logger.isEnabledFor(logging.INFO):
            logger.setLevel(logging.INFO)
            if not logger.hasHandlers():
                logger.addHandler(logging.StreamHandler())

    def step(self, phase: str, done: int, total: int) -> None:
        """Draw that `done` of `total` steps of this phase are finished."""
        if self._late is not None and time.monotonic() >= self._late:
            self._late = None
            self._start()
        if self._bar is not None:
            text = f"autotune {self.title} {phase}"
            self._bar.update(self._bar.task_ids[0], description=text, completed=done, total=total)
            if time.monotonic() >= self._next or done == total:
                self._next = time.monotonic() + _PAUSE
                self._bar.refresh()

    def candidate(self, configuration: Any, seconds: float | None, note: str = "") -> None:
        """Log the time of one candidate, or `note` if it has none."""
        logger.info("%s: %s %s", self.title, configuration, note if seconds is None else f"{seconds * 1e3:.4g} ms")

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def _start(self) -> None:
        if not (self._everywhere or (sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty())):
            logger.warning("measuring the candidates of %s, which it does once for all processes", self.title)
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
        console = Console(stderr=True, force_terminal=True if self._everywhere else None, markup=False, highlight=False)
        # Drawn between the samples: a thread that draws would take the interpreter from them.
        self._bar = Progress(*columns, console=console, transient=True, auto_refresh=False)
        self._bar.add_task("")
        self._bar.start()
