"""Runs what the program waits for in daemon threads: calls with a time limit, and many calls in parallel.

A system call on a dead NFS server, a name lookup or a search for credentials cannot be interrupted. It runs in another
thread; at the timeout the caller goes on, and the thread stays behind. The threads are daemons: `concurrent.futures`
joins its threads at exit, so that one hanging call would keep a finished program alive.

Under gevent and eventlet all threads are greenlets of one thread, and only what waits by `threading` lets the others go
on. They replace its functions also after this module was imported, which reaches a condition that is there already.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from collections import deque
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ejcache.errors import StoreUnavailableError
from ejcache.util.daemon_threads import idle_threads, start_daemon
from ejcache.util.late_patches import wait_if_patched_late
from ejcache.util.lifecycle import track_forks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    T = TypeVar("T")

_MAX_THREADS: Final = 64
_Task = tuple["Future[Any]", "Callable[[], Any]"]


class CallTimeoutError(StoreUnavailableError):
    """A call did not return within its timeout. It may still be running, and may still succeed."""


class DaemonPool:
    """Daemon threads, started when they are needed; at most 64. Safe for threads and forks.

    Args:
        always: keep idle threads even where `idle_threads` says that they end.
    """

    def __init__(self, *, always: bool = False) -> None:
        self._always = always
        self.after_fork_in_child()
        track_forks(self)
        idle_threads.add(self)

    def after_fork_in_child(self) -> None:
        """Start without threads: the parent's do not exist here."""
        self.tasks: deque[_Task | None] = deque()
        self.waiting: deque[threading.Event] = deque()  # of each thread that waits
        self.lock = threading.RLock()
        self.threads = 0
        self.idle = 0

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Run `function` in a thread that does not keep the program from ending.

        Where no thread can be started, an existing thread runs it; without one, this thread does.
        """
        future: Future[T] = Future()
        with self.lock:
            self.idle -= 1
            must_wait = self.idle < 0
        if must_wait and not self._add_idle():
            with self.lock:
                alone = self.threads == 0
                self.idle += alone
            if alone:
                answer(future, function)
                return future
        self._give((future, function))
        return future

    def _add_idle(self) -> bool:
        """Start a thread that waits for a task; False if there is none."""
        with self.lock:
            if self.threads >= _MAX_THREADS:
                return False
            self.threads += 1
            self.idle += 1
        if start_daemon(self._work, name="ejcache-call"):
            return True
        with self.lock:
            self.threads -= 1
            self.idle -= 1
        return False

    def end_idle(self) -> None:
        """End the threads that wait for a task, unless they are kept."""
        with self.lock:
            ended = 0 if self._are_kept() else max(0, self.idle)
            self.idle -= ended
            self.threads -= ended
        for _ in range(ended):
            self._give(None)

    def _are_kept(self) -> bool:
        return self._always or idle_threads.are_kept

    # A signal handler may give a task while its thread gives one, and wait for its result. So neither a giver
    # nor a taker holds a lock that the other one needs: each step on a queue is one call.

    def _give(self, task: _Task | None) -> None:
        self.tasks.append(task)
        self._wake()

    def _wake(self) -> None:
        """Have a thread that waits look for a task; does nothing if none waits."""
        with contextlib.suppress(IndexError):
            self.waiting.popleft().set()

    def _take(self) -> _Task | None:
        while True:
            wait_if_patched_late()
            with contextlib.suppress(IndexError):
                return self.tasks.popleft()
            mine = threading.Event()
            self.waiting.append(mine)
            if not self.tasks:
                mine.wait()
                continue
            # A task has come before this thread was seen to wait.
            try:
                self.waiting.remove(mine)
            except ValueError:
                self._wake()  # it was woken for another task, too

    def _work(self) -> None:
        while (task := self._take()) is not None:
            future, function = task
            if future.set_running_or_notify_cancel():
                answer(future, function)
            del task, future, function
            with self.lock:
                if self.idle >= 0 and not self._are_kept():  # below 0, tasks wait for a thread that is at work
                    self.threads -= 1
                    return
                self.idle += 1


_calls: Final = DaemonPool()


def submit(function: Callable[[], T]) -> Future[T]:
    """Run `function` in a thread that does not keep the program from ending (`DaemonPool.submit`)."""
    return _calls.submit(function)


def answer(future: Future[T], function: Callable[[], T]) -> None:
    """Call `function`, and give what it returns or raises to `future`."""
    try:
        result = function()
    except BaseException as exc:
        future.set_exception(exc)
    else:
        future.set_result(result)


def call_with_timeout(what: str, function: Callable[[], T], seconds: float) -> T:
    """Call `function` in another thread, and return its result or raise its error.

    Args:
        what: the operation and its object, for the message of the error.
        function: called in another thread.
        seconds: how long to wait for it.

    Raises:
        CallTimeoutError: it did not return in time.
    """
    future = submit(function)
    try:
        return future.result(seconds)
    except TimeoutError as exc:
        if future.done() and not future.cancelled():
            return future.result()  # it returned just now, or this is the function's own TimeoutError
        future.cancel()
        raise CallTimeoutError(f"{what} gave no answer for {seconds:.3g} s") from exc
    except BaseException:
        future.cancel()
        raise


Item = TypeVar("Item")
Result = TypeVar("Result")

THREADS: Final = 16
"""Requests at once: at 30 ms each, 500 a second."""

_pool: Final = DaemonPool()
"""Not that of `call_with_timeout`, which the functions use: they would wait for threads that wait for them."""


def in_parallel(
    function: Callable[[Item], Result], items: Iterable[Item], *, threads: int = THREADS
) -> Iterator[Result]:
    """Yield what `function` returns for each of `items`, in their order; raises what it raises.

    Works during exit too, when no thread can be started.

    Args:
        function: called in other threads; in this one if `threads` is 1.
        items: taken one by one.
        threads: how many calls run at once.
    """
    if threads <= 1:
        yield from map(function, items)
        return
    calls: collections.deque[Future[Result]] = collections.deque()
    try:
        for item in items:
            calls.append(_pool.submit(partial(function, item)))
            if len(calls) >= threads:
                yield calls.popleft().result()
        while calls:
            yield calls.popleft().result()
    finally:
        for call in calls:
            call.cancel()
        # The caller may close what the remaining calls use.
        wait(calls)
