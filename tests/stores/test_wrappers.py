"""Wrappers keep the contract of what they wrap, and add only what they are there for."""

from __future__ import annotations

import threading

import pytest
from store_faults import FaultStore, LatencyStore
from store_sharing import ProcessTests

from ejcache.errors import StoreError
from ejcache.stores.base import EntryInfo, WrapperStore
from ejcache.stores.local.store import LocalStore
from ejcache.stores.memory import MemoryStore, forget_memory
from ejcache.testing import invariants


class MemoryBacked(ProcessTests):
    """The conformance suite through `wrap`, on memory."""

    multiprocess = False
    largest = 1_000_000

    def wrap(self, inner):
        return WrapperStore(inner)

    def open(self, path, *, max_size=-1, read_only=False):
        return self.wrap(MemoryStore(str(path), max_size=max_size, read_only=read_only))

    @pytest.fixture(autouse=True)
    def _forget(self, tmp_path):
        yield
        forget_memory(str(tmp_path / "store"))


class TestWrapperStore(MemoryBacked):
    """A wrapper that adds nothing."""


class TestFaultStore(MemoryBacked):
    """A fault store with nothing armed."""

    def wrap(self, inner):
        return FaultStore(inner)


class TestLatencyStore(MemoryBacked):
    """A late store, with a clock that does not keep anybody waiting."""

    def wrap(self, inner):
        return LatencyStore(inner, 0.5, sleep=lambda seconds: None)


class TestWrappedLocalStore(ProcessTests):
    """Wrappers around each other and around a store that processes share."""

    largest = 1_000_000

    def open(self, path, *, max_size=-1, read_only=False):
        local = LocalStore(path, max_size=max_size, read_only=read_only, timeout=60.0)
        return WrapperStore(FaultStore(LatencyStore(local, 0.0)))


def test_wrapper_closes_what_it_wraps():
    """Closing a wrapper closes the inner store."""
    inner = FaultStore(MemoryStore())
    with WrapperStore(inner):
        assert inner.calls["close"] == 0
    assert inner.calls["close"] == 1


def test_fault_on_the_nth_call():
    """An armed error is raised at the n-th call from now, for as many calls as asked, instead of the call."""
    store = FaultStore(MemoryStore())
    store.put("k", b"value")
    store.fail("get", StoreError("no"), nth=2, times=2)
    assert store.get("k") == b"value"
    for _ in range(2):
        with pytest.raises(StoreError, match="no"):
            store.get("k")
    assert store.get("k") == b"value"
    assert store.calls == {"put": 1, "get": 4}
    store.fail("put", StoreError("never"), times=None)
    for n in range(5):
        with pytest.raises(StoreError, match="never"):
            store.put(f"l{n}", b"")
    store.disarm()
    assert store.put("l0", b"") is True


def test_fault_after_the_call():
    """A lost answer: the call was made, and the caller sees an error."""
    store = FaultStore(MemoryStore())
    store.fail("put", StoreError("lost"), after=True)
    with pytest.raises(StoreError, match="lost"):
        store.put("k", b"value")
    assert store.get("k") == b"value"


def test_unknown_method_cannot_be_armed():
    """A misspelt method is refused rather than never failing."""
    with pytest.raises(ValueError, match="no method 'gte'"):
        FaultStore(MemoryStore()).fail("gte", StoreError("no"))


def test_damaged_bytes():
    """Flipped and truncated bytes come back from the armed call only; what is stored stays whole."""
    store = FaultStore(MemoryStore())
    store.put("k", b"\x00\x00\x00")
    store.flip("get", 9)
    assert store.get("k") == b"\x00\x02\x00"
    assert store.get("k") == b"\x00\x00\x00"
    store.truncate("peek", 2)
    store.flip("peek", 0)
    assert store.peek("k") == b"\x01\x00"
    store.flip("get", 0)
    assert store.get("absent") is None


def test_gate_holds_a_call():
    """A blocked call waits until its gate is opened, before it has reached the inner store."""
    store = FaultStore(MemoryStore())
    gate = store.block("put")
    thread = threading.Thread(target=store.put, args=("k", b"value"))
    thread.start()
    assert gate.reached.wait(60)
    assert store.contains("k") is False
    gate.opened.set()
    thread.join()
    assert store.get("k") == b"value"


def test_gate_after_a_call():
    """A call that is blocked on its way back has been made."""
    store = FaultStore(MemoryStore())
    gate = store.block("put", after=True)
    thread = threading.Thread(target=store.put, args=("k", b"value"))
    thread.start()
    assert gate.reached.wait(60)
    assert store.get("k") == b"value"
    gate.opened.set()
    thread.join()


def test_latency_by_method():
    """Each call is made as late as its method is said to be."""
    waited = []
    store = LatencyStore(MemoryStore(), {"get": 0.25, "put": 2.0}, sleep=waited.append)
    store.put("k", b"value")
    store.contains("k")
    store.get("k")
    assert waited == [2.0, 0.25]


class LyingStore(WrapperStore):
    """A store that says of itself what it is told to say."""

    def __init__(self, *infos, size=None, max_size=-1):
        super().__init__(MemoryStore())
        self.infos = infos
        self.said = sum(info.size for info in infos) if size is None else size
        self.max_size = max_size

    def entries(self):
        return iter(self.infos)

    def size(self):
        return self.said


INFO = EntryInfo("k", 5, 1.0, 2.0)


@pytest.mark.parametrize(
    ("check", "store"),
    [
        (invariants.check_bound, LyingStore(INFO, max_size=4)),
        (invariants.check_bound, LyingStore(INFO, max_size=4, size=4)),
        (invariants.check_bound, LyingStore(INFO, max_size=5, size=6)),
        (invariants.check_listing, LyingStore(INFO, size=6)),
        (invariants.check_listing, LyingStore(INFO, INFO)),
        (invariants.check_listing, LyingStore(EntryInfo("", 5, 1.0, 2.0))),
        (invariants.check_listing, LyingStore(EntryInfo("k", -5, 1.0, 2.0))),
        (invariants.check_listing, LyingStore(EntryInfo("k", 5, 3.0, 2.0))),
        (invariants.check_bytes, LyingStore(INFO)),
    ],
)
def test_invariant_is_found_broken(check, store):
    """Each invariant fails on a store that breaks it."""
    with pytest.raises(AssertionError, match="memory://"):
        check(store)


def test_invariants_of_bytes():
    """A listing that promises other bytes than a read gives is found."""
    store = FaultStore(MemoryStore())
    store.put("k", b"value")
    invariants.check_everything(store)
    store.truncate("peek", 3)
    with pytest.raises(AssertionError, match="lists 5 bytes under 'k' and gives 3 bytes"):
        invariants.check_bytes(store)
    store.flip("peek", 0, nth=2)
    with pytest.raises(AssertionError, match="another beginning"):
        invariants.check_bytes(store)
