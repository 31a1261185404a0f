"""A store around another store: a subclass adds behaviour and keeps the contract of the store inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ejcache.stores.base import EntryInfo, Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class WrapperStore(Store):
    """Hands every call to `inner` unchanged; a subclass overrides the calls that it changes.

    It owns `inner`: closing the wrapper closes it.
    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.url = inner.url
        self.max_size = inner.max_size
        self.read_only = inner.read_only

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    def get(self, key: str) -> bytes | None:
        """As `inner` does."""
        return self.inner.get(key)

    def peek(self, key: str, *, length: int | None = None) -> bytes | None:
        """As `inner` does."""
        return self.inner.peek(key, length=length)

    def put(self, key: str, data: bytes) -> bool:
        """As `inner` does."""
        return self.inner.put(key, data)

    def replace(self, key: str, data: bytes) -> None:
        """As `inner` does."""
        self.inner.replace(key, data)

    def contains(self, key: str) -> bool:
        """As `inner` does."""
        return self.inner.contains(key)

    def delete(self, key: str) -> bool:
        """As `inner` does."""
        return self.inner.delete(key)

    def entries(self) -> Iterator[EntryInfo]:
        """As `inner` does."""
        return self.inner.entries()

    def size(self) -> int:
        """As `inner` does."""
        return self.inner.size()

    def quarantine(self, key: str, data: bytes) -> bool:
        """As `inner` does."""
        return self.inner.quarantine(key, data)

    def add_counters(self, amounts: Mapping[str, float]) -> None:
        """As `inner` does."""
        self.inner.add_counters(amounts)

    def counters(self) -> dict[str, float]:
        """As `inner` does."""
        return self.inner.counters()

    def reset_counters(self) -> None:
        """As `inner` does."""
        self.inner.reset_counters()

    def close(self) -> None:
        """As `inner` does."""
        self.inner.close()
