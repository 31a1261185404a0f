"""The tiered store between real processes of one host: one fetch for all, and uploads that outlive their process."""

from __future__ import annotations

import os
import textwrap

import pytest
from buckets import GcsServerProcess, gcs_bucket
from forking import ForkedWithClients
from local_processes import Told
from store_faults import FaultStore
from store_processes import in_fork

from ejcache.stores.local.store import LocalStore
from ejcache.stores.memory import MemoryStore
from ejcache.stores.shared.store import SharedStore
from ejcache.stores.tiered.pending_uploads import PUT, REPLACE, PendingUploads
from ejcache.stores.tiered.store import TieredStore

PEER = textwrap.dedent("""
    import sys
    from functools import partial
    from pathlib import Path
    from ejcache.errors import StoreError
    from ejcache.stores.local.store import LocalStore
    from ejcache.stores.shared.store import SharedStore
    from ejcache.bucket.gcs import GcsBucket
    from ejcache.bucket.retry import RetryPolicy
    from ejcache.stores.tiered import store as tiered
    from ejcache.stores.tiered.store import TieredStore

    # On a busy machine the first request takes long: the client's library is imported before it.
    tiered.HostFetches = partial(tiered.HostFetches, patience=200.0)

    def tiers(url, place, **options):
        bucket = GcsBucket("bucket", "prefix", endpoint_url=url, policy=RetryPolicy(deadline=60.0))
        place = Path(place)
        local = LocalStore(place / "local", timeout=60.0)
        options = {"drain_seconds": 60.0, **options}
        return TieredStore(local, SharedStore(bucket), scratch=place / "scratch", **options)

    def say(*words):
        print(*words, flush=True)
""")


def started(program, *arguments):
    return Told(PEER + textwrap.dedent(program), *arguments, start=ForkedWithClients)


@pytest.fixture
def server():
    with GcsServerProcess() as server:
        yield server


def shared_store(server):
    return SharedStore(gcs_bucket(server.url))


def entries_of(server, method):
    return sorted(
        r.path.rpartition("/")[2].rpartition("%2F")[2]
        for r in server.requests
        if r.method == method and "entries" in r.path
    )


READ_ALL = """
    with tiers(*sys.argv[1:]) as store:
        say("ready")
        sys.stdin.readline()
        found = [store.get(f"k{n}") for n in range(20)]
        say(sum(data == b"value" * 1000 for data in found), found.count(None))
        sys.stdin.readline()
"""


def test_one_get_per_entry_and_host(server, tmp_path):
    """Four processes of a host that start together on an empty local tier make one request per entry, found or not."""
    stored = 10
    with shared_store(server) as shared:
        for n in range(stored):
            shared.put(f"k{n}", b"value" * 1000)
    server.control(latency=0.02)
    server.clear_requests()
    peers = [started(READ_ALL, server.url, tmp_path) for _ in range(4)]
    try:
        for peer in peers:
            assert peer.says() == ["ready"]
        for peer in peers:
            peer.go_on()
        for peer in peers:
            assert peer.says() == [str(stored), str(20 - stored)]
        gets = entries_of(server, "GET")
        found = [name for name in gets if int(name[1:]) < stored]
        assert found == sorted(f"k{n}" for n in range(stored))
        # What nobody has is asked for again by processes that come later, but not by those that waited for the answer.
        assert len(gets) - stored <= 4 * (20 - stored)
    finally:
        for peer in peers:
            peer.__exit__()


WRITE_ALL = """
    store = tiers(*sys.argv[1:])
    for n in range(10):
        assert store.put(f"k{n}", b"value" * 1000)
    say("stored")
    sys.stdin.readline()
"""


def test_killed_with_pending_uploads(server, tmp_path):
    """What a killed process had yet to upload is uploaded by the next process on that host, exactly once."""
    server.add_fault("stall", method="POST", seconds=60)
    with started(WRITE_ALL, server.url, tmp_path) as peer:
        assert peer.says() == ["stored"]
    with shared_store(server) as shared:
        assert list(shared.entries()) == []
        server.clear_faults()
        server.clear_requests()
        resume = """
            store = tiers(*sys.argv[1:])
            store.get("anything")
            say(store.flush(60), int(store.tier_counters().get("shared_uploads", 0)))
        """
        with started(resume, server.url, tmp_path) as one, started(resume, server.url, tmp_path) as two:
            said = [one.says(), two.says()]
        assert sum(int(count) for _, count in said) == 10
        assert [flushed for flushed, _ in said] == ["True", "True"]
        assert sorted(info.key for info in shared.entries()) == [f"k{n}" for n in range(10)]
    statuses = [r.status for r in server.requests if r.method == "POST" and "/upload/" in r.path]
    assert statuses.count(412) == 0


