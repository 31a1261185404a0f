"""The circuit breaker: when it opens, who may probe, and when it closes."""

from __future__ import annotations

import math
import threading
from contextlib import nullcontext, suppress

import pytest
from capabilities import needs
from memory_bucket import MemoryBucket
from store_processes import in_fork

from ejcache.bucket.breaker import CircuitBreaker, breaker_for, forget_breakers
from ejcache.bucket.object_names import entry_name
from ejcache.bucket.retry import RetryPolicy, ThrottledError, TransientError
from ejcache.bucket.storage_note import FAILED, StorageNote
from ejcache.errors import (
    NoPermissionError,
    StoreBusyError,
    StoreError,
    StoreNotAskedError,
    StoreReadOnlyError,
    StoreRefusedError,
    StoreUnavailableError,
)
from ejcache.stores.shared.store import SharedStore
from ejcache.stores.tiered.tier import Tier
from ejcache.util.tally import Tally
from ejcache.util.time_budget import Budget, in_background, spending


@pytest.fixture
def breaker(clock):
    return CircuitBreaker(clock=clock, jitter=lambda low, high: 1.0)


def test_one_deadline_opens_it(breaker):
    """One failure that took as long as a deadline is enough."""
    breaker.fail(seconds=2.0)
    assert breaker.is_open is True
    assert breaker.retry_in == 30.0


def test_one_probe_at_a_time(breaker, clock):
    """After the cool-down exactly one caller may probe, and another one after as long again without a report."""
    breaker.fail(seconds=5)
    for later, allowed in ((29.9, [False]), (0.1, [True, False, False]), (29.0, [False]), (1.0, [True, False])):
        clock.now += later
        assert allowed == [False] or breaker.retry_in == 0.0
        assert [breaker.allow_probe() for _ in allowed] == allowed
    breaker.succeed()
    assert breaker.is_open is False


def test_failed_probes_wait_longer(breaker, clock):
    """Each failed probe doubles the cool-down, up to eight times the first; a success takes it back."""
    breaker.fail(seconds=5)
    waits = []
    for _ in range(6):
        waits.append(breaker.retry_in)
        clock.now += breaker.retry_in
        assert breaker.allow_probe() is True
        breaker.fail()
    assert waits == [30, 60, 120, 240, 240, 240]
    clock.now += 240
    assert breaker.allow_probe() is True
    breaker.succeed()
    breaker.fail(seconds=5)
    assert breaker.retry_in == 30


def test_late_failures_change_nothing(breaker, clock):
    """Failures of calls that began before it opened do not push the probe away."""
    breaker.fail(seconds=5)
    clock.now += 20
    breaker.fail(seconds=25)
    assert breaker.retry_in == 10


def test_cool_down_is_jittered(clock):
    """The cool-down is drawn around its value, so that a pod does not come back at one moment."""
    asked = []
    breaker = CircuitBreaker(cooldown=100, clock=clock, jitter=lambda low, high: asked.append((low, high)) or low)
    breaker.fail(seconds=5)
    assert asked == [(0.75, 1.25)]
    assert breaker.retry_in == 75


def test_shared_by_url():
    """Users of one URL have one breaker; users of others have others."""
    forget_breakers()
    assert breaker_for("gs://a/b") is breaker_for("gs://a/b")
    assert breaker_for("gs://a/b") is not breaker_for("gs://a/c")
    before = breaker_for("gs://a/b")
    forget_breakers()
    assert breaker_for("gs://a/b") is not before
    forget_breakers()


@needs("fork")
def test_fork_keeps_what_was_learnt(clock):
    """A child forked while a thread asks the breaker knows that the storage fails, and can ask it itself."""
    forks, found = iter([True]), []

    def forking_clock():
        # The breaker looks at the clock while it decides who may probe.
        if breaker.is_open and next(forks, False):
            found.append(in_fork(lambda: (breaker.allow_probe(), breaker.is_open)))
        return clock()

    breaker = CircuitBreaker(clock=forking_clock)
    breaker.fail(seconds=5)
    assert breaker.allow_probe() is False
    assert found == [(False, True)]


class Unsteady(MemoryBucket):
    """A bucket that fails while it has an error, and says when it was asked for an object's metadata."""

    def __init__(self, clock):
        super().__init__()
        self.breaker = CircuitBreaker(clock=clock, jitter=lambda low, high: 1.0)
        self.error = None
        self.asked = 0
        self.probed = threading.Event()
        self.before = self.fail

    def fail(self, kind, *_):
        """Fail, unless it is asked for metadata."""
        self.asked += kind == "read"
        if kind == "stat":
            self.probed.set()
        elif self.error is not None:
            raise self.error


@pytest.fixture
def unsteady(clock):
    return Unsteady(clock)


