"""An entry is used for what it was written for only; and when counters are written."""

from __future__ import annotations

import time

from ejcache import entry
from ejcache.cache.reading import CacheReader
from ejcache.cache.reasons import Miss
from ejcache.cache.writing import EntryWriter
from ejcache.settings.resolve import resolve
from ejcache.stores.local.store import LocalStore
from ejcache.stores.memory import MemoryStore


def test_another_kind_is_not_an_executable():
    """A program's text under an executable's key is never handed to XLA: it counts as foreign and is quarantined."""
    store = MemoryStore()
    store.put("k", entry.encode(entry.Header(key="k", kind="module_text", created=time.time()), b"text"))
    reader = CacheReader("memory://", open_store=lambda: store)
    assert reader.read("k", resolve()) is Miss.FOREIGN
    assert store.contains("k") is False
    reader.close()


def test_the_first_counts_of_a_process_are_written_behind_the_program(tmp_path, monkeypatch):
    """The thread that has its first hit goes on; the counters are in the store two seconds later, or at the exit."""
    written = []
    add = LocalStore.add_counters
    monkeypatch.setattr(
        LocalStore, "add_counters", lambda store, amounts: written.append(amounts) or add(store, amounts)
    )
    reader = CacheReader(str(tmp_path), open_store=lambda: LocalStore(tmp_path))
    header = entry.Header(key="key")
    EntryWriter(reader).write(header, b"bytes", resolve())
    reader.count_hit(header, load_seconds=0.0)
    assert written == []
    reader.close()
    assert [amounts["hits"] for amounts in written] == [1]
