"""What all buckets but directories have in common: a client, which is one of fsspec's file systems.

The file system provides credentials, connections and addresses. Its own retries are not used where it has asynchronous
methods, and its requests, which have no timeouts, are bounded here. It is called from any thread, and after a fork.

It is made in another thread, at the first request or when the bucket is prepared: its library is imported, which takes
half a second on an idle machine and much more while many processes start, and credentials are looked for, in files and
on the network. An operation waits for that before its own deadline begins, so that a slow import is not taken for slow
storage. The import may take a minute: a disk may be slow. After it, the search for credentials has its own deadline.

No client is made while the interpreter ends: a program that is ending can start no thread, and its executors refuse
work, so that most libraries would wait for ever. A client that exists goes on: the loop has a thread of ours, and what
it runs in threads (name look-ups, TLS contexts) has another one, both from the beginning.
"""

from __future__ import annotations

import asyncio
import collections
import math
import threading
import time
import weakref
from abc import abstractmethod
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as futures_wait
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from ejcache.bucket.base import Bucket
from ejcache.bucket.responses import MAX_DOCUMENT, AnswerError, Arrival, allowed_bytes, current_arrival
from ejcache.bucket.retry import TransientError, seconds_of
from ejcache.bucket.storage_causes import StorageCause
from ejcache.errors import (
    NoPermissionError,
    StoreNotAskedError,
    StoreReadOnlyError,
    StoreRefusedError,
    StoreUnavailableError,
)
from ejcache.util.lifecycle import AtExit, ExitPhase, is_ending, run_exit_phases_first, track_forks
from ejcache.util.log import log
from ejcache.util.scheduler import Scheduler
from ejcache.util.threads import DaemonPool, submit
from ejcache.util.time_budget import current_budget

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ejcache.bucket.retry import RetryPolicy


IDENTITY: Final = {"Accept-Encoding": "identity"}
"""The header of a request whose answer is not to be compressed."""


T = TypeVar("T")

_GRACE: Final = 0.5
_CLOSING: Final = 1.0
_ENDING: Final = 5.0
"""Seconds that a program which ends waits for an import of ours at most."""


