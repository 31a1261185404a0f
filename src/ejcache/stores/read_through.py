"""How a tiered store reads: the local tier, then the shared one, and what was found there into the local one."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from ejcache.errors import EntryError, EntryVersionError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.stores.fetching import HostFetches
    from ejcache.stores.tier import Tier

__all__ = ["ReadThrough"]

log = logging.getLogger("ejcache")


class ReadThrough:
    """Reads of two tiers. Safe for threads, processes and forks.

    Args:
        local: asked first, and given what the other one has.
        shared: asked by one process of a host at a time, per key.
        fetches: sees to that.
        verify: `verify(key, data)` raises an `EntryError` for what must not be copied.
        read_only: nothing is set aside in the shared tier, and uses are not noted for it.
    """

    def __init__(
        self,
        local: Tier,
        shared: Tier,
        *,
        fetches: HostFetches,
        verify: Callable[[str, bytes], object],
        read_only: bool,
    ) -> None:
        self._local = local
        self._shared = shared
        self._fetches = fetches
        self._verify = verify
        self._read_only = read_only
        self._note_used: Callable[[str], None] = getattr(shared.store, "note_used", lambda _: None)

    def get(self, key: str) -> bytes | None:
        """The bytes under `key`, or None; the shared tier learns of a use that it did not see.

        Raises:
            StoreError: the local tier has no entry and the shared one cannot be asked.
        """
        data = self._get_local(key)
        if data is None:
            self._local.count("misses")
            return self._fetches.run(key, again=lambda: self._get_local(key), fetch=lambda: self._fetch(key))
        self._local.count("hits")
        if not self._read_only:
            self._note_used(key)
        return data

    def _get_local(self, key: str) -> bytes | None:
        with contextlib.suppress(StoreError):
            data = self._local.call(lambda store: store.get(key))
            if data is not None:
                self._local.count("reads")
            return data
        return None

    def _fetch(self, key: str) -> bytes | None:
        self._shared.count("reads")
        data = self._shared.call(lambda store: store.get(key))
        self._shared.count("misses" if data is None else "hits")
        if data is None:
            return None
        try:
            self._verify(key, data)
        except EntryVersionError:
            return data
        except EntryError as exc:
            log.warning("ejcache: a damaged entry of %s is set aside: %s: %s", self._shared.store.url, key, exc)
            self._shared.count("corrupt")
            self._set_aside(key, data)
            return data
        if not self._local.store.read_only:
            with contextlib.suppress(StoreError):
                if self._local.call(lambda store: store.put(key, data)):
                    self._local.count("backfills")
        return data

    def _set_aside(self, key: str, data: bytes) -> None:
        if not self._read_only and not self._shared.store.read_only:
            with contextlib.suppress(StoreError):
                self._shared.call(lambda store: store.quarantine(key, data))
