"""The tiered store: what each tier is asked, what is copied and uploaded, and what trouble does to it."""

from __future__ import annotations

import threading

import pytest
from memory_bucket import MemoryBucket
from store_faults import FaultStore
from store_processes import in_fork
from store_sharing import ProcessTests, PromptStore
from store_suite import RecencyTests

from ejcache.bucket.breaker import CircuitBreaker, breaker_for
from ejcache.bucket.files import FileBucket
from ejcache.bucket.object_names import entry_name
from ejcache.bucket.storage_note import FAILED, StorageNote
from ejcache.errors import (
    EntryCorruptError,
    EntryVersionError,
    StoreBusyError,
    StoreError,
    StoreNotAskedError,
    StoreReadOnlyError,
    StoreTooSmallError,
    StoreUnavailableError,
)
from ejcache.stores.local.store import LocalStore
from ejcache.stores.memory import MemoryStore, forget_memory
from ejcache.stores.shared.store import SharedStore
from ejcache.stores.tiered.pending_uploads import PUT, PendingUploads
from ejcache.stores.tiered.store import TieredStore
from ejcache.stores.tiered.uploads import Uploads
from ejcache.util.log import forget_warnings
from ejcache.util.scheduler import Scheduler


class TestTieredOverFiles(ProcessTests, RecencyTests):
    """The conformance suite on a local store over a shared directory, with real processes."""

    def open(self, path, *, max_size=-1, read_only=False):
        return TieredStore(
            LocalStore(path / "local", read_only=read_only, timeout=60.0),
            PromptStore(FileBucket(path / "shared"), max_size=max_size, read_only=read_only),
            scratch=path / "scratch",
            read_only=read_only,
            drain_seconds=60,
        )


@pytest.fixture
def local(tmp_path):
    return FaultStore(LocalStore(tmp_path / "local"))


@pytest.fixture
def shared():
    return FaultStore(MemoryStore())


@pytest.fixture
def store(local, shared, tmp_path):
    store = TieredStore(local, shared, scratch=tmp_path / "scratch", verify=intact, drain_seconds=60)
    yield store
    store.close()


def intact(key, data):
    """Bytes are intact when they begin with their key."""
    if data.startswith(b"new format"):
        raise EntryVersionError("of another version")
    if not data.startswith(key.encode()):
        raise EntryCorruptError("not what was put")


# -- reading ---------------------------------------------------------------------------------------------------------


def test_shared_hit_is_copied(store, local, shared):
    """A hit of the shared tier is copied into the local one, which answers from then on."""
    shared.inner.put("k", b"k-value")
    assert store.get("k") == b"k-value"
    assert local.inner.peek("k") == b"k-value"
    assert store.get("k") == b"k-value"
    assert shared.calls["get"] == 1
    counted = store.tier_counters()
    assert counted["shared_hits"] == counted["local_misses"] == counted["local_backfills"] == counted["local_hits"] == 1


def test_miss_asks_each_tier_once(store, local, shared):
    """An entry that nobody has costs one request of the shared tier."""
    assert store.get("k") is None
    assert shared.calls == {"get": 1}
    assert store.tier_counters()["shared_misses"] == 1


def test_damaged_bytes_stay_where_they_are(store, local, shared):
    """Damaged bytes of the shared tier are never written to the local tier; the reader quarantines them."""
    shared.inner.put("k", b"garbage")
    assert store.get("k") == b"garbage"
    assert store.quarantine("k", b"garbage") is True
    assert shared.inner.contains("k") is False
    assert local.calls["put"] == 0
    assert store.tier_counters()["shared_corrupt"] == 1
    assert store.get("k") is None


def test_other_versions_are_left_alone(store, local, shared):
    """An entry of a format that this version does not read is returned, kept where it is, and not copied."""
    shared.inner.put("k", b"new format")
    assert store.get("k") == b"new format"
    assert shared.inner.contains("k") is True
    assert local.calls["put"] == 0
    assert "shared_corrupt" not in store.tier_counters()


