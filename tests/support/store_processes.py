"""Other processes to test a store with: peers that do one call at a time when told, and forks of this process.

A `Peer` is a process that is started once and told step by step what to call, so that "A puts, B gets, A puts" is the
order of the program and not of the scheduler. Two peers can also be told to begin at the same moment.
"""

from __future__ import annotations

import importlib
import multiprocessing
import socket
import sys
import warnings
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final

from forking import Forked

from ejcache.stores.base import Store
from ejcache.util.lifecycle import ExitPhase, at_exit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from ejcache.stores.base import EntryInfo

__all__ = ["Call", "Peer", "PeerStore", "in_fork", "peers"]

DEADLINE: Final = 240.0
"""Seconds after which an unanswered call counts as a hang."""

Call = tuple[str, tuple[Any, ...]]
"""A store's method by name, and its positional arguments."""


_PROGRAM: Final = "import sys; sys.path[:] = eval(sys.argv[1]); import store_processes; store_processes.serve(0, 1)"


class Peer:
    """A process that opens stores and calls them when told.

    Args:
        other: a socket to the peer that it meets. One that meets nobody, and soon ends, is a fork of this process.
    """

    def __init__(self, other: socket.socket | None = None) -> None:
        ours, theirs = socket.socketpair()
        with theirs, warnings.catch_warnings():
            # The tests fork a process with threads on purpose; newer Pythons warn about that.
            warnings.simplefilter("ignore", DeprecationWarning)
            if other is None:
                fork = multiprocessing.get_context("fork")
                self._process: Any = fork.Process(target=serve, args=(theirs.fileno(),), daemon=True)
                self._process.start()
                self._wait = self._process.join
            else:
                command = [sys.executable, "-c", _PROGRAM, repr(sys.path)]
                self._process = Forked(command, stdin=theirs, stdout=other)
                self._wait = self._process.wait
        self._connection = Connection(ours.detach())

    @property
    def alive(self) -> bool:
        """Whether the process, which can meet another one, still runs."""
        return self._process.poll() is None

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
        self._wait()
        self._connection.close()

    def leave(self) -> None:
        """Let the process end, when it has done what it was told."""
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
        """Start `calls` over there, each together with one of the other peer if they are to `meet`."""
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
    """Two peers that can meet, started when first asked for, and anew after one of them failed."""
    global _pair
    if _pair is None or not all(peer.alive for peer in _pair):
        _stop_peers()
        one, other = socket.socketpair()
        with one, other:
            _pair = (Peer(one), Peer(other))
    return _pair


_pair: tuple[Peer, Peer] | None = None


def _stop_peers() -> None:
    global _pair
    for peer in _pair or ():
        peer.stop()
    _pair = None


def _leave_peers() -> None:
    """End both by closing their connections: the process that has forked them may have ended."""
    for peer in _pair or ():
        peer.leave()


at_exit(ExitPhase.CLOSE, _leave_peers)


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


def serve(connection_to: int, other_at: int | None = None) -> None:
    """Be a peer, with descriptors of a connection and of a socket to the peer that it meets."""
    connection, other = Connection(connection_to), None if other_at is None else Connection(other_at)
    sys.stdout = sys.stderr
    stores: list[Store] = []
    while True:
        try:
            message = connection.recv()
        except EOFError:
            return
        try:
            answer = _obey(stores, other, *message)
        except Exception as exc:
            if other is not None:
                other.close()  # the other one would wait for a meeting that is not going to be
            connection.send((False, exc))
        else:
            connection.send((True, answer))


def _obey(stores: list[Store], other: Connection[Any, Any] | None, what: str, *message: Any) -> Any:
    if what == "open":
        module, name, path, options = message
        suite: Any = importlib.import_module(module)
        for part in name.split("."):
            suite = getattr(suite, part)
        stores.append(suite().open(path, **options))
        return len(stores) - 1
    handle, calls, meet = message
    return [_perform(stores[handle], method, args, other if meet else None) for method, args in calls]


def _perform(store: Store, method: str, args: Sequence[Any], other: Connection[Any, Any] | None) -> Any:
    if method == "_describe":
        return store.url, store.max_size, store.read_only
    if other is not None:
        other.send(method)
        assert other.poll(DEADLINE / 2), "the other one does not come"
        other.recv()
    result = getattr(store, method)(*args)
    return list(result) if method == "entries" else result
