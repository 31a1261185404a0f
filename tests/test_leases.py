"""Leases: who gets one, how a dead holder is told from a slow one, and what a single flight makes of it.

Time is stepped: `sleep` moves a clock and does what the test has planned for that moment.
"""

from __future__ import annotations

import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ejcache.errors import StoreReadOnlyError, StoreUnavailableError
from ejcache.stores.heart import Heart
from ejcache.stores.leases import MISSED_BEATS, Sighting, Watch
from ejcache.stores.leases_local import LocalLeases
from ejcache.stores.leases_shared import LEASES, StoreLeases
from ejcache.stores.objects import ABSENT, MemoryObjects
from ejcache.stores.shared_files import FileBucket
from ejcache.stores.single_flight import SingleFlight
from ejcache.testing.processes import in_fork


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


class StillHeart(Heart):
    """A heart without a thread: it does what is due when the test says so."""

    def _start(self):
        return True


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def heart(time):
    return StillHeart(clock=time)


def store_leases(kind, tmp_path, heart):
    objects = MemoryObjects() if kind == "memory" else FileBucket(tmp_path / "shared")
    return StoreLeases(objects, interval=3.0, beats=heart)


@pytest.fixture(params=["memory", "files", "local"])
def leases(request, tmp_path, heart):
    if request.param == "local":
        return LocalLeases(tmp_path / "leases", beats=heart)
    return store_leases(request.param, tmp_path, heart)


@pytest.fixture(params=["memory", "files"])
def shared_leases(request, tmp_path, heart):
    return store_leases(request.param, tmp_path, heart)


def beat(leases, lease):
    """One heartbeat, visible also where time stamps are coarse."""
    before = leases.look("k").token
    for _ in range(1000):
        assert lease.beat() is True
        if leases.look("k").token != before:
            return
    raise AssertionError("a heartbeat is not seen")


# -- leases ----------------------------------------------------------------------------------------------------------


def test_one_holder(leases, heart):
    """A lease has one holder; others see it, and it can be had again once it is released."""
    assert leases.look("k") is None
    lease = leases.acquire("k")
    assert lease.fence == 1
    assert leases.acquire("k") is None
    seen = leases.look("k")
    assert (seen.fence, seen.abandoned) == (1, False)
    assert leases.acquire("another") is not None
    lease.release()
    heart.step()
    assert leases.look("k") is None
    again = leases.acquire("k")
    assert again is not None
    lease.release()  # a second time does nothing
    heart.step()
    assert leases.acquire("k") is None


def test_heartbeats_are_seen(leases):
    """Each heartbeat changes what others see."""
    lease = leases.acquire("k")
    for _ in range(3):
        beat(leases, lease)
    assert lease.lost is False


def test_release_after_a_grace(leases, heart, time):
    """A lease that is released later is held, and beats, until then."""
    lease = leases.acquire("k")
    lease.release(after=5.0)
    time.now += 4.9
    heart.step()
    assert leases.acquire("k") is None
    time.now += 0.2
    heart.step()
    assert leases.acquire("k") is not None


def test_takeover(leases, heart):
    """A takeover gives the next fencing token; whoever was taken over from finds out and lets the new holder be."""
    dead = leases.acquire("k")
    seen = leases.look("k")
    taken = leases.take_over("k", seen)
    assert taken.fence == 2
    assert dead.beat() is False
    assert dead.lost is True
    dead.release()
    heart.step()
    assert leases.acquire("k") is None
    assert leases.look("k").fence == 2
    assert taken.beat() is True


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
    assert lease.beat() is True


def test_many_at_once(leases):
    """Of many threads that ask at the same moment one gets the lease."""
    start = threading.Barrier(8)

    def ask(_):
        start.wait(60)
        return leases.acquire("k")

    with ThreadPoolExecutor(8) as pool:
        assert len([lease for lease in pool.map(ask, range(8)) if lease is not None]) == 1


def test_heart_beats_and_forgets(leases, heart, time):
    """The heart beats each lease when that is due, and no more once it is lost."""
    leases.acquire("k")
    first = leases.look("k").token
    time.now += 3.0
    heart.step()
    assert leases.look("k").token != first
    assert leases.take_over("k", leases.look("k")) is not None
    for _ in range(2):
        time.now += 3.0
        heart.step()
    assert len(heart._beating) == 1


def test_heart_ends_everything(leases):
    """At the end of a program a real heart gives up all that is held."""
    real = Heart()
    leases._heart = real
    for key in ("a", "b"):
        assert leases.acquire(key) is not None
    assert real.end_all(limit=60) is True
    assert leases.look("a") is leases.look("b") is None


