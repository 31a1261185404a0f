"""Leases: who gets one, how a dead holder is told from a slow one, and what a single flight makes of it.

Time is stepped: `sleep` moves a clock and does what the test has planned for that moment.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from capabilities import needs
from memory_bucket import MemoryBucket
from steps import Steps
from store_processes import in_fork

from ejcache.bucket.base import ABSENT
from ejcache.bucket.files import FileBucket
from ejcache.coordination.host_leases import LocalLeases
from ejcache.coordination.leases import MISSED_BEATS, LeaseState, LivenessDetector
from ejcache.coordination.shared_leases import LEASES, StoreLeases
from ejcache.coordination.single_flight import LeaseLevel, SingleFlight, WaitingBudget
from ejcache.errors import StoreReadOnlyError, StoreUnavailableError
from ejcache.util.log import LONG_WAIT


class Time:
    """A clock that moves when somebody sleeps, and plans for moments to come."""

    def __init__(self):
        self.now = 100.0
        self.plans = []

    def __call__(self):
        return self.now

    def at(self, seconds, action):
        """Do this when so many seconds have passed from the beginning."""
        self.plans.append((100.0 + seconds, action))

    def sleep(self, seconds):
        self.now += seconds
        due = [plan for plan in self.plans if plan[0] <= self.now]
        self.plans = [plan for plan in self.plans if plan[0] > self.now]
        for _, action in sorted(due, key=lambda plan: plan[0]):
            action()


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def steps(time):
    return Steps(time)


def store_leases(kind, tmp_path, steps):
    objects = MemoryBucket() if kind == "memory" else FileBucket(tmp_path / "shared")
    return StoreLeases(objects, interval=3.0, scheduler=steps)


@pytest.fixture(params=["memory", "files", "local"])
def leases(request, tmp_path, steps):
    if request.param == "local":
        return LocalLeases(tmp_path / "leases", scheduler=steps)
    return store_leases(request.param, tmp_path, steps)


@pytest.fixture(params=["memory", "files"])
def shared_leases(request, tmp_path, steps):
    return store_leases(request.param, tmp_path, steps)


def publishing(program, lease, steps, *, after=0.0):
    """What a holder does when its work is done."""

    def publish():
        program.entry = "theirs"
        lease.release(after=after)
        steps.step()

    return publish


def beat(leases, lease):
    """Renew the lease, visibly also where time stamps are coarse."""
    before = leases.look("k").token
    for _ in range(1000):
        assert lease.renew() is True
        if leases.look("k").token != before:
            return
    raise AssertionError("a heartbeat is not seen")


# -- leases ----------------------------------------------------------------------------------------------------------


def test_one_holder(leases, steps):
    """A lease has one holder; others see it, and it can be had again once it is released."""
    assert leases.look("k") is None
    lease = leases.acquire("k")
    assert leases.acquire("k") is None
    seen = leases.look("k")
    assert seen.abandoned is False
    assert leases.acquire("another") is not None
    lease.release()
    steps.step()
    assert leases.look("k") is None
    again = leases.acquire("k")
    assert again is not None
    lease.release()  # a second time does nothing
    steps.step()
    assert leases.acquire("k") is None


def test_release_after_a_grace(leases, steps, time):
    """A lease that is released later is held until then."""
    lease = leases.acquire("k")
    lease.release(after=5.0)
    time.now += 4.9
    steps.step()
    assert leases.acquire("k") is None
    time.now += 0.2
    steps.step()
    assert leases.acquire("k") is not None


def test_a_lease_that_ends_soon_is_not_renewed(steps, time):
    """Within its grace period, which others would take it over after, a lease costs no heartbeat; before, it does."""
    objects = MemoryBucket()
    leases = StoreLeases(objects, interval=3.0, scheduler=steps)
    lease = leases.acquire("k")
    time.now += 2.9
    lease.release(after=leases.grace)
    steps.step()
    shown = leases.look("k")
    time.now += 2.9
    steps.step()
    assert (shown.is_done, leases.look("k")) == (True, shown)
    another = leases.acquire("another")
    another.release(after=600.0)
    time.now += 3.0
    steps.step()
    first = leases.look("another")
    time.now += 3.0
    steps.step()
    assert leases.look("another") != first


def test_takeover(leases, steps):
    """After a takeover the former holder finds out at its next heartbeat, and leaves the new holder's lease alone."""
    dead = leases.acquire("k")
    seen = leases.look("k")
    taken = leases.take_over("k", seen)
    assert dead.renew() is False
    assert dead.lost is True
    dead.release()
    steps.step()
    assert leases.acquire("k") is None
    assert taken.renew() is True


