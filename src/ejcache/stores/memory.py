"""Keeps entries in the memory of this process: for tests, for demonstrations, and as a model of the contract."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ejcache.stores.base import UNLIMITED, EntryInfo, Store
from ejcache.stores.worth import worth_of_bytes
from ejcache.util.locks import ForkLock
from ejcache.util.store_keys import check_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(slots=True)
class _MemoryEntry:
    data: bytes
    created: float
    last_used: float


@dataclass(slots=True)
class _Namespace:
    """What all stores of one name share; `entries` is ordered from the least to the most recently used."""

    entries: OrderedDict[str, _MemoryEntry] = field(default_factory=OrderedDict)
    total: int = 0
    counters: Counter[str] = field(default_factory=Counter)

    def drop(self, key: str) -> None:
        self.total -= len(self.entries.pop(key).data)


_lock: Final = ForkLock()
_namespaces: Final[dict[str, _Namespace]] = {}


def forget_memory(name: str) -> None:
    """Forget the entries of `memory://name`; stores that are open on it keep sharing them."""
    with _lock:
        _namespaces.pop(name, None)


class MemoryStore(Store):
    """Entries in this process's memory, shared by every store of the same name, as `memory://name` is.

    Safe for threads. A forked child starts with a copy, and what it stores later is its own. The limit belongs to the
    store and the entries to the name: a store with a limit also evicts what other stores of the name have stored.

    Args:
        name: which entries; stores without a name share nothing.
        max_size: bytes of all entries, -1 for no limit.
        read_only: writes raise `StoreReadOnlyError`, and `note_used` does nothing.
    """

    def __init__(self, name: str = "", *, max_size: int = UNLIMITED, read_only: bool = False) -> None:
        self.url = f"memory://{name}"
        self.max_size = max_size
        self.read_only = read_only
        with _lock:
            self._namespace = _namespaces.setdefault(name, _Namespace()) if name else _Namespace()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, max_size={self.max_size}, read_only={self.read_only})"

    def get(self, key: str) -> bytes | None:
        """Return the bytes under `key`, or None."""
        return self.peek(key)

    def peek(self, key: str, *, length: int | None = None) -> bytes | None:
        """Return the bytes under `key`, or their first `length`, or None."""
        check_key(key)
        with _lock:
            found = self._namespace.entries.get(key)
        return None if found is None else found.data[:length]

    def note_used(self, key: str) -> None:
        """Make the entry the most recently used one, which is all that decides here."""
        check_key(key)
        with _lock:
            found = self._namespace.entries.get(key)
            if found is not None and not self.read_only:
                found.last_used = time.time()
                self._namespace.entries.move_to_end(key)

    def put(self, key: str, data: bytes) -> bool:
        """Create the entry; False if there is one already.

        Raises:
            StoreTooSmallError: `data` is larger than `max_size`; nothing was evicted.
            StoreReadOnlyError: the store is read-only.
        """
        return self._write(key, data, replace=False)

    def replace(self, key: str, data: bytes) -> None:
        """Put `data` under `key` whether or not there is an entry; raises as `put` does, and then the old one stays."""
        self._write(key, data, replace=True)

    def _write(self, key: str, data: bytes, *, replace: bool) -> bool:
        check_key(key)
        self._check_write(data)
        with _lock:
            namespace = self._namespace
            if key in namespace.entries and not replace:
                return False
            if key in namespace.entries:
                namespace.drop(key)
            while namespace.entries and 0 <= self.max_size < namespace.total + len(data):
                namespace.drop(next(iter(namespace.entries)))
            now = time.time()
            namespace.entries[key] = _MemoryEntry(data, created=now, last_used=now)
            namespace.total += len(data)
            return True

    def contains(self, key: str) -> bool:
        """True if `get` would find an entry."""
        check_key(key)
        with _lock:
            return key in self._namespace.entries

    def delete(self, key: str) -> bool:
        """Remove the entry; False if there was none.

        Raises:
            StoreReadOnlyError: the store is read-only.
        """
        check_key(key)
        self._check_writable()
        with _lock:
            if key not in self._namespace.entries:
                return False
            self._namespace.drop(key)
            return True

    def entries(self) -> Iterator[EntryInfo]:
        """Yield every entry as it was when the iteration began."""
        with _lock:
            infos = [
                EntryInfo(key, len(found.data), found.created, found.last_used, worth=worth_of_bytes(found.data))
                for key, found in self._namespace.entries.items()
            ]
        yield from infos

    def size(self) -> int:
        """Return the bytes of all entries."""
        with _lock:
            return self._namespace.total

    def quarantine(self, key: str, data: bytes, *, wrong: bool = False) -> bool:  # noqa: ARG002
        """Take the entry out of use if it still is exactly `data`.

        Raises:
            StoreReadOnlyError: the store is read-only.
        """
        check_key(key)
        self._check_writable()
        with _lock:
            found = self._namespace.entries.get(key)
            if found is None or found.data != data:
                return False
            self._namespace.drop(key)
            return True

    def add_counters(self, amounts: Mapping[str, float]) -> None:
        """Add to the counters of this name; lost in a read-only store."""
        if self.read_only:
            return
        with _lock:
            for name, amount in amounts.items():
                self._namespace.counters[name] += amount  # type: ignore[assignment]  # Counter is typed for int alone

    def counters(self) -> dict[str, float]:
        """Return the counters of this name."""
        with _lock:
            return dict(self._namespace.counters)

    def reset_counters(self) -> None:
        """Start counting from zero.

        Raises:
            StoreReadOnlyError: the store is read-only.
        """
        self._check_writable()
        with _lock:
            self._namespace.counters.clear()

    def close(self) -> None:
        """Release nothing; the entries stay while the process lives."""
