"""Upkeep of shared storage: what a pass removes and what it spares, and who makes one, and when."""

from __future__ import annotations

import time

import pytest
from buckets import GcsServer, gcs_bucket
from helpers import used_in
from helpers import uses as as_uses
from memory_bucket import MemoryBucket
from steps import Steps

from ejcache.bucket.base import BlobInfo
from ejcache.bucket.breaker import breaker_for
from ejcache.bucket.files import FileBucket
from ejcache.bucket.object_names import ENTRIES, TEMPORARY, entry_name, key_of_name
from ejcache.coordination.leases import MISSED_BEATS
from ejcache.coordination.shared_leases import LEASES, StoreLeases
from ejcache.errors import StoreReadOnlyError, StoreUnavailableError
from ejcache.journal.format import JOURNALS, SNAPSHOT, encode_journal
from ejcache.maintenance.eviction import BucketScan, EvictionPass, run_pass
from ejcache.maintenance.eviction_plan import EvictionPolicy
from ejcache.maintenance.pass_scheduler import MaintenanceScheduler, attach
from ejcache.stores.memory import MemoryStore
from ejcache.stores.shared.store import SharedStore
from ejcache.stores.tiered.store import TieredStore
from ejcache.util.writer import process_name

DAY = 86_400.0
HOUR = 3_600.0


@pytest.fixture(params=["memory", "files"])
def objects(request, tmp_path):
    return MemoryBucket() if request.param == "memory" else FileBucket(tmp_path / "shared")


def fill(objects, keys, size=10):
    for key in keys:
        objects.write(entry_name(key), bytes(size))


def keys(objects):
    return sorted(key_of_name(info.name) for info in objects.walk(ENTRIES))


def used(objects, **uses):
    """A journal of uses, as seconds before an hour from now."""
    at = {key: time.time() + HOUR - ago for key, ago in uses.items()}
    objects.write(f"{JOURNALS}2026-01-01/{process_name()}-0", encode_journal(as_uses(at)))


def later():
    """An hour from now, when nothing is new any more."""
    return time.time() + HOUR


# -- a pass ----------------------------------------------------------------------------------------------------------


def test_least_recently_used_goes_first(objects):
    """A pass removes what was used longest ago by anybody's journal, until the limit holds."""
    fill(objects, "abcdef")
    used(objects, a=1000, b=2000, d=900)
    used(objects, b=1100, c=1900)
    report = run_pass(objects, EvictionPolicy(max_size=40), now=later)
    assert keys(objects) == ["a", "b", "c", "d"]
    assert (report.entries, report.size, report.removed, report.freed, report.journals) == (6, 60, 2, 20, 2)
    assert run_pass(objects, EvictionPolicy(max_size=30), now=later).removed == 1
    assert keys(objects) == ["a", "b", "d"]


@pytest.mark.parametrize("days", [1, -1])
def test_the_clock_of_the_storage_decides(monkeypatch, days):
    """A host whose clock is a day off spares what was made, or journalled as used, in the last five minutes."""
    now = [time.time() - 2 * DAY]
    objects = MemoryBucket(clock=lambda: now[0])
    fill(objects, ["unused", "used by a host that is behind", "used by a host that is ahead"])
    now[0] += 2 * DAY - 200
    fill(objects, ["new"])
    for where, off in (("behind", -DAY), ("ahead", DAY)):
        journal = encode_journal(as_uses({f"used by a host that is {where}": now[0] + off}))
        objects.write(f"{JOURNALS}2026-01-01/{process_name()}-0", journal)
    now[0] += 190
    monkeypatch.setattr(time, "time", lambda: now[0] + days * DAY)
    # As `prune --dry-run` opens it: what it says is what `prune` does.
    only_read = SharedStore(objects, read_only=True)
    planned = run_pass(only_read, EvictionPolicy(max_size=0), dry_run=True)
    assert (planned.removed, planned.in_use) == (1, 3)
    report = run_pass(objects, EvictionPolicy(max_size=0))
    assert keys(objects) == ["new", "used by a host that is ahead", "used by a host that is behind"]
    assert (report.removed, report.in_use) == (1, 3)
    assert [info.name for info in objects.walk(TEMPORARY)] == []


def test_without_the_right_to_write_the_clock_is_the_hosts():
    """A dry run with credentials that may only read plans by this host's clock."""
    objects = MemoryBucket()
    fill(objects, "ab")
    objects.write = lambda *_, **__: (_ for _ in ()).throw(StoreReadOnlyError("no"))
    report = run_pass(objects, EvictionPolicy(max_size=0), dry_run=True, in_use_seconds=-1)
    assert report.removed == 2


