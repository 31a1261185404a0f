"""Whether a lease is asked for is decided by time: seconds for each byte, of the last programs of this host."""

from __future__ import annotations

import pytest

from ejcache.coordination.compile_speed import CompileSpeed
from ejcache.stores.host_notes import EXPIRY_SECONDS, HostNotes


@pytest.fixture
def path(tmp_path):
    return tmp_path / "scratch" / "speeds"


@pytest.fixture
def speed(path):
    return CompileSpeed(HostNotes(path))


def test_without_evidence_a_program_may_take_long(speed):
    assert speed.may_take("cpu", 600, 0.5)
    assert not speed.may_take("cpu", 300, 0.5)


def test_quick_programs_say_that_others_are_quick(speed):
    """One is enough: without it, each cold start would ask for leases that save nobody a compilation."""
    assert speed.may_take("cpu", 2_000, 0.5)
    speed.note("cpu", 1_000, 0.05)
    assert not speed.may_take("cpu", 2_000, 0.5)
    assert speed.may_take("cpu", 20_000, 0.5)  # at this speed it takes a second
    assert speed.may_take("tpu", 2_000, 0.5)  # of which nothing is known


def test_one_slow_program_says_that_small_ones_may_be_slow(speed):
    for _ in range(6):
        speed.note("cpu", 1_000, 0.01)
    assert not speed.may_take("cpu", 5_000, 0.5)
    speed.note("cpu", 5_000, 1.5)
    assert speed.may_take("cpu", 5_000, 0.5)
    speed.note("cpu", 1_000, 0.01)
    assert not speed.may_take("cpu", 5_000, 0.5)  # one of eight may have been held up
    speed.note("cpu", 5_000, 1.5)
    assert speed.may_take("cpu", 5_000, 0.5)
    for _ in range(8):
        speed.note("cpu", 1_000, 0.01)
    assert not speed.may_take("cpu", 5_000, 0.5)  # eight quick ones later


def test_the_smallest_are_asked_for_after_three_slow_ones(speed):
    for _ in range(50):
        speed.note("tpu", 300, 0.02)
    for _ in range(3):
        assert not speed.may_take("tpu", 300, 0.5)
        speed.note("tpu", 300, 2.0)
    assert speed.may_take("tpu", 300, 0.5)
    assert not speed.may_take("cpu", 300, 0.5)
    for _ in range(8):
        speed.note("tpu", 300, 0.02)
    assert not speed.may_take("tpu", 300, 0.5)


def test_the_smallest_say_nothing_of_larger_ones(speed):
    for _ in range(20):
        speed.note("cpu", 300, 0.02)
    assert speed.may_take("cpu", 5_000, 0.5)


def test_a_host_remembers_and_forgets(path):
    now = [1e9]
    first = CompileSpeed(HostNotes(path, now=lambda: now[0]))
    for _ in range(4):
        first.note("cpu", 1_000, 0.01)
    assert not CompileSpeed(HostNotes(path, now=lambda: now[0])).may_take("cpu", 1_000, 0.5)
    now[0] += EXPIRY_SECONDS + 1
    assert CompileSpeed(HostNotes(path, now=lambda: now[0])).may_take("cpu", 1_000, 0.5)


def test_the_next_process_replaces_the_oldest_first(path):
    for number in range(8):
        speed = CompileSpeed(HostNotes(path))  # a process for each program
        speed.note("cpu", 1_000, 1.0 if number in (2, 5) else 0.01)
    assert speed.may_take("cpu", 1_000, 0.5)


@pytest.mark.parametrize("seconds", [0.0, 1e9, float("inf")])
def test_odd_times_are_kept_in_bounds(path, seconds):
    for size in (1, 511, 512, 10**12):
        CompileSpeed(HostNotes(path)).note("cpu", size, seconds)
    assert path.stat().st_size < 300
    CompileSpeed(HostNotes(path)).may_take("cpu", 512, 0.5)


def test_a_directory_that_cannot_be_written_is_memory(tmp_path):
    (tmp_path / "file").touch()
    speed = CompileSpeed(HostNotes(tmp_path / "file" / "speeds"))
    for _ in range(3):
        speed.note("cpu", 1_000, 0.01)
    assert not speed.may_take("cpu", 1_000, 0.5)