class NoDeletion(MemoryObjects):
    """Credentials that may create, and neither remove nor overwrite."""

    def write(self, name, data, *, version=None):
        if version == ABSENT:
            return super().write(name, data, version=version)
        raise StoreReadOnlyError("no storage.objects.delete")

    def delete(self, name, *, version=None):
        raise StoreReadOnlyError("no storage.objects.delete")


def test_credentials_that_cannot_give_leases_up(time, heart):
    """A dead lease that nobody may remove is waited for until it is known to be dead, and no further one is left."""
    objects = NoDeletion()
    first = StoreLeases(objects, interval=3.0, beats=heart)
    first.acquire("k").release()
    heart.step()
    with pytest.raises(StoreReadOnlyError, match="given up"):
        first.acquire("other")
    second = StoreLeases(objects, interval=3.0, beats=heart)
    flight = SingleFlight(second, clock=time, sleep=time.sleep)
    assert flight.run("k", lookup=lambda: None, work=lambda: "done", deadline=600) == "done"
    assert time.now - 100.0 < 20
    assert flight.counters["blind"] == 1


class Pulse:
    """Something that beats, and says so."""

    interval = 0.01

    def __init__(self):
        self.beats = threading.Event()
        self.ended = threading.Event()

    def beat(self):
        self.beats.set()
        return True

    def end(self):
        self.ended.set()


def test_a_lease_after_a_rest_beats_too(monkeypatch):
    """A lease that is taken while the heart's thread rests beats as the first one did."""
    monkeypatch.setattr("ejcache.stores.heart._IDLE_SECONDS", 3600.0)
    real, first, second = Heart(), Pulse(), Pulse()
    real.add(first)
    real.end(first, after=0.0)
    assert first.ended.wait(60)
    with real._changed:  # the thread rests as soon as it has this lock again
        assert not real._beating
    real.add(second)
    assert second.beats.wait(60)
    assert real.end_all(limit=60) is True


def test_a_lease_at_the_end_of_a_rest_beats_too(monkeypatch):
    """A lease that is taken at the moment when the heart's thread would leave is not left without one."""
    real, pulse = Heart(), Pulse()

    class JustThen(threading.Condition):
        def wait(self, timeout=None):
            if not real._beating and not pulse.beats.is_set():
                real._beating[pulse] = real._clock()
                return False
            return super().wait(timeout)

    real._changed = JustThen(threading.Lock())
    with real._changed:
        real._start()
    assert pulse.beats.wait(60)
    assert real.end_all(limit=60) is True


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_fork_holds_nothing(leases, heart):
    """A forked child neither holds nor releases its parent's leases."""
    lease = leases.acquire("k")

    def child():
        lease.release()
        heart.step()
        return leases.acquire("k") is None

    assert in_fork(child) is True
    assert lease.beat() is True


def test_dead_local_holder(tmp_path, heart):
    """The kernel says that a local holder is dead, and its lease can be had at once, with the next fencing token."""
    leases = LocalLeases(tmp_path / "leases", beats=heart)
    in_fork(lambda: leases.acquire("k").fence)
    seen = leases.look("k")
    assert seen.abandoned is True
    assert leases.take_over("k", seen).fence == 2


def test_local_leases_without_a_directory(tmp_path, heart):
    """Where no file can be made, asking for a lease is an error and not a wait."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailableError):
        LocalLeases(tmp_path / "file", beats=heart).acquire("k")


def test_lost_answer_to_a_heartbeat(heart):
    """A heartbeat that was written although its answer was lost does not cost the lease."""
    objects = MemoryObjects()
    leases = StoreLeases(objects, beats=heart)
    lease = leases.acquire("k")
    name = LEASES + "k"
    objects.write(name, objects.read(name).data)  # the same, as another version
    assert lease.beat() is True
    objects.write(name, objects.read(name).data)
    lease.release()
    heart.step()
    assert leases.look("k") is None


def test_trouble_while_beating(heart, monkeypatch):
    """A heartbeat that cannot be written, and a lease that cannot be given up, are no errors."""
    objects = MemoryObjects()
    leases = StoreLeases(objects, beats=heart)
    lease = leases.acquire("k")

    def gone(*args, **kwargs):
        raise StoreUnavailableError("gone")

    with monkeypatch.context() as patched:
        for method in ("read", "write", "delete"):
            patched.setattr(objects, method, gone)
        assert lease.beat() is True
        lease.release()
        heart.step()
    assert leases.look("k").fence == 1


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"holder": 1}', b'{"holder":"h","fence":1,"beat":1,"interval":"x"}']
)
def test_unreadable_lease(heart, data):
    """A lease that nobody can read is held by nobody who lives, and is taken over like any dead one."""
    objects = MemoryObjects()
    objects.write(f"{LEASES}k", data, version=ABSENT)
    leases = StoreLeases(objects, beats=heart)
    assert leases.acquire("k") is None
    seen = leases.look("k")
    assert (seen.fence, seen.interval) == (0, 3.0)
    assert leases.take_over("k", seen).fence == 1


def test_file_holder_overwrites_a_takeover(tmp_path, heart, monkeypatch):
    """On a file system, a stopped holder's heartbeat that lands on its successor's lease leaves one holder."""
    bucket = FileBucket(tmp_path / "shared")
    leases = StoreLeases(bucket, beats=heart)
    stopped = leases.acquire("k")
    seen = leases.look("k")
    taken = leases.take_over("k", seen)
    # What a holder does that was stopped between comparing and renaming:
    stopped._version = leases.look("k").token
    assert stopped.beat() is True
    assert taken.beat() is False
    assert taken.lost is True


# -- watching --------------------------------------------------------------------------------------------------------


def sighting(token, interval=3.0, **fields):
    return Sighting(token, 1, interval, **fields)


def test_dead_after_three_missed_beats(time):
    """A holder is dead when three heartbeats in a row have not been seen, and not before."""
    watch = Watch(clock=time)
    seen = []
    for _ in range(12):
        seen.append(watch.see(sighting("same")))
        time.now += 1.0
    assert seen.index(True) == 3 * MISSED_BEATS


def test_slow_but_alive(time):
    """A holder whose heartbeat is seen now and then is never dead."""
    watch = Watch(clock=time)
    for n in range(50):
        assert watch.see(sighting(f"beat {n // 8}")) is False
        time.now += 1.0


def test_a_waiter_that_was_stopped(time):
    """A waiter's own absence, however long, counts as one missed heartbeat."""
    watch = Watch(clock=time)
    watch.see(sighting("same"))
    time.now += 10_000
    assert watch.see(sighting("same")) is False
    time.now += 3
    assert watch.see(sighting("same")) is False
    time.now += 3
    assert watch.see(sighting("same")) is True


