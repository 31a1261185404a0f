"""Calls with a timeout, and many calls at once: in threads that keep no program from ending, during exit too."""

from __future__ import annotations

import threading

import pytest
from store_processes import in_fork

from ejcache.util.daemon_threads import idle_threads
from ejcache.util.threads import CallTimeoutError, DaemonPool, call_with_timeout, in_parallel


def test_a_call_that_hangs_is_left_behind():
    """The caller goes on at the timeout, and the error names the call; its own errors, also timeouts, are its own."""
    release = threading.Event()
    with pytest.raises(CallTimeoutError, match=r"waiting gave no answer for 0\.05 s"):
        call_with_timeout("waiting", release.wait, 0.05)
    release.set()

    def fail():
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        call_with_timeout("failing", fail, 60)


def test_many_at_once_in_order():
    """Results come in the order of the items, and as many calls run at once as there are threads."""
    barrier = threading.Barrier(8)
    assert list(in_parallel(lambda n: (barrier.wait(60), n)[1], range(16), threads=8)) == list(range(16))
    assert list(in_parallel(str, range(3), threads=1)) == ["0", "1", "2"]


def test_a_failing_call_ends_the_rest():
    """An exception reaches the caller when its turn comes, after the calls that run have finished."""
    running, taken = [], []

    def items():
        for number in range(100):
            taken.append(number)
            yield number

    def call(number):
        running.append(number)
        if number == 2:
            raise ValueError("no good")
        return number

    results = in_parallel(call, items(), threads=4)
    assert next(results) == 0
    assert len(taken) <= 5
    assert next(results) == 1
    with pytest.raises(ValueError, match="no good"):
        next(results)
    assert len(running) < 20


@pytest.fixture
def ending():
    """Idle threads end from now on."""
    idle_threads.end()


def test_idle_threads_end(ending):
    """A thread that has done its task ends, one that is at work when idle ones are ended does so then."""
    pool, free = DaemonPool(), threading.Event()
    idle_threads.keep()
    waiting = pool.submit(threading.current_thread).result(60)
    at_work = pool.submit(lambda: (free.wait(60), threading.current_thread())[1])
    idle_threads.end()
    free.set()
    for thread in (waiting, at_work.result(60), pool.submit(threading.current_thread).result(60)):
        thread.join(60)
        assert not thread.is_alive()
    assert (pool.threads, pool.idle) == (0, 0)
    kept = DaemonPool(always=True)
    assert kept.submit(lambda: 1).result(60) == 1
    kept.end_idle()
    assert kept.threads == 1


def test_after_a_fork():
    """A forked child has threads of its own."""
    assert call_with_timeout("here", lambda: 1, 60) == 1
    assert in_fork(lambda: (call_with_timeout("there", lambda: 2, 60), list(in_parallel(int, "345")))) == (2, [3, 4, 5])


@pytest.mark.parametrize("used_before", [True, False])
def test_during_exit(run_forked, used_before):
    """At exit, when Python 3.12 starts no thread any more, calls are made all the same."""
    done = run_forked(
        f"""
        from ejcache.util.lifecycle import ExitPhase, at_exit
        from ejcache.util.threads import in_parallel
        from ejcache.util.threads import call_with_timeout
        if {used_before}:
            list(in_parallel(int, "12"))
            call_with_timeout("x", int, 60)
        at_exit(ExitPhase.UPLOAD, lambda: print(list(in_parallel(int, "345")), call_with_timeout("x", lambda: 6, 60)))
        """
    )
    assert done.stdout == "[3, 4, 5] 6\n"
