"""The circuit breaker: when it opens, who may probe, and when it closes."""

from __future__ import annotations

import os

import pytest

from ejcache.stores.breaker import CircuitBreaker, breaker_for, forget_breakers
from ejcache.testing.processes import in_fork


class Clock:
    """Monotonic seconds that stand still until a test moves them."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def breaker(clock):
    return CircuitBreaker(failures=3, slow_seconds=2.0, cooldown=30.0, clock=clock, jitter=lambda low, high: 1.0)


def test_opens_after_failures_in_a_row(breaker):
    """Three failures in a row open it; a success in between starts the count anew."""
    for _ in range(2):
        breaker.fail()
    breaker.succeed()
    for _ in range(2):
        breaker.fail()
    assert breaker.allow() is True
    breaker.fail()
    assert breaker.is_open is True
    assert breaker.allow() is False
    assert (breaker.opened, breaker.refused) == (1, 1)


def test_one_deadline_opens_it(breaker):
    """One failure that took as long as a deadline is enough."""
    breaker.fail(seconds=2.0)
    assert breaker.allow() is False
    assert breaker.retry_in == 30.0


def test_one_probe_at_a_time(breaker, clock):
    """After the cool-down exactly one caller may probe, and others are still refused."""
    breaker.fail(seconds=5)
    clock.now += 29.9
    assert breaker.allow_probe() is False
    clock.now += 0.1
    assert breaker.retry_in == 0.0
    assert [breaker.allow_probe() for _ in range(3)] == [True, False, False]
    assert breaker.allow() is False
    breaker.succeed()
    assert breaker.allow() is True
    assert breaker.is_open is False
    assert breaker.probes == 1


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
    assert breaker.opened == 1
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


def test_a_closed_breaker_needs_no_probe(breaker):
    """While it is closed, a call that would be a probe is an ordinary one."""
    assert breaker.allow_probe() is True
    assert breaker.probes == 0


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_fork_keeps_what_was_learnt(breaker):
    """A forked child knows that the storage is in trouble, and can probe although its parent is probing."""
    forget_breakers()
    shared = breaker_for("gs://forked")
    shared.fail(seconds=5)
    with shared._lock:
        assert in_fork(lambda: (shared.allow(), shared.is_open)) == (False, True)
    forget_breakers()
