"""Work that users of a store do once: within a process, a host, and between hosts over one bucket."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
from buckets import GcsServer, GcsServerProcess, gcs_bucket
from forking import ForkedWithClients
from local_processes import Told

from ejcache.bucket.files import FileBucket
from ejcache.coordination.single_flight import SingleFlight
from ejcache.stores.local.store import LocalStore
from ejcache.stores.memory import MemoryStore
from ejcache.stores.shared.store import SharedStore
from ejcache.stores.tiered.store import TieredStore

HOST = """
    import sys
    from pathlib import Path
    from ejcache.coordination import leases
    from ejcache.coordination.single_flight import SingleFlight
    from ejcache.stores.local.store import LocalStore
    from ejcache.stores.shared.store import SharedStore
    from ejcache.bucket.gcs import GcsBucket
    from ejcache.bucket.retry import RetryPolicy
    from ejcache.stores.tiered.store import TieredStore

    url, place, count, heartbeat = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    leases._EXIT_SECONDS = 60.0  # a busy machine may need more than two to release them
    shared = SharedStore(GcsBucket("bucket", "prefix", endpoint_url=url, policy=RetryPolicy(deadline=60.0)))
    local = LocalStore(place / "local", timeout=60.0)
    store = TieredStore(local, shared, scratch=place / "scratch", drain_seconds=60.0)
    flights = SingleFlight.of_store(store, directory=place / "leases", heartbeat=heartbeat)

    def say(*words):
        print(*words, flush=True)

    def compile(key):
        say("compiling", key)
        sys.stdin.readline()
        store.put(key, b"executable " + key.encode())
        return b"executable " + key.encode()

    say("ready")
    sys.stdin.readline()
    for n in range(count):
        key = f"k{n}"
        found = flights.run(key, lookup=lambda: store.get(key), work=lambda: compile(key), deadline=60)
        assert found == b"executable " + key.encode()
    say("done")
    sys.stdin.readline()
    store.close()
    say("closed")