def test_a_lease_that_nobody_holds_any_more_is_lost(leases, steps):
    """Who took it over has released it, so its former holder finds nothing at its next heartbeat."""
    stopped = leases.acquire("k")
    taken = leases.take_over("k", leases.look("k"))
    taken.release()
    steps.step()
    assert leases.look("k") is None
    assert stopped.renew() is False
    assert stopped.lost is True


def test_one_takeover(leases):
    """Of all who saw the same holder die one takes its lease."""
    leases.acquire("k")
    seen = leases.look("k")
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: leases.take_over("k", seen), range(8)))
    assert len([lease for lease in taken if lease is not None]) == 1


def test_takeover_of_what_has_changed(leases):
    """A lease that has shown life since it was seen is not taken over."""
    lease = leases.acquire("k")
    seen = leases.look("k")
    beat(leases, lease)
    assert leases.take_over("k", seen) is None
    assert lease.renew() is True


def test_renewed_until_lost(leases, steps, time):
    """Each lease is renewed when that is due, and no more once it is lost."""
    leases.acquire("k")
    first = leases.look("k").token
    time.now += 3.0
    steps.step()
    assert leases.look("k").token != first
    taken = leases.take_over("k", leases.look("k"))
    time.now += 3.0
    steps.step()
    seen = leases.look("k").token
    taken.release()
    steps.step()
    time.now += 3.0
    steps.step()
    assert seen is not None
    assert leases.look("k") is None


def test_released_at_exit(run_forked, tmp_path):
    """At the end of a program its leases are released, and those that wait for their grace period at once."""
    run_forked(
        """
        from pathlib import Path
        from ejcache.bucket.files import FileBucket
        from ejcache.coordination import leases as leases_module
        from ejcache.coordination.host_leases import LocalLeases
        from ejcache.coordination.shared_leases import StoreLeases

        leases_module._EXIT_SECONDS = 60.0
        local, shared = LocalLeases(Path({place!r}) / "leases"), StoreLeases(FileBucket({place!r}))
        held = [leases.acquire(key) for leases in (local, shared) for key in ("a", "b")]
        assert None not in held
        held[0].release(after=3600.0)
        held[2].release(after=3600.0)
        """.format(place=str(tmp_path))
    )
    assert list((tmp_path / "leases").glob("*.lease")) == []
    assert list(FileBucket(tmp_path).walk(LEASES)) == []


def test_renewed_by_a_thread(tmp_path):
    """Leases are renewed and released in the background without anybody's help."""
    leases = LocalLeases(tmp_path / "leases", interval=0.01)
    lease = leases.acquire("k")
    first, released = leases.look("k").token, threading.Event()
    while leases.look("k").token == first:
        released.wait(0.01)
    lease.release(after=0.01)
    while leases.look("k") is not None:
        released.wait(0.01)


class NoDeletion(MemoryBucket):
    """Credentials that may create, and neither remove nor overwrite."""

    def write(self, name, data, *, version=None):
        if version == ABSENT:
            return super().write(name, data, version=version)
        raise StoreReadOnlyError("no storage.objects.delete")

    def delete(self, name, *, version=None):
        raise StoreReadOnlyError("no storage.objects.delete")


def test_credentials_that_cannot_give_leases_up(time, steps):
    """A dead lease that nobody may remove is waited for until it is known to be dead, and no further one is left."""
    objects = NoDeletion()
    first = StoreLeases(objects, interval=3.0, scheduler=steps)
    first.acquire("k").release()
    steps.step()
    with pytest.raises(StoreReadOnlyError, match="could not be released"):
        first.acquire("other")
    second = StoreLeases(objects, interval=3.0, scheduler=steps)
    flight = SingleFlight([LeaseLevel(second)], clock=time, sleep=time.sleep, budget=WaitingBudget())
    assert flight.run("k", lookup=lambda: None, work=lambda: "done", deadline=600) == "done"
    assert time.now - 100.0 < 20


def asked_of(bucket):
    """What the bucket is asked from now on, one word for each request."""
    asked = []
    bucket.before = lambda kind, *_: asked.append(kind)
    return asked


