"""The invariants of stores are found broken in stores that break them."""

from __future__ import annotations

import pytest
import store_invariants as invariants
from store_faults import FaultStore, WrapperStore

from ejcache.stores.base import EntryInfo
from ejcache.stores.memory import MemoryStore


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
