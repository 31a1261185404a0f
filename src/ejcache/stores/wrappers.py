"""Stores around a store: behaviour is added by wrapping, and each wrapper keeps the contract of what it wraps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ejcache.errors import StoreReadOnlyError
from ejcache.stores.base import EntryInfo, Store, check_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["ReadOnlyStore", "WrapperStore"]


class WrapperStore(Store):
    """Hands every call to `inner` unchanged; a wrapper overrides what it is there for.

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


class ReadOnlyStore(WrapperStore):
    """Reads of `inner` that leave no trace in it; every write raises `StoreReadOnlyError`.

    A `get` is a `peek` of `inner`, so that what a reader looks at is not kept alive at the expense of what the
    writers use. Counters that are added are lost, as the contract has it.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.read_only = True

    def get(self, key: str) -> bytes | None:
        """The bytes under `key`, or None; recency is left alone."""
        return self.inner.peek(key)

    def put(self, key: str, data: bytes) -> bool:  # noqa: ARG002  # the contract names it
        """Refused with `StoreReadOnlyError`."""
        raise self._refusal(key)

    def replace(self, key: str, data: bytes) -> None:  # noqa: ARG002  # the contract names it
        """Refused with `StoreReadOnlyError`."""
        raise self._refusal(key)

    def delete(self, key: str) -> bool:
        """Refused with `StoreReadOnlyError`."""
        raise self._refusal(key)

    def quarantine(self, key: str, data: bytes) -> bool:  # noqa: ARG002  # the contract names it
        """Refused with `StoreReadOnlyError`."""
        raise self._refusal(key)

    def add_counters(self, amounts: Mapping[str, float]) -> None:
        """Lost."""

    def reset_counters(self) -> None:
        """Refused with `StoreReadOnlyError`."""
        raise StoreReadOnlyError(f"{self.url} is open for reading only")

    def _refusal(self, key: str) -> StoreReadOnlyError:
        check_key(key)
        return StoreReadOnlyError(f"{self.url} is open for reading only")
