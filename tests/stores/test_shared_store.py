"""What the shared store adds to its bucket: recency, counters, quarantine, and its URL."""

from __future__ import annotations

import time

import pytest
from buckets import GcsServer, S3Server, gcs_bucket, s3_bucket

from ejcache.bucket.azure import AzureBucket
from ejcache.bucket.files import FileBucket
from ejcache.bucket.fsspec_bucket import FsspecBucket
from ejcache.bucket.gcs import GcsBucket
from ejcache.bucket.layout import COUNTERS, process_name
from ejcache.errors import StoreReadOnlyError, StoreTooSmallError, StoreUnavailableError, UsageError
from ejcache.stores.opening import open_bucket
from ejcache.stores.shared.counters import SharedCounters, fold_counters
from ejcache.stores.shared.store import SharedStore


@pytest.fixture
def store(tmp_path):
    with SharedStore(FileBucket(tmp_path / "shared")) as store:
        yield store


@pytest.fixture
def server():
    with GcsServer() as server:
        yield server


def fold(store, *, days=0):
    """A pass of maintenance over the counters, so many days from now."""
    return fold_counters(store.bucket, list(store.bucket.walk(COUNTERS)), now=time.time() + days * 86_400)


def counter_writes(server):
    return [r.status for r in server.requests if r.method == "POST"]


class TestRecency:
    def test_uses_are_drained_once(self, store):
        """What get found since the last drain is told once, with its time; misses, peeks and puts are no uses."""
        before = time.time()
        for key in "abc":
            store.put(key, b"x")
        store.get("a")
        store.get("b")
        store.peek("c")
        store.get("absent")
        drained = store.drain_used()
        assert sorted(drained) == ["a", "b"]
        assert all(before <= used <= time.time() for used in drained.values())
        assert store.drain_used() == {}

    def test_uses_are_bounded(self, tmp_path):
        """A process that never writes a journal does not remember uses without end."""
        store = SharedStore(FileBucket(tmp_path), remembered_uses=5)
        for n in range(20):
            store.note_used(f"k{n}")
        store.note_used("k0")
        assert sorted(store.drain_used()) == [f"k{n}" for n in range(5)]

    def test_uses_show_in_the_listing(self, store):
        """The listing's last use is the later of creation and this process's uses, drained or not."""
        for key in "abc":
            store.put(key, b"x")
        store.get("a")
        store.drain_used()
        store.get("b")
        infos = {info.key: info for info in store.entries()}
        assert infos["c"].last_used == infos["c"].created
        assert infos["a"].last_used >= infos["a"].created
        assert infos["b"].last_used >= infos["a"].last_used

    def test_a_read_only_store_remembers_nothing(self, store):
        """Reads of a read-only store are no uses."""
        store.put("k", b"x")
        reader = SharedStore(store.bucket, read_only=True)
        reader.get("k")
        assert reader.drain_used() == {}


