"""The store in memory keeps the contract, and is shared by name within the process."""

from __future__ import annotations

import pytest
from store_sharing import BoundProcessTests

from ejcache.stores.memory import MemoryStore, forget_memory


class TestMemoryStore(BoundProcessTests):
    """The conformance suite on `memory://`, one name per path."""

    multiprocess = False

    def open(self, path, *, max_size=-1, read_only=False):
        return MemoryStore(str(path), max_size=max_size, read_only=read_only)

    def stored(self, path):
        store = MemoryStore(str(path))
        return {info.key: store.peek(info.key) for info in store.entries()}

    @pytest.fixture(autouse=True)
    def _forget(self, tmp_path):
        yield
        forget_memory(str(tmp_path / "store"))


def test_stores_of_one_name_share():
    """Stores of one name hold the same entries and counters; other names and nameless ones hold their own."""
    one, same, other, nameless = MemoryStore("shared"), MemoryStore("shared"), MemoryStore("other"), MemoryStore()
    one.put("k", b"value")
    one.add_counters({"hits": 1})
    assert same.get("k") == b"value"
    assert same.counters() == {"hits": 1}
    assert other.get("k") is None
    assert nameless.get("k") is None
    assert MemoryStore().get("k") is None
    assert one.url == same.url == "memory://shared"
    assert nameless.url == "memory://"


def test_forgotten_name_starts_empty():
    """A forgotten name starts empty; a store that was open on it keeps what it had."""
    store = MemoryStore("forgotten")
    store.put("k", b"value")
    forget_memory("forgotten")
    forget_memory("never heard of")
    assert MemoryStore("forgotten").get("k") is None
    assert store.get("k") == b"value"
