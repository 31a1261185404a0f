"""Stores that misbehave on request: calls fail, bytes come back damaged, answers are late or wait at a gate."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ejcache.stores.base import WrapperStore
from ejcache.util.locks import ForkLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ejcache.stores.base import EntryInfo, Store

__all__ = ["FaultStore", "Gate", "LatencyStore"]

_METHODS: Final = frozenset(
    {
        *("get", "peek", "put", "replace", "contains", "delete", "entries", "size", "quarantine"),
        *("add_counters", "counters", "reset_counters", "close"),
    }
)
_DEADLINE: Final = 60.0

_lock: Final = ForkLock()


class _EveryCallStore(WrapperStore):
    """Sends every call through `_around`, by the name of its method."""

    @abstractmethod
    def _around(self, method: str, call: Callable[[], Any]) -> Any: ...

    def get(self, key: str) -> bytes | None:
        """As `inner` does, with what was armed."""
        found: bytes | None = self._around("get", lambda: self.inner.get(key))
        return found

    def peek(self, key: str, *, length: int | None = None) -> bytes | None:
        """As `inner` does, with what was armed."""
        found: bytes | None = self._around("peek", lambda: self.inner.peek(key, length=length))
        return found

    def put(self, key: str, data: bytes) -> bool:
        """As `inner` does, with what was armed."""
        return bool(self._around("put", lambda: self.inner.put(key, data)))

    def replace(self, key: str, data: bytes) -> None:
        """As `inner` does, with what was armed."""
        self._around("replace", lambda: self.inner.replace(key, data))

    def contains(self, key: str) -> bool:
        """As `inner` does, with what was armed."""
        return bool(self._around("contains", lambda: self.inner.contains(key)))

    def delete(self, key: str) -> bool:
        """As `inner` does, with what was armed."""
        return bool(self._around("delete", lambda: self.inner.delete(key)))

    def entries(self) -> Iterator[EntryInfo]:
        """As `inner` does, with what was armed."""
        infos: Iterator[EntryInfo] = self._around("entries", self.inner.entries)
        return infos

    def size(self) -> int:
        """As `inner` does, with what was armed."""
        return int(self._around("size", self.inner.size))

    def quarantine(self, key: str, data: bytes) -> bool:
        """As `inner` does, with what was armed."""
        return bool(self._around("quarantine", lambda: self.inner.quarantine(key, data)))

    def add_counters(self, amounts: Mapping[str, float]) -> None:
        """As `inner` does, with what was armed."""
        self._around("add_counters", lambda: self.inner.add_counters(amounts))

    def counters(self) -> dict[str, float]:
        """As `inner` does, with what was armed."""
        return dict(self._around("counters", self.inner.counters))

    def reset_counters(self) -> None:
        """As `inner` does, with what was armed."""
        self._around("reset_counters", self.inner.reset_counters)

    def close(self) -> None:
        """As `inner` does, with what was armed."""
        self._around("close", self.inner.close)


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


class FaultStore(_EveryCallStore):
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

        def flipped(data: bytes) -> bytes:
            if not data:
                return data
            changed = bytearray(data)
            changed[(bit // 8) % len(data)] ^= 1 << (bit % 8)
            return bytes(changed)

        self.damage(method, flipped, nth=nth, times=times)

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


class LatencyStore(_EveryCallStore):
    """`inner`, with each call made to last longer, as over a network.

    Args:
        inner: the store.
        seconds: delay of every call, or of each method by name.
        sleep: what waits; a test that only wants to know how long gives its own.
    """

    def __init__(
        self, inner: Store, seconds: float | Mapping[str, float], *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        super().__init__(inner)
        self._seconds = dict.fromkeys(_METHODS, seconds) if isinstance(seconds, int | float) else dict(seconds)
        self._sleep = sleep

    def _around(self, method: str, call: Callable[[], Any]) -> Any:
        if seconds := self._seconds.get(method, 0.0):
            self._sleep(seconds)
        return call()