# -- the spool -------------------------------------------------------------------------------------------------------


def test_markers_of_the_living_stay(tmp_path):
    """Nobody adopts what a living process has yet to upload; what one has uploaded is gone."""
    mine = PendingUploads(tmp_path)
    mine.add("a", PUT)
    mine.add("b", REPLACE)
    mine.remove("a")
    assert list(PendingUploads(tmp_path).adopt()) == []
    assert mine.leave() == 1
    assert list(PendingUploads(tmp_path).adopt()) == [("b", REPLACE)]


def test_each_marker_has_one_owner(tmp_path):
    """Of several that adopt a dead process's markers at once each marker goes to one, and adopters can die too."""
    in_fork(lambda: [PendingUploads(tmp_path).add(f"k{n}", PUT) for n in range(30)] and None)
    first, second = PendingUploads(tmp_path), PendingUploads(tmp_path)
    one, two = first.adopt(), second.adopt()
    taken = [next(one)[0] for _ in range(10)] + [key for key, _ in two] + [key for key, _ in one]
    assert sorted(taken) == sorted(f"k{n}" for n in range(30))
    assert first.leave() + second.leave() == 30
    third = PendingUploads(tmp_path)
    assert len(list(third.adopt())) == 30
    for n in range(30):
        third.remove(f"k{n}")
    assert third.leave() == 0
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("torn", [b"", b'{"key": "k', b"[]", b"{}", b"\xff", None])
def test_torn_markers_are_dropped(tmp_path, torn):
    """A marker that was torn by a crash, or is a pipe, is no marker, and the others are adopted."""
    in_fork(lambda: [PendingUploads(tmp_path).add(key, PUT) for key in ("a", "b")] and None)
    marker = min(path for path in tmp_path.glob("*/*") if path.parent.name != "present")
    if torn is None:
        marker.unlink()
        os.mkfifo(marker)
    else:
        marker.write_bytes(torn)
    assert len(list(PendingUploads(tmp_path).adopt())) == 1


def test_a_marker_that_is_written_again_stays_whole(tmp_path, monkeypatch):
    """The process may end between open(2) and write(2): its daemon threads do not go on while it finalizes."""

    def write_and_fail():
        mine = PendingUploads(tmp_path)
        mine.add("a", REPLACE)

        def ends(_fd, _data):
            raise InterruptedError

        with monkeypatch.context() as ending:
            ending.setattr(os, "write", ends)
            assert not mine.add("a", PUT)

    in_fork(write_and_fail)
    assert list(PendingUploads(tmp_path).adopt()) == [("a", REPLACE)]


def test_a_weaker_marker_is_whole_in_place_of_a_stronger_one(tmp_path):
    mine = PendingUploads(tmp_path)
    in_fork(lambda: [mine.add("a", how) for how in (PUT, REPLACE, PUT)] and None)
    assert list(PendingUploads(tmp_path).adopt()) == [("a", PUT)]


def test_no_room_for_markers(tmp_path):
    """A spool that cannot be written costs no upload of a process that lives."""
    (tmp_path / "scratch").write_text("a file")
    shared = MemoryStore()
    with TieredStore(LocalStore(tmp_path / "local"), shared, scratch=tmp_path / "scratch") as store:
        assert store.put("k", b"value") is True
        assert store.get("k") == b"value"
        assert store.get("absent") is None
    assert shared.peek("k") == b"value"


def test_marker_without_its_entry(tmp_path):
    """A marker whose entry never reached the local tier, or was evicted, is forgotten."""
    spool = PendingUploads(tmp_path / "spool")
    spool.add("k", PUT)
    spool.leave()
    shared = FaultStore(MemoryStore())
    with TieredStore(LocalStore(tmp_path / "local"), shared, scratch=tmp_path) as store:
        store.get("other")
        assert store.flush(60) is True
        assert store.tier_counters()["shared_uploads_lost"] == 1
    assert shared.calls["put"] == 0