def test_a_wait_for_a_living_host_asks_once_for_its_age(time, steps):
    """Of the lease; in the first second, in which it is not renewed, nothing else is asked of it."""
    bucket = MemoryBucket()
    leases = StoreLeases(bucket, scheduler=steps)
    holder, program = leases.acquire("k"), Program()
    time.at(0.5, lambda: setattr(program, "entry", "theirs"))
    asked = asked_of(bucket)
    assert run(flight(leases, time, between_hosts=True), program) == "theirs"
    assert asked == ["write", "stat"]
    holder.end()


@pytest.mark.parametrize("is_reversed", [False, True])
def test_leases_of_a_host_that_died_a_moment_ago(time, steps, monkeypatch, is_reversed):
    """Fourteen cost 15 s in all: one is waited for until it has missed three heartbeats, and then others are old."""
    monkeypatch.setattr("ejcache.coordination.shared_leases.time", SimpleNamespace(time=time, monotonic=time))
    bucket = MemoryBucket(clock=time)
    keys = [f"k{number}" for number in range(14)]
    dead = StoreLeases(bucket, scheduler=steps)
    for key in keys:
        dead.acquire(key)
        time.sleep(3.0 / len(keys))  # no two of its heartbeats come at the same time
    died = time.now
    leases = StoreLeases(bucket, scheduler=Steps(time))
    host = flight(leases, time, between_hosts=True)
    if is_reversed:
        keys.reverse()
    asked, per_lease = asked_of(bucket), []
    for key in keys:
        before = len(asked)
        assert host.run(key, lookup=lambda: None, work=lambda: "executable", deadline=600.0) == "executable"
        per_lease.append(asked[before:])
    assert time.now - died <= 15.0
    assert len(per_lease[-1]) == 4


def test_a_dead_lease_on_a_host_whose_clock_is_behind(time, steps, monkeypatch):
    """The storage's clock decides, of a lease from a day that this host's clock has not reached, too."""
    monkeypatch.setattr("ejcache.coordination.shared_leases.time", SimpleNamespace(time=time, monotonic=time))
    bucket = MemoryBucket(clock=lambda: time() + 86_400)
    StoreLeases(bucket, scheduler=steps).acquire("k")
    leases = StoreLeases(bucket, scheduler=Steps(time))
    assert leases.look_for_dead("k") is None
    time.sleep(60)
    assert leases.look_for_dead("k") is not None


@needs("fork")
def test_fork_holds_nothing(leases, steps):
    """A forked child neither holds nor releases its parent's leases."""
    lease = leases.acquire("k")

    def child():
        lease.release()
        steps.step()
        return leases.acquire("k") is None

    assert in_fork(child) is True
    assert lease.renew() is True


def test_dead_local_holder(tmp_path, steps):
    """The kernel says that a local holder is dead, and its lease can be had at once."""
    leases = LocalLeases(tmp_path / "leases", scheduler=steps)
    in_fork(lambda: leases.acquire("k") is not None)
    seen = leases.look("k")
    assert seen.abandoned is True
    assert leases.take_over("k", seen) is not None