def test_abandoned_is_dead(time):
    """What the operating system says needs no waiting."""
    assert Watch(clock=time).see(sighting("x", abandoned=True)) is True


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


def flight(leases, time, **options):
    return SingleFlight(leases, clock=time, sleep=time.sleep, jitter=lambda low, high: high, **options)


def run(flight, program, *, deadline=3600.0, **options):
    return flight.run("k", lookup=program.lookup, work=program.work, deadline=deadline, **options)


def test_found_at_once(leases, time, heart):
    """What is there is given, and no lease is taken."""
    program = Program("executable")
    assert run(flight(leases, time), program) == "executable"
    assert (program.looked, program.compiled) == (1, 0)
    assert heart._beating == {}


def test_first_to_miss_compiles(leases, time, heart):
    """Who misses alone compiles under the lease, and gives it up."""
    program = Program()
    flying = flight(leases, time)
    assert run(flying, program) == "executable"
    assert flying.counters == {"flights": 1}
    assert (leases.look("k") is None) == (not leases.grace)
    time.now += leases.grace
    heart.step()
    assert leases.look("k") is None


def test_shared_lease_costs_no_second_look(shared_leases, time, heart):
    """Taking a shared lease at once asks for the entry once, because leases outlive what they are held for."""
    program = Program()
    run(flight(shared_leases, time), program)
    assert program.looked == 1
    time.now += shared_leases.grace
    heart.step()
    program = Program()
    run(flight(shared_leases, time), program, missed=True)
    assert program.looked == 0


def test_finished_between_look_and_lease(leases, time, heart):
    """What was made between the look and the lease is found, and not made again."""
    program = Program()
    flying = flight(leases, time)
    acquire = leases.acquire

    def late(key):
        time.sleep(2.0)
        program.entry = "theirs"
        return acquire(key)

    leases.acquire = late
    assert run(flying, program) == "theirs"
    assert program.compiled == 0
    heart.step()
    assert leases.look("k") is None


def test_waits_for_the_holder(leases, time, heart):
    """Who misses while somebody compiles waits for it, looks with pauses that grow, and compiles nothing."""
    lease = leases.acquire("k")
    program = Program()
    for second in range(1, 100):
        time.at(second, heart.step)

    def publish():
        program.entry = "theirs"
        lease.release(after=1.0)

    time.at(50.0, publish)
    flying = flight(leases, time)
    assert run(flying, program) == "theirs"
    assert program.compiled == 0
    assert 50.0 <= time.now - 100.0 <= 51.0
    assert program.looked < 100
    assert flying.counters == {"found": 1}


def test_nothing_came_of_it(leases, time, heart):
    """Work that left no entry is not waited for again: everybody who waited compiles, without taking turns."""
    lease = leases.acquire("k")
    time.at(5.0, lambda: (lease.release(), heart.step()))
    program = Program(keeps=False)
    flying = flight(leases, time)
    assert run(flying, program) == "executable"
    assert time.now - 100.0 < 6.0
    assert flying.counters == {"unshared": 1}
    assert leases.look("k") is None


