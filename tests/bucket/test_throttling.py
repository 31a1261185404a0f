"""Storage that asks to slow down works, and is waited for: it is not taken for dead."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from buckets import GcsServerProcess, gcs_bucket
from dead_ends import leads_to
from helpers import SUPPORT
from throttled_hosts import data_of, key_of

from ejcache.bucket.object_names import entry_name
from ejcache.bucket.retry import RateLimit, RetryPolicy, ThrottledError, TransientError, seconds_of
from ejcache.errors import StoreBusyError, StoreError, StoreNotAskedError, StoreUnavailableError
from ejcache.util.time_budget import Budget, spending

POLICY = RetryPolicy(deadline=5.0)


@pytest.fixture
def bucket(server, unbroken_breakers, request):
    if "gcs_client" in request.fixturenames:
        request.getfixturevalue("gcs_client")
    server.reset()
    with_breaker = gcs_bucket(server)
    with_breaker.policy = POLICY
    yield with_breaker
    with_breaker.close()


@pytest.fixture
def unbroken_breakers():
    from ejcache.bucket.breaker import forget_breakers

    forget_breakers()
    yield
    forget_breakers()


def throttled(**options):
    return TransientError("429 slow down", busy=True, throttled=True, **options)


def test_it_ends_when_the_budget_does(retry_time):
    """An operation that is only ever asked to slow down waits for as long as its budget, and not for its deadline."""
    budget, pace = Budget(7.0), RateLimit()

    def attempt(_):
        raise throttled()

    for longest in (7, 0):
        began = retry_time.monotonic()
        with pytest.raises(StoreError) as caught:
            POLICY.run("reading", attempt, pace=pace, budget=budget)
        assert retry_time.monotonic() - began <= longest
    assert isinstance(caught.value, StoreNotAskedError)


def test_it_goes_on_until_then(retry_time):
    """What is throttled for nine seconds succeeds within a budget of ten."""
    ends = retry_time.monotonic() + 9

    def attempt(_):
        if retry_time.monotonic() < ends:
            raise throttled()
        return "done"

    assert POLICY.run("reading", attempt, budget=Budget(10.0)) == "done"


def test_an_answer_that_arrives_costs_nothing(retry_time):
    """A budget counts refusals and silence: an answer may take as long as a try may."""
    budget = Budget(10.0)
    for _ in range(20):
        POLICY.run("reading", lambda _: retry_time.sleep(2.0), budget=budget)
    assert budget.left == 10.0


def test_waits_at_the_same_time_count_once(retry_time):
    """A program that reads many objects at once waits as long as its clock says, and not for each of them."""
    outer = Budget(10.0)
    budgets = [Budget(9.0, within=(outer,)) for _ in range(3)]
    with budgets[0].waiting():
        for each in budgets[1:]:
            with each.waiting():
                retry_time.sleep(2.0)
    assert (outer.left, budgets[1].left) == (6.0, 6.0)


def test_every_second_counts_while_others_wait(retry_time):
    """The other ranks of a program wait also while an answer arrives."""
    budget = Budget(6.5, every_second=True)
    for _ in range(4):
        POLICY.run("reading", lambda _: retry_time.sleep(2.0), budget=Budget(9.0, within=(budget,)))
    assert budget.left == 0


def test_storage_that_wants_to_be_asked_later_than_that(retry_time):
    """Nobody waits for a `Retry-After` that exceeds the budget: this operation ends at once, and the next one does."""
    pace, asked = RateLimit(), []

    def attempt(_):
        asked.append(retry_time.monotonic())
        raise throttled(retry_after=30.0)

    began = retry_time.monotonic()
    for kind in (ThrottledError, StoreNotAskedError):
        with pytest.raises(kind):
            POLICY.run("reading", attempt, pace=pace)
    assert len(asked) == 1
    assert retry_time.monotonic() == began


def test_a_long_wait_is_said_once(retry_time, caplog):
    """After five seconds one line says what a program waits for."""
    budget = Budget(10.0)

    def attempt(_):
        raise throttled()

    with spending(budget), pytest.raises(ThrottledError):
        POLICY.run("reading gs://b/k", attempt, budget=Budget(10.0, within=(budget,)))
    (record,) = caplog.records
    assert "waiting for the storage (reading gs://b/k: 429 slow down): 5 s so far, at most 10 s" in record.getMessage()


def test_a_refusal_that_may_be_a_fault_is_one_when_nothing_is_done(retry_time):
    """A storage that worked and then answers 503 alone fails each operation, so that the breaker opens."""
    pace = RateLimit()
    pace.succeed()
    retry_time.sleep(1.0)

    def attempt(_):
        raise throttled(ambiguous=True)

    began = retry_time.monotonic()
    with pytest.raises(StoreBusyError) as caught:
        POLICY.run("reading", attempt, pace=pace)
    assert retry_time.monotonic() - began < 6
    assert not isinstance(caught.value, ThrottledError)


def test_a_refusal_while_others_are_served_is_none(retry_time):
    """A 503 says "slow down" if another thread's operation succeeded meanwhile."""
    pace = RateLimit()

    def attempt(_):
        pace.succeed()
        raise throttled(ambiguous=True)

    with pytest.raises(ThrottledError):
        POLICY.run("reading", attempt, pace=pace)