def test_local_leases_without_a_directory(tmp_path, steps):
    """Where no file can be made, asking for a lease is an error and not a wait."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailableError):
        LocalLeases(tmp_path / "file", scheduler=steps).acquire("k")


def test_lost_answer_to_a_heartbeat(steps):
    """A heartbeat that was written although its answer was lost does not cost the lease."""
    objects = MemoryBucket()
    leases = StoreLeases(objects, scheduler=steps)
    lease = leases.acquire("k")
    name = LEASES + "k"
    objects.write(name, objects.read(name).data)  # the same, as another version
    assert lease.renew() is True
    objects.write(name, objects.read(name).data)
    lease.release()
    steps.step()
    assert leases.look("k") is None


def test_a_heartbeat_whose_fate_is_unknown(steps, monkeypatch):
    """If the storage fails when the lease is looked at again, it counts as held until the next heartbeat."""
    objects = MemoryBucket()
    lease = StoreLeases(objects, scheduler=steps).acquire("k")
    name = LEASES + "k"
    objects.write(name, objects.read(name).data)

    def gone(*args, **kwargs):
        raise StoreUnavailableError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(objects, "read", gone)
        assert lease.renew() is True
    assert lease.renew() is True
    objects.write(name, b'{"holder": "another", "beat": 1, "interval": 3.0}')
    assert lease.renew() is False


def test_trouble_while_beating(steps, monkeypatch):
    """A heartbeat that cannot be written, and a lease that cannot be released, raise nothing."""
    objects = MemoryBucket()
    leases = StoreLeases(objects, scheduler=steps)
    lease = leases.acquire("k")

    def gone(*args, **kwargs):
        raise StoreUnavailableError("gone")

    with monkeypatch.context() as patched:
        for method in ("read", "write", "delete"):
            patched.setattr(objects, method, gone)
        assert lease.renew() is True
        lease.release()
        steps.step()
    assert leases.look("k") is not None


HOSTILE = [
    b"",
    b"{",
    b"[]",
    b"7",
    b'{"holder": 1}',
    b'{"holder":"h","beat":1,"interval":"x"}',
    b'{"holder":"h","beat":1,"interval":NaN}',
    b'{"holder":"h","beat":1,"interval":Infinity}',
    b'{"holder":"h","beat":1,"interval":-1}',
    b'{"holder":"h","beat":Infinity,"interval":3}',
    b'{"holder":"h","beat":1,"interval":1' + b"0" * 400 + b"}",
    b'{"holder":"h","beat":1' + b"0" * 4_500 + b',"interval":3}',
    b"[" * 200_000,
    b'{"holder":"h","beat":1,"interval":3,"more":"' + b"x" * 5_000 + b'"}',
]


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_lease(steps, time, data):
    """A lease that ejcache did not write is no error, and is taken over like that of a dead holder."""
    objects = MemoryBucket()
    objects.write(f"{LEASES}k", data, version=ABSENT)
    leases = StoreLeases(objects, scheduler=steps)
    assert leases.acquire("k") is None
    assert leases.look("k").interval == 3.0
    program = Program()
    assert run(flight(leases, time), program) == "executable"
    assert time.now - 100.0 < 15.0


def test_the_fields_of_a_lease(steps):
    """A lease object says who holds it, how often it was renewed, and how often it will be."""
    objects = MemoryBucket()
    leases = StoreLeases(objects, scheduler=steps)
    leases.acquire("own")
    fields = json.loads(objects.read(f"{LEASES}own").data)
    assert sorted(fields) == ["beat", "holder", "interval"]
    assert (fields["beat"], fields["interval"]) == (0, 3.0)


def test_file_holder_overwrites_a_takeover(tmp_path, steps, monkeypatch):
    """On a file system, a stopped holder's heartbeat that lands on its successor's lease leaves one holder."""
    bucket = FileBucket(tmp_path / "shared")
    leases = StoreLeases(bucket, scheduler=steps)
    stopped = leases.acquire("k")
    replace, taken = Path.replace, []

    def stop_and_replace(path, target):
        # The holder has compared, and is stopped before it renames.
        if not taken:
            taken.append(leases.take_over("k", leases.look("k")))
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", stop_and_replace)
    assert stopped.renew() is True
    (taken,) = taken
    assert taken.renew() is False
    assert taken.lost is True


# -- liveness --------------------------------------------------------------------------------------------------------


def seen_lease(token, interval=3.0, **fields):
    return LeaseState(token, interval, **fields)


def test_dead_after_three_missed_beats(time):
    """A holder is dead when three heartbeats in a row have not been seen, and not before."""
    detector = LivenessDetector(clock=time)
    seen = []
    for _ in range(12):
        seen.append(detector.is_dead(seen_lease("same")))
        time.now += 1.0
    assert seen.index(True) == 3 * MISSED_BEATS


def test_slow_but_alive(time):
    """A holder whose heartbeat is seen now and then is never dead."""
    detector = LivenessDetector(clock=time)
    for n in range(50):
        assert detector.is_dead(seen_lease(f"beat {n // 8}")) is False
        time.now += 1.0


def test_a_waiter_that_was_stopped(time):
    """A waiter's own absence, however long, counts as one missed heartbeat."""
    detector = LivenessDetector(clock=time)
    detector.is_dead(seen_lease("same"))
    time.now += 10_000
    assert detector.is_dead(seen_lease("same")) is False
    time.now += 3
    assert detector.is_dead(seen_lease("same")) is False
    time.now += 3
    assert detector.is_dead(seen_lease("same")) is True


# -- single flight ---------------------------------------------------------------------------------------------------