def test_a_bucket_that_failed_is_not_asked(unsteady):
    """After three failures in a row no operation of any kind reaches the storage."""
    unsteady.error = StoreBusyError("slow")
    for _ in range(3):
        with pytest.raises(StoreBusyError, match="slow"):
            unsteady.read("a")
    for operation in (
        lambda: unsteady.read("a"),
        lambda: unsteady.write("a", b"x"),
        lambda: list(unsteady.walk("")),
        lambda: list(unsteady.delete_many([("a", None)])),
        lambda: unsteady.stat("a"),
    ):
        with pytest.raises(StoreNotAskedError, match=f"{unsteady.url} failed and is not asked for another 30 s"):
            operation()
    assert unsteady.asked == 3
    assert not unsteady.probed.is_set()


@pytest.mark.parametrize("answer", [StoreReadOnlyError("may not write"), None], ids=["refused", "absent"])
def test_answers_close_the_breaker(unsteady, answer):
    """A refusal to write and "not found" say that the storage is reachable."""
    unsteady.error = StoreUnavailableError("reset")
    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            unsteady.read("a")
    unsteady.error = answer
    if answer is None:
        assert unsteady.read("a") is None
    else:
        with pytest.raises(StoreReadOnlyError):
            unsteady.write("a", b"x")
    unsteady.error = StoreUnavailableError("reset")
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match="reset"):
            unsteady.read("a")
    assert unsteady.breaker.is_open is False


@pytest.fixture
def failed_lately(unsteady, tmp_path):
    """A bucket that has failed another process of this host a moment ago."""
    note = StorageNote(tmp_path / "storage")
    note.leave(FAILED)
    unsteady.breaker.use_note(note, seconds=60.0)
    return unsteady


@pytest.mark.parametrize(
    "error",
    [NoPermissionError("403"), StoreRefusedError("no bucket"), StoreUnavailableError("reset")],
    ids=str,
)
def test_a_bucket_that_failed_this_host_is_asked_once(failed_lately, monkeypatch, error):
    """One failure opens the breaker where the host knows of one, and what is refused then says why."""
    failed_lately.error = error
    monkeypatch.setattr(failed_lately, "stat", failed_lately.read)  # another name fails, too
    with pytest.raises(type(error)):
        failed_lately.read("a")
    asked = failed_lately.asked
    assert asked <= 2
    with pytest.raises(StoreNotAskedError, match=f"is not asked for another 30 s: {error}"):
        failed_lately.read("b")
    assert failed_lately.asked == asked


def test_one_object_that_fails_closes_no_bucket_that_failed_this_host(failed_lately):
    """The failure of one object is not that of the storage: it answers when it is asked for another name."""
    failed_lately.error = StoreUnavailableError("reset")
    with pytest.raises(StoreUnavailableError, match="reset"):
        failed_lately.read("a")
    assert failed_lately.probed.is_set()
    failed_lately.error = None
    assert failed_lately.read("b") is None


def test_another_name_is_asked_for_at_once(failed_lately):
    """Storage that asks to slow down for one object is asked for another name without the wait that it asks for."""
    failed_lately.error = TransientError("slow down", throttled=True, retry_after=60.0)
    with pytest.raises(ThrottledError, match="slow down"):
        failed_lately.read("a")
    assert failed_lately.probed.is_set()
    assert not failed_lately.breaker.is_open


@pytest.mark.parametrize("error", [StoreRefusedError("no bucket"), None], ids=["fails", "answers"])
def test_one_thread_asks_a_bucket_that_failed_this_host(failed_lately, error):
    """The others wait for its answer: a failure is theirs too, and after an answer all of them ask."""
    asks, goes_on = threading.Event(), threading.Event()

    def held(*request):
        asks.set()
        assert goes_on.wait(60)
        failed_lately.fail(*request)

    failed_lately.before = held
    failed_lately.error = error
    outcomes = []

    def ask(name):
        try:
            outcomes.append(failed_lately.read(name))
        except StoreUnavailableError as exc:
            outcomes.append(type(exc))

    threads = [threading.Thread(target=ask, args=(name,)) for name in "abc"]
    threads[0].start()
    assert asks.wait(60)
    for thread in threads[1:]:
        thread.start()
    goes_on.set()
    for thread in threads:
        thread.join(60)
    if error is None:
        assert (outcomes, failed_lately.asked) == ([None] * 3, 3)
    else:
        assert outcomes.count(StoreRefusedError) == failed_lately.asked == 1
        assert outcomes.count(StoreNotAskedError) == 2


