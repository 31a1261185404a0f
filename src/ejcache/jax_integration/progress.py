"""Prints lines about compilations that take long, in a notebook with `%load_ext ejcache`."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Final

from ejcache.history.host_log import last_compile_seconds
from ejcache.util.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterator

_FIRST_SECONDS: Final = 5.0
_GROWTH: Final = 2.0


class CompileProgress:
    """Says of each compilation that lasts longer than five seconds how long it has taken so far.

    A line follows at its end. The others come after 5, 10, 20, 40 … seconds, so that a log of hours stays short. Safe
    for threads.

    Args:
        after: seconds until the first line.
        scheduler: runs what prints the lines, by its clock.
    """

    def __init__(self, *, after: float = _FIRST_SECONDS, scheduler: Scheduler | None = None) -> None:
        self._after = after
        self._scheduler = scheduler or Scheduler(threads=1, name="ejcache-progress")
        self._clock = self._scheduler.clock

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Print lines about the compilation of the program `name` while the block runs, if it runs long."""
        began = self._clock()
        running, said = True, False

        def say(after: float) -> None:
            nonlocal said
            if not running:
                return
            said = True
            took = last_compile_seconds(name)
            before = "" if took is None else f"; it took {took:.0f} s last time"
            _print(f"compiling {name}, {self._clock() - began:.0f} s so far{before}")
            self._scheduler.later(after * (_GROWTH - 1), lambda: say(after * _GROWTH))

        self._scheduler.later(self._after, lambda: say(self._after))
        try:
            yield
        finally:
            running = False
            if said:
                _print(f"compiled {name} in {self._clock() - began:.0f} s")


def _print(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # closed: nobody reads it
        sys.stderr.write(f"ejcache: {line}\n")
        sys.stderr.flush()


_shown: CompileProgress | None = None


def show_progress() -> None:
    """Let `progress_of` print lines in this process from now on."""
    global _shown
    _shown = _shown or CompileProgress()


def progress_of(name: str) -> contextlib.AbstractContextManager[None]:
    """Make the context that prints lines about the compilation of `name`, if `show_progress` has been called."""
    return contextlib.nullcontext() if _shown is None else _shown.of(name)