class Program:
    """Something to compile, once."""

    def __init__(self, entry=None, *, seconds=0.0, keeps=True, time=None, error=None):
        self.entry = entry
        self.seconds = seconds
        self.keeps = keeps
        self.time = time
        self.error = error
        self.compiled = 0
        self.looked = 0

    def lookup(self):
        self.looked += 1
        return self.entry

    def work(self):
        self.compiled += 1
        if self.time:
            self.time.sleep(self.seconds)
        if self.error:
            raise self.error
        if self.keeps:
            self.entry = "executable"
        return "executable"


def flight(leases, time, *, inner=(), budget=None, say_after=LONG_WAIT, **options):
    levels = [LeaseLevel(leases, **options), *map(LeaseLevel, inner)]
    clock = {"clock": time, "sleep": time.sleep, "jitter": lambda low, high: high}
    return SingleFlight(levels, budget=budget or WaitingBudget(), say_after=say_after, **clock)


def run(flight, program, *, deadline=3600.0, **options):
    return flight.run("k", lookup=program.lookup, work=program.work, deadline=deadline, **options)


def test_found_at_once(leases, time, steps):
    """What is there is given, and no lease is taken."""
    program = Program("executable")
    assert run(flight(leases, time), program) == "executable"
    assert (program.looked, program.compiled) == (1, 0)
    assert leases.look("k") is None


@pytest.mark.parametrize("near", [True, False])
def test_a_slow_look_is_not_repeated_for_what_is_not_near(near, leases, time, steps):
    """If the last look took long, another one, which may cost a request, is made only for an entry that is near."""
    program = Program("theirs" if near else None)
    answer = run(flight(leases, time, is_near=lambda key: near), program, missed_since=time.now - 100.0)
    assert (answer, program.looked) == (("theirs", 1) if near else ("executable", 0))


@pytest.mark.parametrize("left", [None, True, False])
def test_first_to_miss_compiles(left, leases, time, steps):
    """It gives the lease up, after its grace period if there is an entry; who says what the work left is believed."""
    program = Program()
    unasked = {"when_visible": lambda key, callback: pytest.fail("the store was asked")} if left is not None else {}
    said = {"left_entry": lambda: left} if left is not None else {}
    assert run(flight(leases, time, **unasked), program, **said) == "executable"
    assert program.compiled == 1
    steps.step()
    assert (leases.look("k") is None) == (left is False or not leases.grace)
    time.now += leases.grace
    steps.step()
    assert leases.look("k") is None


def test_shared_lease_costs_no_second_look(shared_leases, time, steps):
    """Taking a shared lease at once asks for the entry once, because leases outlive what they are held for."""
    program = Program()
    run(flight(shared_leases, time), program)
    assert program.looked == 1
    time.now += shared_leases.grace
    steps.step()
    program = Program()
    run(flight(shared_leases, time), program, missed_since=time.now)
    assert program.looked == 0


def test_finished_while_the_look_is_answered(leases, time, steps):
    """An answer that took longer than a lease outlives its work may be old: with the lease, the entry is looked for."""
    program = Program()

    def slow():
        found = program.entry
        time.sleep(leases.grace + 1.0)
        program.entry = "theirs"
        return found

    assert flight(leases, time).run("k", lookup=slow, work=program.work, deadline=60.0) == "theirs"
    assert program.compiled == 0
    steps.step()


def test_finished_while_leases_of_two_levels_are_taken(leases, time, steps, tmp_path):
    """The time to take both leases counts from the look: each of them may have taken less than the grace period."""
    program = Program()
    outer = LocalLeases(tmp_path / "outer", grace=1.0, scheduler=steps)
    flying = flight(outer, time, inner=[leases])
    takes = {}
    for level in (outer, leases):
        takes[level] = level.acquire

        def late(key, level=level):
            time.sleep(0.7 if level is outer else max(0.7, leases.grace - 0.3))
            program.entry = "theirs" if level is outer else program.entry
            return takes[level](key)

        level.acquire = late
    assert run(flying, program) == "theirs"
    assert program.compiled == 0
    steps.step()


def test_finished_between_look_and_lease(leases, time, steps):
    """What was made between the look and the lease is found, and not made again."""
    program = Program()
    flying = flight(leases, time)
    acquire = leases.acquire

    def late(key):
        time.sleep(leases.grace + 1.0)
        program.entry = "theirs"
        return acquire(key)

    leases.acquire = late
    assert run(flying, program) == "theirs"
    assert program.compiled == 0
    steps.step()
    assert leases.look("k") is None


