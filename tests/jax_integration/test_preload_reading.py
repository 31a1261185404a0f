"""The entries that are loaded ahead are read and decoded many at once, within a bound of memory."""

from __future__ import annotations

import threading

import pytest

from ejcache import entry
from ejcache.cache.opening import open_cache_store
from ejcache.cache.reading import CacheReader
from ejcache.cache.writing import EntryWriter
from ejcache.jax_integration.preload import background_loader
from ejcache.jax_integration.preload.entry_reader import EntryReader
from ejcache.jax_integration.preload.run_profile import ProgramUse
from ejcache.settings.resolve import resolve

PAYLOAD = bytes(1_000)
KEYS = [f"jit_f_{number}-cpu-plain-{number:040x}-{0:024x}" for number in range(5)]


@pytest.fixture
def policy(tmp_path):
    """Of a cache that has an entry under each key."""
    url, settings = str(tmp_path / "cache"), resolve()
    reader = CacheReader(url, open_store=lambda: open_cache_store(url, settings))
    for key in KEYS:
        assert EntryWriter(reader).write(entry.Header(key=key), PAYLOAD, settings).skip is None
    yield reader
    reader.close()


@pytest.fixture
def reader(policy):
    """Of that cache."""
    return EntryReader(policy, resolve())


@pytest.fixture
def decoded(monkeypatch):
    """The keys of the entries that have been decompressed, in their order."""
    keys = []
    decode = entry.decode

    def note(data, **named):
        found = decode(data, **named)
        keys.append(found.header.key)
        return found

    monkeypatch.setattr(entry, "decode", note)
    return keys


def test_small_entries_are_decoded_when_they_are_read_ahead(reader, decoded):
    """So the thread that loads them lets go of the interpreter only while it loads."""
    reader.read_ahead(KEYS)
    assert decoded == KEYS

    assert [reader.read(key).raw for key in KEYS] == [PAYLOAD] * 5
    assert decoded == KEYS


def test_only_so_many_bytes_are_held_decompressed(policy, decoded):
    """A small entry may expand to any size; what does not fit is decompressed when it is asked for."""
    reader = EntryReader(policy, resolve(), most_decoded=2 * len(PAYLOAD))
    reader.read_ahead(KEYS)
    assert decoded == KEYS[:2]

    assert [reader.read(key).raw for key in KEYS] == [PAYLOAD] * 5
    assert decoded == KEYS


def test_an_entry_of_another_key_is_none(policy, reader):
    """The request for it finds that out, counts it and quarantines the entry."""
    store = policy.opened(resolve())
    damaged = store.get(KEYS[0])
    store.replace(KEYS[1], damaged)

    reader.read_ahead(KEYS)
    assert reader.read(KEYS[1]) is None
    assert reader.read(KEYS[2]).raw == PAYLOAD


def preloading():
    return sum(thread.name.startswith("ejcache-preload") for thread in threading.enumerate())


def test_as_many_threads_as_programs(policy, monkeypatch):
    """A loader on many cores begins a thread for each program, one that watches the time, and none for nothing."""
    go_on, begun = threading.Event(), threading.Semaphore(0)

    def load(*_):
        begun.release()
        assert go_on.wait(60)

    monkeypatch.setattr(background_loader, "cores", lambda: 32)
    monkeypatch.setattr(background_loader.seam, "load_ahead", load)
    before = preloading()
    loader = background_loader.BackgroundLoader(policy, resolve())
    client = type("Client", (), {"platform": "cpu"})()
    loader.plan(client, [], ready=True)
    assert preloading() == before
    uses = [ProgramUse(key=key, size=1_000, devices=(0,)) for key in KEYS[:2]]
    loader.plan(client, uses, ready=True)
    assert begun.acquire(timeout=60)
    assert begun.acquire(timeout=60)
    assert preloading() - before <= len(uses) + 1
    go_on.set()
    loader.close()
