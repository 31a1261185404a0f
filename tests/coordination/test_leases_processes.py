"""Single flight between real processes: started together, killed, stopped.

Each process says on its standard output what it does, and waits in the middle of its work until it is told to go on.
"""

from __future__ import annotations

import selectors
import signal
from contextlib import ExitStack, contextmanager

import pytest
from local_processes import Told

COMPILER = """
    import sys
    import time
    from pathlib import Path
    from ejcache.coordination import leases as leases_module
    from ejcache.coordination.host_leases import LocalLeases
    from ejcache.coordination.shared_leases import StoreLeases
    from ejcache.bucket.files import FileBucket
    from ejcache.coordination.single_flight import LeaseLevel, SingleFlight

    kind, place, keeps, interval = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "keeps", float(sys.argv[4])
    entry = place / "entry"
    leases_module._EXIT_SECONDS = 60.0  # a busy machine may need more than two to release them

    def say(*words):
        print(*words, flush=True)

    def lookup():
        try:
            return entry.read_text()
        except FileNotFoundError:
            return None

    def work():
        say("working")
        sys.stdin.readline()
        if keeps:
            (place / "new").write_text("executable")
            (place / "new").rename(entry)
        return "executable"

    if kind == "local":
        leases = LocalLeases(place / "leases", interval=interval)
    else:
        leases = StoreLeases(FileBucket(place / "shared"), interval=interval)

    waiting = False

    def sleep(seconds):
        global waiting
        if not waiting:
            waiting = True
            say("waiting")
        time.sleep(seconds)

    level = LeaseLevel(leases, lambda key, callback: callback() or keeps)
    flight = SingleFlight([level], sleep=sleep)
    say("ready")
    sys.stdin.readline()
    say("done", flight.run("k", lookup=lookup, work=work, deadline=600))
"""


@pytest.fixture(params=["local", "shared"])
def kind(request):
    return request.param


@contextmanager
def compilers(kind, place, count, *, keeps="keeps", mortal=0, interval=0.5):
    """So many processes. The first `mortal` of them beat so often that they soon count as dead; the others never do."""
    with ExitStack() as stack:
        intervals = [interval if n < mortal else 600.0 for n in range(count)]
        made = [stack.enter_context(Told(COMPILER, kind, place, keeps, interval)) for interval in intervals]
        for compiler in made:
            assert compiler.says() == ["ready"]
        yield made


def test_four_processes_compile_once(kind, tmp_path):
    """Of four processes that start together one compiles, and the others get what it made."""
    with compilers(kind, tmp_path, 4) as (first, *others):
        first.go_on()
        assert first.says() == ["working"]
        for other in others:
            other.go_on()
            assert other.says() == ["waiting"]
        first.go_on()
        assert first.says() == ["done", "executable"]
        for other in others:
            assert other.says() == ["done", "executable"]


def test_killed_holder(kind, tmp_path):
    """When the holder is killed one of those who wait compiles, and the other gets what that one made."""
    # Until it is killed a busy machine must not take it for dead, or a third process compiles, too.
    with compilers(kind, tmp_path, 3, mortal=1, interval=1.5) as (first, *others):
        first.go_on()
        assert first.says() == ["working"]
        for other in others:
            other.go_on()
            assert other.says() == ["waiting"]
        first.process.kill()
        # The process that works first says so; the other one says nothing before it is done.
        worker, waiter = who_works(others)
        worker.go_on()
        assert worker.says() == ["done", "executable"]
        assert waiter.says() == ["done", "executable"]


def test_stopped_holder(kind, tmp_path):
    """A stopped holder is taken over, and does no harm when it goes on."""
    with compilers(kind, tmp_path, 2, mortal=2) as (first, other):
        first.go_on()
        assert first.says() == ["working"]
        first.process.send_signal(signal.SIGSTOP)
        other.go_on()
        said = other.says()
        assert (other.says() if said == ["waiting"] else said) == ["working"]  # a busy one finds it dead at once
        first.process.send_signal(signal.SIGCONT)
        first.go_on()
        assert first.says() == ["done", "executable"]
        other.go_on()
        assert other.says() == ["done", "executable"]
        for compiler in (first, other):
            assert compiler.process.wait(200) == 0
    assert not list((tmp_path / "leases").glob("*.lease"))
    assert not list(tmp_path.glob("shared/v1/leases/*"))


def who_works(pair):
    """Of two processes, the one that says that it works, and the other."""
    with selectors.DefaultSelector() as selector:
        for compiler in pair:
            selector.register(compiler.process.stdout, selectors.EVENT_READ, compiler)
        (key, _), *_ = selector.select(200)
    worker = key.data
    assert worker.says() == ["working"]
    return worker, next(compiler for compiler in pair if compiler is not worker)
