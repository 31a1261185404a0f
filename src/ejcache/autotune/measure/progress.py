"""Progress of a measurement: a bar on stderr, or a log line for all or for each of the candidates."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from typing import Any, Final

from ejcache.autotune.ejkernel_variables import logs_candidates, shows_progress
from ejcache.autotune.log import logger

__all__ = ["Progress", "progress_for", "show_progress"]


_WIDTH: Final = 24
_LATE: Final = 2.0
"""Seconds of tuning after which a terminal shows the bar, and a log a line, if no setting says whether to."""
_WIDEST: Final = 200
"""Characters of a bar that is written to a pipe or a file."""
_CLEAR: Final = "\r\x1b[2K"
_shown: bool | None = None


def show_progress(shown: bool | None = True) -> None:  # noqa: FBT001, FBT002  # reads as a switch
    """Show bars in this process or not; None follows `EJKERNEL_AUTOTUNE_PROGRESS`."""
    global _shown
    _shown = shown


class Progress:
    """The progress of tuning one call. Errors of the terminal are ignored.

    Args:
        title: the operation.
        shown: draw a bar; None to draw one if the tuning takes longer than two seconds and stderr is a terminal, and
            to log one line then if it is none.
        logged: log each candidate.
    """

    def __init__(self, title: str, *, shown: bool | None = False, logged: bool = False) -> None:
        self.title = title
        self.shown = bool(shown)
        self.logged = logged
        self._best = ""
        self._late = time.monotonic() + _LATE if shown is None else None

    def step(self, phase: str, done: int, total: int) -> None:
        """Draw that `done` of `total` steps of this phase are finished."""
        if self._late is not None and time.monotonic() > self._late:
            self._late = None
            self.shown = _on_terminal()
            if not self.shown:
                logger.warning("measuring the candidates of %s, which it does once for all processes", self.title)
        if not self.shown:
            return
        filled = _WIDTH * done // max(total, 1)
        bar = "█" * filled + "░" * (_WIDTH - filled)
        line = f"autotune {self.title} {phase:<9} {bar} {done}/{total} {self._best}"
        # A line as wide as the terminal would go on in the next one, where the next bar could not replace it.
        room = shutil.get_terminal_size().columns - 1 if _on_terminal() else _WIDEST
        self._write(_CLEAR + line[:room])

    def candidate(self, configuration: Any, seconds: float | None, note: str = "") -> None:
        """Log the time of one candidate, or `note` if it has none."""
        if self.logged:
            took = f"{seconds * 1e3:.4g} ms" if seconds is not None else note
            logger.info("%s: %s %s", self.title, configuration, took)

    def best(self, configuration: Any, seconds: float) -> None:
        """Set the fastest candidate so far, which the bar shows."""
        self._best = f"best {seconds * 1e3:.4g} ms {configuration}"

    def close(self) -> None:
        """Remove the bar from a terminal; in a pipe or a file, end its line."""
        if self.shown:
            self._write(_CLEAR if _on_terminal() else "\n")

    @staticmethod
    def _write(text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (AttributeError, OSError, ValueError):
            return


def _on_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def progress_for(title: str) -> Progress:
    """The progress display that the environment asks for now."""
    logged = logs_candidates()
    shown = shows_progress() if _shown is None else _shown
    if logged and logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)
        if not logger.hasHandlers():
            logger.addHandler(logging.StreamHandler())
    return Progress(title, shown=shown, logged=logged)
