"""The circuit breaker: when it opens, who may probe, and when it closes."""

from __future__ import annotations

import threading

import pytest
from capabilities import needs
from memory_bucket import MemoryBucket
from store_processes import in_fork

from ejcache.bucket.breaker import FAILED, CircuitBreaker, StorageNote, breaker_for, forget_breakers
from ejcache.errors import (
    NoPermissionError,
    StoreBusyError,
    StoreNotAskedError,
    StoreReadOnlyError,
    StoreRefusedError,
    StoreUnavailableError,
)


@pytest.fixture
def breaker(clock):
    return CircuitBreaker(clock=clock, jitter=lambda low, high: 1.0)


def test_opens_after_failures_in_a_row(breaker):
    """Three failures in a row open it; a success in between starts the count anew."""
    for _ in range(2):
        breaker.fail()
    breaker.succeed()
    for _ in range(2):
        breaker.fail()
    assert breaker.is_open is False
    breaker.fail()
    assert breaker.is_open is True


def test_one_deadline_opens_it(breaker):
    """One failure that took as long as a deadline is enough."""
    breaker.fail(seconds=2.0)
    assert breaker.is_open is True
    assert breaker.retry_in == 30.0


def test_one_probe_at_a_time(breaker, clock):
    """After the cool-down exactly one caller may probe, and others are still refused."""
    breaker.fail(seconds=5)
    clock.now += 29.9
    assert breaker.allow_probe() is False
    clock.now += 0.1
    assert breaker.retry_in == 0.0
    assert [breaker.allow_probe() for _ in range(3)] == [True, False, False]
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


def test_lost_probe(breaker, clock):
    """A prober that never reports does not keep the breaker open for ever."""
    breaker.fail(seconds=5)
    clock.now += 30
    assert breaker.allow_probe() is True
    clock.now += 29
    assert breaker.allow_probe() is False
    clock.now += 1
    assert breaker.allow_probe() is True


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
        assert (outcomes, failed_lately.asked) == ([StoreRefusedError, StoreNotAskedError, StoreNotAskedError], 1)


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


def test_a_foreground_command_asks_each_object(unsteady):
    """Without a breaker every call goes through, however many failed."""
    unsteady.breaker, unsteady.error = None, StoreUnavailableError("reset")
    for _ in range(5):
        with pytest.raises(StoreUnavailableError, match="reset"):
            unsteady.read("a")
    assert unsteady.asked == 5
