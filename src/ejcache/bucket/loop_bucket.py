"""Runs clients of buckets that are file systems of fsspec's on an event loop, called from any thread.

The file system provides credentials, connections and addresses. Its own retries are not used where it has asynchronous
methods, and its requests, which have no timeouts, are bounded here.

The loop has a thread of ours, and what it runs in threads (name look-ups, TLS contexts) has another one, both from the
beginning: a client that exists goes on while a program ends.
"""

from __future__ import annotations

import asyncio
import threading
from abc import abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from ejcache.bucket.client_bucket import ClientBucket, abandoned
from ejcache.bucket.responses import MAX_DOCUMENT, AnswerError, Arrival, allowed_bytes, current_arrival
from ejcache.util.lifecycle import is_ending, track_forks
from ejcache.util.log import log
from ejcache.util.scheduler import Scheduler
from ejcache.util.threads import DaemonPool

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ejcache.bucket.client_bucket import ClientStartup


T = TypeVar("T")

_GRACE: Final = 0.5
_CLOSING: Final = 1.0


class LoopBucket(ClientBucket):
    """Objects that a client on the event loop of this process asks for."""

    @staticmethod
    @abstractmethod
    async def _finish(fs: Any) -> None:
        """Close the connections of the file system. Runs on the loop."""

    @classmethod
    def _release(cls, client: Any) -> None:
        """Close the connections. A loop that does not answer is left alone: the operating system closes them."""
        _close_file_system(client, cls._finish)

    def _startup(self) -> ClientStartup | None:
        """Begin to make the client; None if no loop ran before the program began to end."""
        return None if _loop.get() is None else super()._startup()

    @property
    def _current_loop(self) -> asyncio.AbstractEventLoop:
        """The loop of all clients of this process, once one is being made."""
        return cast("asyncio.AbstractEventLoop", _loop.current)

    def _run_on_loop(self, function: Callable[[Any], Awaitable[T]], timeout: float, *, most: int = MAX_DOCUMENT) -> T:
        """Run the coroutine `function(file system)` on the loop of the clients; return its result or raise its error.

        Args:
            function: makes requests.
            timeout: seconds until an answer begins to arrive. It has half the deadline of an operation to arrive.
            most: bytes that each of their answers may have.

        Raises:
            TransientError: it did not end in time. It was cancelled, and may have done its work.
        """
        fs = self._prepare()
        body_seconds = self._body_seconds()
        arrival = Arrival(body_seconds)
        future = asyncio.run_coroutine_threadsafe(_bounded(function, fs, timeout, most, arrival), _loop.current)
        try:
            try:
                return future.result(timeout + _GRACE)
            except TimeoutError:
                if future.done() or not arrival.has_begun:
                    raise
                return future.result(body_seconds + _GRACE)
        except AnswerError as exc:
            raise self._foreign(exc) from exc
        except TimeoutError as exc:
            future.cancel()
            raise arrival.is_late(timeout) from exc
        except BaseException:
            future.cancel()
            raise


async def _bounded(function: Callable[[Any], Awaitable[T]], fs: Any, seconds: float, most: int, arrival: Arrival) -> T:
    allowed_bytes.set(most)
    current_arrival.set(arrival)
    async with asyncio.timeout(seconds) as arrival.timeout:
        return await function(fs)


def _close_file_system(fs: Any, finish: Callable[[Any], Awaitable[None]]) -> None:
    async def close() -> None:
        await finish(fs)

    coroutine = close()
    try:
        future = asyncio.run_coroutine_threadsafe(coroutine, _loop.current)
        if threading.get_ident() != _loop.thread:
            future.result(_CLOSING)
    except (TimeoutError, RuntimeError):
        coroutine.close()
        abandoned.append(fs)


class _CallThreads(ThreadPoolExecutor):
    """Runs what a loop does in threads (name look-ups, TLS contexts) in daemons: a dead name server keeps no program.

    One thread is there from the beginning, because none can be started while a program ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self._daemons = DaemonPool(always=True)
        self._daemons.submit(_nothing)

    @property
    def has_any(self) -> bool:
        """True if a thread is there."""
        return self._daemons.threads > 0

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        return self._daemons.submit(lambda: fn(*args, **kwargs))


def _nothing() -> None:
    pass


class _Loop:
    """The event loop of all clients of this process, and its thread.

    Attributes:
        current: the loop; None before `get` has made it.
        thread: the number of the thread; 0 before it runs.
    """

    def __init__(self) -> None:
        self.after_fork_in_child()
        track_forks(self)

    def after_fork_in_child(self) -> None:
        """Make another loop when one is needed: the thread of the parent's does not exist here."""
        self._lock = threading.RLock()
        if getattr(self, "current", None) is not None:
            abandoned.append(self.current)  # closing it would close descriptors that the parent uses
        self.current: Any = None
        self.thread = 0

    def get(self) -> asyncio.AbstractEventLoop | None:
        """Return the loop; it runs from now on. None if it did not run before the program began to end."""
        with self._lock:
            if self.current is None and not is_ending():
                loop, threads = asyncio.new_event_loop(), _CallThreads()
                loop.set_default_executor(threads)
                loop.set_exception_handler(_log_what_nobody_awaits)
                # The program may begin to end at any moment.
                if threads.has_any and _loop_thread.later(0.0, partial(self._run, loop)):
                    self.current = loop
                else:
                    # Python may destroy its sockets first, and then prints the traceback of its own closing.
                    loop.close()
            return cast("asyncio.AbstractEventLoop | None", self.current)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        self.thread = threading.get_ident()
        loop.run_forever()


def _log_what_nobody_awaits(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Keep off stderr the errors of tasks that a library has forgotten: asyncio would print them."""
    log.debug("ejcache: a client of storage: %s", context.get("message"), exc_info=context.get("exception"))


_loop_thread: Final = Scheduler(threads=1, name="ejcache-io")
_loop: Final = _Loop()
