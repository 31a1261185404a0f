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
_MOST_DECODED: Final = 64 << 20
"""Bytes of executables that are held decompressed. XLA's small entries come to less; hostile ones may be any size."""


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
        self._held: dict[str, bytes | entry.Entry] = {}
        self._lock = threading.Lock()

    def expect(self, keys: Sequence[str], *, at_once: bool) -> None:
        """The entries under these keys will be read, in about this order.

        Args:
            keys: of the entries.
            at_once: read and decode the first small ones now, and not when the first of them is read. Each row that is
                read, and each payload that is decompressed, lets other threads run, and a thread in the background
                would wait for the program after each.

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
        with self._lock:
            if key not in self._held and isinstance(store, BatchReadable):
                self._read_from(store, key)
            held = self._held.pop(key, None)
        if isinstance(held, entry.Entry):
            return held
        data = held if held is not None else store.get(key)
        return self._decoded(key, data) if data is not None else None

    def _read_from(self, store: BatchReadable, key: str) -> None:
        """Read the small entries that are expected from `key` on, if that was not tried before. With the lock held."""
        place = self._places.get(key, -1)
        if place < 0:
            return
        batch = self._expected[place : place + _AT_ONCE]
        small = store.get_small(batch)
        # What is not small is not looked for again.
        self._places.update(dict.fromkeys(batch, -1))
        self._held = {**small}
        left = _MOST_DECODED
        for each, data in small.items():
            found = self._decoded(each, data, most=left)
            if found is not None:
                self._held[each] = found
                left -= len(found.raw)

    def _decoded(self, key: str, data: bytes, *, most: int = entry.MAX_RAW_SIZE) -> entry.Entry | None:
        """The entry in `data`; None if it is damaged, or its payload has more than `most` bytes."""
        try:
            header = entry.verify(data, key=key, kind="executable")
            if header.raw_size > most:
                return None
            found = entry.decode(data, verified=header)
        except EntryError:
            return None
        self._policy.tally.add(bytes_read=len(data))
        return found
