"""What a backend says of itself to be tested: how it is opened, and what it is able to do."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from ejcache.stores.base import UNLIMITED, Store

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Suite", "generator"]


def generator(seed: int) -> random.Random:
    """Numbers and bytes that look random and are the same in every run."""
    return random.Random(seed)  # noqa: S311  # reproducible is what a test wants, not secret


class Suite(ABC):
    """The part of `StoreTests` that a backend overrides.

    A subclass must be importable by its name from another process (a top-level class of a test module is), because
    the multi-process tests open the store over there through it.
    """

    multiprocess: ClassVar[bool] = True
    """Processes that open one path share its entries."""
    persistent: ClassVar[bool] = True
    """Entries outlive the store that put them: opened again at the same path, they are there."""
    bounded: ClassVar[bool] = True
    """`max_size` holds whenever a `put` returns, by evicting the least recently used and no more than needed."""
    recency: ClassVar[bool] = True
    """A `get` shows at once in `EntryInfo.last_used`."""
    largest: ClassVar[int] = 100_000_000
    """The largest value to try, in bytes."""

    @abstractmethod
    def open(self, path: Path, *, max_size: int = UNLIMITED, read_only: bool = False) -> Store:
        """The store at `path`, a directory of the test's own, which need not exist yet.

        Opened twice at one path, it is one store with two users.
        """

    def stored(self, path: Path) -> dict[str, bytes]:
        """The entries stored at `path`: the oracle that a test compares with.

        A backend that can read its own format around its own methods does so here; this one looks through a store
        that is opened for it.
        """
        with self.open(path) as store:
            found = {info.key: store.peek(info.key) for info in store.entries()}
        return {key: data for key, data in found.items() if data is not None}
