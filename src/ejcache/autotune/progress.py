"""What a person sees while candidates are measured: a line on stderr that rewrites itself, or log lines."""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

from ejcache.settings import resolve

__all__ = ["Progress", "progress_for", "show_progress"]

logger = logging.getLogger("ejcache.autotune")
_WIDTH: Final = 24
_shown: bool | None = None


def show_progress(shown: bool | None = True) -> None:  # noqa: FBT001, FBT002  # reads as a switch
    """Show bars in this process whatever `EJKERNEL_AUTOTUNE_PROGRESS` says, or not; None to do as it says."""
    global _shown
    _shown = shown


class Progress:
    """Says how far the tuning of one call is. What goes wrong with the terminal is not the program's trouble.

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
        """`done` of `total` in this phase."""
        if not self.shown:
            return
        filled = _WIDTH * done // max(total, 1)
        bar = "█" * filled + "░" * (_WIDTH - filled)
        self._write(f"\r\x1b[2Kautotune {self.title} {phase:<9} {bar} {done}/{total} {self._best}"[:200])

    def candidate(self, configuration: Any, seconds: float | None, note: str = "") -> None:
        """What became of one candidate."""
        if self.logged:
            took = f"{seconds * 1e3:.4g} ms" if seconds is not None else note
            logger.info("%s: %s %s", self.title, configuration, took)

    def best(self, configuration: Any, seconds: float) -> None:
        """The fastest so far."""
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
    """As the environment asks for now."""
    settings = resolve()
    shown = settings.autotune_progress if _shown is None else _shown
    if settings.autotune_log and logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)
        if not logger.hasHandlers():
            logger.addHandler(logging.StreamHandler())
    return Progress(title, shown=shown, logged=settings.autotune_log)