"""


@contextmanager
def processes(server, *hosts):
    """Processes that are ready: each is a directory, how many programs it wants, and how often it beats."""
    with ExitStack() as stack:
        made = [
            stack.enter_context(Told(HOST, server.url, place, count, heartbeat, start=ForkedWithClients))
            for place, count, heartbeat in hosts
        ]
        for process in made:
            assert process.says() == ["ready"]
        yield made


def compile_until_done(process):
    """Let it go on whenever it compiles; what it has compiled."""
    compiled = []
    while (said := process.says()) != ["done"]:
        assert said[0] == "compiling", said
        compiled.append(said[1])
        process.go_on()
    return compiled


@pytest.fixture
def server():
    with GcsServerProcess() as server:
        yield server


@pytest.mark.parametrize(
    "hosts", [pytest.param(4, id="four hosts", marks=pytest.mark.soak), pytest.param(2, id="two hosts of two")]
)
def test_four_processes_over_a_bucket(server, tmp_path, hosts):
    """Four processes that start cold together compile and publish each program once in total."""
    with processes(server, *((tmp_path / f"host-{n % hosts}", 5, 600.0) for n in range(4))) as four:
        for process in four:
            process.go_on()
        with ThreadPoolExecutor(4) as pool:
            compiled = list(pool.map(compile_until_done, four))
        assert sorted(key for keys in compiled for key in keys) == [f"k{n}" for n in range(5)]
        # A process that ends releases its leases at once, and not a second after the work.
        for process in four:
            process.go_on()
            assert process.says() == ["closed"]
            assert process.process.wait(200) == 0
    published = [r for r in server.requests if r.method == "POST" and "entries/" in str(r.query)]
    bucket = gcs_bucket(server.url)
    assert len(list(bucket.walk("v1/entries/"))) == 5
    assert list(bucket.walk("v1/leases/")) == []
    bucket.close()
    assert [r.status for r in published].count(412) == 0


def test_killed_host(server, tmp_path):
    """When the host that compiles dies, another one does it."""
    # Only the first is taken for dead.
    with processes(server, (tmp_path / "host-0", 1, 0.5), (tmp_path / "host-1", 1, 600.0)) as (first, second):
        first.go_on()
        assert first.says() == ["compiling", "k0"]
        second.go_on()
        first.process.kill()
        assert second.says() == ["compiling", "k0"]
        second.go_on()
        assert second.says() == ["done"]


def test_requests_of_a_first_compilation(tmp_path):
    """A miss that is compiled and published: one look, one lease, one publication; what follows goes behind."""
    bucket = Counting(tmp_path / "shared")
    with TieredStore(LocalStore(tmp_path / "local"), SharedStore(bucket), scratch=tmp_path / "scratch") as store:
        flights = SingleFlight.of_store(store, directory=tmp_path / "leases", heartbeat=600.0)
        assert store.get("k") is None

        def work():
            store.put("k", b"executable")
            return b"executable"

        flights.run("k", lookup=lambda: store.get("k"), work=work, deadline=60, missed_since=time.monotonic())
        assert store.flush(60) is True
        asked = [(what, where) for what, where in bucket.asked if where != "counters"]
        assert asked[:3] == [("read", "entries"), ("write", "leases"), ("write", "entries")]
        # That the work is done; the lease is released a second later.
        assert asked[3:] in ([], [("write", "leases")])


class Counting(FileBucket):
    """A directory that remembers what it was asked."""

    def __init__(self, path):
        super().__init__(path)
        self.asked = []

    def read(self, name, **options):
        self.asked.append(("read", name.split("/")[1]))
        return super().read(name, **options)

    def write(self, name, data, **options):
        self.asked.append(("write", name.split("/")[1]))
        return super().write(name, data, **options)


def compiled_by(flights, store, key="k", *, keep=True, **options):
    """How often the work was done by four threads that miss together."""
    done = []
    start = threading.Barrier(4)
    all_there, go_on = threading.Event(), threading.Event()

    def work():
        done.append(key)
        all_there.set()
        go_on.wait(60)
        if keep:
            store.put(key, b"executable")
        return b"executable"

    def one(_):
        start.wait(60)
        return flights.run(key, lookup=lambda: store.get(key), work=work, deadline=60, **options)

    with ThreadPoolExecutor(4) as pool:
        found = pool.map(one, range(4))
        assert all_there.wait(60)
        go_on.set()
        assert list(found) == [b"executable"] * 4
    return len(done)


@pytest.mark.parametrize("between_hosts", [True, False])
@pytest.mark.parametrize("locks", [True, False])
@pytest.mark.parametrize("kind", ["local", "shared", "tiered", "memory"])
def test_threads(tmp_path, kind, locks, between_hosts):
    """Over every kind of store the threads of a process compile once, if anything can tell them to."""
    local, shared = LocalStore(tmp_path / "local"), SharedStore(FileBucket(tmp_path / "shared"))
    store = {
        "local": local,
        "shared": shared,
        "tiered": TieredStore(local, shared, scratch=tmp_path / "scratch"),
        "memory": MemoryStore(),
    }[kind]
    flights = SingleFlight.of_store(store, directory=tmp_path / "leases" if locks else None)
    count = compiled_by(flights, store, between_hosts=between_hosts)
    told = locks or (between_hosts and kind in ("shared", "tiered"))
    assert count == 1 if told else 1 <= count <= 4
    store.close()


def test_found_without_any_locks():
    """Without locks and without a shared store, what is there is found all the same."""
    store = MemoryStore()
    store.put("k", b"executable")
    flights = SingleFlight.of_store(store, directory=None)
    assert flights.run("k", lookup=lambda: store.get("k"), work=lambda: b"other", deadline=60) == b"executable"
    options = {"lookup": lambda: store.get("k"), "work": lambda: b"other", "deadline": 60}
    assert flights.run("k", **options, missed_since=time.monotonic()) == b"other"


def test_read_only_store_leases_nothing(tmp_path):
    """Who may not write does not make others wait for them."""
    bucket = FileBucket(tmp_path / "shared")
    store = SharedStore(bucket, read_only=True)
    flights = SingleFlight.of_store(store, directory=None)
    assert flights.run("k", lookup=lambda: None, work=lambda: b"x", deadline=60) == b"x"
    assert list(bucket.walk("v1/")) == []


def test_leases_of_dead_hosts_cost_nothing(monkeypatch):
    """A lease that nobody has renewed for three intervals, by the storage's clock, is taken at the first look."""
    with GcsServer() as server:
        shared = SharedStore(gcs_bucket(server))
        keys = [f"k{number}" for number in range(14)]
        dead = '{"beat": 3, "holder": "node-3-812-%s", "interval": 3.0}' % ("0" * 32)
        with monkeypatch.context() as before:
            before.setattr("gcs_server.objects.timestamp", lambda: "2020-01-01T00:00:00.000Z")
            for key in keys:
                shared.bucket.create(f"v1/leases/{key}", dead.encode())
        flights = SingleFlight.of_store(shared, directory=None, sleep=lambda seconds: pytest.fail("it waits"))
        assert [flights.run(key, lookup=lambda: None, work=lambda: "made", deadline=60) for key in keys] == [
            "made"
        ] * 14


def test_a_lease_that_a_wrong_clock_takes_for_old_is_not_taken(monkeypatch):
    """A host whose clock is a day ahead asks the storage for the time before it takes a holder for dead."""
    with GcsServer() as server:
        shared = SharedStore(gcs_bucket(server))
        alive = SingleFlight.of_store(shared, directory=None)
        entered, may_end, looked = threading.Event(), threading.Event(), []

        def work():
            entered.set()
            assert may_end.wait(60)
            shared.put("k", b"made")
            return b"made"

        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(alive.run, "k", lookup=lambda: None, work=work, deadline=60)
            assert entered.wait(60)
            real = time.time
            monkeypatch.setattr("ejcache.coordination.shared_leases.time.time", lambda: real() + 86_400)

            def lookup():
                looked.append(1)
                may_end.set()
                return shared.get("k")

            other = SingleFlight.of_store(shared, directory=None)
            assert other.run("k", lookup=lookup, work=lambda: b"anew", deadline=60) == b"made"
            assert first.result(60) == b"made"