def test_local_damage_heals_from_the_shared_tier(store, local, shared):
    """An entry that is damaged in the local tier alone is quarantined there, and the next get brings the good one."""
    store.put("k", b"k-value")
    assert store.flush(60) is True
    local.inner.replace("k", b"garbage")
    assert store.get("k") == b"garbage"
    assert store.quarantine("k", b"garbage") is True
    assert store.tier_counters()["local_corrupt"] == 1
    assert shared.inner.contains("k") is True
    assert store.get("k") == b"k-value"


def test_local_trouble_is_not_the_callers(store, local, shared):
    """With a local tier that fails, entries come from the shared one."""
    shared.inner.put("k", b"k-value")
    local.fail("get", StoreError("disk"), times=None)
    local.fail("put", StoreError("disk"), times=None)
    assert store.get("k") == b"k-value"
    assert store.tier_counters()["local_errors"] >= 1
    local.fail("quarantine", StoreError("disk"))
    assert store.quarantine("k", b"k-other") is False


def test_local_hits_are_noted_for_the_journal(tmp_path):
    """A use is one of the local tier, and the shared tier hears of it; not so of a use of a read-only store."""

    class Noting(MemoryStore):
        noted = []  # noqa: RUF012

        def note_used(self, key):
            self.noted.append(key)

    with TieredStore(MemoryStore(), Noting()) as store:
        store.put("j", b"j")
        store.put("k", b"k")
        store.note_used("j")
        assert [info.key for info in sorted(store.local.entries(), key=lambda info: info.last_used)] == ["k", "j"]
    assert Noting.noted == ["j"]
    Noting.noted.clear()
    local = MemoryStore()
    local.put("k", b"k")
    with TieredStore(local, Noting(), read_only=True) as reader:
        reader.note_used("k")
    assert Noting.noted == []


# -- writing ---------------------------------------------------------------------------------------------------------


def test_put_does_not_wait_for_the_shared_tier(store, local, shared):
    """A put returns while the upload has not even begun to succeed, and the entry is there at once."""
    gate = shared.block("put")
    assert store.put("k", b"k-value") is True
    assert gate.reached.wait(60)
    assert store.get("k") == b"k-value"
    assert shared.inner.contains("k") is False
    gate.opened.set()
    assert store.flush(60) is True
    assert shared.inner.peek("k") == b"k-value"
    assert store.tier_counters()["shared_uploads"] == 1


def test_quarantine_of_what_was_to_replace_an_upload_under_way(store, shared, monkeypatch):
    """Neither what was quarantined nor what it was to replace is there afterwards: not the old one by being late."""
    when_tried, waits = Uploads.when_tried, threading.Event()

    def noted(uploads, key, callback):
        is_known = when_tried(uploads, key, callback)
        waits.set()
        return is_known

    monkeypatch.setattr(Uploads, "when_tried", noted)
    gate = shared.block("put")
    store.put("k", b"k-bad")
    assert gate.reached.wait(60)
    store.replace("k", b"k-good")
    quarantined = []
    thread = threading.Thread(target=lambda: quarantined.append(store.quarantine("k", b"k-good")))
    thread.start()
    assert waits.wait(60)
    gate.opened.set()
    thread.join(60)
    assert store.flush(60) is True

    assert quarantined == [True]
    assert shared.inner.peek("k") is None
    assert store.get("k") is None


def test_replace_during_an_upload(store, shared):
    """What replaces an entry whose upload is under way is uploaded after it."""
    gate = shared.block("put", after=True)
    store.put("k", b"k-old")
    assert gate.reached.wait(60)
    store.replace("k", b"k-new")
    gate.opened.set()
    assert store.flush(60) is True
    assert shared.inner.peek("k") == b"k-new"


def test_delete_before_an_upload(store, shared):
    """A deleted entry is not uploaded afterwards, whether its upload was waiting or under way."""
    gates = [shared.block("put"), shared.block("put", nth=2)]
    for key, gate in zip(("a", "b"), gates, strict=True):  # threads may overtake each other
        store.put(key, key.encode())
        assert gate.reached.wait(60)
    store.put("c", b"c")
    assert store.delete("c") is True
    deleting = threading.Thread(target=store.delete, args=("a",))
    deleting.start()
    for gate in gates:
        gate.opened.set()
    deleting.join()
    assert store.flush(60) is True
    assert [info.key for info in shared.inner.entries()] == ["b"]
    assert [info.key for info in store.entries()] == ["b"]