class TestCounters:
    def test_written_rarely(self, server):
        """A thousand additions within the interval are one small object, written when the store closes."""
        store = SharedStore(gcs_bucket(server), counter_interval=3600)
        for _ in range(1000):
            store.add_counters({"hits": 1})
        assert counter_writes(server) == []
        store.close()
        assert counter_writes(server) == [200]
        store.close()
        assert counter_writes(server) == [200]

    def test_written_by_themselves(self, server):
        """What was added is written after the interval by itself."""
        store = SharedStore(gcs_bucket(server), counter_interval=0.05)
        store.add_counters({"hits": 1})
        while not counter_writes(server):
            time.sleep(0.01)
        assert SharedStore(gcs_bucket(server), read_only=True).counters() == {"hits": 1}

    def test_pending_amounts_of_this_process_count(self, server):
        """A question in this process counts what its stores have not written yet."""
        one, two = (SharedStore(gcs_bucket(server), counter_interval=3600) for _ in range(2))
        one.add_counters({"hits": 1})
        two.add_counters({"hits": 2})
        assert one.counters() == {"hits": 3}
        one.reset_counters()
        assert two.counters() == {}
        two.add_counters({"hits": 1})
        assert one.counters() == {"hits": 1}

    def test_no_error_of_theirs_reaches_the_program(self, server):
        """Counters that cannot be written are kept, and written when they can be."""
        store = SharedStore(gcs_bucket(server), counter_interval=0)
        fault = server.add_fault("status", status=400)
        store.add_counters({"hits": 1})
        assert fault.hits == 1
        server.clear_faults()
        store.add_counters({"hits": 1})
        assert store.counters() == {"hits": 2}
        store.close()

    def test_of_processes_that_have_ended_are_folded(self, store):
        """A day later their objects are one, with the same sums; a process that wakes up goes on in another."""
        awake = SharedStore(store.bucket, counter_interval=0)
        awake.add_counters({"hits": 1})
        for _ in range(5):
            with SharedStore(store.bucket, counter_interval=0) as ended:
                ended.add_counters({"hits": 2, "misses": 1})
        assert fold(store) == 0
        assert fold(store, days=2) == 6
        assert [info.name for info in store.bucket.walk(COUNTERS)] == [f"{COUNTERS}=baseline"]
        assert store.counters() == {"hits": 11, "misses": 5}
        awake.add_counters({"hits": 1})
        awake.add_counters({"hits": 1})
        assert store.counters() == {"hits": 13, "misses": 5}
        assert fold(store) == 0
        assert fold(store, days=2) == 1
        assert store.counters() == {"hits": 13, "misses": 5}
        store.reset_counters()
        assert store.counters() == {}

    def test_folded_by_one_who_dies(self, store, monkeypatch):
        """Between the baseline and the removal nothing counts twice, for a reader, a reset or the next pass."""
        for _ in range(3):
            with SharedStore(store.bucket, counter_interval=0) as ended:
                ended.add_counters({"hits": 1})
        with monkeypatch.context() as patched:
            patched.setattr(store.bucket, "delete_many", lambda _: iter(()))
            assert fold(store, days=2) == 0
        assert store.counters() == {"hits": 3}
        store.reset_counters()
        assert store.counters() == {}
        assert fold(store, days=2) == 3
        assert store.counters() == {}

    def test_a_write_whose_answer_was_lost_for_good(self, server, retry_time):
        """Counters that were written although no answer came count once."""
        store = SharedStore(gcs_bucket(server), counter_interval=0)
        store.bucket.breaker = None
        store.add_counters({"hits": 1})
        server.add_fault("drop_after", method="POST")
        server.add_fault("reset", method="GET")
        store.add_counters({"hits": 1})
        server.clear_faults()
        store.add_counters({"hits": 1})
        assert SharedStore(gcs_bucket(server), read_only=True).counters() == {"hits": 3}

    def test_damaged_counters_count_nothing(self, store):
        """A damaged, absurd or endless object among the counters counts nothing, for a reader and for a pass."""
        store.add_counters({"hits": 1})
        absurd = [b'{"sums": {"hits": ' + number + b"}}" for number in (b"9" * 4000, b"NaN", b"1e999", b"9" * 5000)]
        deep = [b"[" * 200_000, b'{"sums":' * 20_000, b'{"sums": {"hits": 5}}' + b" " * (1 << 20)]
        shapes = [b"", b"{", b"[1]", b'{"sums": 5}', b'{"sums": {"hits": "many"}}', b"\xff"]
        for data in (*shapes, *absurd, *deep):
            store.bucket.write(COUNTERS + process_name(), data)
        assert store.counters() == {"hits": 1}
        assert fold(store, days=2) == 14
        assert store.counters() == {"hits": 1}


class TestEntries:
    def test_foreign_objects_are_no_entries(self, store):
        """What is no entry of ours is not listed, not counted, and left alone."""
        store.put("k", b"value")
        for name in ("v1/entries/README", "v1/entries/00/misplaced", "v1/entries/zz/%zz", "jit_f-cache"):
            store.bucket.write(name, b"foreign")
        assert [info.key for info in store.entries()] == ["k"]
        assert store.size() == 5
        assert store.bucket.read("jit_f-cache").data == b"foreign"

    def test_max_size_refuses_only_the_impossible(self, store):
        """One entry larger than the whole limit is refused; eviction is not for a put."""
        store.max_size = 10
        with pytest.raises(StoreTooSmallError):
            store.put("k", bytes(11))
        with pytest.raises(StoreTooSmallError):
            store.replace("k", bytes(11))
        assert store.put("a", bytes(10))
        assert store.put("b", bytes(10))
        assert store.size() == 20

    def test_quarantined_copies_are_bounded(self, store):
        """The last few damaged entries are kept, and no more."""
        for n in range(20):
            store.put(f"k{n}", b"EJC1bad%d" % n)
            assert store.quarantine(f"k{n}", b"EJC1bad%d" % n) is True
        kept = {store.bucket.read(info.name).data for info in store.bucket.walk("v1/quarantine/")}
        assert len(kept) == 8
        assert b"EJC1bad19" in kept

    def test_only_entries_are_copied_to_the_quarantine(self, store):
        """Bytes that were never an entry, which may be somebody's private file, are deleted and kept nowhere."""
        store.put("k", b"-----BEGIN OPENSSH PRIVATE KEY-----")
        assert store.quarantine("k", b"-----BEGIN OPENSSH PRIVATE KEY-----") is True
        assert store.contains("k") is False
        assert list(store.bucket.walk("v1/quarantine/")) == []

    def test_other_files_in_the_quarantine_stay(self, store):
        """Only names that the quarantine gives are removed when it is full."""
        for n in range(12):
            store.bucket.write(f"v1/quarantine/notes-{n}", b"mine")
            store.put(f"k{n}", b"EJC1bad")
            store.quarantine(f"k{n}", b"EJC1bad")
        names = [info.name for info in store.bucket.walk("v1/quarantine/")]
        assert sum("notes" in name for name in names) == 12
        assert len(names) == 12 + 8

    def test_quarantine_spares_a_healed_entry(self, server, monkeypatch):
        """An entry that was replaced between the comparison and the deletion stays."""
        store = SharedStore(gcs_bucket(server))
        store.put("k", b"bad")
        read = store.bucket.read

        def read_then_heal(name, **kwargs):
            blob = read(name, **kwargs)
            store.bucket.write(name, b"good")
            return blob

        monkeypatch.setattr(store.bucket, "read", read_then_heal)
        assert store.quarantine("k", b"bad") is False
        monkeypatch.undo()
        assert store.get("k") == b"good"
        store.close()

    def test_corrupt_in_transit(self, server):
        """Bytes that were flipped on the way are read again, and do not condemn the entry that is whole."""
        store = SharedStore(gcs_bucket(server))
        store.put("k", b"value" * 100)
        server.add_fault("corrupt", method="GET", count=1)
        assert store.get("k") == b"value" * 100
        assert store.quarantine("k", b"other bytes") is False
        assert store.get("k") == b"value" * 100
        store.close()

    def test_read_only_leaves_no_trace(self, server):
        """A read-only store asks only with GET, also for what it could count or drain."""
        with SharedStore(gcs_bucket(server), read_only=True) as store:
            store.get("k")
            store.add_counters({"hits": 1})
            store.counters()
            list(store.entries())
            with pytest.raises(StoreReadOnlyError):
                store.reset_counters()
        assert {r.method for r in server.requests} == {"GET"}


