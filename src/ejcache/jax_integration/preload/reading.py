"""Reads the entries that are to be loaded ahead: small ones many at once, so that the index is asked a few times."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from ejcache import entry
from ejcache.errors import EntryError
from ejcache.stores.base import BatchReadable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ejcache.cache.policy import CachePolicy
    from ejcache.settings.resolve import Settings

__all__ = ["EntryReader"]

_AT_ONCE: Final = 32
"""How many small entries are read at once, and held at most."""


class EntryReader:
    """Reads entries in the order in which they are expected. Safe for threads.

    Args:
        policy: of the cache.
        settings: those that hold for reading it.
    """

    def __init__(self, policy: CachePolicy, settings: Settings) -> None:
        self._policy = policy
        self._settings = settings
        self._expected: list[str] = []
        self._places: dict[str, int] = {}
        self._held: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def expect(self, keys: Sequence[str]) -> None:
        """The entries under these keys will be read, in about this order."""
        with self._lock:
            for key in keys:
                if key not in self._places:
                    self._places[key] = len(self._expected)
                    self._expected.append(key)

    def read(self, key: str) -> entry.Entry | None:
        """The entry under `key`. A damaged one is left to the request for it, which counts and quarantines it.

        Raises:
            StoreError: the storage failed.
        """
        store = self._policy.opened(self._settings)
        if store is None:
            return None
        data = self._small(store, key) if isinstance(store, BatchReadable) else None
        if data is None:
            data = store.get(key)
        if data is None:
            return None
        try:
            found = entry.decode(data, key=key, kind="executable")
        except EntryError:
            return None
        self._policy.tally.add(bytes_read=len(data))
        return found

    def _small(self, store: BatchReadable, key: str) -> bytes | None:
        with self._lock:
            place = self._places.get(key)
            if key not in self._held and place is not None and place >= 0:
                batch = self._expected[place : place + _AT_ONCE]
                self._held = store.get_small(batch)
                # What is not small is not looked for again.
                self._places.update(dict.fromkeys(batch, -1))
            return self._held.pop(key, None)
