"""Work in threads: calls with a timeout, many requests at once, and counters that threads share.

Calls that may hang, with a timeout.

A system call on a dead NFS server, a name lookup or a search for credentials cannot be interrupted. It runs in another
thread; at the timeout the caller goes on, and the thread stays behind. The threads are daemons: `concurrent.futures`
joins its threads at exit, so that one hanging call would keep a finished program alive.

Also `cores`, for how many of our threads may compute at once, and `smaller_stack`, for what they cannot compute.

Many requests at once to storage that answers slowly, with as few results in memory as there are threads.

Counters in memory: amounts by name, and which of them nobody has written down yet.
"""

from __future__ import annotations

import collections
import os
import queue
import resource
import threading
import weakref
from collections import defaultdict
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from ejcache.errors import StoreUnavailableError
from ejcache.util.lifecycle import track_forks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


T = TypeVar("T")

_MAX_THREADS: Final = 64
_FEW_THREADS: Final = 64
"""With a limit (`ulimit -u`) below this we start none. JAX alone has 13 with 2 cores, measured with jaxlib 0.12.0.1."""
_UNLIMITED_STACK: Final = 2 << 20
"""Bytes that the C library gives a thread where the limit of the stack is `unlimited`."""
_Task = tuple["Future[Any]", "Callable[[], Any]"]


class CallTimeoutError(StoreUnavailableError):
    """A call did not return within its timeout. It may still be running, and may still succeed."""


def start_daemon(target: Callable[..., object], *args: object, name: str) -> bool:
    """Start a daemon thread; False if there is none: during exit, or where this user may have few threads.

    XLA ends the process if it cannot start its own threads, so the few are left to it.
    """
    if _may_have_few_threads():
        return False
    try:
        threading.Thread(target=target, args=args, name=name, daemon=True).start()
    except RuntimeError:
        return False
    return True


def _may_have_few_threads() -> bool:
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    return limit != resource.RLIM_INFINITY and limit < _FEW_THREADS and os.geteuid() != 0  # root has no limit


class HasThreads(Protocol):
    """Something whose threads wait for tasks."""

    def end_idle(self) -> None:
        """Have the threads that wait for a task look whether they are still kept."""


class IdleThreads:
    """Whether our threads that have nothing to do wait for the next task, or end.

    Attributes:
        are_kept: they wait.
    """

    def __init__(self) -> None:
        self.are_kept = True
        self._owners: weakref.WeakSet[HasThreads] = weakref.WeakSet()

    def add(self, owner: HasThreads) -> None:
        """End the idle threads of `owner`, too."""
        self._owners.add(owner)

    def keep(self) -> None:
        """Have threads wait for tasks from now on."""
        self.are_kept = True

    def end(self) -> None:
        """End the threads that have nothing to do, and the others when they have done it; a task starts one anew."""
        self.are_kept = False
        for owner in list(self._owners):
            owner.end_idle()


idle_threads: Final = IdleThreads()
"""Those of this process."""


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
        self.tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.threads = 0
        self.idle = 0

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Run `function` in a thread that does not keep the program from ending.

        Where no thread can be started, an existing thread runs it; without one, this thread does.
        """
        future: Future[T] = Future()
        with self.lock:
            start = self.idle <= 0 and self.threads < _MAX_THREADS
            if start:
                self.threads += 1
            else:
                self.idle -= 1
        if start and not start_daemon(self._work, name="ejcache-call"):
            with self.lock:
                self.threads -= 1
                alone = self.threads == 0
                self.idle -= not alone
            if alone:
                _run(future, function)
                return future
        self.tasks.put((future, function))
        return future

    def end_idle(self) -> None:
        """End the threads that wait for a task, unless they are kept."""
        with self.lock:
            ended = 0 if self._are_kept() else max(0, self.idle)
            self.idle -= ended
            self.threads -= ended
        for _ in range(ended):
            self.tasks.put(None)

    def _are_kept(self) -> bool:
        return self._always or idle_threads.are_kept

    def _work(self) -> None:
        while (task := self.tasks.get()) is not None:
            future, function = task
            if future.set_running_or_notify_cancel():
                _run(future, function)
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


class Tally:
    """Amounts by name, counted in this process. Safe for threads and for signal handlers that run inside them; a
    forked child starts from zero.

    A handler that saves a checkpoint compiles, and so counts above its own thread: the lock is re-entrant, and a
    handler cannot run in the middle of a change, because handlers run after calls, not within an item's `+=`.

    Attributes:
        listener: called with the amounts of each addition, in the process that adds.
    """

    def __init__(self) -> None:
        self.listener: Callable[[Mapping[str, float]], object] | None = None
        self.after_fork_in_child()
        track_forks(self)

    def after_fork_in_child(self) -> None:
        """Start from zero: the parent reports what it counted, and the lock may be held by a thread of the parent."""
        self._lock = threading.RLock()
        self._totals: defaultdict[str, float] = defaultdict(int)
        self._pending: defaultdict[str, float] = defaultdict(int)

    def add(self, **amounts: float) -> None:
        """Add to the counters of these names."""
        with self._lock:
            for name, amount in amounts.items():
                self._totals[name] += amount
                self._pending[name] += amount
        if amounts and self.listener is not None:
            self.listener(amounts)

    def totals(self) -> dict[str, float]:
        """Everything counted in this process."""
        with self._lock:
            return dict(self._totals)

    def take_pending(self) -> dict[str, float]:
        """Return what was counted since the last call. The caller has to report it: no later call returns it again."""
        with self._lock:
            pending, self._pending = self._pending, defaultdict(int)
        return {name: amount for name, amount in pending.items() if amount}