def test_what_is_in_use_stays(objects):
    """What was made or used within the last minutes stays, even over the limit."""
    fill(objects, "ab")
    assert run_pass(objects, EvictionPolicy(max_size=0)).removed == 0
    used(objects, a=100, b=400)
    run_pass(objects, EvictionPolicy(max_size=0), now=later)
    assert keys(objects) == ["a"]
    assert run_pass(objects, EvictionPolicy(max_size=0), in_use_seconds=0, now=later).removed == 1


@pytest.mark.parametrize("policy", [None, EvictionPolicy()])
def test_nothing_goes_without_a_policy(objects, policy):
    """Without a limit journals are folded, and nothing is removed."""
    fill(objects, "ab")
    used(objects, a=100)
    report = run_pass(objects, policy, now=later)
    assert (report.removed, report.journals) == (0, 1)
    assert keys(objects) == ["a", "b"]


def test_replaced_since_the_listing(objects):
    """An entry that was replaced after it was listed is not removed."""
    fill(objects, "ab")
    eviction = EvictionPass(objects, EvictionPolicy(max_size=0), in_use_seconds=0, now=later)
    objects.write(entry_name("a"), b"another")
    report = eviction.run()
    assert (report.removed, report.gone) == (1, 1)
    assert keys(objects) == ["a"]


def test_stopped_in_the_middle(objects):
    """A pass that is told to stop removes nothing more."""
    fill(objects, "abc")
    report = run_pass(objects, EvictionPolicy(max_size=0), now=later, stopped=lambda: True)
    assert (report.removed, report.planned, report.left) == (0, 3, 3)
    assert keys(objects) == ["a", "b", "c"]


def test_a_dry_run_changes_nothing(objects):
    """A dry run says what would go by everybody's uses, and leaves the entries and the journals where they are."""
    fill(objects, "ab")
    used(objects, a=1000)
    before = sorted(info.name for info in objects.walk("v1/"))
    report = run_pass(objects, EvictionPolicy(max_size=10), now=later, dry_run=True)
    assert (report.dry_run, report.entries, report.removed, report.freed, report.left) == (True, 2, 1, 10, 1)
    assert sorted(info.name for info in objects.walk("v1/")) == before
    scan = BucketScan(objects)
    assert {entry.key: entry.last_used > entry.created for entry in scan.entries()} == {"a": True, "b": False}


def test_leftovers_of_dead_processes():
    """Leases and half-written files of dead processes go after a day; what is not named as ours stays."""
    objects = MemoryBucket()
    foreign = [f"{LEASES}no%lease", f"{TEMPORARY}thesis.tex", "v1/notes.txt", "v1/later/old"]
    for name in (*foreign, f"{LEASES}old", f"{TEMPORARY}{process_name()}"):
        objects.write(name, b"x")
    assert run_pass(objects, None, now=lambda: time.time() + DAY - 60).swept == 0
    assert run_pass(objects, None, now=lambda: time.time() + DAY + 60).swept == 2
    left = sorted(info.name for info in objects.walk("v1/"))
    assert left == sorted([SNAPSHOT, *foreign])


@pytest.mark.parametrize("hostile", ["used", "leases"])
def test_one_step_that_fails_stops_no_other(hostile):
    """What others wrote beside the entries can fail one step of tidying up, and neither eviction nor the next step."""
    objects = MemoryBucket()
    fill(objects, "ab")
    for name in (f"{LEASES}old", f"{JOURNALS}2020-01-01/{process_name()}-0"):
        objects.write(name, b"x")
    delete_many = objects.delete_many

    def failing(wanted):
        wanted = list(wanted)
        if any(hostile in name for name, _ in wanted):
            raise RecursionError("deep")
        return delete_many(wanted)

    objects.delete_many = failing
    report = run_pass(objects, EvictionPolicy(max_size=0), now=lambda: time.time() + 2 * DAY)
    assert (report.removed, len(report.problems)) == (2, hostile == "leases")
    names = [info.name for info in objects.walk("v1/")]
    assert any("leases" in name for name in names) is (hostile == "leases")


def test_names_of_others_are_no_entries(objects):
    """What is below the entries and is none of ours is neither counted nor removed."""
    objects.write(f"{ENTRIES}zz/foreign", b"x")
    assert run_pass(objects, EvictionPolicy(max_size=0), now=later).entries == 0
    assert objects.read(f"{ENTRIES}zz/foreign") is not None