def test_waits_for_the_holder(leases, time, steps):
    """Who misses while somebody compiles waits for it, looks with pauses that grow, and compiles nothing."""
    lease = leases.acquire("k")
    program = Program()
    for second in range(1, 100):
        time.at(second, steps.step)

    time.at(50.0, publishing(program, lease, steps, after=1.0))
    flying = flight(leases, time)
    assert run(flying, program) == "theirs"
    assert program.compiled == 0
    assert 50.0 <= time.now - 100.0 <= 54.0
    assert program.looked < 100


def counted(objects):
    """Count the reads of a bucket from now on."""
    reads = []
    read = objects.read
    objects.read = lambda name, **options: (reads.append(name), read(name, **options))[1]
    return reads


@pytest.mark.parametrize("seconds", [3.0, 60.0])
def test_a_waiting_host_asks_seldom(seconds, time, steps):
    """It sees a result half a second after it is there in the first five seconds, and two and a half seconds later on.

    Meanwhile it asks at most once in two seconds after the first five, and 0.8 times a second over a minute.
    """
    objects = MemoryBucket()
    leases = StoreLeases(objects, interval=3.0, scheduler=steps)
    lease = leases.acquire("k")
    for tenth in range(1, 700):
        time.at(tenth / 10, steps.step)
    program = Program()
    time.at(seconds, publishing(program, lease, steps, after=leases.grace))
    reads = counted(objects)
    assert run(flight(leases, time), program, missed_since=time.now) == "theirs"
    assert time.now - 100.0 - seconds <= (0.5 if seconds < 5 else 2.5)
    assert (len(reads) + program.looked) / seconds <= (6 if seconds < 5 else 0.8)


def test_a_lease_says_that_its_work_is_done(steps, time):
    """From when the entry can be seen until the lease goes; a lease without words says nothing of it."""
    leases = StoreLeases(MemoryBucket(), interval=3.0, scheduler=steps)
    lease = leases.acquire("k")
    assert leases.look("k").is_done is False
    time.now += 1.5
    lease.release(after=1.0)
    steps.step()
    assert leases.look("k").is_done is True
    time.now += 1.0
    steps.step()
    assert leases.look("k") is None


def test_a_lease_is_not_written_twice_in_a_second(steps, time):
    """Work of half a second is shown by the lease when that is a second old; hosts that wait look for the entry."""
    objects = MemoryBucket()
    leases = StoreLeases(objects, interval=3.0, scheduler=steps)
    lease = leases.acquire("k")
    began = time.now
    written = []
    write = objects.write

    def noted(name, data, **options):
        done = write(name, data, **options)
        if done is not None:
            written.append(time.now)
        return done

    objects.write = noted
    program = Program()
    time.at(0.5, publishing(program, lease, steps, after=leases.grace))
    assert run(flight(leases, time, between_hosts=True), program, missed_since=time.now) == "theirs"
    assert time.now - began <= 1.0
    while leases.look("k") is not None:
        time.sleep(0.1)
        steps.step()
    assert len(written) == 1
    assert 1.0 <= written[0] - began <= 1.5


def test_nothing_came_of_it(leases, time, steps, caplog):
    """Work that left no entry is not waited for again: who waited compiles; a wait of less than 5 s is silent."""
    lease = leases.acquire("k")
    time.at(3.0, lambda: (lease.release(), steps.step()))
    program = Program(keeps=False)
    flying = flight(leases, time)
    assert run(flying, program) == "executable"
    assert time.now - 100.0 < 4.0
    assert program.compiled == 1
    assert not caplog.records
    assert leases.look("k") is None


def test_dead_holder_is_taken_over(shared_leases, time):
    """A holder that shows no more life is taken over after three of its heartbeats."""
    shared_leases.acquire("k")
    program = Program()
    flying = flight(shared_leases, time)
    assert run(flying, program) == "executable"
    assert program.compiled == 1
    assert 9.0 <= time.now - 100.0 <= 12.0


def test_dead_holder_had_published(shared_leases, time):
    """A holder that died after it had published is taken over from, and its entry is used."""
    shared_leases.acquire("k")
    program = Program()
    take_over = shared_leases.take_over

    def late(key, seen):
        program.entry = "theirs"
        return take_over(key, seen)

    shared_leases.take_over = late
    assert run(flight(shared_leases, time), program) == "theirs"
    assert program.compiled == 0


