"""Leases that are asked for while the entry is looked up: who takes them, and that nobody keeps them for nothing."""

from __future__ import annotations

import threading
import time

import pytest
from memory_bucket import MemoryBucket
from steps import Clock, Steps

from ejcache.coordination.host_leases import LocalLeases
from ejcache.coordination.shared_leases import LEASES, StoreLeases
from ejcache.coordination.single_flight import LeaseLevel, SingleFlight
from ejcache.errors import StoreUnavailableError
from ejcache.stores.local.store import LocalStore
from ejcache.stores.shared.store import SharedStore
from ejcache.stores.tiered.store import TieredStore


class Host:
    """One process of a host, whose tasks run in `step`."""

    def __init__(self, bucket, place):
        self.clock = Clock()
        self.steps = Steps(self.clock)
        self.near = LocalLeases(place / "leases", grace=1.0, scheduler=self.steps)
        self.far = StoreLeases(bucket, scheduler=self.steps)
        levels = [LeaseLevel(self.near), LeaseLevel(self.far, between_hosts=True)]
        self.meanwhile = lambda: None
        self.flight = SingleFlight(levels, scheduler=self.steps, clock=self.clock, sleep=self.sleep)
        self.compiled = 0

    def sleep(self, seconds):
        self.clock.sleep(seconds)
        self.meanwhile()

    def step(self, seconds=0.0):
        self.clock.now += seconds
        self.steps.step()

    def work(self):
        self.compiled += 1
        return "compiled"

    def run(self, lookup=lambda: None, **options):
        options = {"deadline": 60.0, "missed_since": self.clock.now} | options
        return self.flight.run("k", lookup=lookup, work=self.work, **options)


@pytest.fixture
def bucket():
    return MemoryBucket()


@pytest.fixture
def host(bucket, tmp_path):
    return Host(bucket, tmp_path)


def held(bucket):
    return [info.name for info in bucket.walk(LEASES)]


def test_the_lease_that_was_asked_for_is_the_one(bucket, host):
    """What was asked for while the entry was looked up is not asked for again, and is released as any."""
    writes = []
    bucket.before = lambda kind, name, *_: writes.append(name) if kind == "write" else None
    host.flight.ask_ahead("k")
    host.flight.ask_ahead("k")  # another thread that looks for it
    host.step()
    assert held(bucket) == [f"{LEASES}k"]
    assert host.run() == "compiled"
    assert writes == [f"{LEASES}k"]
    host.step()
    host.step(host.far.grace)
    assert (held(bucket), host.near.look("k")) == ([], None)


def test_a_hit_drops_them(bucket, host):
    """What was found is not compiled: the leases go, also the one that is not answered yet."""
    for answered in (True, False):
        host.flight.ask_ahead("k")
        if answered:
            host.step()
        host.flight.drop_ahead("k")
        host.flight.drop_ahead("k")
        host.step()
        assert (held(bucket), host.near.look("k")) == ([], None)


def test_what_nobody_takes_is_released(bucket, host):
    """A program that is never compiled after all keeps nobody waiting; one that is compiled later asks anew."""
    host.flight.ask_ahead("k")
    host.step()
    host.step(9.0)
    assert held(bucket) == [f"{LEASES}k"]
    host.step(1.0)
    host.step()
    assert (held(bucket), host.near.look("k")) == ([], None)
    assert host.run() == "compiled"


def test_what_was_taken_is_kept(bucket, host):
    """The work that takes longer than anybody waits for leases that nobody takes has its leases until its end."""
    host.flight.ask_ahead("k")
    host.step()

    def work():
        host.step(30.0)
        assert held(bucket) == [f"{LEASES}k"]
        assert host.near.look("k") is not None
        return "compiled"

    host.work = work
    assert host.run() == "compiled"


