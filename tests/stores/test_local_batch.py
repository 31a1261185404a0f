"""A local store reads many small entries by one look into its index."""

from __future__ import annotations

import time

import pytest
from sqlite_connections import opened_connections

from ejcache.stores.local.store import LocalStore

LARGE = bytes(100_000)


@pytest.fixture
def store(tmp_path):
    with LocalStore(tmp_path / "cache") as store:
        yield store


def test_small_entries_at_once(store):
    """Those that are there and small, whatever their number; what is large or absent is left out."""
    small = {f"small-{number}": b"%d" % number for number in range(1_200)}
    for key, data in small.items():
        store.put(key, data)
    store.put("large", LARGE)
    assert store.get_small([*small, "large", "absent"]) == small
    assert store.get_small([]) == {}


def test_it_is_no_use(store):
    """A read is no use; what is noted is used last, and counted."""
    for key in ("first", "second"):
        store.put(key, key.encode())
    store.get_small(["first", "second"])
    store.note_used("first")
    used = {info.key: info for info in store.entries()}
    assert used["first"].last_used > used["second"].last_used
    assert (used["first"].hits, used["second"].hits) == (1, 0)


def test_a_store_that_does_not_exist(tmp_path):
    """It has no entries."""
    with LocalStore(tmp_path / "none", read_only=True) as store:
        assert store.get_small(["key"]) == {}


def test_many_uses_are_written_by_few_statements(tmp_path, monkeypatch):
    """Each statement lets other threads run, so one for each entry would take the interpreter from them as often."""
    monkeypatch.setattr("ejcache.stores.local.index.USES_SECONDS", 3600.0)
    connections, statements = opened_connections(monkeypatch), []
    keys = [f"small-{number}" for number in range(700)]
    with LocalStore(tmp_path) as store:
        for key in keys:
            store.put(key, key.encode())
        store.note_used("gone")  # the first use is written at once, those of the next second together
        began = time.time()
        for key in [*keys, *keys[:100], "gone"]:
            store.note_used(key)
        connections[-1].set_trace_callback(statements.append)
        used = {info.key: (info.last_used >= began, info.hits) for info in store.entries()}
        connections[-1].set_trace_callback(None)
    begun, *marks, ended = [each for each in statements if not each.startswith(("SELECT", "PRAGMA"))]
    assert (begun.split()[0], len(marks), ended) == ("BEGIN", 3, "COMMIT")
    assert used == {key: (True, 2 if place < 100 else 1) for place, key in enumerate(keys)}
