"""The local store keeps the contract."""

from __future__ import annotations

from ejcache.stores.local.store import LocalStore
from ejcache.testing import StoreTests


class TestLocalStore(StoreTests):
    """The conformance suite on a directory."""

    def open(self, path, *, max_size=-1, read_only=False):
        return LocalStore(path, max_size=max_size, read_only=read_only)