@pytest.mark.parametrize("end", ["delete", "quarantine"])
@pytest.mark.parametrize("how", ["put", "replace"])
def test_what_another_process_is_uploading(tmp_path, end, how):
    """What one process of a host deletes or quarantines is not brought back by another one that is uploading it."""
    bucket = MemoryStore()
    theirs = FaultStore(bucket)
    gate = theirs.block(how)
    there, here = (
        TieredStore(LocalStore(tmp_path / "local"), shared, scratch=tmp_path / "scratch")
        for shared in (theirs, FaultStore(bucket))
    )
    with here, there:
        getattr(there, how)("k", b"value")
        assert gate.reached.wait(60)
        ended = []
        thread = threading.Thread(target=lambda: ended.append(getattr(here, end)("k", *[b"value"][: end != "delete"])))
        thread.start()
        thread.join(0.2)
        gate.opened.set()
        thread.join(60)
        assert ended == [True]
        assert there.flush(60) is True
        assert here.get("k") is there.get("k") is bucket.peek("k") is None


def test_what_another_process_holds_in_memory(tmp_path):
    """What one process of a host deletes is not brought back by another one whose local tier refused it."""
    bucket, full, turn = MemoryStore(), FaultStore(LocalStore(tmp_path / "local")), threading.Event()
    full.fail("put", StoreTooSmallError("too large for this disk"), times=None)
    there = TieredStore(full, FaultStore(bucket), scratch=tmp_path / "scratch")
    for _ in range(2):  # each of its threads
        there.worker.submit(turn.wait)
    here = TieredStore(LocalStore(tmp_path / "local"), FaultStore(bucket), scratch=tmp_path / "scratch")
    with here, there:
        for key in ("kept", "deleted", "deleted and put again"):
            there.put(key, b"value")
        for key in ("deleted", "deleted and put again"):
            here.delete(key)
        there.put("deleted and put again", b"value")
        turn.set()
        assert there.flush(60) is True
        assert {info.key for info in bucket.entries()} == {"kept", "deleted and put again"}  # two threads sent them


@pytest.mark.parametrize("how", ["get", "prefetch"])
def test_what_another_process_is_fetching(tmp_path, how):
    """What one process of a host deletes is not brought back by another one that is copying it to the local tier."""
    bucket = MemoryStore()
    bucket.put("k", b"value")
    theirs = FaultStore(bucket)
    gate = theirs.block("get", after=True)
    there, here = (
        TieredStore(LocalStore(tmp_path / "local"), shared, scratch=tmp_path / "scratch")
        for shared in (theirs, FaultStore(bucket))
    )
    with here, there:
        fetches = {"get": there.get, "prefetch": lambda key: list(_fetch_ahead(there, key))}
        getting = threading.Thread(target=fetches[how], args=("k",))
        getting.start()
        assert gate.reached.wait(60)
        deleting = threading.Thread(target=here.delete, args=("k",))
        deleting.start()
        deleting.join(0.2)
        gate.opened.set()
        getting.join(60)
        deleting.join(60)
        assert here.get("k") is there.get("k") is None


def _fetch_ahead(store, key):
    return store.prefetch([key], requests=4, wanted=lambda _: True)


def test_somebody_elses_upload_stands(store, shared):
    """An upload that finds another host's entry leaves it, and counts as a duplicate."""
    shared.inner.put("k", b"k-theirs")
    store.put("k", b"k-mine")
    assert store.flush(60) is True
    assert shared.inner.peek("k") == b"k-theirs"
    assert store.tier_counters()["shared_duplicates"] == 1


def test_loser_of_a_local_race_uploads_nothing(store, local, shared):
    """Of two puts of one key only the one that made the entry uploads it."""
    local.inner.put("k", b"k-theirs")
    assert store.put("k", b"k-mine") is False
    assert store.flush(60) is True
    assert shared.calls["put"] == 0


def test_damage_is_not_uploaded(store, local, shared):
    """What the local tier gives back damaged is quarantined there and never uploaded."""
    local.damage("peek", lambda data: b"garbage")
    store.put("k", b"k-value")
    assert store.flush(60) is True
    assert shared.calls["put"] == 0
    assert store.tier_counters()["local_corrupt"] == 1


