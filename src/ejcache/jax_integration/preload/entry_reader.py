"""Reads entries ahead, in the order in which a program is expected to ask for them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from ejcache import entry
from ejcache.errors import EntryError
from ejcache.stores.base import two_tiers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ejcache.cache.reading import CacheReader
    from ejcache.settings.table import Settings

_AHEAD: Final = 512
"""How many entries are read ahead at most, if they have no more than `_SMALL_BYTES`: up to 8 MB."""
_SMALL_BYTES: Final = 16 << 10
_MOST_DECODED: Final = 64 << 20
"""Bytes of executables that are held decompressed. XLA's small entries come to less; hostile ones may be any size."""


class EntryReader:
    """Reads entries in the order in which they are expected. Safe for threads.

    Args:
        cache_reader: of the cache.
        settings: those that hold for reading it.
        most_decoded: how many bytes of executables are held decompressed.
    """

    def __init__(self, cache_reader: CacheReader, settings: Settings, *, most_decoded: int = _MOST_DECODED) -> None:
        self._cache_reader = cache_reader
        self._most_decoded = most_decoded
        self._settings = settings
        self._held: dict[str, entry.Entry] = {}
        self._lock = threading.RLock()

    def read_ahead(self, keys: Sequence[str]) -> None:
        """Read and decode the first small ones of these entries now, as far as they are on this host.

        Each file that is read, and each payload that is decompressed, lets other threads run, and a thread in the
        background would wait for the program after each.

        Raises:
            StoreError: the storage failed.
        """
        store = self._cache_reader.opened(self._settings) if keys else None
        tiered = None if store is None else two_tiers(store)
        left = self._most_decoded
        if store is None:
            return
        for key in keys[:_AHEAD]:
            if tiered is not None and not tiered.has_local(key):
                continue
            data = store.peek(key, length=_SMALL_BYTES + 1)
            if data is None or len(data) > _SMALL_BYTES:
                continue
            found = self._decode(key, data, most=left)
            if found is not None:
                with self._lock:
                    self._held[key] = found
                left -= len(found.raw)

    def read(self, key: str) -> entry.Entry | None:
        """Read the entry under `key`; None if there is none, or if it is damaged.

        A damaged entry is left to the request for it, which counts and quarantines it.

        Raises:
            StoreError: the storage failed.
        """
        store = self._cache_reader.opened(self._settings)
        if store is None:
            return None
        with self._lock:
            held = self._held.pop(key, None)
        if held is not None:
            return held
        data = store.get(key)
        return self._decode(key, data) if data is not None else None

    def _decode(self, key: str, data: bytes, *, most: int = entry.MAX_RAW_SIZE) -> entry.Entry | None:
        """Return the entry in `data`; None if it is damaged, or its payload has more than `most` bytes."""
        try:
            header = entry.verify(data, key=key, kind="executable")
            if header.raw_size > most:
                return None
            found = entry.decode(data, verified=header)
        except EntryError:
            return None
        if not self._cache_reader.admits(header, data):
            return None  # the request for it removes it
        self._cache_reader.tally.add(bytes_read=len(data))
        return found
