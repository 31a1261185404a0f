"""An entry is used for what it was written for only."""

from __future__ import annotations

import time

from ejcache import entry
from ejcache.cache.counters import Miss
from ejcache.cache.policy import CachePolicy
from ejcache.settings.resolve import resolve
from ejcache.stores.memory import MemoryStore


def test_another_kind_is_not_an_executable():
    """A program's text under an executable's key is never handed to XLA: it counts as foreign and is quarantined."""
    store = MemoryStore()
    store.put("k", entry.encode(entry.Header(key="k", kind="module_text", created=time.time()), b"text"))
    policy = CachePolicy("memory://", open_store=lambda: store)
    looked = policy.read("k", resolve())
    assert (looked.entry, looked.miss) == (None, Miss.FOREIGN)
    assert store.contains("k") is False
    policy.close()