def test_slow_holder_and_deadline(leases, time, steps):
    """A holder that lives but never comes to an end is waited for until the deadline; then one compiles alone."""
    leases.acquire("k")
    for second in range(1, 200):
        time.at(second, steps.step)
    program = Program()
    flying = flight(leases, time)
    assert run(flying, program, deadline=60.0) == "executable"
    assert 60.0 <= time.now - 100.0 <= 61.0
    assert leases.look("k") is not None


@pytest.mark.parametrize("error", [RuntimeError("no memory"), KeyboardInterrupt()])
def test_failed_work_releases(leases, time, steps, error):
    """Work that fails or is interrupted gives its lease up at once, and fails as it would without."""
    program = Program(error=error)
    with pytest.raises(type(error)):
        run(flight(leases, time), program)
    steps.step()
    assert leases.look("k") is None


def test_held_until_visible(leases, time, steps):
    """The lease is held until others can see what was made, and a grace longer."""
    callbacks = []
    flying = flight(leases, time, when_visible=lambda *asked: callbacks.append(asked) or True)
    assert run(flying, Program()) == "executable"
    steps.step()
    assert leases.look("k") is not None
    key, visible = callbacks[0]
    assert key == "k"
    visible()
    time.now += leases.grace
    steps.step()
    assert leases.look("k") is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_interrupted_while_publishing(leases, time, steps, error):
    """If nobody can say when others will see the entry, the lease is released; only an interrupt is raised."""

    def interrupted(key, callback):
        raise error

    with pytest.raises(error) if error is KeyboardInterrupt else nullcontext():
        assert run(flight(leases, time, when_visible=interrupted), Program()) == "executable"
    steps.step()
    assert leases.look("k") is None


@pytest.mark.parametrize("deadline", [60, math.inf])
def test_threads_compile_once(leases, deadline):
    """Of many threads of one process that miss together one compiles, however long the others may wait."""
    program = Program()
    start = threading.Barrier(8)
    begun, go_on = threading.Event(), threading.Event()

    def work():
        begun.set()
        go_on.wait(60)
        return program.work()

    flying = SingleFlight([LeaseLevel(leases)])

    def one(_):
        start.wait(60)
        return flying.run("k", lookup=program.lookup, work=work, deadline=deadline)

    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(one, range(8))
        assert begun.wait(60)
        go_on.set()
        assert list(answers) == ["executable"] * 8
    assert program.compiled == 1


def test_threads_after_work_that_left_nothing(leases):
    """Threads whose neighbour's work left nothing work themselves, and falsy results are results."""
    entered = threading.Event()
    go_on = threading.Event()
    made = []

    def work():
        made.append(1)
        entered.set()
        go_on.wait(60)
        return 0

    flying = SingleFlight([LeaseLevel(leases)])
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(flying.run, "k", lookup=lambda: None, work=work, deadline=60)
        assert entered.wait(60)
        second = pool.submit(flying.run, "k", lookup=lambda: None, work=work, deadline=60)
        go_on.set()
        assert (first.result(60), second.result(60)) == (0, 0)
    assert len(made) == 2


def test_nested_flights(tmp_path, time, steps):
    """A host's flight around a flight between hosts: neighbours wait for their neighbour, which waits for the host."""
    local = LocalLeases(tmp_path / "leases", scheduler=steps)
    shared = store_leases("memory", tmp_path, steps)
    other_host = shared.acquire("k")
    program = Program()
    time.at(5.0, publishing(program, other_host, steps))
    assert run(flight(local, time, inner=[shared]), program, deadline=60.0) == "theirs"
    assert program.compiled == 0
    steps.step()
    assert local.look("k") is None


# -- what fails in the coordination, and for how long it is waited --------------------------------------------------


def test_waiting_is_bounded_for_the_process(leases, time, caplog):
    """A process that has waited for its whole deadline, for any keys, compiles at once from then on."""
    budget = WaitingBudget()
    taken = [leases.acquire(f"k{number}") for number in range(10)]
    for second in range(1, 200):
        time.at(second, lambda: [lease.renew() for lease in taken])
    flying = flight(leases, time, budget=budget)
    for number in range(10):
        program = Program()
        assert flying.run(f"k{number}", lookup=program.lookup, work=program.work, deadline=20.0) == "executable"
        assert program.compiled == 1
    assert 20.0 <= time.now - 100.0 < 21.0
    assert "compiles what it misses at once" in caplog.text
    for lease in taken:
        lease.end()