class ClientBucket(Bucket):
    """Objects that a client of this process asks for: a file system of fsspec's, made once per process.

    Args:
        url: the root that names are relative to.
        policy: how long an operation may take.
        options: arguments of the file system that provides the client.
    """

    make_seconds: float = 5.0
    """Operations wait for `_make` for so long,"""
    most_seconds: float = 60.0
    """and for `_load` and `_make` until this long after their beginning."""

    def __init__(
        self, url: str, *, policy: RetryPolicy | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(url, policy=policy)
        self._options = dict(options or {})
        self._made: ClientStartup | None = None
        self._closer: weakref.finalize[[Any, Any], ClientBucket] | None = None
        self._lock = threading.RLock()
        _clients.add(self)
        track_forks(self)

    def after_fork_in_child(self) -> None:
        """Make another file system: the parent's has no running loop here. Keep it, because its end would be noisy."""
        _abandoned.append(self._made)
        if self._closer is not None:
            self._closer.detach()
        self._lock = threading.RLock()
        self._made = self._closer = None

    def prepare(self, *, wait: float = 0.0, fully: bool = False) -> None:  # noqa: ARG002  # one client does all
        """Begin to import the client's library and to look for credentials, unless the program is ending.

        Args:
            wait: seconds to wait for both.
            fully: one client does all.
        """
        wait_for(self._start(), wait)

    @property
    def is_prepared(self) -> bool:
        """True if this process has begun to make the client."""
        return self._made is not None

    def close(self) -> None:
        """Close the connections, if there are any; the next use makes them again."""
        with self._lock:
            made, self._made = self._made, None
            closer, self._closer = self._closer, None
        if closer is not None:
            closer.detach()  # and not called: while a program ends, finalizers do nothing
        if made is not None:
            _close(made.future, self._finish)

    @abstractmethod
    def _load(self) -> Any:
        """Import the library, and return the class of the file system. Called in another thread."""

    @abstractmethod
    def _make(self, loop: asyncio.AbstractEventLoop) -> Any:
        """Make the file system, whose requests will run on `loop`, and what its first one needs; in the same thread."""

    @staticmethod
    @abstractmethod
    async def _finish(fs: Any) -> None:
        """Close the connections of the file system. Runs on the loop."""

    def _cause_of(self, exc: Exception) -> StorageCause | None:  # noqa: ARG002 (what fsspec opens has no errors of its own)
        """Return what is behind an error of the client's library."""
        return None

    def _start(self) -> ClientStartup | None:
        """Begin to make the file system, without waiting for it; None if the program is ending and has none."""
        with self._lock:
            loop = _loop.get() if self._made is None and not is_ending() else None
            if loop is not None:
                self._made = ClientStartup(self._load, self._make, loop)
                # A store that is dropped without being closed must not leave unclosed sessions, which aiohttp reports.
                self._closer = weakref.finalize(self, _close, self._made.future, self._finish)
                self._closer.atexit = False
                run_exit_phases_first()
            return self._made

    def _prepare(self, make_seconds: float = math.inf, *, light: bool = False) -> Any:  # noqa: ARG002
        """Return the file system; see `Bucket._prepare`. If it cannot be made, the next call tries again."""
        return self._made_by(self._start(), make_seconds)

    def _made_by(self, making: ClientStartup | None, make_seconds: float) -> Any:
        """Wait for what is being made, and return it; raises as `_prepare` does."""
        if making is None:
            raise StoreNotAskedError(f"{self.url} was not asked: the program is ending, and has made no client")
        budget = current_budget()
        # The other ranks of a program wait for an import of this one, too.
        left = self.most_seconds if budget is None else min(self.most_seconds, budget.time_left)
        if not making.wait(min(make_seconds, self.make_seconds), self.most_seconds, left):
            raise StoreNotAskedError(
                f"{self.url} was not asked: after {time.monotonic() - making.started:.0f} s its library is still "
                f"loading, or its credentials were not found"
            )
        try:
            return making.future.result()
        except Exception as exc:
            self._forget(making)
            if isinstance(exc, StoreUnavailableError):
                raise
            raise StoreUnavailableError(f"{self.url} cannot be opened: {exc}").because(self._cause_of(exc)) from exc

    def _forget(self, making: ClientStartup) -> None:
        """Have the next call make what could not be made."""
        with self._lock:
            if self._made is making:
                self._made = None
                if self._closer is not None:
                    self._closer.detach()

    def _refusal(
        self, status: int, said: str, *, writing: bool, retry_after: object = None, throttled: bool = False
    ) -> Exception:
        """Return the error for an answer of HTTP that says that a request was not carried out.

        Args:
            status: of the answer.
            said: by the storage, of the reason.
            writing: the request would have changed an object.
            retry_after: a header of the answer.
            throttled: the storage asks to slow down, whatever the status.
        """
        after = seconds_of(retry_after)
        if status == 429 or throttled:
            return TransientError(f"{status} {said}", busy=True, throttled=True, retry_after=after)
        if status == 408 or status >= 500:
            return TransientError(f"{status} {said}", ambiguous=True, throttled=status == 503, retry_after=after)
        if status == 401:
            return StoreRefusedError(f"{self.url} refuses the credentials: {said}").because(StorageCause.CREDENTIALS)
        if status == 403 and writing:
            return StoreReadOnlyError(f"these credentials may not write to {self.url}: {said}")
        if status == 403:
            return NoPermissionError(
                f"these credentials may not read {self.url}, or may not list it (s3:ListBucket, storage.objects.list), "
                f"and storage then answers so for what is absent: {said}"
            )
        return StoreUnavailableError(f"{self.url} answers {status}: {said}")

    def _body_seconds(self) -> float:
        """Return for how many seconds an answer that has begun to arrive may go on."""
        budget, most = current_budget(), self.policy.deadline / 2
        return most if budget is None else min(most, budget.time_left)

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
            raise StoreUnavailableError(f"{self.url}: {exc}").because(StorageCause.PORTAL) from exc
        except TimeoutError as exc:
            future.cancel()
            said = "no full answer" if arrival.has_begun else f"no answer for {timeout:.3g} s"
            raise TransientError(
                said, ambiguous=True, busy=True, arriving=arrival.has_begun, arrived=arrival.bytes
            ) from exc
        except BaseException:
            future.cancel()
            raise


class ClientStartup:
    """A client while another thread imports and connects it.

    Args:
        load: imports the library.
        make: makes the client, for a loop if it has one.
        loop: the loop.
    """

    def __init__(
        self,
        load: Callable[[], object],
        make: Callable[[Any], Any],
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self.started = time.monotonic()
        self._loaded_at: Future[float] = Future()
        self.future: Future[Any] = submit(lambda: self._run(load, make, loop))
        track_forks(self)
        _loading.add(self)

    def after_fork_in_child(self) -> None:
        """Do not wait for it when the child ends: the thread that imports does not exist here."""
        _loading.discard(self)

    def _run(self, load: Callable[[], object], make: Callable[[Any], Any], loop: Any) -> Any:
        load()
        self._loaded_at.set_result(time.monotonic())
        return make(loop)

    def wait(self, make_seconds: float, most_seconds: float, left: float) -> bool:
        """True if it is made, or failed, in time: two times from its beginning, so that later callers wait less, and
        `left` seconds from now.
        """
        last = min(self.started + most_seconds, time.monotonic() + left)
        futures_wait([self.future, self._loaded_at], _until(last), FIRST_COMPLETED)
        if self._loaded_at.done():
            futures_wait([self.future], _until(min(last, self._loaded_at.result() + make_seconds)))
        return self.future.done()

    def wait_for_import(self) -> None:
        """Wait until the library is imported, or cannot be.

        Python ends daemon threads when a program ends. One that is in the middle of an import may just collect JAX's
        back end as garbage; the C++ runtime then aborts the process ("exception not rethrown").
        """
        futures_wait([self.future, self._loaded_at], _ENDING, FIRST_COMPLETED)


def wait_for(making: ClientStartup | None, seconds: float) -> None:
    """Wait so long at most for a client that is being made."""
    if making is not None and seconds:
        futures_wait([making.future], seconds)


def _until(moment: float) -> float:
    return max(0.0, moment - time.monotonic())


_clients: Final = AtExit(ExitPhase.CLOSE, ClientBucket.close)
_loading: Final[AtExit[ClientStartup]] = AtExit(ExitPhase.CLOSE, ClientStartup.wait_for_import)
_abandoned: Final[collections.deque[object]] = collections.deque(maxlen=64)


async def _bounded(function: Callable[[Any], Awaitable[T]], fs: Any, seconds: float, most: int, arrival: Arrival) -> T:
    allowed_bytes.set(most)
    current_arrival.set(arrival)
    async with asyncio.timeout(seconds) as arrival.timeout:
        return await function(fs)


def _close(made: Future[Any], finish: Callable[[Any], Awaitable[None]]) -> None:
    """Close what was made, if anything was, or as soon as it is.

    A loop that does not answer is left alone: the operating system closes its connections.
    """
    if not made.done():
        made.add_done_callback(lambda made: _close(made, finish))
    elif not made.cancelled() and made.exception() is None:
        _close_file_system(made.result(), finish)


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
        _abandoned.append(fs)


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
            _abandoned.append(self.current)  # closing it would close descriptors that the parent uses
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
