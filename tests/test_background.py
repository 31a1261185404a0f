"""Work behind the program: queued and recurring tasks, what waits for them, and what a fork leaves of them."""

from __future__ import annotations

import gc
import logging
import threading
import weakref

import pytest

from ejcache.stores.background import BackgroundWorker
from ejcache.testing.processes import in_fork


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def worker():
    worker = BackgroundWorker(threads=2)
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


def test_a_failing_task_is_logged(worker, caplog):
    """A task that raises is said once, counted, and the next one runs."""

    def fail():
        raise RuntimeError("no good")

    done = threading.Event()
    with caplog.at_level(logging.WARNING, "ejcache"):
        worker.submit(fail)
        worker.submit(done.set)
        assert worker.drain(patience=60, limit=60) is True
    assert done.is_set()
    assert worker.failures == 1
    assert "no good" in caplog.text


def test_the_queue_is_bounded():
    """What is too much to wait is refused."""
    worker = BackgroundWorker(threads=1, max_tasks=2)
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


def test_recurring_tasks_when_they_are_due():
    """A recurring task runs once per interval, more or less, and not again while it is running."""
    clock, seen = Clock(), []
    worker = BackgroundWorker(clock=clock)

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


def test_recurring_tasks_in_a_thread(worker):
    """Recurring tasks run in the threads once there are any: after a task, or when woken."""
    often = threading.Semaphore(0)
    worker.every(0.001, often.release)
    worker.wake()
    for _ in range(3):
        assert often.acquire(timeout=60)
    worker.stop()


def test_stopped_and_used_again(worker):
    """A stopped worker drops what waits, and starts again with the next task."""
    begun, stuck, dropped = threading.Event(), threading.Event(), []

    def hold():
        begun.set()
        stuck.wait(60)

    one = BackgroundWorker(threads=1)
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
    """Where no thread can be started any more, at the end of a program, whoever waits does the work."""

    def refuse(self):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    seen = []
    worker = BackgroundWorker()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert worker.submit(lambda: seen.append(threading.current_thread())) is True
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
    worker = BackgroundWorker()
    worker.every(0.001, lambda: None)
    worker.wake()
    reference = weakref.ref(worker)
    del worker
    for _ in range(10_000):
        gc.collect()
        if reference() is None:
            break
    assert reference() is None
