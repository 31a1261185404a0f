"""A process that dies at any instruction of a write leaves each entry whole or absent, and nothing that stays."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys

import pytest
from helpers import SUPPORT
from local_processes import starting
from soak_turns import some

from ejcache.errors import StoreBusyError
from ejcache.stores.local.store import LocalStore

POINTS = [
    "file-begun",
    "file-written",
    "evicted",
    "noted",
    "renamed",
    "done",
    "before-commit",
    "committed",
    "begun-anew",
]
LIMIT = 200_000

WRITER = """
import os, signal, sys
sys.path.insert(0, SUPPORT)
from ejcache.stores.local.store import LocalStore
from write_steps import tell_steps
point, way = sys.argv[2:4]
armed = False
def hook(reached):
    if armed and reached == point:
        if way != "wait":
            signal.raise_signal(signal.Signals[way])
        print("reached", flush=True)
        sys.stdin.readline()
store = LocalStore(sys.argv[1], max_size=200_000)
tell_steps(hook)
armed = True
if sys.argv[4] == "replace":
    store.replace("k0", b"n" * 60_000)
else:
    store.put("new", b"n" * 60_000)
for _ in range(200 * (point in ("before-commit", "committed", "begun-anew"))):  # many puts are one commit
    store.replace("new", b"n" * 60_000)
armed = False
print(store.get("new") == b"n" * 60_000, flush=True)
""".replace("SUPPORT", repr(str(SUPPORT)))


@pytest.fixture
def start_python():
    """Start an interpreter that ends with the test."""
    with starting() as start:
        yield start


def disk_usage(path):
    return sum(entry.lstat().st_blocks * 512 for entry in [path, *path.rglob("*")])


def fill(path):
    with LocalStore(path, max_size=LIMIT) as store:
        for n in range(10):
            store.put(f"k{n}", bytes([n]) * (20_000 if n % 2 else 19_000))
    return path


def check_whole(path):
    """After the next open, without a repair: whole entries, the limit, no leftovers, nothing that an audit finds."""
    with LocalStore(path, max_size=LIMIT) as store:
        infos = list(store.entries())
        for info in infos:
            data = store.peek(info.key)
            assert data is not None
            assert len(data) == info.size
            assert set(data) <= {ord("n"), int(info.key[1:]) if info.key.startswith("k") else ord("n")}
            assert len(set(data)) == 1
        assert store.size() == sum(info.size for info in infos) <= LIMIT
        assert store.check() == []
        assert disk_usage(path) <= LIMIT + store.overhead(len(infos)) <= LIMIT + 3 * 2**20 + 5 * 2**10 * len(infos)
        assert list((path / "v1/local/tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("way", "operation", "point"),
    [
        *(("SIGKILL", operation, point) for operation in ("put", "replace") for point in POINTS),
        ("SIGTERM", "put", "file-written"),
        ("SIGTERM", "put", "before-commit"),
    ],
)
def test_killed_at(tmp_path, start_python, way, operation, point):
    """Killed or terminated at each point of a put that evicts, and of a replacement."""
    path = fill(tmp_path / "store")
    (order,) = path.glob("v1/local/order-*")
    process = start_python(WRITER, path, point, way, operation)
    assert process.wait() == -signal.Signals[way]
    check_whole(path)
    assert order.exists()  # it was not made anew, which would count every file


@pytest.mark.parametrize("point", ["file-begun", "file-written"])
def test_sweep_spares_a_living_writer(tmp_path, start_python, point):
    """A value that a living process is writing survives the sweep after another process's death."""
    path = fill(tmp_path / "store")
    living = start_python(WRITER, path, point, "wait", "put")
    assert living.stdout.readline() == "reached\n"
    dead = start_python(WRITER, path, "file-written", "SIGKILL", "put")
    assert dead.wait() == -signal.SIGKILL
    assert len(list(path.glob("v1/local/tmp/*"))) == 2
    with LocalStore(path, max_size=LIMIT) as store:
        assert store.check() == []
        assert len(list(path.glob("v1/local/tmp/*"))) == 1
        living.stdin.write("go on\n")
        living.stdin.flush()
        assert living.stdout.readline() == "True\n"
        assert living.wait() == 0
        assert store.get("new") == b"n" * 60_000
    check_whole(path)


def test_open_while_a_writer_is_inside(tmp_path, start_python):
    """A process that stands still inside its transaction delays nobody who reads, and writers until their deadline."""
    path = fill(tmp_path / "store")
    writer = start_python(WRITER, path, "noted", "wait", "put")
    assert writer.stdout.readline() == "reached\n"
    with LocalStore(path, max_size=LIMIT, timeout=0.3) as store:
        assert store.get("k9") == b"\x09" * 20_000
        assert store.contains("new") is False
        with pytest.raises(StoreBusyError):
            store.put("mine", b"x" * 100)
        writer.stdin.write("go on\n")
        writer.stdin.flush()
        assert writer.wait() == 0
        assert store.get("new") == b"n" * 60_000
        assert store.put("mine", b"n" * 100)
    check_whole(path)


