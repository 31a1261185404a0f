"""A shared store as whoever tends it wants to see it: with everybody's uses, and removals in batches."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ejcache.errors import StoreReadOnlyError
from ejcache.stores.wrappers import WrapperStore
from ejcache.upkeep.shared_pass import PROTECTED_SECONDS, remove, survey

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ejcache.stores.base import EntryInfo
    from ejcache.stores.shared import SharedStore
    from ejcache.upkeep.shared_pass import Survey

__all__ = ["SurveyedStore"]


class SurveyedStore(WrapperStore):
    """`shared`, whose listing knows what all processes used, pinned and have just made.

    One listing gives all of it. What it said holds for `pinned` and `delete_many` until the next one.
    """

    def __init__(self, shared: SharedStore) -> None:
        super().__init__(shared)
        self.shared = shared
        self._survey: Survey | None = None

    def entries(self) -> Iterator[EntryInfo]:
        """Every entry, with the last use that any process has written down."""
        return self._surveyed_anew().listing.entries()

    def size(self) -> int:
        """Bytes of all entries, by a listing."""
        return self._surveyed_anew().listing.count()[1]

    def pin(self, key: str) -> bool:
        """Let no upkeep evict the entry under `key`; False if it was pinned."""
        self._survey = None
        return self.shared.pin(key)

    def unpin(self, key: str) -> bool:
        """Let the entry under `key` be evicted again; False if it was not pinned."""
        self._survey = None
        return self.shared.unpin(key)

    def pinned(self) -> list[str]:
        """The keys that are pinned."""
        return sorted(self._survey.pinned) if self._survey is not None else self.shared.pinned()

    def used_lately(self) -> float:
        """Since when an entry must have been made or used that a program may be about to read."""
        return time.time() - PROTECTED_SECONDS

    def delete_many(self, keys: Iterable[str]) -> Iterator[str]:
        """Remove the entries under `keys`, in batches, those only that still are as they were listed.

        Yields:
            The keys of those that were removed.
        """
        if self.read_only:
            raise StoreReadOnlyError(f"{self.url} is open for reading only")
        surveyed = self._survey or self._surveyed_anew()
        yield from remove(self.shared.bucket, surveyed.listing, keys)

    def _surveyed_anew(self) -> Survey:
        # Whoever still iterates over the last one keeps it.
        self._survey = surveyed = survey(self.shared.bucket)
        return surveyed
