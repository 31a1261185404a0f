"""A compilation cache over tiers: what it counts of them, what it waits for, and damage that one tier heals."""

from __future__ import annotations

import hashlib
from contextlib import closing

import pytest
from archives import flipped
from store_faults import FaultStore

from ejcache import entry
from ejcache.bucket.breaker import breaker_for
from ejcache.cache.compilation_cache import CompilationCache
from ejcache.cache.reading import CacheReader
from ejcache.cache.reasons import Miss
from ejcache.cache.stats import stats_of_process
from ejcache.errors import StoreUnavailableError, UsageError
from ejcache.settings.resolve import resolve
from ejcache.stores.local.store import LocalStore
from ejcache.stores.memory import MemoryStore
from ejcache.stores.tiered.store import TieredStore


def cache_of(url, open_store):
    return CompilationCache(CacheReader(url, open_store=open_store))


@pytest.fixture
def tiers():
    return MemoryStore(), FaultStore(MemoryStore())


@pytest.fixture
def cache(tiers):
    cache = cache_of("memory://", lambda: TieredStore(*tiers, verify=lambda key, data: entry.verify(data, key=key)))
    yield cache
    cache.close()


def test_waits_for_uploads(cache, tiers):
    """A flush with a time waits for uploads, one without does not."""
    gate = tiers[1].block("put")
    assert cache.put("k", b"value") is True
    assert gate.reached.wait(60)
    cache.flush()
    assert tiers[1].inner.contains("k") is False
    gate.opened.set()
    assert cache.flush(60) is True
    assert tiers[1].inner.contains("k") is True


def test_says_what_is_left(cache, tiers):
    """A flush says when something could not be uploaded in its time."""
    cache.put("first", b"value")
    assert cache.flush(60) is True
    breaker_for(tiers[1].url).fail(seconds=100)
    cache.put("k", b"value")
    assert cache.flush(60) is False


def test_tiers_are_counted(cache, tiers):
    """What each tier was asked shows in the statistics, of this process and of all, uploads at the end included."""
    cache.put("k", b"value")
    cache.get("k")
    cache.get("absent")
    counted = cache.stats().to_dict()["tiers"]
    assert counted["local"]["hits"] == counted["local"]["misses"] == counted["shared"]["misses"] == 1
    cache.close()
    assert tiers[1].counters()["local_hits"] == tiers[1].counters()["shared_uploads"] == 1
    assert cache.stats(whole_store=True).tiers["local"]["hits"] == 1


@pytest.mark.parametrize("is_tiered", [False, True])
def test_counters_that_could_not_be_written(is_tiered):
    """What a store does not take, such as one on a full disk, stays and is written with the next counters, once."""
    local = FaultStore(MemoryStore())
    cache = cache_of("memory://", lambda: TieredStore(local, MemoryStore()) if is_tiered else local)
    cache.put("k", b"value")
    cache.flush()
    local.fail("add_counters", StoreUnavailableError("the disk is full"), times=None)
    cache.get("k")
    cache.flush()
    assert "hits" not in local.counters()
    local.disarm()
    cache.get("k")
    cache.flush()
    cache.close()
    assert (local.counters()["hits"], local.counters()["stores"]) == (2, 1)


def test_a_shared_hit_is_hashed_once(cache, tiers, monkeypatch):
    """The bytes of a hit of the shared tier are verified before they are copied, and not once more before their use."""
    data = entry.encode(entry.Header(key="k"), b"value")
    tiers[1].inner.put("k", data)
    hashed = []
    sha256 = hashlib.sha256
    monkeypatch.setattr(hashlib, "sha256", lambda part=b"": (hashed.append(len(part)), sha256(part))[1])
    assert cache.get("k") == b"value"
    assert hashed.count(len(data) - 32) == 1
    assert tiers[0].peek("k") == data
    assert cache.get("k") == b"value"  # the local copy is verified by itself
    assert hashed.count(len(data) - 32) == 2


def test_damage_of_both_tiers_is_a_miss(cache, tiers, caplog):
    """An entry that is damaged in both tiers is a counted miss, gone from both, and can be stored again."""
    for tier in tiers:
        tier.put("k", b"garbage")
    assert cache.get("k") is None
    stats = cache.stats()
    assert stats.misses_by_reason == {"corrupt": 1}
    assert [tier.contains("k") for tier in tiers] == [False, False]
    assert "is not used and will be replaced: k" in caplog.text
    assert cache.put("k", b"value") is True
    assert cache.get("k") == b"value"


def test_metadata_that_cannot_be_kept(cache):
    """A field that no reader would take back is an error of the caller's, named, and nothing is stored."""
    with pytest.raises(UsageError, match="platform"):
        cache.put("k", b"value", metadata={"platform": 5})
    assert cache.get("k") is None
    assert cache.stats().corrupt == 0


def test_damage_in_a_read_only_store_counts_once(tmp_path, caplog):
    """It cannot be taken out of use, so that looking again would only meet it again, and nobody says it is replaced."""
    with LocalStore(tmp_path) as store:
        store.put("k", flipped(entry.encode(entry.Header(key="k"), bytes(100)), -320))
    reader = CacheReader(str(tmp_path), open_store=lambda: LocalStore(tmp_path, read_only=True))
    with closing(reader):
        assert reader.read("k", resolve()) is Miss.CORRUPT
        assert stats_of_process(reader).corrupt == 1
    assert f"a damaged entry in {tmp_path} is not used: k" in caplog.text


def test_a_cache_that_is_switched_off_says_so():
    """Its miss has a reason of its own: whether there is an entry is not known."""
    off = resolve(calls={"enabled": False})
    cache = CompilationCache(CacheReader("memory://", open_store=MemoryStore), settings=lambda: off)
    assert cache.get("k") is None
    assert cache.stats().misses_by_reason == {"disabled": 1}


def test_entries_are_listed(cache):
    """Those that a user stored, and not the texts beside them."""
    cache.put("k", b"value")
    cache.put("module_text-1", b"text")
    assert [info.key for info in cache.entries()] == ["k"]