def test_requests_on_a_bucket():
    """A pass over a bucket is one listing, a look at what was folded, one request per journal, batched deletes, and one
    for the policy.
    """
    with GcsServer() as server:
        bucket = gcs_bucket(server)
        try:
            fill(bucket, [f"k{n}" for n in range(250)])
            used(bucket, k0=1000)
            server.clear_requests()
            report = run_pass(bucket, EvictionPolicy(max_size=1000), now=later)
            requests = list(server.requests)
            assert (report.removed, len(keys(bucket))) == (150, 100)
            assert "k0" in keys(bucket)
        finally:
            bucket.close()
    assert len([r for r in requests if r.method == "GET" and r.path.endswith("/o")]) == 1
    # The snapshot and the journal are read, the first is written; a batch of journals, two of entries; the policy is
    # read for places that are over.
    assert len(requests) == 1 + 2 + 1 + 1 + 2 + 1


# -- who and when ----------------------------------------------------------------------------------------------------


class Process:
    """One of several that use a store."""

    def __init__(self, objects, clock, *, limit=10**10, chance=0.5):
        self.stored = 0
        self.limit = limit
        self.asked = 0
        self.steps = Steps(clock)
        self.leases = StoreLeases(objects, scheduler=self.steps)
        self.scheduler = MaintenanceScheduler(
            SharedStore(objects),
            self.leases,
            policy=self.policy,
            stored=lambda: self.stored,
            clock=clock,
            chance=lambda: chance,
        )

    def policy(self):
        self.asked += 1
        return EvictionPolicy(max_size=self.limit) if self.limit else None

    def tick(self):
        report = self.scheduler.run_if_due()
        self.steps.step()
        return report


def test_now_and_then(clock):
    """A process makes a pass when the time has come, and not before."""
    process = Process(MemoryBucket(), clock)
    assert process.tick() is None
    clock.now += 899
    assert process.tick() is None
    clock.now += 1
    assert process.tick() is not None
    assert process.tick() is None
    clock.now += 900
    assert process.tick() is not None


def test_one_of_many(clock):
    """Of many processes whose time has come one makes a pass; the others see that, and wait for the next time."""
    objects = MemoryBucket()
    processes = [Process(objects, clock) for _ in range(10)]
    assert [process.tick() for process in processes] == [None] * 10
    clock.now += 900
    assert [process.tick() is not None for process in processes] == [True] + [False] * 9
    clock.now += 60
    assert [process.tick() for process in processes] == [None] * 10
    clock.now += 900
    assert sum(process.tick() is not None for process in processes) == 1


def test_after_storing_a_share(clock):
    """Who has stored a twentieth of the limit makes a pass at once, and again after as much."""
    process = Process(MemoryBucket(), clock, limit=10**10)
    process.stored = 400_000_000
    assert process.tick() is None
    process.stored = 500_000_000
    assert process.tick() is not None
    assert process.tick() is None
    process.stored = 1_000_000_000
    assert process.tick() is not None


def test_small_limits_do_not_keep_it_busy(clock):
    """With a small limit a pass comes after 64 MiB, not after every entry; without one, by time alone."""
    process = Process(MemoryBucket(), clock, limit=1000)
    process.stored = 60 << 20
    assert process.tick() is None
    process.stored = 64 << 20
    assert process.tick() is not None
    process.limit = None
    process.stored = 10**12
    assert process.tick() is None


def test_chance_at_the_end(clock):
    """A program that ends makes a pass with the chance that is its share."""
    for chance, expected in ((0.09, True), (0.11, False)):
        process = Process(MemoryBucket(), clock, chance=chance)
        process.stored = 50_000_000
        assert (process.scheduler.run_at_exit() is not None) is expected
    assert Process(MemoryBucket(), clock, chance=0.0).scheduler.run_at_exit() is None


def test_the_end_of_most_programs_asks_for_no_policy(clock):
    """A program that stored little would make a pass by no policy with this chance, so that it makes no request."""
    for stored, asks in ((0, False), (10 << 20, False), (16 << 20, True)):
        process = Process(MemoryBucket(), clock, limit=None, chance=0.2)
        process.stored = stored
        assert process.scheduler.run_at_exit() is None
        assert bool(process.asked) is asks