def test_a_refusal_to_write_says_nothing_of_what_may_not_be_read(unsteady):
    """Three refusals to read open the breaker, whatever is refused to be written between them."""
    for number in range(3):
        unsteady.error = NoPermissionError("403")
        with pytest.raises(NoPermissionError):
            unsteady.read("a")
        assert unsteady.breaker.is_open is (number == 2)
        if number < 2:
            unsteady.error = StoreReadOnlyError("may not write")
            with pytest.raises(StoreReadOnlyError):
                unsteady.write("b", b"x")
            unsteady.refusal = None


def test_no_bucket_opens_it_at_once(unsteady):
    """What is true of every object is asked once."""
    unsteady.error = StoreRefusedError("there is no bucket")
    with pytest.raises(StoreRefusedError):
        unsteady.read("a")
    with pytest.raises(StoreNotAskedError, match="there is no bucket"):
        unsteady.read("b")
    assert (unsteady.asked, unsteady.probed.is_set()) == (1, False)


def test_a_probe_runs_in_the_background(unsteady, clock):
    """A refused call after the cool-down is refused at once, and has another thread ask the storage."""
    unsteady.breaker.fail(seconds=5)
    closed = threading.Event()
    succeed = unsteady.breaker.succeed
    unsteady.breaker.succeed = lambda: (succeed(), closed.set())
    clock.now += 30
    with pytest.raises(StoreNotAskedError):
        unsteady.read("a")
    assert closed.wait(60)
    assert unsteady.probed.is_set()
    assert unsteady.read("a") is None


def test_calls_within_a_call_are_judged_once(breaker):
    """A tier and its bucket share a breaker: one failure of both is one failure."""

    def outer():
        return breaker.call("gs://a", inner, probe=outer)

    def inner():
        raise StoreUnavailableError("reset")

    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            breaker.call("gs://a", outer, probe=outer)
    assert breaker.is_open is False


ABSENT = "v1/entries/cd/jit_absent"


def stored(number):
    return entry_name(f"jit_stored{number}")


class Unreadable(MemoryBucket):
    """A bucket whose stored entries cannot be read, while it says of others at once that they are absent."""

    def __init__(self, clock, *, takes, failure):
        super().__init__(policy=RetryPolicy(5.0))
        self.breaker = CircuitBreaker(clock=clock, jitter=lambda low, high: 1.0)
        self.reads = []
        self.good = set()
        self.healed = False
        for number in range(40):
            self._objects[stored(number)] = b"x" * 100, "1", 0.0
        self.clock, self._takes, self._failure = clock, takes, failure
        self.waited = 0.0

    def _read(self, name, start, length, version, timeout):
        if name in self._objects:
            self.reads.append(name)
            if not self.healed and name not in self.good:
                self.clock.sleep(min(self._takes, timeout))
                raise self._failure()
        return super()._read(name, start, length, version, timeout)


def _server_error():
    return TransientError("500", ambiguous=True)


def _silence():
    return TransientError("no answer for 2.5 s", ambiguous=True, busy=True)


def _throttled():
    return TransientError("429", busy=True, throttled=True)


def _trickle():
    return TransientError("no full answer", ambiguous=True, busy=True, arriving=True, arrived=3)


KINDS = pytest.mark.parametrize(
    ("takes", "failure"),
    [(0.1, _server_error), (2.5, _silence), (0.01, _throttled), (2.5, _trickle)],
    ids=["500", "silence", "429", "a byte a second"],
)


def look_up(bucket, number):
    """What a program does that misses: a tier reads the entry from its store, and then the program takes a lease."""
    with spending(Budget(9.5)), suppress(StoreError):
        tier = Tier("shared", SharedStore(bucket), breaker=bucket.breaker, tally=Tally())
        began = bucket.clock.monotonic()
        try:
            return tier.call(lambda store: store.get(f"jit_stored{number}")) is not None
        finally:
            bucket.waited += bucket.clock.monotonic() - began
    with suppress(StoreError):
        bucket.create(f"v1/leases/{number}", b"lease")
        assert bucket.read(ABSENT) is None
    return False


@KINDS
@pytest.mark.parametrize("good", [(), range(0, 40, 2)], ids=["all", "every second"])
def test_entries_that_cannot_be_read_cost_a_process_ten_seconds(retry_time, takes, failure, good):
    """Whatever their names, and though absent names are answered at once; then nothing is asked any more."""
    bucket = Unreadable(retry_time, takes=takes, failure=failure)
    bucket.good = {stored(number) for number in good}
    found = [look_up(bucket, number) for number in range(20)]
    assert bucket.waited <= (13.0 if failure is _throttled else 10.7)  # with the waits for a turn
    assert bucket.breaker.is_open
    assert sum(found) <= len(good)
    asked = len(bucket.reads)
    with pytest.raises(StoreNotAskedError):
        bucket.create("v1/leases/last", b"lease")
    assert len(bucket.reads) == asked


