"""Progress of a measurement: a bar on stderr, or a log line for each candidate."""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

from ejcache.autotune.log import logger
from ejcache.settings.resolve import resolve

__all__ = ["Progress", "progress_for", "show_progress"]


_WIDTH: Final = 24
_shown: bool | None = None


def show_progress(shown: bool | None = True) -> None:  # noqa: FBT001, FBT002  # reads as a switch
    """Show bars in this process or not; None follows `EJCACHE_AUTOTUNE_PROGRESS`."""
    global _shown
    _shown = shown


class Progress:
    """The progress of tuning one call. Errors of the terminal are ignored.

    Args:
        title: the operation.
        shown: draw a bar.
        logged: log each candidate.
    """

    def __init__(self, title: str, *, shown: bool = False, logged: bool = False) -> None:
        self.title = title
        self.shown = shown
        self.logged = logged
        self._best = ""

    def step(self, phase: str, done: int, total: int) -> None:
        """Draw that `done` of `total` steps of this phase are finished."""
        if not self.shown:
            return
        filled = _WIDTH * done // max(total, 1)
        bar = "█" * filled + "░" * (_WIDTH - filled)
        self._write(f"\r\x1b[2Kautotune {self.title} {phase:<9} {bar} {done}/{total} {self._best}"[:200])

    def candidate(self, configuration: Any, seconds: float | None, note: str = "") -> None:
        """Log the time of one candidate, or `note` if it has none."""
        if self.logged:
            took = f"{seconds * 1e3:.4g} ms" if seconds is not None else note
            logger.info("%s: %s %s", self.title, configuration, took)

    def best(self, configuration: Any, seconds: float) -> None:
        """Set the fastest candidate so far, which the bar shows."""
        self._best = f"best {seconds * 1e3:.4g} ms {configuration}"

    def close(self) -> None:
        """End the line."""
        if self.shown:
            self._write("\n")

    @staticmethod
    def _write(text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):
            return


def progress_for(title: str) -> Progress:
    """The progress display that the environment asks for now."""
    settings = resolve()
    shown = settings.autotune_progress if _shown is None else _shown
    if settings.autotune_log and logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)
        if not logger.hasHandlers():
            logger.addHandler(logging.StreamHandler())
    return Progress(title, shown=shown, logged=settings.autotune_log)