def test_another_is_at_it(clock):
    """While another process makes its pass, one that is due makes none."""
    objects = MemoryBucket()
    busy, process = Process(objects, clock), Process(objects, clock)
    lease = busy.leases.acquire("ejcache upkeep")
    assert lease is not None
    process.stored = 10**9
    assert process.tick() is None
    lease.release()
    busy.steps.step()
    process.stored = 2 * 10**9
    assert process.tick() is not None


def test_dead_in_the_middle(clock):
    """When the process that made a pass has died, the next who is due takes over, after some heartbeats were missed."""
    objects = MemoryBucket()
    Process(objects, clock).leases.acquire("ejcache upkeep")
    process = Process(objects, clock)
    made = []
    for _ in range(MISSED_BEATS + 1):
        process.stored += 10**9
        made.append(process.tick() is not None)
        clock.now += 60
    assert made == [False] * MISSED_BEATS + [True]


def test_deposed_in_the_middle(clock):
    """A process that was stopped and has lost its election removes nothing when it goes on."""
    made = [1.0]
    objects = MemoryBucket(clock=lambda: made[0])
    fill(objects, "abc")
    made[0] += HOUR
    process, other = Process(objects, clock, limit=1), Process(objects, clock)
    walk = objects.walk

    def stopped(prefix):
        listed = list(walk(prefix))
        other.leases.take_over("ejcache upkeep", other.leases.look("ejcache upkeep"))
        clock.now += 10
        process.steps.step()
        return iter(listed)

    objects.walk = stopped
    process.stored = 10**9
    report = process.tick()
    objects.walk = walk
    assert (report.removed, report.planned, report.left) == (0, 3, 3)


def test_trouble_is_no_error(clock):
    """While the storage fails, maintenance waits, and raises nothing."""
    objects = MemoryBucket()
    process = Process(objects, clock)

    def gone(*request):
        raise StoreUnavailableError("gone")

    objects.before = gone
    process.stored = 10**9
    assert process.tick() is None
    clock.now += 10_000
    assert process.tick() is None
    assert process.scheduler.run_at_exit() is None


# -- with a store ----------------------------------------------------------------------------------------------------


def tiered(bucket, **options):
    return TieredStore(MemoryStore(), SharedStore(bucket, **options), drain_seconds=60)


def test_uses_are_written_down(tmp_path):
    """A program that ends has written down what it used, from whichever tier."""
    bucket = FileBucket(tmp_path / "shared")
    fill(bucket, "abc")
    store = tiered(bucket)
    assert attach(store) is True
    for key in ("a", "b", "a"):
        assert store.get(key) is not None
        store.note_used(key)
    store.close()
    assert sorted(used_in(bucket)) == ["a", "b"]
    assert len(list(bucket.walk(JOURNALS))) == 1
    store.note_used("a")
    store.close()
    assert len(list(bucket.walk(JOURNALS))) == 2


def test_limit_of_a_bucket(tmp_path):
    """A program that stores more than the bucket's limit leaves it within the limit, with what was used last."""
    bucket = FileBucket(tmp_path / "shared")
    fill(bucket, ["old", "older"], size=40 << 20)
    old = {"old": 1e9 + 1, "older": 1e9}
    walk = bucket.walk

    def aged(prefix):
        for info in walk(prefix):
            created = old.get(key_of_name(info.name) or "", info.created)
            yield BlobInfo(info.name, info.size, created, info.version)

    bucket.walk = aged
    store = tiered(bucket, max_size=120 << 20)
    attach(store, chance=lambda: 0.0)
    for n in range(2):
        store.put(f"new-{n}", bytes(35 << 20))
    assert store.flush(60) is True
    store.close()
    assert keys(bucket) == ["new-0", "new-1", "old"]


def test_nothing_is_looked_after(tmp_path):
    """A read-only store, and a shared tier that is none of ours, are left alone."""
    bucket = FileBucket(tmp_path / "shared")
    assert attach(tiered(bucket, read_only=True)) is False
    assert attach(TieredStore(MemoryStore(), SharedStore(bucket), read_only=True)) is False
    assert attach(TieredStore(MemoryStore(), MemoryStore())) is False


def test_storage_in_trouble_is_not_looked_after(tmp_path):
    """While the breaker is open neither journals nor passes are tried."""
    bucket = FileBucket(tmp_path / "shared")
    fill(bucket, "a")
    store = tiered(bucket)
    assert attach(store) is True
    store.note_used("a")
    breaker_for(store.url).fail(seconds=100)
    store.close()
    assert list(FileBucket(bucket.path / "v1").walk("used")) == []
