"""A store in this process's memory: for tests, for demonstrations, and as the model of what the contract asks."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ejcache.errors import StoreReadOnlyError, StoreTooSmallError
from ejcache.stores.base import UNLIMITED, EntryInfo, Store, check_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["MemoryStore", "forget_memory"]

_QUARANTINED_COPIES: Final = 8


@dataclass(slots=True)
class _Held:
    data: bytes
    created: float
    last_used: float


@dataclass(slots=True)
class _Shelf:
    """What all stores of one name share; `held` is ordered from the least to the most recently used."""

    held: OrderedDict[str, _Held] = field(default_factory=OrderedDict)
    total: int = 0
    counters: Counter[str] = field(default_factory=Counter)
    quarantined: deque[tuple[str, bytes]] = field(default_factory=lambda: deque(maxlen=_QUARANTINED_COPIES))

    def drop(self, key: str) -> None:
        self.total -= len(self.held.pop(key).data)


# One lock for all shelves, held across a fork: a child that was forked while another thread was in a store would
# otherwise inherit a lock that nobody is left to release, and a shelf that is half changed.
_lock: Final = threading.RLock()
_shelves: Final[dict[str, _Shelf]] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def forget_memory(name: str) -> None:
    """Drop what `memory://name` holds from the process; stores that are open on it keep it among themselves."""
    with _lock:
        _shelves.pop(name, None)


class MemoryStore(Store):
    """Entries in this process's memory, shared by every store of the same name, as `memory://name` is.

    Safe for threads. A forked child starts with a copy and then goes its own way. The limit is the store's, the
    entries are the name's: a store with a limit evicts what any store of the name has put.

    Args:
        name: which entries; without one, nobody else's.
        max_size: bytes of all entries, -1 for no limit.
        read_only: writes raise `StoreReadOnlyError`, and `get` leaves recency alone.
    """

    def __init__(self, name: str = "", *, max_size: int = UNLIMITED, read_only: bool = False) -> None:
        self.url = f"memory://{name}"
        self.max_size = max_size
        self.read_only = read_only
        with _lock:
            self._shelf = _shelves.setdefault(name, _Shelf()) if name else _Shelf()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, max_size={self.max_size}, read_only={self.read_only})"

    def get(self, key: str) -> bytes | None:
        """The bytes under `key`, or None; the entry becomes the most recently used."""
        check_key(key)
        with _lock:
            held = self._shelf.held.get(key)
            if held is None:
                return None
            if not self.read_only:
                held.last_used = time.time()
                self._shelf.held.move_to_end(key)
            return held.data

    def peek(self, key: str, *, length: int | None = None) -> bytes | None:
        """The bytes under `key`, or their first `length`, or None; recency is left alone."""
        check_key(key)
        with _lock:
            held = self._shelf.held.get(key)
        return None if held is None else held.data[:length]

    def put(self, key: str, data: bytes) -> bool:
        """Create the entry; False if somebody else's entry stands.

        Raises:
            StoreTooSmallError: `data` is larger than `max_size`; nothing was evicted.
            StoreReadOnlyError: the store is read-only.
        """
        return self._write(key, data, replace=False)

    def replace(self, key: str, data: bytes) -> None:
        """Put `data` under `key` whether or not an entry stands; raises as `put` does, and then the old one stands."""
        self._write(key, data, replace=True)

    def _write(self, key: str, data: bytes, *, replace: bool) -> bool:
        check_key(key)
        self._check_writable()
        with _lock:
            shelf = self._shelf
            if key in shelf.held and not replace:
                return False
            if 0 <= self.max_size < len(data):
                raise StoreTooSmallError(
                    f"an entry of {len(data)} bytes does not fit into {self.url}, whose limit is {self.max_size}"
                )
            if key in shelf.held:
                shelf.drop(key)
            while shelf.held and 0 <= self.max_size < shelf.total + len(data):
                shelf.drop(next(iter(shelf.held)))
            now = time.time()
            shelf.held[key] = _Held(bytes(data), created=now, last_used=now)
            shelf.total += len(data)
            return True

    def contains(self, key: str) -> bool:
        """Whether `get` would find an entry; recency is left alone."""
        check_key(key)
        with _lock:
            return key in self._shelf.held

    def delete(self, key: str) -> bool:
        """Remove the entry; False if there was none.

        Raises:
            StoreReadOnlyError: the store is read-only.
        """
        check_key(key)
        self._check_writable()
        with _lock:
            if key not in self._shelf.held:
                return False
            self._shelf.drop(key)
            return True

    def entries(self) -> Iterator[EntryInfo]:
        """Every entry as it was when the iteration began."""
        with _lock:
            infos = [
                EntryInfo(key, len(held.data), held.created, held.last_used) for key, held in self._shelf.held.items()
            ]
        yield from infos

    def size(self) -> int:
        """Bytes of all entries."""
        with _lock:
            return self._shelf.total

    def quarantine(self, key: str, data: bytes) -> bool:
        """Take the entry out of use if it still is exactly `data`; the last few are kept for inspection.

        Raises:
            StoreReadOnlyError: the store is read-only.
        """
        check_key(key)
        self._check_writable()
        with _lock:
            held = self._shelf.held.get(key)
            if held is None or held.data != data:
                return False
            self._shelf.quarantined.append((key, held.data))
            self._shelf.drop(key)
            return True

    def add_counters(self, amounts: Mapping[str, float]) -> None:
        """Add to the counters of this name; lost in a read-only store."""
        if self.read_only:
            return
        with _lock:
            for name, amount in amounts.items():
                self._shelf.counters[name] += amount  # type: ignore[assignment]  # Counter is typed for int alone

    def counters(self) -> dict[str, float]:
        """The counters of this name."""
        with _lock:
            return dict(self._shelf.counters)

    def reset_counters(self) -> None:
        """Start counting from zero.

        Raises:
            StoreReadOnlyError: the store is read-only.
        """
        self._check_writable()
        with _lock:
            self._shelf.counters.clear()

    def close(self) -> None:
        """Nothing is held that could be released; the entries stay while the process lives."""

    def _check_writable(self) -> None:
        if self.read_only:
            raise StoreReadOnlyError(f"{self.url} is open for reading only")