@pytest.mark.parametrize("error", [StoreError("disk full"), StoreReadOnlyError("no"), StoreTooSmallError("small")])
def test_local_tier_that_takes_nothing(store, local, shared, monkeypatch, error):
    """What the local tier does not take is uploaded from memory, which is free for the next entry then."""
    monkeypatch.setattr("ejcache.stores.tiered.uploads.HELD_BYTES", 10)
    for key in ("k", "l"):
        local.fail("put", error)
        assert store.put(key, key.encode() * 10) is True
        assert store.flush(60) is True
        assert shared.inner.peek(key) == key.encode() * 10
        assert local.inner.contains(key) is False


def test_memory_for_uploads_is_bounded(local, shared, monkeypatch):
    """What neither the local tier nor memory can take is refused with the local tier's error."""
    local.fail("put", StoreError("disk full"))
    monkeypatch.setattr("ejcache.stores.tiered.uploads.HELD_BYTES", 10)
    with TieredStore(local, shared) as store:
        with pytest.raises(StoreError, match="disk full"):
            store.put("k", b"k" * 11)
        assert store.flush(60) is True
        assert shared.calls["put"] == 0
        assert store.put("k", b"k-later") is True


def test_larger_than_the_shared_limit():
    """An entry that the shared tier could never hold is refused before anything is written."""
    local = MemoryStore()
    with TieredStore(local, MemoryStore(max_size=10)) as store, pytest.raises(StoreTooSmallError):
        store.put("k", bytes(11))
    assert local.size() == 0


def test_shared_tier_without_write_permission(tmp_path, caplog):
    """Refused uploads are dropped, not tried again, said in one sentence, and do not open the breaker."""
    forget_warnings()
    shared = FaultStore(MemoryStore())
    shared.fail("put", StoreReadOnlyError("forbidden"), times=None)
    with TieredStore(MemoryStore(), shared, scratch=tmp_path) as store:
        for n in range(5):
            assert store.put(f"k{n}", b"x") is True
        assert store.flush(60) is True
        assert store.tier_counters()["shared_refused"] == 5
        assert breaker_for(shared.url).is_open is False
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "ejcache: memory:// is only read by this process: forbidden"
    ]


def test_read_only_shared_tier(tmp_path):
    """With a shared tier that is open for reading only, the host still keeps what it compiles for itself."""
    shared = MemoryStore("read-only tier")
    shared.put("theirs", b"t")
    with TieredStore(MemoryStore(), MemoryStore("read-only tier", read_only=True), scratch=tmp_path) as store:
        assert store.get("theirs") == b"t"
        assert store.put("mine", b"m") is True
        assert store.get("mine") == b"m"
        assert store.flush(60) is True
    assert [info.key for info in shared.entries()] == ["theirs"]
    forget_memory("read-only tier")


def test_read_only_store_still_copies(tmp_path):
    """A read-only tiered store refuses writes, writes nothing to the shared tier, and fills the local one."""
    local, shared = MemoryStore(), FaultStore(MemoryStore())
    shared.inner.put("k", b"garbage")
    with TieredStore(local, shared, scratch=tmp_path, verify=intact, read_only=True) as store:
        assert store.get("k") == b"garbage"
        shared.inner.replace("k", b"k-value")
        assert store.get("k") == b"k-value"
        with pytest.raises(StoreReadOnlyError):
            store.put("l", b"l")
    assert local.peek("k") == b"k-value"
    assert set(shared.calls) <= {"get", "close"}


# -- trouble ---------------------------------------------------------------------------------------------------------


def test_one_deadline_and_then_no_more(store, shared):
    """After failures in a row the shared tier is not asked any more; a miss says why, and puts go on."""
    shared.fail("get", StoreUnavailableError("gone"), times=None)
    for _ in range(3):
        with pytest.raises(StoreUnavailableError, match="gone"):
            store.get("k")
    for _ in range(5):
        with pytest.raises(StoreUnavailableError, match="is not asked"):
            store.get("k")
    assert shared.calls["get"] == 3
    assert store.put("k", b"k-value") is True
    assert store.get("k") == b"k-value"
    assert store.flush(60) is False
    assert shared.calls["put"] == 0
    counted = store.tier_counters()
    assert counted["shared_errors"] == 3
    assert counted["shared_breaker_open"] == 1