@KINDS
def test_one_look_up_of_an_unreadable_entry_takes_ten_seconds(retry_time, takes, failure):
    """A body that arrives byte by byte does not end sooner in a smaller part: it costs what silence costs."""
    bucket = Unreadable(retry_time, takes=takes, failure=failure)
    assert look_up(bucket, 1) is False
    assert bucket.waited <= 10.0


def test_a_large_entry_on_a_slow_link_is_read_in_parts_of_what_arrives(retry_time):
    """A part that came in the time of a try is asked for by the next one, and the tries before cost no budget."""
    bucket = MemoryBucket(policy=RetryPolicy(5.0))
    data = bytes(range(256)) * (1 << 14)
    bucket.write("v1/entries/ab/large", data)
    asked = []

    def link(kind, name, *span):
        if kind == "read":
            asked.append(span[1])
            retry_time.sleep(min(2.5, span[1] / (1 << 20)))
            if span[1] > 2 << 20:
                raise TransientError("no full answer", busy=True, arriving=True, arrived=2 << 20)

    bucket.before = link
    bucket.breaker = None
    assert bucket.read("v1/entries/ab/large").data == data
    assert asked[:2] == [32 << 20, 2 << 20]


def test_the_probe_reads_an_entry_that_failed(retry_time):
    """An absent name proves nothing; when the entry can be read again, the storage is asked as before."""
    bucket = Unreadable(retry_time, takes=2.5, failure=_silence)
    probed = threading.Event()
    for number in range(20):
        look_up(bucket, number)
    assert bucket.breaker.is_open
    last = bucket.reads[-1]
    for healed in (False, True):
        bucket.healed = healed
        bucket.reads.clear()
        retry_time.now += bucket.breaker.retry_in
        assert bucket.breaker.probe(bucket.url, probed.set) is healed
        assert set(bucket.reads) == {last}
    assert not probed.is_set()
    assert look_up(bucket, 3) is True


def test_storage_that_used_up_the_time_for_failures_is_asked_after_the_cool_down(retry_time):
    """It does not stay closed until the time has come back: what is readable again is read half a minute later."""
    bucket = Unreadable(retry_time, takes=2.5, failure=_silence)
    for number in range(4):
        look_up(bucket, number)
    assert bucket.breaker.is_open
    bucket.healed = True
    retry_time.now += 30.0
    assert bucket.breaker.probe(bucket.url, lambda: None)
    assert look_up(bucket, 1)


def test_good_and_bad_entries_by_turns_cost_a_second_a_minute(retry_time):
    """Each probe succeeds, because the entry that failed can be read by then; another one cannot."""
    bucket = Unreadable(retry_time, takes=2.5, failure=_silence)
    hour, number = retry_time.now + 3600, 0
    while retry_time.now < hour:
        number += 1
        bucket.good = {stored(number % 2)}
        look_up(bucket, (number + 1) % 2)
        bucket.good = {stored((number + 1) % 2)}
        retry_time.now += 20.0
        bucket.breaker.probe(bucket.url, lambda: None)
    assert bucket.waited <= 10.7 + 60 + 1


def test_what_maintenance_reads_closes_no_storage(retry_time):
    """No program waits for it."""
    bucket = Unreadable(retry_time, takes=2.5, failure=_silence)
    bucket._objects["v1/journal/2026-11-27/journal"] = b"x", "1", 0.0
    for _ in range(6):
        with suppress(StoreError):
            bucket.read("v1/journal/2026-11-27/journal")
        assert bucket.read(ABSENT) is None
    assert not bucket.breaker.is_open


def test_a_client_that_takes_long_is_waited_for_in_the_background(unsteady, tmp_path):
    """Storage that failed this host lately gets a second for its client, where a program waits, and nowhere else."""
    note = StorageNote(tmp_path / "storage")
    note.leave(FAILED)
    unsteady.breaker.use_note(note, seconds=1.0)
    waits = []

    def prepare(seconds):
        waits.append(seconds)
        raise StoreNotAskedError("its library is still loading")

    unsteady._prepare = prepare
    for background in (True, False):
        with in_background() if background else nullcontext(), pytest.raises(StoreNotAskedError):
            unsteady.read("a")
        assert (unsteady.breaker.patience > 0) is background
    assert waits == [math.inf, 1.0]


def test_a_foreground_command_asks_each_object(unsteady):
    """Without a breaker every call goes through, however many failed."""
    unsteady.breaker, unsteady.error = None, StoreUnavailableError("reset")
    for _ in range(5):
        with pytest.raises(StoreUnavailableError, match="reset"):
            unsteady.read("a")
    assert unsteady.asked == 5
