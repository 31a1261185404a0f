"""Objects behind a circuit breaker: leases and journals ask storage in trouble as seldom as reads and writes do."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from ejcache.errors import StoreError, StoreReadOnlyError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ejcache.stores.breaker import CircuitBreaker
    from ejcache.stores.objects import ConditionalObjects
    from ejcache.stores.shared_bucket import Blob, BlobInfo

__all__ = ["GuardedObjects"]

T = TypeVar("T")


class GuardedObjects:
    """`inner`, asked only while `breaker` allows it, and telling it how that went.

    Args:
        inner: the objects.
        breaker: of their storage.

    Every call raises `StoreUnavailableError` while the breaker is open, and otherwise what `inner` raises.
    """

    def __init__(self, inner: ConditionalObjects, breaker: CircuitBreaker) -> None:
        self.conditional = inner.conditional
        self._inner = inner
        self._breaker = breaker

    def read(self, name: str, *, length: int | None = None) -> Blob | None:
        """As `inner` does."""
        return self._ask(lambda: self._inner.read(name, length=length))

    def write(self, name: str, data: bytes, *, version: str | None = None) -> str | None:
        """As `inner` does."""
        return self._ask(lambda: self._inner.write(name, data, version=version))

    def delete(self, name: str, *, version: str | None = None) -> bool:
        """As `inner` does."""
        return self._ask(lambda: self._inner.delete(name, version=version))

    def delete_many(self, wanted: Iterable[tuple[str, str | None]]) -> Iterator[str]:
        """As `inner` does; each batch is asked for by itself."""
        return self._ask_each(self._inner.delete_many(wanted))

    def walk(self, prefix: str) -> Iterator[BlobInfo]:
        """As `inner` does; each page is asked for by itself."""
        return self._ask_each(self._inner.walk(prefix))

    def _ask_each(self, found: Iterator[T]) -> Iterator[T]:
        end = object()
        while (item := self._ask(lambda: next(found, end))) is not end:
            yield item  # type: ignore[misc]  # what is not the end is one of them

    def _ask(self, function: Callable[[], T]) -> T:
        if not self._breaker.allow():
            raise StoreUnavailableError(f"the storage failed and is left alone for {self._breaker.retry_in:.0f} s")
        started = time.monotonic()
        try:
            result = function()
        except StoreReadOnlyError:
            self._breaker.succeed()  # a refusal is an answer
            raise
        except StoreError:
            self._breaker.fail(seconds=time.monotonic() - started)
            raise
        self._breaker.succeed()
        return result
