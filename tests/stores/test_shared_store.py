"""What the shared store adds to its bucket: quarantine, and its URL."""

from __future__ import annotations

import pytest
from buckets import GcsServer, S3Server, gcs_bucket, s3_bucket
from capabilities import require

from ejcache.bucket.azure import AzureBucket
from ejcache.bucket.breaker import forget_breakers
from ejcache.bucket.files import FileBucket
from ejcache.bucket.fsspec_bucket import FsspecBucket
from ejcache.bucket.gcs import GcsBucket
from ejcache.errors import StoreReadOnlyError, StoreTooSmallError, StoreUnavailableError
from ejcache.stores.opening import open_bucket
from ejcache.stores.shared.store import SharedStore


@pytest.fixture
def store(tmp_path):
    with SharedStore(FileBucket(tmp_path / "shared")) as store:
        yield store


@pytest.fixture
def server():
    with GcsServer() as server:
        yield server


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

    def test_an_unknown_protocol(self):
        """A protocol that fsspec does not know is unavailable, and named, when it is used."""
        store = SharedStore(FsspecBucket("nosuch://x/y"))
        with pytest.raises(StoreUnavailableError, match="nosuch"):
            store.get("k")


class TestS3:
    @pytest.mark.soak
    def test_hot_path_and_conditions(self):
        """On S3, too, creation is exclusive, versions are compared, batches delete, and a missing bucket is named."""
        require("s3")
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
            assert sorted(info.name for info in bucket.walk("", deep=False)) == ["k", "large"]
            assert sorted(bucket.delete_many((name, None) for name in names)) == sorted(names)
            assert list(bucket.walk("o/")) == []
            bucket.close()
            elsewhere = s3_bucket(server.url, name="elsewhere")
            for call in (lambda: elsewhere.read("k"), lambda: elsewhere.create("k", b"x")):
                with pytest.raises(StoreUnavailableError, match="no bucket s3://elsewhere"):
                    call()
            elsewhere.close()
        forget_breakers()
        gone = s3_bucket(server.url)
        with pytest.raises(StoreUnavailableError, match="3 tries"):
            gone.read("k")
        gone.close()
