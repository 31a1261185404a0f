"""Queued, delayed and recurring tasks, waiting for them, and what remains of them in a forked child."""

from __future__ import annotations

import gc
import logging
import threading
import weakref

import pytest
from store_processes import in_fork

from ejcache.util.scheduler import Scheduler


@pytest.fixture
def worker():
    worker = Scheduler(threads=2)
    yield worker
    worker.stop()


def test_tasks_run_beside_each_other(worker):
    """One task that is stuck does not stop the next."""
    stuck, free = threading.Event(), threading.Event()
    worker.submit(lambda: stuck.wait(60))
    worker.submit(free.set)
    assert free.wait(60)
    assert worker.drain(patience=0.01, limit=60) is False
    stuck.set()
    assert worker.drain(patience=60, limit=60) is True
    assert worker.waiting == 0


def test_the_last_task_of_a_program_has_a_thread(monkeypatch):
    """With one to spare, what is submitted when no thread can be started any more does not wait for what is running."""
    for spare in (1, 0):
        worker = Scheduler(threads=4, spare=spare)
        ran, running, gate = threading.Event(), threading.Event(), threading.Event()
        worker.submit(ran.set)
        assert ran.wait(60)
        worker.submit(lambda running=running, gate=gate: (running.set(), gate.wait(60)))
        assert running.wait(60)
        with monkeypatch.context() as patch:
            patch.setattr("ejcache.util.daemon_threads.start_daemon", lambda *_, **__: False)
            last = threading.Event()
            worker.submit(last.set)
            if spare:
                assert last.wait(60)
            gate.set()
            assert last.wait(60)
        worker.stop()


def test_a_failing_task_is_logged(worker, caplog):
    """An exception of a task is logged, and the next task runs."""

    def fail():
        raise RuntimeError("no good")

    done = threading.Event()
    with caplog.at_level(logging.WARNING, "ejcache"):
        worker.submit(fail)
        worker.submit(done.set)
        assert worker.drain(patience=60, limit=60) is True
    assert done.is_set()
    assert "no good" in caplog.text


def test_the_queue_is_bounded():
    """What is too much to wait is refused."""
    worker = Scheduler(threads=1, most_tasks=2)
    begun, stuck = threading.Event(), threading.Event()

    def hold():
        begun.set()
        stuck.wait(60)

    assert worker.submit(hold) is True
    assert begun.wait(60)
    assert [worker.submit(lambda: None) for _ in range(3)] == [True, True, False]
    stuck.set()
    assert worker.drain(patience=60, limit=60) is True
    worker.stop()


def test_recurring_tasks_when_they_are_due(clock):
    """A recurring task runs once per interval, more or less, and not again while it is running."""
    seen = []
    worker = Scheduler(clock=clock)

    def task():
        seen.append(clock.now)
        worker.run_due()

    worker.every(60.0, task)
    worker.run_due()
    assert seen == []
    for _ in range(3):
        clock.now += 70.0
        worker.run_due()
        worker.run_due()
    assert len(seen) == 3


def test_delayed_tasks_when_they_are_due(clock):
    """A delayed task runs once, when it is due, and not at all after `stop`."""
    seen, ran = [], threading.Event()
    worker = Scheduler(clock=clock)
    assert worker.later(10.0, lambda: (seen.append(clock.now), ran.set())) is True
    clock.now += 9.0
    assert worker.run_due() is False
    clock.now += 2.0
    while worker.run_due():
        pass
    assert ran.wait(60)
    worker.later(10.0, lambda: seen.append("dropped"))
    worker.stop()
    clock.now += 20.0
    assert worker.run_due() is False
    assert seen == [1011.0]


def test_delayed_tasks_in_a_thread(worker):
    """A waiting thread wakes up for a delayed task that is due before what it waited for."""
    first, second = threading.Event(), threading.Event()
    worker.later(3600.0, lambda: None)
    worker.later(0.01, first.set)
    assert first.wait(60)
    worker.later(0.01, second.set)
    assert second.wait(60)


def test_a_thread_sleeps_on_when_a_task_is_due_after_its_next_look(worker, monkeypatch):
    """A heartbeat a second from now does not take the processor from the program now."""
    ran, woken = threading.Event(), []
    worker.later(1800.0, lambda: None)
    worker.later(0.0, ran.set)
    assert ran.wait(60)
    notify = threading.Condition.notify

    def note(condition, number=1):
        # Not `current_thread()`: a thread that begins is not known yet, and asking for it notifies again.
        woken.append(threading.get_ident())
        notify(condition, number)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Condition, "notify", note)
        worker.later(3600.0, lambda: None)
    assert threading.get_ident() not in woken


def test_a_timed_task_holds_up_no_other(worker):
    """While one that is due waits for storage, another one that is due, and a submitted one, have their turn."""
    stuck, timed, submitted = threading.Event(), threading.Event(), threading.Event()
    worker.later(0.0, lambda: stuck.wait(60))
    worker.later(0.0, timed.set)
    assert timed.wait(60)
    worker.submit(submitted.set)
    assert submitted.wait(60)
    stuck.set()


def test_recurring_tasks_in_a_thread(worker):
    """Recurring tasks run in the threads once there are any."""
    often = threading.Semaphore(0)
    worker.every(0.001, often.release)
    worker.submit(lambda: None)
    for _ in range(3):
        assert often.acquire(timeout=60)
    worker.stop()


def test_stopped_and_used_again(worker):
    """A stopped worker drops what waits, and starts again with the next task."""
    begun, stuck, dropped = threading.Event(), threading.Event(), []

    def hold():
        begun.set()
        stuck.wait(60)

    one = Scheduler(threads=1)
    one.submit(hold)
    assert begun.wait(60)
    one.submit(lambda: dropped.append(1))
    one.stop()
    stuck.set()
    done = threading.Event()
    one.submit(done.set)
    assert done.wait(60)
    assert dropped == []
    one.stop()


def test_without_threads_the_waiting_one_works(monkeypatch):
    """During exit, when no thread can be started, `drain` runs the tasks and `later` refuses."""

    def refuse(self):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    seen = []
    worker = Scheduler()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert worker.submit(lambda: seen.append(threading.current_thread())) is True
        assert worker.later(0.0, lambda: None) is False
        assert worker.drain(patience=1, limit=60) is True
    assert seen == [threading.current_thread()]


def test_fork_starts_its_own(worker):
    """A fork's child has none of its parent's tasks, and runs its own."""
    stuck = threading.Event()
    worker.submit(lambda: stuck.wait(60))

    def child():
        done = threading.Event()
        waiting = worker.waiting
        worker.submit(done.set)
        return waiting, done.wait(60)

    assert in_fork(child) == (0, True)
    stuck.set()
    assert worker.drain(patience=60, limit=60) is True


def test_forgotten_worker_ends():
    """A worker that nobody refers to, and that has nothing to do, is collected."""
    worker = Scheduler()
    worker.every(0.001, lambda: None)
    worker.submit(lambda: None)
    reference = weakref.ref(worker)
    del worker
    for _ in range(10_000):
        gc.collect()
        if reference() is None:
            break
    assert reference() is None