def test_visible_at_the_last_moment(leases, time, heart):
    """An entry that becomes visible just before the lease goes is found."""
    lease = leases.acquire("k")
    program = Program()

    def publish():
        program.entry = "theirs"
        lease.release()
        heart.step()

    time.at(5.0, publish)
    assert run(flight(leases, time), program) == "theirs"
    assert program.compiled == 0


def test_dead_holder_is_taken_over(shared_leases, time):
    """A holder whose heart has stopped is taken over after three of its heartbeats."""
    shared_leases.acquire("k")
    program = Program()
    flying = flight(shared_leases, time)
    assert run(flying, program) == "executable"
    assert program.compiled == 1
    assert 9.0 <= time.now - 100.0 <= 12.0
    assert flying.counters == {"takeovers": 1, "flights": 1}


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


def test_slow_holder_and_deadline(leases, time, heart):
    """A holder that lives but never comes to an end is waited for until the deadline; then one compiles alone."""
    leases.acquire("k")
    for second in range(1, 200):
        time.at(second, heart.step)
    program = Program()
    flying = flight(leases, time)
    assert run(flying, program, deadline=60.0) == "executable"
    assert 60.0 <= time.now - 100.0 <= 61.0
    assert flying.counters == {"expired": 1}
    assert leases.look("k").fence == 1


@pytest.mark.parametrize("error", [RuntimeError("no memory"), KeyboardInterrupt()])
def test_failed_work_releases(leases, time, heart, error):
    """Work that fails or is interrupted gives its lease up at once, and fails as it would without."""
    program = Program(error=error)
    with pytest.raises(type(error)):
        run(flight(leases, time), program)
    heart.step()
    assert leases.look("k") is None


def test_held_until_visible(leases, time, heart):
    """The lease is held until others can see what was made, and a grace longer."""
    callbacks = []
    flying = flight(leases, time, when_visible=lambda *asked: callbacks.append(asked) or True)
    assert run(flying, Program()) == "executable"
    heart.step()
    assert leases.look("k") is not None
    key, visible = callbacks[0]
    assert key == "k"
    visible()
    time.now += leases.grace
    heart.step()
    assert leases.look("k") is None


def test_interrupted_while_publishing(leases, time, heart):
    """When it cannot be said when others will see it, the lease is given up."""

    def interrupted(key, callback):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(flight(leases, time, when_visible=interrupted), Program())
    heart.step()
    assert leases.look("k") is None


def test_nothing_to_become_visible(leases, time, heart):
    """When nothing is to become visible the lease is given up at once."""
    flying = flight(leases, time, when_visible=lambda _, callback: callback())  # None: nothing was left
    run(flying, Program(keeps=False))
    heart.step()
    assert leases.look("k") is None


def test_without_storage(leases, time):
    """When leases cannot be asked for, everybody works alone, at once or after a few looks."""

    def gone(*args):
        raise StoreUnavailableError("gone")

    leases.acquire("k")
    acquire, look = leases.acquire, leases.look
    leases.look = gone
    flying = flight(leases, time)
    assert run(flying, Program()) == "executable"
    assert time.now - 100.0 < 1.0
    leases.acquire = gone
    assert run(flying, Program()) == "executable"
    assert flying.counters == {"blind": 2}
    leases.acquire, leases.look = acquire, look


def test_takeover_without_storage(shared_leases, time):
    """A takeover that fails is tried again, until the deadline."""
    shared_leases.acquire("k")

    def gone(*args):
        raise StoreUnavailableError("gone")

    shared_leases.take_over = gone
    flying = flight(shared_leases, time)
    assert run(flying, Program(), deadline=30.0) == "executable"
    assert flying.counters == {"expired": 1}


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

    flying = SingleFlight(leases)

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

    flying = SingleFlight(leases)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(flying.run, "k", lookup=lambda: None, work=work, deadline=60)
        assert entered.wait(60)
        second = pool.submit(flying.run, "k", lookup=lambda: None, work=work, deadline=60)
        go_on.set()
        assert (first.result(60), second.result(60)) == (0, 0)
    assert len(made) == 2
    assert flying._flying == {}


def test_nested_flights(tmp_path, time, heart):
    """A host's flight around a flight between hosts: neighbours wait for their neighbour, which waits for the host."""
    local = LocalLeases(tmp_path / "leases", beats=heart)
    shared = store_leases("memory", tmp_path, heart)
    other_host = shared.acquire("k")
    program = Program()

    def publish():
        program.entry = "theirs"
        other_host.release()

    time.at(5.0, publish)
    between, here = flight(shared, time), flight(local, time)
    answer = here.run("k", lookup=program.lookup, work=lambda: run(between, program, missed=True), deadline=60.0)
    assert answer == "theirs"
    assert program.compiled == 0
    assert local.look("k") is None
