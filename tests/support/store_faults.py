"""Stores that misbehave on request: calls fail, bytes come back damaged, or answers wait at a gate."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from archives import flipped

from ejcache.stores.base import Store
from ejcache.util.locks import ForkLock

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FaultStore", "Gate", "WrapperStore"]

_METHODS: Final = frozenset(
    {
        *("get", "peek", "put", "replace", "contains", "delete", "entries", "size", "quarantine"),
        *("note_used", "add_counters", "counters", "reset_counters", "close"),
    }
)
_DEADLINE: Final = 60.0

_lock: Final = ForkLock()


def _sent(method: str) -> Any:
    """A method that sends its call through `_around`."""

    def send(self: WrapperStore, *arguments: Any, **named: Any) -> Any:
        return self._around(method, lambda: getattr(self.inner, method)(*arguments, **named))

    return send


@dataclass(slots=True)
class Gate:
    """Where a call waits: `reached` is set when it has come, and it goes on when `opened` is set.

    A call that is never let through goes on with `TimeoutError` after a minute, so that a broken test ends.
    """

    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def pass_through(self) -> None:
        """Wait here."""
        self.reached.set()
        if not self.opened.wait(_DEADLINE):
            raise TimeoutError(f"the gate was not opened within {_DEADLINE:.0f} s")


@dataclass(slots=True)
class _Fault:
    first: int
    last: float
    before: Callable[[], None] | None = None
    after: Callable[[Any], Any] | None = None


class WrapperStore(Store):
    """Hands every call to `inner`; a subclass overrides the calls that it changes. Closing it closes `inner`."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.url, self.max_size, self.read_only = inner.url, inner.max_size, inner.read_only

    def _around(self, _method: str, call: Callable[[], Any]) -> Any:
        return call()

    get, peek, put, replace, contains = map(_sent, ("get", "peek", "put", "replace", "contains"))
    delete, entries, size, quarantine = map(_sent, ("delete", "entries", "size", "quarantine"))
    note_used, add_counters, counters = map(_sent, ("note_used", "add_counters", "counters"))
    reset_counters, close = map(_sent, ("reset_counters", "close"))


class FaultStore(WrapperStore):
    """`inner`, with faults that are armed by method and number of call; without any it is `inner`.

    `nth` counts from the moment of arming, 1 being the next call; `times` is for how many calls the fault lasts, None
    for ever. Faults of one method act in the order in which they were armed. Safe for threads.

    Attributes:
        calls: how often each method was called.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.calls: Counter[str] = Counter()
        self._faults: dict[str, list[_Fault]] = {}

    def fail(
        self, method: str, error: BaseException, *, nth: int = 1, times: int | None = 1, after: bool = False
    ) -> None:
        """Raise `error` instead of calling `inner`; or `after` the call, as when an answer is lost on its way."""

        def fail(_result: object = None) -> Any:
            raise error

        self._arm(method, nth, times, **({"after": fail} if after else {"before": fail}))

    def damage(self, method: str, change: Callable[[bytes], bytes], *, nth: int = 1, times: int | None = 1) -> None:
        """Return `change(data)` where `inner` returns data; of absence nothing changes."""
        self._arm(method, nth, times, after=lambda data: change(data) if isinstance(data, bytes) else data)

    def flip(self, method: str, bit: int, *, nth: int = 1, times: int | None = 1) -> None:
        """Return the data with one bit turned over; `bit` counts from the first, and wraps around."""
        self.damage(method, lambda data: flipped(data, bit), nth=nth, times=times)

    def truncate(self, method: str, length: int, *, nth: int = 1, times: int | None = 1) -> None:
        """Return the first `length` bytes of the data."""
        self.damage(method, lambda data: data[:length], nth=nth, times=times)

    def block(self, method: str, *, nth: int = 1, times: int | None = 1, after: bool = False) -> Gate:
        """A gate at which the call waits before it reaches `inner`; or `after` it, before it returns."""
        gate = Gate()

        def wait(result: Any = None) -> Any:
            gate.pass_through()
            return result

        self._arm(method, nth, times, **({"after": wait} if after else {"before": wait}))
        return gate

    def disarm(self) -> None:
        """No more faults; calls that wait at a gate go on waiting."""
        with _lock:
            self._faults.clear()

    def _arm(self, method: str, nth: int, times: int | None, **acts: Callable[..., Any]) -> None:
        if method not in _METHODS:
            raise ValueError(f"a store has no method {method!r}, only {', '.join(sorted(_METHODS))}")
        with _lock:
            first = self.calls[method] + nth
            last = float("inf") if times is None else first + times - 1
            self._faults.setdefault(method, []).append(_Fault(first, last, **acts))

    def _around(self, method: str, call: Callable[[], Any]) -> Any:
        with _lock:
            self.calls[method] += 1
            number = self.calls[method]
            faults = [fault for fault in self._faults.get(method, ()) if fault.first <= number <= fault.last]
        for fault in faults:
            if fault.before is not None:
                fault.before()
        result = call()
        for fault in faults:
            if fault.after is not None:
                result = fault.after(result)
        return result
