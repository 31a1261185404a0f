"""The local store keeps the contract."""

from __future__ import annotations

from store_sharing import BoundProcessTests

from ejcache.stores.local.store import LocalStore


class TestLocalStore(BoundProcessTests):
    """The conformance suite on a directory."""

    def open(self, path, *, max_size=-1, read_only=False):
        # On a busy machine another process can hold the index for long.
        return LocalStore(path, max_size=max_size, read_only=read_only, timeout=60.0)
