"""The thread of a process that shows that its leases are held, and gives them up behind the program."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Beating", "Heart", "heart"]

log = logging.getLogger("ejcache")

_EXIT_SECONDS: Final = 2.0
"""At the end of a program, how long its leases may take to be given up; others find them dead if that fails."""
_IDLE_SECONDS: Final = 60.0


class Beating(Protocol):
    """Something that beats until it is over. Neither method raises."""

    interval: float

    def beat(self) -> bool:
        """Show that it is held; False if it is not any more."""

    def end(self) -> None:
        """Give it up."""


class Heart:
    """Calls `beat` of each thing it is given, and `end` when that is due, from one thread of its own.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.after_fork()

    def after_fork(self) -> None:
        """In a forked child: everything that beats is the parent's."""
        self._changed = threading.Condition(threading.Lock())
        self._beating: dict[Beating, float] = {}
        self._ending: dict[Beating, float] = {}
        self._thread: threading.Thread | None = None

    def add(self, thing: Beating) -> None:
        """Let `thing` beat from now on."""
        with self._changed:
            self._beating[thing] = self._clock() + thing.interval
            self._start()
            # A thread that has nothing to do waits for longer than any interval.
            self._changed.notify_all()

    def remove(self, thing: Beating) -> None:
        """Let `thing` beat no more."""
        with self._changed:
            self._beating.pop(thing, None)

    def end(self, thing: Beating, *, after: float) -> None:
        """End `thing` after so many seconds; it beats until then."""
        with self._changed:
            self._ending.setdefault(thing, self._clock() + after)
            if not self._start():
                # At the end of a program no thread can be started any more.
                self._ending[thing] = self._clock()
            self._changed.notify_all()

    def end_all(self, *, limit: float) -> bool:
        """End everything now; whether that was done within `limit` seconds."""
        with self._changed:
            now = self._clock()
            self._ending = dict.fromkeys((*self._beating, *self._ending), now)
            if not self._ending or not self._start():
                return not self._ending
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._ending and not self._beating, limit)

    def step(self) -> None:
        """Do, in this thread, what is due now."""
        now = self._clock()
        with self._changed:
            ending = [thing for thing, due in self._ending.items() if due <= now]
            beating = [thing for thing, due in self._beating.items() if due <= now and thing not in ending]
            for thing in beating:
                self._beating[thing] = now + thing.interval
        for thing in ending:
            try:
                thing.end()
            finally:
                with self._changed:
                    self._beating.pop(thing, None)
                    self._ending.pop(thing, None)
                    self._changed.notify_all()
        for thing in beating:
            if not thing.beat():
                self.remove(thing)

    def _start(self) -> bool:
        if self._thread is not None:
            return True
        thread = threading.Thread(target=self._serve, name="ejcache-leases", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._thread = thread
        return True

    def _serve(self) -> None:
        while True:
            with self._changed:
                due = min((*self._beating.values(), *self._ending.values()), default=None)
                seconds = _IDLE_SECONDS if due is None else max(0.0, due - self._clock())
                if not self._changed.wait(seconds) and not self._beating and not self._ending:
                    self._thread = None
                    return
            try:
                self.step()
            except Exception:
                log.warning("ejcache: a lease could not be kept; another process may do the same work", exc_info=True)


heart: Final = Heart()
"""The process's."""


@atexit.register
def _end_all() -> None:
    heart.end_all(limit=_EXIT_SECONDS)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=heart.after_fork)