def test_the_storage_says_when(retry_time):
    """Nothing is asked before the time of `Retry-After`."""
    times = []

    def attempt(_):
        times.append(retry_time.monotonic())
        if len(times) < 3:
            raise throttled(retry_after=3.0)
        return "done"

    assert POLICY.run("reading", attempt, budget=Budget(10.0)) == "done"
    assert all(after - before >= 3 for before, after in pairwise(times))


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("3", 3), ("900", 30), (None, 0), ("-1", 0), ("Fri, 31 Dec 1999 23:59:59 GMT", 0), ("9" * 99, 0)],
)
def test_retry_after(header, seconds):
    """`Retry-After` is read as seconds, half a minute at most; a date is not heeded."""
    assert seconds_of(header) == seconds


def test_the_pace_recovers(retry_time):
    """After "slow down" requests are spaced out, more with each one; after successes they are not."""
    pace = RateLimit()
    pace.succeed()
    began = retry_time.monotonic()
    for _ in range(3):
        pace.slow_down(retry_time.monotonic())
        retry_time.sleep(0.001)
    for _ in range(5):
        pace.wait(60)
    assert retry_time.monotonic() - began > 0.3
    for _ in range(30):
        pace.wait(60)
        pace.succeed()
    pace.wait(60)
    began = retry_time.monotonic()
    for _ in range(5):
        pace.wait(60)
    assert retry_time.monotonic() == began


@pytest.mark.usefixtures("gcs_client")
def test_throttling_opens_no_breaker(server, bucket, retry_time, monkeypatch):
    """Any number of throttled operations leave the breaker closed; storage that is broken opens it."""
    bucket.create("k", b"value")
    slow_down = bucket.pace.slow_down

    def while_others_are_served(*when, **options):
        bucket.pace.succeed()
        slow_down(*when, **options)

    with monkeypatch.context() as patched:
        patched.setattr(bucket.pace, "slow_down", while_others_are_served)
        for status in (429, 503):
            server.add_fault("status", status=status, headers={"Retry-After": "1"})
            for _ in range(5):
                with pytest.raises(StoreError):
                    bucket.read("k")
            assert not bucket.breaker.is_open
            server.clear_faults()
    retry_time.sleep(100)
    server.add_fault("status", status=503)
    for _ in range(5):
        with pytest.raises(StoreUnavailableError):
            bucket.read("k")
    assert bucket.breaker.is_open


@pytest.mark.soak
def test_hosts_that_start_together(tmp_path, run_forked):
    """A bucket that serves few requests a second: no host compiles what it holds, and none opens its breaker."""
    hosts, programs = 8, 6
    with GcsServerProcess("--rate", "8") as server:
        filled = gcs_bucket(server.url, "cache")
        for number in range(programs):
            filled.create(entry_name(key_of(number)), data_of(number))
        finished = run_forked(
            SUPPORT / "throttled_hosts.py",
            "gs://bucket/cache",
            str(hosts),
            str(programs),
            str(tmp_path),
            env=leads_to("gs", server.url),
        )
        assert 429 in {request.status for request in server.requests}
    answers = [json.loads(line) for line in finished.stdout.splitlines()]
    assert len(answers) == hosts
    assert [(one["again"], one["opened"], one["uploads"]) for one in answers] == [(0, 0, 0)] * hosts
