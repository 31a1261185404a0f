"""The contract of a store: bytes under a key, and nothing about what the bytes mean.

A store is shared by threads and processes. The rules that every backend and every wrapper keeps
(`ejcache.testing.StoreTests` checks them):

* an entry is whole or absent, whenever and however a writer dies;
* `put` creates only: of several writers of one key exactly one gets True, and what it wrote stands;
* absence is `None` or False, trouble is a `StoreError`, and no call waits without a deadline;
* with `max_size > 0`, the bytes of all entries are at most `max_size` when a local `put` or `replace` returns,
  least recently used first, never the entry just written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from ejcache.errors import InvalidKeyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

__all__ = ["MAX_KEY_BYTES", "UNLIMITED", "EntryInfo", "Store", "check_key"]

UNLIMITED: Final = -1
MAX_KEY_BYTES: Final = 700
"""A key must fit, escaped, into one file name or object name of every backend."""


@dataclass(frozen=True, slots=True)
class EntryInfo:
    """What a listing knows of an entry without reading it.

    Attributes:
        key: the key it was put under.
        size: bytes that the store was given.
        created: seconds since the epoch.
        last_used: seconds since the epoch; the later of creation and the last `get`.
    """

    key: str
    size: int
    created: float
    last_used: float


def check_key(key: object) -> str:
    """`key` itself, if a store can hold it.

    Raises:
        InvalidKeyError: it is not text, is empty, is longer than `MAX_KEY_BYTES` in UTF-8, holds a NUL, a line break
            or another control character, or a surrogate.
    """
    if not isinstance(key, str) or not key:
        raise InvalidKeyError(f"a key is text that is not empty, not {key!r}")
    try:
        length = len(key.encode())
    except UnicodeEncodeError as exc:
        raise InvalidKeyError(f"a key must be encodable as UTF-8, which {key!r} is not") from exc
    if length > MAX_KEY_BYTES:
        raise InvalidKeyError(f"a key has at most {MAX_KEY_BYTES} bytes, and {key[:40]!r}… has {length}")
    if any(ord(c) < 32 or ord(c) == 127 for c in key):
        raise InvalidKeyError(f"a key has no control characters, and {key!r} does")
    return key


class Store(ABC):
    """Bytes under a key, shared by threads and processes."""

    url: str
    """Where the entries are, as `open_store` takes it."""
    max_size: int = UNLIMITED
    """The bytes of all entries are at most this; -1 for no limit."""
    read_only: bool = False
    """Writes raise `StoreReadOnlyError`, and reads leave no trace."""

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """The bytes under `key`, or None; the entry becomes the most recently used."""

    @abstractmethod
    def peek(self, key: str, *, length: int | None = None) -> bytes | None:
        """The bytes under `key`, or their first `length`, or None; recency is left alone."""

    @abstractmethod
    def put(self, key: str, data: bytes) -> bool:
        """Create the entry; False if somebody else's entry stands.

        Raises:
            StoreTooSmallError: `data` is larger than `max_size`; nothing was evicted.
            StoreReadOnlyError: the store is read-only.
            StoreError: the storage failed; the entry is absent.
        """

    @abstractmethod
    def replace(self, key: str, data: bytes) -> None:
        """Put `data` under `key` whether or not an entry stands; readers see the old or the new one, whole."""

    @abstractmethod
    def contains(self, key: str) -> bool:
        """Whether `get` would find an entry; reads no entry's bytes and leaves recency alone."""

    @abstractmethod
    def delete(self, key: str) -> bool:
        """Remove the entry; False if there was none."""

    @abstractmethod
    def entries(self) -> Iterator[EntryInfo]:
        """Every entry, in no particular order; entries that come or go meanwhile may or may not be seen."""

    @abstractmethod
    def size(self) -> int:
        """Bytes of all entries."""

    @abstractmethod
    def quarantine(self, key: str, data: bytes) -> bool:
        """Take the entry out of use if it still is exactly `data`; False if it is not.

        The comparison keeps a reader that met a damaged entry from removing the good one that another process has
        put in its place meanwhile. A backend that has room for it keeps a bounded number of copies for inspection.
        """

    @abstractmethod
    def add_counters(self, amounts: Mapping[str, float]) -> None:
        """Add to the counters kept with the store, atomically against other processes; lost in a read-only store."""

    @abstractmethod
    def counters(self) -> dict[str, float]:
        """The counters kept with the store, since it was made or `reset_counters` was called."""

    @abstractmethod
    def reset_counters(self) -> None:
        """Start counting from zero."""

    @abstractmethod
    def close(self) -> None:
        """Release what this process holds; the entries stay. A closed store may be used again: it reopens itself."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