def test_waits_that_bring_an_entry_are_not_counted(leases, time, steps):
    """A wait at whose end there is an entry costs nothing of the process's budget."""
    budget = WaitingBudget()
    lease = leases.acquire("k")
    program = Program()
    for second in range(1, 20):
        time.at(second, steps.step)
    time.at(10.0, lambda: (setattr(program, "entry", "theirs"), lease.release()))
    assert run(flight(leases, time, budget=budget), program) == "theirs"
    assert budget.spent == 0.0


@pytest.mark.parametrize("error", [RecursionError, StoreUnavailableError])
@pytest.mark.parametrize("method", ["acquire", "look", "take_over"])
def test_whatever_fails_in_the_leases_means_alone(leases, time, caplog, method, error):
    """An exception of the leases, of whatever type, does not reach the program: it compiles."""
    caplog.set_level(logging.DEBUG)
    if method != "acquire":
        leases.acquire("k")

    def fail(*args):
        raise error("no good")

    setattr(leases, method, fail)
    if method == "take_over":
        leases.look = lambda _: LeaseState("same", 3.0, abandoned=True)
    program = Program()
    assert run(flight(leases, time), program, deadline=30.0) == "executable"
    assert program.compiled == 1
    assert "no good" in caplog.text


@pytest.mark.parametrize("kind", ["memory", "files", "local"])
def test_a_long_wait_is_said_once(kind, tmp_path, time, steps, caplog):
    """After five seconds one line says who is waited for, for what, and for how long at most."""
    if kind == "local":
        leases = LocalLeases(tmp_path / "leases", scheduler=steps)
    else:
        leases = store_leases(kind, tmp_path, steps)
    holder = leases.acquire("k")
    for beat_at in range(1, 60):
        time.at(float(beat_at), holder.renew)
    program = Program()
    time.at(30.0, publishing(program, holder, steps))
    answer = run(
        flight(leases, time), program, deadline=600.0, in_words=lambda key: f"the program {key} (92 s last time)"
    )
    assert answer == "theirs"
    said = [record.getMessage() for record in caplog.records if "waiting for" in record.getMessage()]
    host = re.escape(re.sub("[^A-Za-z0-9_.-]", "_", os.uname().nodename)[:80])
    assert len(said) == 1
    assert re.fullmatch(
        rf"ejcache: waiting for process {os.getpid()} on {host}, which compiles the program k \(92 s last time\): "
        r"5 s so far, at most 600 s",
        said[0],
    )


def test_another_thread_is_waited_for_until_its_work_is_done(leases, caplog):
    """However little a process waits for others: the same work, begun anew, would take longer; and it says so."""
    begun, said, made = threading.Event(), threading.Event(), []

    def work():
        begun.set()
        assert said.wait(60)
        made.append("executable")
        return made[0]

    def in_words(key):
        said.set()
        return key

    flying = SingleFlight([LeaseLevel(leases)], say_after=0.0)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(flying.run, "k", lookup=lambda: None, work=work, deadline=0.01)
        assert begun.wait(60)
        found = flying.run(
            "k", lookup=lambda: made[0] if made else None, work=lambda: "anew", deadline=0.0, in_words=in_words
        )
        assert (found, first.result(60)) == ("executable", "executable")
    assert "waiting for another thread of this process" in caplog.text


def test_a_signal_handler_does_not_wait_for_the_call_that_it_interrupts(leases):
    """It does the work itself."""
    flying = SingleFlight([LeaseLevel(leases)])

    def run(work):
        return flying.run("k", lookup=lambda: None, work=work, deadline=60)

    assert run(lambda: f"{run(lambda: 'inner')} and outer") == "inner and outer"


def test_a_lease_that_an_earlier_version_wrote(tmp_path, steps):
    """An empty lease file, and one with anything in it, is a lease of an unknown holder."""
    leases = LocalLeases(tmp_path / "leases", scheduler=steps)
    lease = leases.acquire("k")
    (path,) = (tmp_path / "leases").iterdir()
    for content in (b"", b"12 \x1b[31m\n", b"x" * 10_000, b"12 host"):
        path.write_bytes(content)
        assert leases.look("k").holder == ""
    lease.end()