def test_one_process_of_a_host_asks(bucket, host, tmp_path):
    """If another process of the host is at it, nothing is asked for: it waits for that one."""
    other = Host(bucket, tmp_path)
    other.flight.ask_ahead("k")
    host.flight.ask_ahead("k")
    host.step()
    assert held(bucket) == []
    other.step()
    assert held(bucket) == [f"{LEASES}k"]
    found = iter([None, "theirs"])

    def end():
        other.flight.drop_ahead("k")
        other.step()

    host.meanwhile = end
    assert host.run(lambda: next(found, "theirs")) in ("theirs", "compiled")
    assert held(bucket) in ([], [f"{LEASES}k"])


def test_another_host_has_it(bucket, host, tmp_path):
    """It is waited for, as if its lease had been asked for after the look-up."""
    other = Host(bucket, tmp_path / "other")
    theirs = other.far.acquire("k")
    host.flight.ask_ahead("k")
    host.step()
    entry = []
    host.meanwhile = lambda: entry.append("theirs")
    assert host.run(lambda: entry[0] if entry else None) == "theirs"
    host.step()
    host.step(host.near.grace)
    assert (host.compiled, host.near.look("k")) == (0, None)
    assert theirs.renew() is True


def test_storage_that_fails(bucket, host):
    """Without an answer the program is compiled alone, as without leases."""

    def fail(kind, name, *_):
        raise StoreUnavailableError("it is gone")

    bucket.before = fail
    host.flight.ask_ahead("k")
    host.step()
    assert host.run() == "compiled"


def test_work_without_leases_between_hosts_drops_theirs(bucket, host):
    """Who does not wait for other hosts does not have them wait either."""
    host.flight.ask_ahead("k")
    host.step()
    assert host.run(between_hosts=False) == "compiled"
    host.step()
    assert held(bucket) == []


def test_an_interrupt_leaves_no_lease(bucket, host, monkeypatch):
    """Ctrl-C while the answer is waited for: the lease that comes after it is released."""
    host.flight.ask_ahead("k")

    def interrupt(self, timeout=None):
        raise KeyboardInterrupt

    monkeypatch.setattr("concurrent.futures.Future.result", interrupt)
    with pytest.raises(KeyboardInterrupt):
        host.run()
    monkeypatch.undo()
    host.step()
    assert (held(bucket), host.near.look("k")) == ([], None)


def test_it_is_asked_for_while_the_look_up_waits(tmp_path):
    """After a slow look-up that found nothing, the next one and its lease are under way at the same time."""
    asked, may_answer = [], threading.Event()
    bucket = MemoryBucket()

    def before(kind, name, *_):
        asked.append((kind, name.split("/")[1]))
        if kind == "read" and name.endswith("second"):
            assert may_answer.wait(60)
        if kind == "write" and name == f"{LEASES}second":
            may_answer.set()

    bucket.before = before
    with TieredStore(LocalStore(tmp_path / "local"), SharedStore(bucket), scratch=tmp_path, slow_seconds=0.0) as store:
        flight = SingleFlight.of_store(store, directory=tmp_path / "leases", heartbeat=600.0)
        for key in ("first", "second"):
            found, _ = store.get_verified(key, beside=lambda key=key: flight.ask_ahead(key))
            assert found is None
        flight.run("second", lookup=lambda: None, work=lambda: "compiled", deadline=60, missed_since=time.monotonic())
        assert asked.count(("write", "leases")) == 1
    assert held(bucket) == []


@pytest.mark.parametrize("what", ["found", "quick", "refused"])
def test_when_a_lease_is_not_asked_for_ahead(tmp_path, what):
    """After a hit, a quick answer or a request that failed, the look-up is alone."""
    bucket = MemoryBucket()
    shared = SharedStore(bucket)
    slow = 600.0 if what == "quick" else 0.0
    if what == "found":
        shared.put("first", b"entry")
    with TieredStore(LocalStore(tmp_path / "local"), shared, scratch=tmp_path, slow_seconds=slow) as store:
        if what == "refused":
            shared.failed_tries = lambda: 1
        for key in ("first", "second"):
            store.get_verified(key, beside=lambda: pytest.fail("a lease was asked for"))
