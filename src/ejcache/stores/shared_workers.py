"""Threads for calls that can hang, and the order in which things end with the program.

The caller of a call that hangs leaves at its deadline, the call stays behind.

A system call on a dead NFS server, a name look-up and a search for credentials cannot be interrupted. The threads are
daemons, because those of `concurrent.futures` are joined at exit and would keep a finished program alive.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ejcache.stores.shared_retry import TransientError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["at_exit", "call_with_timeout", "submit"]

T = TypeVar("T")

_MAX_THREADS: Final = 64
_Task = tuple["Future[Any]", "Callable[[], Any]"]


class _Pool:
    def __init__(self) -> None:
        self.tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.threads = 0
        self.idle = 0

    def work(self) -> None:
        while True:
            future, function = self.tasks.get()
            if future.set_running_or_notify_cancel():
                try:
                    result = function()
                except BaseException as exc:
                    future.set_exception(exc)
                else:
                    future.set_result(result)
                    del result
            del future, function
            with self.lock:
                self.idle += 1


_pool = _Pool()


def _forget() -> None:
    global _pool
    _pool = _Pool()


_at_exit: Final[dict[bool, list[Callable[[], object]]]] = {False: [], True: []}


def at_exit(function: Callable[[], object], *, closing: bool = False) -> None:
    """Call `function` when the program ends; with `closing`, after all that may still write.

    What others register with `atexit` after they have imported a shared store runs before all of these.
    """
    _at_exit[closing].append(function)


def _exit() -> None:
    for function in (*_at_exit[False], *_at_exit[True]):
        function()


atexit.register(_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def submit(function: Callable[[], T]) -> Future[T]:
    """Run `function` in a thread that does not outlive the program."""
    pool = _pool
    future: Future[T] = Future()
    with pool.lock:
        start = pool.idle <= 0 and pool.threads < _MAX_THREADS
        if start:
            pool.threads += 1
        else:
            pool.idle -= 1
    if start:
        try:
            threading.Thread(target=pool.work, name="ejcache-shared", daemon=True).start()
        except RuntimeError:
            # At the end of a program no thread can be started; one that is there takes it, or this one does.
            with pool.lock:
                pool.threads -= 1
                pool.idle -= 1
                alone = pool.threads == 0
            if alone:
                _run_here(future, function)
                return future
    pool.tasks.put((future, function))
    return future


def _run_here(future: Future[T], function: Callable[[], T]) -> None:
    try:
        future.set_result(function())
    except BaseException as exc:
        future.set_exception(exc)


def call_with_timeout(what: str, function: Callable[[], T], timeout: float) -> T:
    """What `function` returns or raises, if it does so within `timeout` seconds.

    Raises:
        TransientError: it did not; it may still be running, and may still succeed.
    """
    future = submit(function)
    try:
        return future.result(timeout)
    except TimeoutError as exc:
        if future.done() and not future.cancelled():
            raise  # the function's own
        future.cancel()
        raise TransientError(f"{what} gave no answer for {timeout:.3g} s", ambiguous=True, busy=True) from exc
    except BaseException:
        future.cancel()
        raise