def test_timeouts_are_counted(store, shared):
    """An answer that did not come in time counts as a timeout."""
    shared.fail("get", StoreBusyError("slow"))
    with pytest.raises(StoreBusyError):
        store.get("k")
    assert store.tier_counters()["shared_timeouts"] == 1


def test_recovery_is_found_behind_the_program(local, shared, clock, monkeypatch):
    """After the cool-down a probe in the background closes the breaker, and what had waited is uploaded."""
    breaker, closed = CircuitBreaker(clock=clock), threading.Event()
    breakers = {shared.url: breaker, local.url: CircuitBreaker()}
    monkeypatch.setattr("ejcache.stores.tiered.store.breaker_for", breakers.get)
    store = TieredStore(local, shared, drain_seconds=60)
    breaker.fail(seconds=100)
    store.put("k", b"k-value")
    assert store.flush(60) is False
    succeed = breaker.succeed
    breaker.succeed = lambda: (succeed(), closed.set())
    gate = shared.block("contains")
    clock.now += breaker.retry_in
    with pytest.raises(StoreUnavailableError):
        store.get("other")
    assert gate.reached.wait(60)
    gate.opened.set()
    assert closed.wait(60)
    assert breaker.is_open is False
    assert store.get("other") is None
    assert store.flush(60) is True
    assert shared.inner.peek("k") == b"k-value"
    store.close()


def test_failed_upload_is_tried_again(store, shared):
    """An upload that failed is made later, and once only."""
    shared.fail("put", StoreUnavailableError("reset"))
    store.put("k", b"k-value")
    store.worker.drain(patience=60, limit=60)
    assert shared.inner.contains("k") is False
    assert store.flush(60) is True
    assert shared.inner.peek("k") == b"k-value"
    assert shared.calls["put"] == 2


class FailedLately(MemoryBucket):
    """A bucket that has failed this host shortly before, and that is asked as soon as somebody opens `gate`."""

    def __init__(self, note):
        super().__init__()
        self.breaker = CircuitBreaker()
        self.breaker.use_note(note, seconds=60.0)
        self.gate = threading.Event()
        self.prepared = 0
        self.asked = []

    def prepare(self, *, wait=0.0):
        self.prepared += 1

    def _prepare(self, make_seconds):
        self.asked.append(make_seconds)
        if not self.gate.wait(60):
            raise StoreNotAskedError("its library is still loading")


@pytest.fixture(params=[5, 0], ids=["", "no thread has begun"])
def failed_lately(request, tmp_path, monkeypatch):
    """A store whose copies have three entries, which a killed process was to upload to a bucket that had failed."""
    local, note = LocalStore(tmp_path / "local"), StorageNote(tmp_path / "scratch" / "storage")
    note.leave(FAILED)
    for number in range(3):
        local.put(f"k{number}", b"value")

    def leave():
        markers = PendingUploads(tmp_path / "scratch" / "spool")
        assert all(markers.add(f"k{number}", PUT) for number in range(3))

    in_fork(leave)
    bucket, worker = FailedLately(note), Scheduler(threads=request.param)
    shared = SharedStore(bucket)
    breakers = {shared.url: bucket.breaker, local.url: CircuitBreaker()}
    monkeypatch.setattr("ejcache.stores.tiered.store.breaker_for", breakers.get)
    store = TieredStore(local, shared, scratch=tmp_path / "scratch", drain_seconds=600.0, worker=worker)
    assert all(store.get(f"k{number}") == b"value" for number in range(3))
    yield store
    store.close()


def markers_of(tmp_path):
    return [
        path for path in (tmp_path / "scratch/spool").rglob("*") if path.is_file() and path.parent.name != "present"
    ]


def test_the_end_of_a_start_does_not_wait_for_storage_that_failed_lately(failed_lately, tmp_path):
    """One upload asks it in the background; all three stay for the next start, and are counted."""
    bucket, later = failed_lately.shared.bucket, []
    failed_lately.before_close(lambda: later.append("asked"))
    failed_lately.put("new", b"value")
    failed_lately.finish()
    assert len(bucket.asked) <= 1
    assert bucket.prepared == 0
    assert later == []
    assert failed_lately.tier_counters()["shared_spooled"] == 4
    assert len(markers_of(tmp_path)) == 4
    bucket.gate.set()


