"""Work behind the program: a queue of tasks and some that recur, in threads that never keep a program from ending.

Threads are daemons and start with the first task. A fork's child has none of them and none of their tasks; it starts
its own. What must not be lost is kept on disk by whoever hands in the task, not here.
"""

from __future__ import annotations

import collections
import logging
import os
import random
import threading
import time
import weakref
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BackgroundWorker"]

log = logging.getLogger("ejcache")

_JITTER: Final = 0.1


@dataclass(slots=True)
class _Recurring:
    task: Callable[[], None]
    interval: float
    due: float
    running: bool = False


class BackgroundWorker:
    """Runs tasks in the order in which they were handed in, and recurring ones when they are due.

    A task that raises is logged and does not end the thread. All methods may be called from any thread.

    Args:
        threads: how many tasks may run at once; more than one, so that one that is stuck stops nobody else.
        max_tasks: how many tasks may wait.
        clock: monotonic seconds.

    Attributes:
        failures: tasks that raised.
    """

    def __init__(
        self, *, threads: int = 2, max_tasks: int = 10_000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_threads = threads
        self._max_tasks = max_tasks
        self._clock = clock
        self._recurring: list[_Recurring] = []
        self.failures = 0
        self._after_fork()
        _everyone.add(self)

    def _after_fork(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._tasks: collections.deque[Callable[[], None]] = collections.deque()
        self._running = 0
        self._done = 0
        self._threads = 0
        self._stopping = False
        for recurring in self._recurring:
            recurring.running = False

    @property
    def waiting(self) -> int:
        """Tasks that are running or wait to be."""
        return len(self._tasks) + self._running

    def submit(self, task: Callable[[], None]) -> bool:
        """Run `task` as soon as a thread is free; False if too many wait already."""
        with self._changed:
            if len(self._tasks) >= self._max_tasks:
                return False
            self._tasks.append(task)
            self._start()
            self._changed.notify()
        return True

    def wake(self) -> None:
        """Have a thread that looks after the recurring tasks: after `stop`, and in a forked child."""
        with self._changed:
            self._start()

    def every(self, interval: float, task: Callable[[], None]) -> None:
        """Run `task` every `interval` seconds, more or less, while there are threads; never twice at once."""
        with self._changed:
            first = self._clock() + interval * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 (jitter)
            self._recurring.append(_Recurring(task, interval, first))

    def run_due(self) -> None:
        """Run, in this thread, the recurring tasks that are due."""
        while True:
            with self._changed:
                recurring = self._take_due()
            if recurring is None:
                return
            self._run_recurring(recurring)

    def drain(self, *, patience: float, limit: float) -> bool:
        """Wait until no task waits or runs; True if that came to pass.

        Where no thread can be started any more, at the end of a program, the tasks are run here.

        Args:
            patience: seconds to wait for the next task to be done.
            limit: seconds to wait in all.
        """
        end = self._clock() + limit
        with self._changed:
            alone = not self._threads and not self._start()
        if alone:
            return self._run_here(end)
        with self._changed:
            while self._tasks or self._running:
                done = self._done
                left = min(patience, end - self._clock())
                if left <= 0 or not self._changed.wait_for(partial(self._moved_on, done), left):
                    return not self._tasks and not self._running
        return True

    def stop(self) -> None:
        """Let the threads end when they have done what they are doing; tasks that wait are dropped."""
        with self._changed:
            self._stopping = True
            self._tasks.clear()
            self._changed.notify_all()

    def _moved_on(self, done: int) -> bool:
        return self._done != done

    # -- inside; all with the lock held, except for the tasks themselves ---------------------------------------------

    def _start(self) -> bool:
        self._stopping = False
        wanted = max(1, len(self._tasks) + self._running)
        if self._threads >= min(self._max_threads, wanted):
            return True
        self._threads += 1
        thread = threading.Thread(target=_serve, args=(weakref.ref(self),), name="ejcache-background", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # At the end of a program no thread can be started; `drain` does the work then.
            self._threads -= 1
            return self._threads > 0
        return True

    def _take_due(self) -> _Recurring | None:
        now = self._clock()
        for recurring in self._recurring:
            if recurring.due <= now and not recurring.running:
                recurring.running = True
                jitter = random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311
                recurring.due = now + recurring.interval * jitter
                return recurring
        return None

    def _next(self) -> Callable[[], None] | None:
        """What to do next, waiting for it for a while; None if there was nothing."""
        with self._changed:
            recurring = self._take_due()
            if recurring is not None:
                return lambda: self._run_recurring(recurring)
            if not self._tasks:
                self._changed.wait(self._seconds_until_due())
                return None
            task = self._tasks.popleft()
            self._running += 1
        return lambda: self._run_queued(task)

    def _seconds_until_due(self) -> float:
        due = min((recurring.due for recurring in self._recurring), default=float("inf"))
        return min(max(0.0, due - self._clock()), 5.0)

    def _run_recurring(self, recurring: _Recurring) -> None:
        try:
            self._run(recurring.task)
        finally:
            recurring.running = False

    def _run_queued(self, task: Callable[[], None]) -> None:
        changed = self._changed
        try:
            self._run(task)
        finally:
            with changed:
                self._running -= 1
                self._done += 1
                changed.notify_all()

    def _run(self, task: Callable[[], None]) -> None:
        try:
            task()
        except Exception:
            self.failures += 1
            log.warning("ejcache: a background task failed; the program goes on without it", exc_info=True)

    def _run_here(self, end: float) -> bool:
        while self._tasks and self._clock() < end:
            with self._changed:
                task = self._tasks.popleft()
                self._running += 1
            self._run_queued(task)
        return not self._tasks


def _serve(reference: weakref.ref[BackgroundWorker]) -> None:
    # Between two steps nothing refers to the worker, so that one that is forgotten is collected and its threads end.
    while True:
        worker = reference()
        if worker is None:
            return
        with worker._changed:  # noqa: SLF001  # the other half of the class
            if worker._stopping:  # noqa: SLF001
                worker._threads -= 1  # noqa: SLF001
                return
        step = worker._next()  # noqa: SLF001
        if step is not None:
            step()
        del step, worker


_everyone: Final[weakref.WeakSet[BackgroundWorker]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for worker in list(_everyone):
        worker._after_fork()  # noqa: SLF001  # the other half of the class


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
