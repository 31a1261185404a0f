"""Runs tasks in the background: queued, delayed and recurring ones.

The threads are daemons, which never keep a program from ending, and start with the first task; after `disable()` they
end when no task is planned. A forked child has none of the threads, queued and delayed tasks of its parent; it keeps
the recurring ones and starts its own threads. Tasks are lost when the process dies, so work that must not be lost is
also kept on disk by the caller.
"""

from __future__ import annotations

import collections
import threading
import time
import weakref
from typing import TYPE_CHECKING, Final

from ejcache.util.daemon_threads import idle_threads, start_daemon
from ejcache.util.jitter import between
from ejcache.util.late_patches import note_functions, wait_if_patched_late
from ejcache.util.lifecycle import track_forks
from ejcache.util.log import log

if TYPE_CHECKING:
    from collections.abc import Callable

    Task = Callable[[], object]


_JITTER: Final = 0.1
_MOST_TASKS: Final = 10_000
_LONGEST_WAIT: Final = 5.0
"""Seconds after which a waiting thread checks whether its scheduler is still referred to."""


class _TimedTask:
    __slots__ = ("due", "interval", "running", "task")

    def __init__(self, task: Task, due: float, interval: float | None = None) -> None:
        self.task = task
        self.due = due
        self.interval = interval
        self.running = False


