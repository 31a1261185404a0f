"""What some stores can do beyond the contract of all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["BatchDeletable", "Checkable", "Pinnable", "Watched", "pinned_keys", "used_lately"]


@runtime_checkable
class Checkable(Protocol):
    """A store that can look at its own structures."""

    def check(self, *, fix: bool = False) -> list[str]:
        """What is wrong with them, one sentence each; with `fix` it is mended."""


@runtime_checkable
class Pinnable(Protocol):
    """A store that can be told to keep an entry."""

    def pin(self, key: str) -> bool:
        """Never evict the entry under `key`; False if it was pinned already."""

    def unpin(self, key: str) -> bool:
        """Let it be evicted again; False if it was not pinned."""

    def pinned(self) -> list[str]:
        """The keys that are pinned."""


@runtime_checkable
class BatchDeletable(Protocol):
    """A store that removes many entries in few requests."""

    def delete_many(self, keys: Iterable[str]) -> Iterator[str]:
        """Remove the entries under `keys`; the keys of those that were removed."""


@runtime_checkable
class Watched(Protocol):
    """A store that others use at this moment, and that knows of it."""

    def used_lately(self) -> float:
        """Since when an entry must have been made or used that a program may be about to read."""


def used_lately(store: object) -> float | None:
    """`Watched.used_lately` of `store`; None where it cannot know."""
    return store.used_lately() if isinstance(store, Watched) else None


def pinned_keys(store: object) -> frozenset[str]:
    """The keys that are pinned in `store`; none where it cannot pin. Raises StoreError as the store does."""
    return frozenset(store.pinned()) if isinstance(store, Pinnable) else frozenset()
