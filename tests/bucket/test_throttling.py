"""Storage that asks to slow down works, and is waited for: it is not taken for dead."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from buckets import GcsServerProcess, gcs_bucket
from dead_ends import leads_to
from helpers import SUPPORT
from throttled_hosts import data_of, key_of

from ejcache.bucket.base import entry_name
from ejcache.bucket.breaker import Pace, RetryPolicy, ThrottledError, TransientError, seconds_of
from ejcache.errors import StoreBusyError, StoreError, StoreUnavailableError

POLICY = RetryPolicy(deadline=5.0)


@pytest.fixture
def bucket(server, unbroken_breakers):
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


def test_an_operation_outlasts_its_deadline(retry_time):
    """What is throttled for half a minute succeeds, although an operation may take five seconds."""
    ends = retry_time.monotonic() + 30

    def attempt(_):
        if retry_time.monotonic() < ends:
            raise throttled()
        return "done"

    assert POLICY.run("reading", attempt, pace=Pace()) == "done"


def test_it_ends_when_the_storage_does_nothing(retry_time):
    """Storage that only ever asks to slow down is waited for a minute, and then each operation its deadline alone."""
    pace = Pace()

    def attempt(_):
        raise throttled()

    for longest in (65, 6):
        began = retry_time.monotonic()
        with pytest.raises(StoreBusyError) as caught:
            POLICY.run("reading", attempt, pace=pace)
        assert retry_time.monotonic() - began < longest
        # It counts as a failure, so that the breaker opens.
        assert not isinstance(caught.value, ThrottledError)


def test_a_refusal_that_may_be_a_fault_is_one_when_nothing_is_done(retry_time):
    """A storage that worked and then answers 503 alone fails each operation, so that the breaker opens."""
    pace = Pace()
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
    pace = Pace()

    def attempt(_):
        pace.succeed()
        raise throttled(ambiguous=True)

    with pytest.raises(ThrottledError):
        POLICY.run("reading", attempt, pace=pace)


def test_an_operation_ends_while_others_are_served(retry_time):
    """One operation is tried for two minutes at most, and its failure says that the storage works."""
    pace = Pace()

    def attempt(_):
        pace.succeed()  # another thread's
        raise throttled()

    began = retry_time.monotonic()
    with pytest.raises(ThrottledError):
        POLICY.run("reading", attempt, pace=pace)
    assert 100 < retry_time.monotonic() - began < 125


def test_the_storage_says_when(retry_time):
    """Nothing is asked before the time of `Retry-After`."""
    times = []

    def attempt(_):
        times.append(retry_time.monotonic())
        if len(times) < 3:
            raise throttled(retry_after=7.0)
        return "done"

    assert POLICY.run("reading", attempt, pace=Pace()) == "done"
    assert all(after - before >= 7 for before, after in pairwise(times))


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("3", 3), ("900", 30), (None, 0), ("-1", 0), ("Fri, 31 Dec 1999 23:59:59 GMT", 0), ("9" * 99, 0)],
)
def test_retry_after(header, seconds):
    """`Retry-After` is read as seconds, half a minute at most; a date is not heeded."""
    assert seconds_of(header) == seconds


def test_the_pace_recovers(retry_time):
    """After "slow down" requests are spaced out, more with each one; after successes they are not."""
    pace = Pace()
    pace.wait(60)
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


def test_throttling_opens_no_breaker(server, bucket, retry_time, monkeypatch):
    """Any number of throttled operations leave the breaker closed; storage that is broken opens it."""
    bucket.create("k", b"value")
    slow_down = bucket.pace.slow_down

    def while_others_are_served(*when, **options):
        bucket.pace.succeed()
        return slow_down(*when, **options)

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