class Scheduler:
    """Runs tasks in the order of submission, and timed ones when they are due. Safe for threads and forks.

    An exception of a task is logged; the thread goes on.

    Args:
        threads: how many tasks may run at once; with several, one task that hangs does not stop the others. With 0,
            tasks run in `run_due` and `drain` only.
        clock: monotonic seconds.
        name: of the threads.
        early: tasks that `later` planned run at once when idle threads are ended.
        most_tasks: so many submitted tasks may wait.
        spare: so many threads more than tasks, from the second task on: a program that is ending can start none, and
            what it submits then would wait for what is running.
    """

    def __init__(
        self,
        *,
        threads: int = 2,
        clock: Callable[[], float] = time.monotonic,
        name: str = "ejcache-background",
        early: bool = False,
        most_tasks: int = _MOST_TASKS,
        spare: int = 0,
    ) -> None:
        self._max_threads = threads
        self.clock = clock
        self._name = name
        self._early = early
        self._most_tasks = most_tasks
        self._spare = spare
        self._timed: list[_TimedTask] = []
        self._looks_at = 0.0
        note_functions()  # greenlets that share a lock of threads hold it together, or wait for ever
        self.after_fork_in_child()
        track_forks(self)
        idle_threads.add(self)

    def after_fork_in_child(self) -> None:
        """Forget the parent's threads and tasks; recurring tasks stay."""
        self._changed = threading.Condition()
        self._tasks: collections.deque[Task] = collections.deque()
        self._running = 0
        self._timed_running = 0
        self._done = 0
        self._threads = 0
        self._stopping = False
        self._timed = [timed for timed in self._timed if timed.interval is not None]
        for timed in self._timed:
            timed.running = False

    @property
    def waiting(self) -> int:
        """The number of submitted tasks that are running or wait for a thread; timed ones do not count."""
        return len(self._tasks) + self._running

    def submit(self, task: Task) -> bool:
        """Run `task` as soon as a thread is free; False if too many tasks are waiting."""
        with self._changed:
            if len(self._tasks) >= self._most_tasks:
                return False
            self._tasks.append(task)
            self._start(len(self._tasks) + self._running + self._timed_running)
            self._changed.notify()
        return True

    def later(self, seconds: float, task: Task) -> bool:
        """Run `task` once, `seconds` from now; False, and it never runs, if no thread can be started (during exit)."""
        with self._changed:
            if not self._start(self._running + self._timed_running + 1):
                return False
            timed = _TimedTask(task, self.clock() + seconds)
            self._timed.append(timed)
            # A thread that looks in time anyway would be woken in the middle of the program's own work.
            if timed.due < self._looks_at:
                self._changed.notify()
        return True

    def every(self, seconds: float, task: Task) -> None:
        """Run `task` about every `seconds`, never twice at once, while there are threads: from the next `submit` on."""
        with self._changed:
            self._timed.append(_TimedTask(task, self.clock() + seconds * _jitter(), seconds))

    def drain(self, *, patience: float, limit: float) -> bool:
        """Wait until no submitted task waits or runs; returns whether that was reached. Timed tasks do not count.

        If no thread can be started (during exit), the tasks run in this thread.

        Args:
            patience: seconds to wait for the next task to finish.
            limit: seconds to wait in all.
        """
        end = self.clock() + limit
        with self._changed:
            self._start(1)
            alone = not self._threads
        while alone and self._tasks and self.clock() < end:
            self._run_submitted()
        with self._changed:
            while self.waiting:
                left = min(patience, end - self.clock())
                if left <= 0 or not self._wait_for_next(left):
                    break
            return not self.waiting

    def stop(self) -> None:
        """Drop tasks that have not begun, and end each thread after its current one; the next `submit` starts anew."""
        with self._changed:
            self._stopping = True
            self._tasks.clear()
            self._timed = [timed for timed in self._timed if timed.interval is not None]
            self._changed.notify_all()

    def end_idle(self) -> None:
        """End the threads as soon as no task is planned, unless idle threads are kept."""
        with self._changed:
            for timed in self._timed:
                if self._early and timed.interval is None:
                    timed.due = min(timed.due, self.clock())
            self._changed.notify_all()

    def run_due(self) -> bool:
        """Run, in this thread, the next timed task that is due, or else the next submitted one; False if none is."""
        with self._changed:
            now = self.clock()
            timed = next((timed for timed in self._timed if timed.due <= now and not timed.running), None)
            if timed is not None:
                timed.running = True
                if timed.interval is None:
                    self._timed.remove(timed)
                else:
                    timed.due = now + timed.interval * _jitter()
                self._timed_running += 1
                if any(each.due <= now and not each.running for each in self._timed):
                    self._start(self._running + self._timed_running + 1)  # it would wait for this one
        if timed is None:
            return self._run_submitted()
        changed = self._changed
        try:
            _run(timed.task)
        finally:
            timed.running = False
            with changed:
                self._timed_running -= 1
        return True

    def _run_submitted(self) -> bool:
        changed = self._changed
        with changed:
            if not self._tasks:
                return False
            task = self._tasks.popleft()
            self._running += 1
        try:
            _run(task)
        finally:
            with changed:
                self._running -= 1
                self._done += 1
                changed.notify_all()
        return True

    def _start(self, wanted: int) -> bool:
        """Have another thread if fewer than `wanted` run; False if there is none. With the lock held."""
        self._stopping = False
        spare = self._spare if self._threads else 0
        if self._threads < min(self._max_threads, max(1, wanted) + spare):
            self._threads += 1
            if not start_daemon(_serve, weakref.ref(self), name=self._name):
                self._threads -= 1
        return self._threads > 0 or not self._max_threads

    def _ended(self) -> bool:
        with self._changed:
            ends = self._stopping or self._is_needless()
            self._threads -= ends
            return ends

    def _is_needless(self) -> bool:
        """True if an idle thread may end: no task is planned. With the lock held."""
        return not (idle_threads.are_kept or self._tasks or self._timed)

    def _wait(self) -> None:
        with self._changed:
            if not self._tasks and not self._stopping and not self._is_needless():
                due = min((timed.due for timed in self._timed if not timed.running), default=float("inf"))
                now = self.clock()
                self._looks_at = min(due, now + _LONGEST_WAIT)
                self._changed.wait(max(0.0, self._looks_at - now))

    def _wait_for_next(self, seconds: float) -> bool:
        done = self._done
        return self._changed.wait_for(lambda: self._done != done, seconds)


def _serve(reference: weakref.ref[Scheduler]) -> None:
    while True:
        wait_if_patched_late()
        scheduler = reference()
        if scheduler is None or scheduler._ended():  # noqa: SLF001 (the other half of the class)
            return
        if not scheduler.run_due():
            scheduler._wait()  # noqa: SLF001
        # Between two steps nothing here refers to the scheduler, so that one without users is collected.
        del scheduler


def _run(task: Task) -> None:
    try:
        task()
    except Exception:
        log.warning("ejcache: a background task failed; the program goes on without it", exc_info=True)


def _jitter() -> float:
    return between(1 - _JITTER, 1 + _JITTER)


short_tasks: Final = Scheduler(threads=1, name="ejcache-later", early=True)
"""For what takes milliseconds and may wait for each other: counters, uses, the start record. A hit plans all three, and
starts one thread."""
