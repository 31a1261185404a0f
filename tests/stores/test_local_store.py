"""The local store keeps the contract."""

from __future__ import annotations

import pytest
from store_sharing import ProcessTests

from ejcache.errors import StoreError
from ejcache.stores.local.store import LocalStore


class TestLocalStore(ProcessTests):
    """The conformance suite on a directory."""

    def open(self, path, *, max_size=-1, read_only=False):
        # On a busy machine another process can hold the index for long.
        return LocalStore(path, max_size=max_size, read_only=read_only, timeout=60.0)


def test_a_path_with_a_variable_that_nobody_expanded(tmp_path, monkeypatch):
    """It is refused: diskcache would expand it, and the index would lie in another directory than its entries."""
    monkeypatch.setenv("PLACE", str(tmp_path / "elsewhere"))
    with pytest.raises(StoreError, match="a variable in it"):
        LocalStore(tmp_path / "$PLACE").put("k", b"x")
    assert not (tmp_path / "elsewhere").exists()