class TestUrls:
    def test_which_bucket_a_url_opens(self, tmp_path):
        """Each protocol has its own, however the URL ends."""
        for url, kind, root in [
            (str(tmp_path), FileBucket, f"file://{tmp_path}"),
            (f"file://{tmp_path}/a%20b/", FileBucket, f"file://{tmp_path}/a b"),
            ("gs://bucket", GcsBucket, "gs://bucket"),
            ("gcs://bucket/a/b/", GcsBucket, "gs://bucket/a/b"),
            ("abfs://x/y", AzureBucket, "abfs://x/y"),
        ]:
            bucket = open_bucket(url)
            assert (type(bucket), bucket.url) == (kind, root)
            bucket.close()

    @pytest.mark.parametrize("url", ["gs://", "gs:///x", "s3://"])
    def test_urls_without_a_place(self, url):
        """A URL that names no bucket or directory is refused."""
        with pytest.raises(UsageError, match="names no"):
            open_bucket(url)

    def test_an_unknown_protocol(self):
        """A protocol that fsspec does not know is unavailable, and named, when it is used."""
        store = SharedStore(FsspecBucket("nosuch://x/y"))
        with pytest.raises(StoreUnavailableError, match="nosuch"):
            store.get("k")


class TestS3:
    def test_hot_path_and_conditions(self):
        """On S3, too, creation is exclusive, versions are compared, batches delete, and a missing bucket is named."""
        pytest.importorskip("s3fs")
        pytest.importorskip("moto")
        with S3Server() as server:
            bucket = s3_bucket(server.url)
            assert bucket.create("k", b"1") is True
            assert bucket.create("k", b"2") is False
            first = bucket.stat("k").version
            second = bucket.write("k", b"3", version=first)
            assert second not in (None, first)
            assert bucket.write("k", b"4", version=first) is None
            assert bucket.delete("k", version=first) is False
            assert bucket.read("k").data == b"3"
            bucket.part_size = 10
            bucket.write("large", bytes(range(35)))
            assert bucket.read("large").data == bytes(range(35))
            names = [f"o/{n}" for n in range(120)]
            for name in names:
                bucket.write(name, b"x")
            assert sorted(info.name for info in bucket.walk("o/")) == sorted(names)
            assert sorted(bucket.delete_many((name, None) for name in names)) == sorted(names)
            assert list(bucket.walk("o/")) == []
            bucket.close()
            elsewhere = s3_bucket(server.url)
            elsewhere._bucket = "elsewhere"
            for call in (lambda: elsewhere.read("k"), lambda: elsewhere.create("k", b"x")):
                with pytest.raises(StoreUnavailableError, match="no bucket s3://elsewhere"):
                    call()
            elsewhere.close()
        gone = s3_bucket(server.url)
        with pytest.raises(StoreUnavailableError, match="3 tries"):
            gone.read("k")
        gone.close()


def test_counters_are_not_written_twice_within_a_second(tmp_path):
    """What is counted right after a write goes into another object, and the sums are those of both."""
    bucket = FileBucket(tmp_path / "shared")
    counters = SharedCounters(bucket, interval=60)
    counters.add({"hits": 2, "misses": 1})
    assert counters.flush() is True
    counters.add({"hits": 3})
    assert counters.flush() is True
    assert len(list(bucket.walk(COUNTERS))) == 2
    assert counters.total() == {"hits": 5, "misses": 1}
