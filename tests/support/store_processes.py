"""Other processes to test a store with: peers that do one call at a time when told, and forks of this process.

A `Peer` is a fresh interpreter, started once and told step by step what to call, so that "A puts, B gets, A puts" is
the order of the program and not of the scheduler. Two peers can also be told to begin at one barrier.
"""

from __future__ import annotations

import importlib
import multiprocessing
import warnings
from typing import TYPE_CHECKING, Any, Final

from ejcache.stores.base import Store
from ejcache.util.lifecycle import ExitPhase, at_exit

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from pathlib import Path

    from ejcache.stores.base import EntryInfo

__all__ = ["Call", "Peer", "PeerStore", "in_fork", "peers"]

DEADLINE: Final = 240.0
"""Seconds after which an unanswered call counts as a hang."""

Call = tuple[str, tuple[Any, ...]]
"""A store's method by name, and its positional arguments."""


class Peer:
    """A process that opens stores and calls them when told: a fresh Python, or, for one that soon ends, a fork."""

    def __init__(self, barrier: threading.Barrier | None = None, *, fork: bool = False) -> None:
        context = multiprocessing.get_context("fork" if fork else "spawn")
        self._barrier = barrier
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, barrier), daemon=True)
        with warnings.catch_warnings():
            # The tests fork a process with threads on purpose; newer Pythons warn about that.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()

    @property
    def alive(self) -> bool:
        """Whether the process still runs and can still meet another one."""
        return self._process.is_alive() and not (self._barrier is not None and self._barrier.broken)

    @property
    def has_answered(self) -> bool:
        """Whether an answer has come that nobody has read."""
        return self._connection.poll()

    def open(self, suite: type, path: Path, **options: Any) -> PeerStore:
        """The store that `suite().open(path, **options)` opens over there; `suite` must be importable by name."""
        handle: int = self._ask("open", suite.__module__, suite.__qualname__, path, options)
        return PeerStore(self, handle)

    def tell(self, *message: Any) -> None:
        """Send without waiting for the answer."""
        self._connection.send(message)

    def answer(self) -> Any:
        """What the peer answers to the last `tell`; raises what it raised, and `TimeoutError` for a hang."""
        if not self._connection.poll(DEADLINE):
            self.stop()
            raise TimeoutError(f"the other process did not answer within {DEADLINE:.0f} s")
        good, value = self._connection.recv()
        if not good:
            raise value
        return value

    def stop(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.join()
        self._connection.close()

    def _ask(self, *message: Any) -> Any:
        self.tell(*message)
        return self.answer()


def _called(method: str) -> Any:
    """A method that calls the store over there."""

    def call(self: PeerStore, *arguments: Any) -> Any:
        return self._call(method, *arguments)

    return call


class PeerStore(Store):
    """A store that is open in a `Peer`."""

    def __init__(self, peer: Peer, handle: int) -> None:
        self._peer = peer
        self._handle = handle
        self.url, self.max_size, self.read_only = self._do(("_describe", ()))[0]

    def begin(self, *calls: Call, meet: bool = False) -> None:
        """Start `calls` over there, each waiting at the peers' barrier first if they are to `meet`."""
        self._peer.tell("calls", self._handle, calls, meet)

    def finish(self) -> list[Any]:
        """What the begun calls returned."""
        results: list[Any] = self._peer.answer()
        return results

    def _do(self, *calls: Call) -> list[Any]:
        self.begin(*calls)
        return self.finish()

    def _call(self, method: str, *args: Any) -> Any:
        return self._do((method, args))[0]

    def peek(self, key: str, *, length: int | None = None) -> bytes | None:
        """Over there, cut here."""
        found: bytes | None = self._call("peek", key)
        return None if found is None else found[:length]

    def entries(self) -> Iterator[EntryInfo]:
        """Over there, all at once."""
        return iter(self._call("entries"))

    get, put, replace, contains, delete, size, quarantine = map(
        _called, ("get", "put", "replace", "contains", "delete", "size", "quarantine")
    )
    note_used, add_counters, counters = map(_called, ("note_used", "add_counters", "counters"))
    reset_counters, close = map(_called, ("reset_counters", "close"))


def peers() -> tuple[Peer, Peer]:
    """Two peers that share a barrier, started when first asked for, and anew after one of them failed."""
    global _pair
    if _pair is None or not all(peer.alive for peer in _pair):
        _stop_peers()
        barrier = multiprocessing.get_context("spawn").Barrier(2)
        _pair = (Peer(barrier), Peer(barrier))
    return _pair


_pair: tuple[Peer, Peer] | None = None


def _stop_peers() -> None:
    global _pair
    for peer in _pair or ():
        peer.stop()
    _pair = None


at_exit(ExitPhase.CLOSE, _stop_peers)


def in_fork(function: Callable[[], Any], *, deadline: float = DEADLINE) -> Any:
    """What `function` returns in a fork of this process; raises what it raised.

    Raises:
        TimeoutError: the child did not answer within `deadline` seconds; it was killed.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_report, args=(theirs, function), daemon=True)
    with warnings.catch_warnings():
        # The tests fork a process with threads on purpose; newer Pythons warn about that.
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    theirs.close()
    try:
        if not ours.poll(deadline):
            raise TimeoutError(f"the forked process did not answer within {deadline:.0f} s")
        good, value = ours.recv()
    finally:
        ours.close()
        child.kill()
        child.join()
        child.close()
    if not good:
        raise value
    return value


def _report(connection: Connection[Any, Any], function: Callable[[], Any]) -> None:
    try:
        connection.send((True, function()))
    except BaseException as exc:
        connection.send((False, exc))
        raise


def _serve(connection: Connection[Any, Any], barrier: threading.Barrier | None) -> None:
    stores: list[Store] = []
    while True:
        try:
            message = connection.recv()
        except EOFError:
            return
        try:
            answer = _obey(stores, barrier, *message)
        except Exception as exc:
            connection.send((False, exc))
        else:
            connection.send((True, answer))


def _obey(stores: list[Store], barrier: threading.Barrier | None, what: str, *message: Any) -> Any:
    if what == "open":
        module, name, path, options = message
        suite: Any = importlib.import_module(module)
        for part in name.split("."):
            suite = getattr(suite, part)
        stores.append(suite().open(path, **options))
        return len(stores) - 1
    handle, calls, meet = message
    return [_perform(stores[handle], method, args, barrier if meet else None) for method, args in calls]


def _perform(store: Store, method: str, args: Sequence[Any], barrier: threading.Barrier | None) -> Any:
    if method == "_describe":
        return store.url, store.max_size, store.read_only
    if barrier is not None:
        barrier.wait(DEADLINE / 2)
    try:
        result = getattr(store, method)(*args)
    except BaseException:
        if barrier is not None:
            # The other one would wait for a meeting that is not going to be.
            barrier.abort()
        raise
    return list(result) if method == "entries" else result