def test_killed_while_an_order_is_made(tmp_path, start_python):
    """An order that was being made when its process died is made anew."""
    path = tmp_path / "store"
    process = start_python(
        """
        import os, signal, sys
        sys.path.insert(0, sys.argv[2])
        from ejcache.stores.local.store import LocalStore
        from write_steps import tell_steps
        tell_steps(lambda step: step == "order-made" and os.kill(os.getpid(), signal.SIGKILL))
        LocalStore(sys.argv[1]).put("k", b"x")
        """,
        path,
        SUPPORT,
    )
    assert process.wait() == -signal.SIGKILL
    assert len(list((path / "v1/local").glob("order-*"))) == 1
    fill(path)
    check_whole(path)


def test_a_write_while_the_process_ends(tmp_path, run_python):
    """A process that ends without closing its store, and writes once more while it ends, leaves all of that."""
    path = tmp_path / "store"
    finished = run_python(
        """
        import atexit, sys
        late = []
        atexit.register(lambda: late[0].add_counters({"late": 1}) or late[0].put("late", b"x" * 20_000))
        from ejcache.stores.local.store import LocalStore
        late.append(LocalStore(sys.argv[1]))
        late[0].put("k", b"value")
        """,
        str(path),
    )
    assert finished.stderr == ""
    with LocalStore(path) as store:
        assert store.counters() == {"late": 1}
        assert store.get("late") == b"x" * 20_000
        assert store.check() == []


def test_stopped_process_is_not_dead(tmp_path, start_python):
    """A stopped process that has the store open is neither swept nor waited for."""
    path = fill(tmp_path / "store")
    stopped = start_python(WRITER, path, "file-written", "wait", "put")
    assert stopped.stdout.readline() == "reached\n"
    os.kill(stopped.pid, signal.SIGSTOP)
    with LocalStore(path, max_size=LIMIT, timeout=30.0) as store:
        assert store.put("mine", b"n" * 30_000)
        assert store.get("mine") == b"n" * 30_000
        assert len(list(path.glob("v1/local/tmp/*"))) == 1
    os.kill(stopped.pid, signal.SIGCONT)
    out, _ = stopped.communicate("go on\n", timeout=60)
    assert out == "True\n"
    check_whole(path)


STEP = 32
"""One test interrupts each thirty-second instant: a call has hundreds."""


class Interrupts:
    """Raises where a signal handler's exception would come: at the end of the nth call of C, or the start of Python's.

    Once, so that what is done about the interrupt is not interrupted.
    """

    PLACES = re.compile(r"/ejcache/stores/|/diskcache/|/contextlib\.py$")

    def __init__(self, number):
        self.left = number

    def __call__(self, frame, event, argument):
        if event in {"call", "c_return"} and self.PLACES.search(frame.f_code.co_filename):
            self.left -= 1
            if self.left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt


# A file that was open when it came is closed when the exception is dropped.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("operation", ["put", "replace", "get", "delete"])
@pytest.mark.parametrize("start", some(range(1, STEP + 1), every=STEP))
def test_interrupted_anywhere(tmp_path, operation, start):
    """Ctrl-C at any moment of a call: the store is as usable as before, and each entry is whole or absent."""
    with LocalStore(tmp_path, max_size=LIMIT, timeout=60.0) as store:
        arguments = (b"n" * 60_000,) if operation in {"put", "replace"} else ()
        interrupted = 0
        kept = []  # as sys.last_exc keeps it, and with it what was open when it came
        while len(kept) == interrupted:
            key = f"k{interrupted}"
            if operation != "put":
                store.put(key, b"o" * 60_000)
            interrupted += 1
            sys.setprofile(Interrupts(start + STEP * (interrupted - 1)))
            try:
                getattr(store, operation)(key, *arguments)
            except KeyboardInterrupt as exc:
                kept.append(exc)
            finally:
                sys.setprofile(None)
            assert store.size() == sum(info.size for info in store.entries())
            for info in store.entries():
                value = store.peek(info.key) or b""
                assert (len(value), len(set(value))) == (60_000, 1), f"interrupted at {interrupted}"
        assert interrupted > 1 or (operation == "get" and start > 8)  # a get has no more instants
        kept.clear()
        gc.collect()  # what it kept open
    with LocalStore(tmp_path, max_size=LIMIT) as store:
        assert store.check() == []
        assert list((tmp_path / "v1/local/tmp").iterdir()) == []
