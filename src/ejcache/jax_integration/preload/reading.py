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

_AT_ONCE: Final = 512
"""How many small entries are read at once, and held at most: up to 8 MB."""


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

    def expect(self, keys: Sequence[str], *, at_once: bool) -> None:
        """The entries under these keys will be read, in about this order.

        Args:
            keys: of the entries.
            at_once: read the first small ones now, and not when the first of them is read. Each row that is read lets
                other threads run, and a thread in the background would wait for the program after each.

        Raises:
            StoreError: the storage failed.
        """
        with self._lock:
            for key in keys:
                if key not in self._places:
                    self._places[key] = len(self._expected)
                    self._expected.append(key)
        store: object = self._policy.opened(self._settings) if at_once and keys else None
        if isinstance(store, BatchReadable):
            with self._lock:
                self._read_from(store, keys[0])

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
            if key not in self._held:
                self._read_from(store, key)
            return self._held.pop(key, None)

    def _read_from(self, store: BatchReadable, key: str) -> None:
        """Read the small entries that are expected from `key` on, if that was not tried before. With the lock held."""
        place = self._places.get(key, -1)
        if place >= 0:
            batch = self._expected[place : place + _AT_ONCE]
            self._held = store.get_small(batch)
            # What is not small is not looked for again.
            self._places.update(dict.fromkeys(batch, -1))
