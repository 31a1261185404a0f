"""A client of fsspec's asynchronous file systems, called from any thread, with a deadline and after a fork.

The file system gives credentials, connections and addresses; its own retries and its absence of timeouts are left
aside. It is made in a thread of its own, because that imports for half a second and may search for credentials in
files and on the network.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ejcache.errors import StoreUnavailableError
from ejcache.stores.shared_retry import TransientError
from ejcache.stores.shared_workers import at_exit, submit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from concurrent.futures import Future

__all__ = ["AsyncClient", "make_resolver"]

T = TypeVar("T")

_GRACE: Final = 0.5
_CLOSING: Final = 1.0


class AsyncClient:
    """Makes the file system once per process, and runs coroutines with it.

    Args:
        what: the storage, for messages.
        make: the file system; called in another thread.
        finish: closes its connections; called on the loop.
    """

    def __init__(self, what: str, make: Callable[[], Any], finish: Callable[[Any], Awaitable[None]]) -> None:
        self._what = what
        self._make = make
        self._finish = finish
        self._made: Future[Any] | None = None
        self._closer: weakref.finalize[[Any, Any], AsyncClient] | None = None
        self._lock = threading.Lock()
        _clients.add(self)

    def _reset(self) -> None:
        # In a forked child the parent's file system has no loop; it is kept, because its end would be noisy.
        _abandoned.append(self._made)
        if self._closer is not None:
            self._closer.detach()
        self._lock = threading.Lock()
        self._made = self._closer = None

    def start(self) -> Future[Any]:
        """Begin to make the file system, without waiting for it."""
        with self._lock:
            if self._made is None:
                self._made = submit(self._make)
                # Whoever drops a store without closing it shall not read of unclosed sessions.
                self._closer = weakref.finalize(self, _close, self._made, self._finish)
                self._closer.atexit = False
            return self._made

    def file_system(self, timeout: float) -> Any:
        """The file system.

        Raises:
            TransientError: it is not made within `timeout` seconds.
            StoreUnavailableError: it cannot be made.
        """
        made = self.start()
        try:
            return made.result(timeout)
        except TimeoutError as exc:
            if not made.done():
                raise TransientError("looking for credentials takes too long", busy=True) from exc
            self._forget(made)
            raise StoreUnavailableError(f"{self._what} cannot be opened: {exc}") from exc
        except StoreUnavailableError:
            self._forget(made)
            raise
        except Exception as exc:
            self._forget(made)
            raise StoreUnavailableError(f"{self._what} cannot be opened: {exc}") from exc

    def _forget(self, made: Future[Any]) -> None:
        with self._lock:
            if self._made is made:
                self._made = None
                if self._closer is not None:
                    self._closer.detach()

    def run(self, function: Callable[[Any], Awaitable[T]], timeout: float) -> T:
        """What the coroutine `function(file system)` returns or raises.

        Raises:
            TransientError: it did not within `timeout` seconds; it was cancelled, and may have done its work.
        """
        end = time.monotonic() + timeout
        fs = self.file_system(timeout)
        left = max(0.05, end - time.monotonic())
        future = asyncio.run_coroutine_threadsafe(_bounded(function, fs, left), fs.loop)
        try:
            return future.result(left + _GRACE)
        except TimeoutError as exc:
            future.cancel()
            raise TransientError(f"no answer for {timeout:.3g} s", ambiguous=True, busy=True) from exc
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Close the connections, if there are any, and make them again at the next `run`."""
        with self._lock:
            made, self._made = self._made, None
            closer, self._closer = self._closer, None
        if closer is not None:
            closer.detach()  # and not called: while a program ends, finalizers do nothing
        if made is not None:
            _close(made, self._finish)


_clients: Final[weakref.WeakSet[AsyncClient]] = weakref.WeakSet()
_abandoned: Final[list[object]] = []


def _close_all() -> None:
    for client in list(_clients):
        client.close()


def _after_fork() -> None:
    for client in list(_clients):
        client._reset()  # noqa: SLF001


at_exit(_close_all, closing=True)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


async def _bounded(function: Callable[[Any], Awaitable[T]], fs: Any, seconds: float) -> T:
    async with asyncio.timeout(seconds):
        return await function(fs)


def _close(made: Future[Any], finish: Callable[[Any], Awaitable[None]]) -> None:
    """Close what was made, if anything was, unless its loop does not answer: then the system closes it."""
    if not made.done() or made.cancelled() or made.exception() is not None:
        return
    fs = made.result()

    async def close() -> None:
        await finish(fs)

    coroutine = close()
    try:
        future = asyncio.run_coroutine_threadsafe(coroutine, fs.loop)
        if threading.get_ident() != getattr(fs.loop, "_thread_id", None):
            future.result(_CLOSING)
    except (TimeoutError, RuntimeError):
        coroutine.close()
        _abandoned.append(fs)


def make_resolver() -> Any:
    """A resolver for aiohttp that works while a program ends, too, which is when uploads are drained.

    The loop's own looks up in threads of `concurrent.futures`, and those are gone by then.
    """
    from aiohttp.abc import AbstractResolver

    class Resolver(AbstractResolver):
        async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC) -> Any:
            return await _resolve(host, port, family)

        async def close(self) -> None:
            """Nothing is held."""

    return Resolver()


async def _resolve(host: str, port: int, family: socket.AddressFamily) -> list[dict[str, Any]]:
    flags = socket.AI_ADDRCONFIG
    look_up = submit(lambda: socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM, flags=flags))
    return [
        {
            "hostname": host,
            "host": address[0],
            "port": address[1],
            "family": found_family,
            "proto": protocol,
            "flags": socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
        }
        for found_family, _, protocol, _, address in await asyncio.wrap_future(look_up)
    ]
