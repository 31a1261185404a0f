"""The order of what happens at exit and at a fork."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest
from helpers import run_program
from store_processes import in_fork

from ejcache.util.lifecycle import track_forks
from ejcache.util.locks import ForkLock


def test_phases_run_in_order(run_python):
    """At exit the phases run in order, the latest callback of each first, and a failing one stops no other."""
    done = run_python(
        """
        import atexit
        atexit.register(lambda: print("the program's, registered before"))
        from ejcache.util.lifecycle import ExitPhase, at_exit
        atexit.register(lambda: print("the program's, registered after"))

        def fail():
            raise RuntimeError("no good")

        def interrupt():
            raise KeyboardInterrupt

        for phase in reversed(ExitPhase):
            at_exit(phase, lambda name=phase.name: print(name, 1))
            at_exit(phase, lambda name=phase.name: print(name, 2))
        at_exit(ExitPhase.UPLOAD, fail)
        at_exit(ExitPhase.UPLOAD, interrupt)
        at_exit(ExitPhase.CLOSE, lambda: at_exit(ExitPhase.LEASES, lambda: print("registered during exit")))
        """
    )
    assert done.stdout.splitlines() == [
        "the program's, registered after",
        *("WRITE 2", "WRITE 1", "UPLOAD 2", "UPLOAD 1", "LEASES 2", "LEASES 1", "COUNTERS 2", "COUNTERS 1"),
        *("RELEASED 2", "RELEASED 1", "registered during exit", "CLOSE 2", "CLOSE 1", "REPORT 2", "REPORT 1"),
        "the program's, registered before",
    ]
    assert "no good" in done.stderr
    assert "KeyboardInterrupt" in done.stderr


def test_one_thing_that_fails_at_exit_stops_no_other(run_python):
    """Of several stores that are closed at exit, each is, also if closing another one fails or is interrupted."""
    done = run_python(
        """
        from ejcache.util.lifecycle import AtExit, ExitPhase

        class Thing:
            def __init__(self, outcome):
                self.outcome = outcome

            def close(self):
                print("closing")
                if self.outcome is not None:
                    raise self.outcome

        open_things = AtExit(ExitPhase.CLOSE, Thing.close)
        kept = [Thing(RuntimeError("no good")), Thing(KeyboardInterrupt()), Thing(None), Thing(None)]
        for thing in kept:
            open_things.add(thing)
        open_things.discard(kept.pop())
        """
    )
    assert done.stdout == "closing\n" * 3
    assert "no good" in done.stderr
    assert "KeyboardInterrupt" in done.stderr


class Tracked:
    def __init__(self, name, seen):
        self.name, self.seen = name, seen
        track_forks(self)

    def before_fork(self):
        self.seen.append(f"before {self.name}")
        if self.name == "b":
            raise RuntimeError("no good")

    def after_fork_in_parent(self):
        self.seen.append(f"parent {self.name}")

    def after_fork_in_child(self):
        self.seen.append(f"child {self.name}")


def test_forks_in_order():
    """Tracked objects act in reverse order before a fork and in order after it; one that fails stops no other."""
    seen = []
    tracked = [Tracked(name, seen) for name in "abc"]
    assert in_fork(lambda: seen) == ["before c", "before b", "before a", "child a", "child b", "child c"]
    assert seen == ["before c", "before b", "before a", "parent a", "parent b", "parent c"]
    del tracked


def test_tracking_keeps_nothing_alive():
    """A tracked object is collected when nothing else refers to it, and is not called any more."""
    seen = []
    tracked = Tracked("a", seen)
    reference = weakref.ref(tracked)
    del tracked
    gc.collect()
    assert reference() is None
    assert in_fork(lambda: seen) == seen == []


def test_fork_lock_is_free_in_parent_and_child():
    """A lock that is held across a fork is free after it on both sides, also inside a section of the forking thread."""
    lock = ForkLock()

    def taken_and_released():
        with lock:
            return True

    assert in_fork(taken_and_released) is True
    with lock:
        assert in_fork(taken_and_released) is True
    assert taken_and_released() is True
    lock.after_fork_in_parent()  # created by another thread between the two hooks: nothing to release


FORK_IN_AN_IMPORT = """
import importlib, os, signal, sys, threading
from ejcache.util.scheduler import start_daemon

begun, forking = threading.Event(), threading.Event()
start_of_any = threading.Thread.start
def start(thread):
    start_of_any(thread)
    if thread.name == "ejcache-importing":
        forking.wait(60)  # the thread has begun, and who starts it was interrupted
if sys.argv[1] == "in the start":
    threading.Thread.start = start
def begin():
    start_daemon(importlib.import_module, "slow_module", name="ejcache-importing")
threading.Thread(target=begin).start()
assert begun.wait(60)
os.register_at_fork(before=forking.set)  # called before what ejcache has registered earlier
process = os.fork()
if process == 0:
    signal.alarm(30)
    import slow_module
    os._exit(slow_module.ANSWER)
print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
"""
SLOW_MODULE = """
import time
from __main__ import begun, forking

begun.set()
forking.wait()
time.sleep(0.3)  # as a file system may take
ANSWER = 42
"""


@pytest.mark.parametrize("when", ["in the import", "in the start"])
def test_a_fork_while_our_thread_imports(tmp_path, when):
    """The child can import what a thread of ours was importing; Python does not renew the locks of modules."""
    (tmp_path / "slow_module.py").write_text(SLOW_MODULE)
    done = run_program([sys.executable, "-c", FORK_IN_AN_IMPORT, when], env={"PYTHONPATH": str(tmp_path)}, timeout=60)
    assert done.stdout == "42\n"
