"""What hits save is the union over threads, and the sum within one."""

from __future__ import annotations

import itertools
import sys
import threading
import time

import pytest

from ejcache.cache.compile_time import CompileTime


class Threads:
    """Threads of one process, whose programs end at moments that a test chooses."""

    def __init__(self) -> None:
        self.now, self.current, self.started = 0.0, 0, {}
        self.time = CompileTime(clock=lambda: self.now, thread=lambda: self.current, age=self.age)
        self.saved = self.compiled = 0.0

    def age(self) -> float:
        return self.now - self.started.get(self.current, self.now)

    def hit(self, thread: int, at: float, compile_seconds: float, *, load: float = 0.1, since: float = 0.0) -> None:
        self.now, self.current = at, thread
        self.saved += self.time.hit(compile_seconds, load, since=since)

    def miss(self, thread: int, at: float, seconds: float) -> None:
        self.now, self.current = at, thread
        saved, compiled = self.time.miss(seconds)
        self.saved, self.compiled = self.saved + saved, self.compiled + compiled


@pytest.fixture
def threads() -> Threads:
    return Threads()


def test_one_after_the_other_adds_up(threads):
    for number in range(8):
        threads.hit(1, number + 1.0, 10.0)
    threads.miss(1, 20.0, 3.0)
    assert threads.saved == pytest.approx(8 * 9.9)
    assert threads.compiled == pytest.approx(3.0)


def test_hits_close_together_add_up(threads):
    for number in range(8):
        threads.hit(1, 0.1 * (number + 1), 10.0)
    assert threads.saved == pytest.approx(8 * 9.9)


def test_a_load_that_takes_longer_than_compiling_saves_nothing(threads):
    threads.hit(1, 5.0, 1.0, load=3.0)
    assert threads.saved == pytest.approx(0.0)


def test_threads_at_the_same_time_count_once(threads):
    # The interpreter's lock lets them load by turns, but they began together.
    for thread in range(8):
        threads.hit(thread, 1.0 + 0.1 * thread, 10.0, load=0.1, since=1.0 + 0.1 * thread)
    assert threads.saved == pytest.approx(10.7 - 0.8)


def test_threads_that_were_started_together_count_once(threads):
    # The first one is ready before the last one begins to trace.
    for thread in range(8):
        threads.started[thread] = 0.01 * thread
        threads.hit(thread, 1.0 + thread, 10.0, since=0.5)
    assert threads.saved == pytest.approx(10.0, abs=8.0)


def test_threads_that_differ_count_as_the_longest(threads):
    threads.hit(1, 1.0, 10.0, since=1.0)
    for number in range(5):
        threads.hit(2, 1.0 + 0.1 * number, 1.0, since=0.1)
    assert threads.saved == pytest.approx(10.0 - 0.5, abs=0.2)


def test_a_thread_for_each_program_one_after_the_other_adds_up(threads):
    for thread in range(8):
        threads.hit(thread, thread + 1.0, 10.0, since=0.5)
    assert threads.saved == pytest.approx(8 * 9.9)


def test_threads_after_the_main_thread_add_up(threads):
    for number in range(4):
        threads.hit(0, number + 1.0, 10.0)
    for thread in range(1, 5):
        threads.hit(thread, 5.0 + 0.1 * thread, 10.0, since=0.5)
    threads.hit(0, 6.0, 10.0, since=0.5)  # the main thread has waited for them
    assert threads.saved == pytest.approx(4 * 9.9 + 10.0 + 9.9, abs=0.7)


def test_one_pool_in_several_rounds_adds_up(threads):
    for number in range(3):
        for thread in range(4):
            threads.hit(thread, 10.0 * number + 0.1 * thread + 1.0, 5.0, since=1.0 + 0.1 * thread)
    assert threads.saved == pytest.approx(3 * 5.0, abs=1.5)


def test_threads_that_worked_together_once_do_not_wait_for_each_other(threads):
    """Of a pool that loads quickly, one thread has a program between two of another."""
    for number in range(4):
        for thread in range(4):
            at = 1.0 + number + 0.25 * thread
            threads.hit(thread, at, 5.0, load=0.01, since=at if not number else 0.01)
    assert threads.saved == pytest.approx(4 * 5.0, abs=4.0)


def test_a_thread_that_starts_late_belongs_to_those_at_work(threads):
    """The last of several was started after the first had loaded its program, and while the second was at work."""
    for thread, (began, ended) in enumerate([(0.0, 1.0), (0.9, 2.0), (1.9, 3.0), (2.9, 4.0)]):
        threads.started[thread] = began
        threads.hit(thread, ended, 10.0)
    assert threads.saved < 4 * 10.0 / 2


def test_that_threads_worked_together_may_show_later(threads):
    """The last one is ready before those that were at work all the time."""
    for thread, began in enumerate([0.0, 0.1, 0.2, 1.5]):
        threads.started[thread] = began
    for thread, ended in [(0, 1.0), (3, 2.0), (1, 3.0), (2, 3.1)]:
        threads.hit(thread, ended, 10.0)
    assert threads.saved == pytest.approx(10.0, abs=2.5)


def test_a_hit_saves_nothing_while_another_thread_compiles(threads):
    threads.hit(1, 1.0, 10.0, since=1.0)
    threads.miss(2, 10.9, 10.9)
    assert threads.saved == pytest.approx(0.0, abs=0.1)
    assert threads.compiled == pytest.approx(10.9)


def test_compilations_at_the_same_time_count_once(threads):
    for thread in range(8):
        threads.miss(thread, 10.0 + 0.1 * thread, 10.0)
    assert threads.compiled == pytest.approx(10.7)
    assert threads.saved == pytest.approx(0.0)


def test_what_is_long_ago_is_forgotten_and_the_sum_goes_on(threads):
    for number in range(10_000):
        threads.hit(1, 2.0 * number + 1.0, 1.1)
    assert threads.saved == pytest.approx(10_000 * 1.0)


def test_a_thread_says_how_long_it_has_run():
    """Two real threads: one that runs since before the other's program began, and one that was started after it."""
    compile_time, begun, counted = CompileTime(), threading.Event(), threading.Event()
    saved = []

    def early():
        begun.set()
        assert counted.wait(60)
        saved.append(compile_time.hit(100.0, 0.0))

    def first():
        saved.append(compile_time.hit(100.0, 0.0))

    waiting = threading.Thread(target=early)
    waiting.start()
    assert begun.wait(60)
    time.sleep(0.03)  # the kernel tells the start of a thread in hundredths of a second
    for target in (first, first):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
    counted.set()
    waiting.join()
    assert saved[:2] == pytest.approx([100.0, 100.0], abs=1.0)
    assert saved[2] < 1.0 if sys.platform == "linux" else saved[2] <= 100.0


def test_a_thread_that_is_preempted_while_it_counts_has_not_begun_earlier():
    """Each look at a clock takes a second: the second thread still began after the program of the first had ended."""
    now, threads = itertools.count(), iter((1, 2))
    ended = []

    def clock():
        ended.append(float(next(now)))
        return ended[-1]

    compile_time = CompileTime(clock=clock, thread=lambda: next(threads), age=lambda: next(now) - ended[0] - 0.1)
    assert compile_time.hit(100.0, 0.0) == compile_time.hit(100.0, 0.0) == 100.0


def test_a_forked_child_begins_anew(threads):
    threads.hit(1, 1.0, 10.0)
    threads.time.after_fork_in_child()
    threads.saved = 0.0
    threads.hit(1, 2.0, 10.0)
    assert threads.saved == pytest.approx(9.9)
