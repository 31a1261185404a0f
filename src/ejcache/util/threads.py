"""Calls that may hang, with a timeout.

A system call on a dead NFS server, a name lookup or a search for credentials cannot be interrupted. It runs in another
thread; at the timeout the caller goes on, and the thread stays behind. The threads are daemons: `concurrent.futures`
joins its threads at exit, so that one hanging call would keep a finished program alive.

Also `cores`, for how many of our threads may compute at once, and `smaller_stack`, for what they cannot compute.
"""

from __future__ import annotations

import os
import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ejcache.errors import StoreUnavailableError
from ejcache.util.lifecycle import track_forks

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_MAX_THREADS: Final = 64
_UNLIMITED_STACK: Final = 2 << 20
"""Bytes that the C library gives a thread where the limit of the stack is `unlimited`."""
_Task = tuple["Future[Any]", "Callable[[], Any]"]


class CallTimeoutError(StoreUnavailableError):
    """A call did not return within its timeout. It may still be running, and may still succeed."""


class DaemonPool:
    """Daemon threads, started when they are needed and kept; at most 64. Safe for threads and forks."""

    def __init__(self) -> None:
        self.after_fork_in_child()
        track_forks(self)

    def after_fork_in_child(self) -> None:
        """Start without threads: the parent's do not exist here."""
        self.tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.threads = 0
        self.idle = 0

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Run `function` in a thread that does not keep the program from ending.

        During exit, when no thread can be started, an existing thread runs it; without one, this thread does.
        """
        future: Future[T] = Future()
        with self.lock:
            start = self.idle <= 0 and self.threads < _MAX_THREADS
            if start:
                self.threads += 1
            else:
                self.idle -= 1
        if start:
            try:
                threading.Thread(target=self._work, name="ejcache-call", daemon=True).start()
            except RuntimeError:
                with self.lock:
                    self.threads -= 1
                    self.idle -= 1
                    alone = self.threads == 0
                if alone:
                    _run(future, function)
                    return future
        self.tasks.put((future, function))
        return future

    def _work(self) -> None:
        while True:
            future, function = self.tasks.get()
            if future.set_running_or_notify_cancel():
                _run(future, function)
            del future, function
            with self.lock:
                self.idle += 1


_calls: Final = DaemonPool()


def submit(function: Callable[[], T]) -> Future[T]:
    """Run `function` in a thread that does not keep the program from ending (`DaemonPool.submit`)."""
    return _calls.submit(function)


def _run(future: Future[T], function: Callable[[], T]) -> None:
    try:
        result = function()
    except BaseException as exc:
        future.set_exception(exc)
    else:
        future.set_result(result)


def cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def smaller_stack() -> int | None:
    """Bytes of stack that a new thread has, if the main thread may have more; None if both have the same.

    Python can change the size only for all threads of the process, so ours have the program's.
    """
    import resource

    limit, size = resource.getrlimit(resource.RLIMIT_STACK)[0], threading.stack_size()
    if limit == resource.RLIM_INFINITY:
        return size or _UNLIMITED_STACK
    return size if 0 < size < limit else None


def call_with_timeout(what: str, function: Callable[[], T], seconds: float) -> T:
    """Return what `function` returns, and raise what it raises.

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