def test_a_start_that_hits_everything_sends_what_waits_once_the_storage_answers(failed_lately, tmp_path):
    """The others follow the upload that was answered."""
    bucket = failed_lately.shared.bucket
    bucket.gate.set()
    failed_lately.flush(0)  # takes over what waits, as a thread does if one begins in time
    failed_lately.worker.drain(patience=60, limit=60)
    failed_lately.finish()
    assert [bucket.read(entry_name(f"k{number}")).data for number in range(3)] == [b"value"] * 3
    assert markers_of(tmp_path) == []
    assert "shared_spooled" not in failed_lately.tier_counters()


def test_uploads_that_wait_for_the_first_are_called_back(failed_lately):
    """Who waits for the try of an upload, such as a lease, is not kept waiting by storage that failed."""
    called = threading.Event()
    failed_lately.put("first", b"value")
    failed_lately.put("second", b"value")
    failed_lately.when_uploaded("second", called.set)
    assert called.wait(60)
    assert failed_lately.flush(0) is False
    failed_lately.shared.bucket.gate.set()


def test_closing_does_not_wait_for_a_stalled_upload(tmp_path):
    """A shared tier that stalls keeps a closing program no longer than its patience, and the rest is spooled."""
    local, shared = LocalStore(tmp_path / "local"), FaultStore(MemoryStore())
    two = Scheduler(threads=2)
    store = TieredStore(local, shared, scratch=tmp_path / "scratch", drain_seconds=0.05, worker=two)
    gates = [shared.block("put"), shared.block("put", nth=2)]
    for n in range(5):
        store.put(f"k{n}", b"x")
    assert all(gate.reached.wait(60) for gate in gates)
    store.close()
    assert store.tier_counters()["shared_spooled"] == 5
    for gate in gates:
        gate.opened.set()


def test_when_uploaded(store, shared):
    """A callback comes after the upload was tried, whatever came of it, and at once where there is none."""
    called = threading.Event()
    assert store.when_uploaded("absent", called.set) is False
    assert called.is_set()
    for outcome in ("works", "fails"):
        called.clear()
        gate = shared.block("put")
        if outcome == "fails":
            shared.fail("put", StoreUnavailableError("gone"))
        store.put(outcome, outcome.encode())
        assert gate.reached.wait(60)
        assert store.when_uploaded(outcome, called.set) is True
        assert not called.is_set()
        gate.opened.set()
        assert called.wait(60)
        # Still known a moment later, when nothing is to be waited for.
        called.clear()
        assert store.when_uploaded(outcome, called.set) is True
        assert called.is_set()


def test_tasks_before_closing(shared):
    """Tasks that were to run before closing run each time the store is closed, before the tiers are."""
    seen = []
    store = TieredStore(MemoryStore(), shared)
    store.before_close(lambda: seen.append(shared.calls["close"]))
    store.put("k", b"x")
    store.close()
    store.get("k")
    store.close()
    assert seen == [0, 1]


def test_counters_of_tiers_are_taken_once(store):
    """Counts are handed out once, and stay in the total."""
    store.put("k", b"k")
    store.get("k")
    assert store.take_tier_counters()["local_hits"] == 1
    assert "local_hits" not in store.take_tier_counters()
    assert store.tier_counters()["local_hits"] == 1


def test_fork_during_an_upload(store, shared):
    """A fork's child neither waits for nor repeats its parent's uploads, and makes its own."""
    gate = shared.block("put")
    store.put("parent", b"parent")
    assert gate.reached.wait(60)

    def child():
        shared.disarm()
        has_none = store.flush(0)
        put = store.put("child", b"child")
        return has_none, put, store.flush(60), sorted(info.key for info in shared.inner.entries())

    assert in_fork(child) == (True, True, True, ["child"])
    gate.opened.set()
    assert store.flush(60) is True
    assert [info.key for info in shared.inner.entries()] == ["parent"]
