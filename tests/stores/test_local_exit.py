"""What a process leaves that ends, or drops its store: after nothing but hits, SQLite's log, for the next one."""

from __future__ import annotations

import gc
import warnings

import pytest

from ejcache.stores.local.store import LocalStore

HITS = """
import sys
from ejcache.stores.local.store import LocalStore

store = LocalStore(sys.argv[1], max_size=3000)
assert store.get("a") == b"a" * 1000
store.note_used("a")
store.add_counters({"hits": 1})
exec(sys.argv[2])
"""
BESIDE = """
import subprocess
put = "import sys; from ejcache.stores.local.store import LocalStore; LocalStore(sys.argv[1]).put('c', b'c')"
subprocess.run([sys.executable, "-c", put, sys.argv[1]], check=True)
"""


@pytest.fixture
def log(tmp_path):
    """Of a store with two entries."""
    with LocalStore(tmp_path / "store") as store:
        store.put("a", b"a" * 1000)
        store.put("b", b"b" * 1000)
    (index,) = (tmp_path / "store").glob("v1/local/g-*/cache.db")
    return index.with_name("cache.db-wal")


def test_hits_leave_the_log(run_forked, tmp_path, log):
    """No process that died is to be found, and what was used and counted is there for the next process."""
    for _ in range(3):
        run_forked(HITS, str(tmp_path / "store"), "")
        assert log.stat().st_size > 0
        assert list((tmp_path / "store/v1/local/present").iterdir()) == []
    with LocalStore(tmp_path / "store", max_size=3000) as store:
        assert store.counters() == {"hits": 3}
        store.put("c", b"c" * 1500)
        assert [info.key for info in store.entries()] == ["a", "c"]
        assert store.check() == []
    assert not log.exists()


def test_who_cannot_read_the_log_misses_no_entry(run_forked, tmp_path, log):
    """Copies of the database alone, and readers of a log that was cut off, see every entry."""
    run_forked(HITS, str(tmp_path / "store"), "")
    with LocalStore(tmp_path / "store", read_only=True) as reader:
        assert (reader.get("a"), reader.get("b")) == (b"a" * 1000, b"b" * 1000)
        assert reader.counters() == {"hits": 1}
    log.unlink()
    log.with_name("cache.db-shm").unlink()
    with LocalStore(tmp_path / "store", read_only=True) as reader:
        assert (reader.get("a"), reader.get("b")) == (b"a" * 1000, b"b" * 1000)
    with LocalStore(tmp_path / "store") as store:
        assert store.check() == []


@pytest.mark.parametrize(
    "change", ["store.put('c', b'c')", "store.delete('b')", "store.reset_counters()", "store.close()"]
)
def test_anything_else_does_not(run_forked, tmp_path, log, change):
    """A process that changed entries or counters, or closed the store, has moved the log into the database."""
    run_forked(HITS, str(tmp_path / "store"), change)
    assert not log.exists()


def test_a_put_while_the_process_ends(run_forked, tmp_path, log):
    """What is stored after the store was closed at exit is moved into the database, with what was left in the log."""
    late = "import atexit; atexit.register(lambda: (store.get('b'), store.put('c', b'c')))"
    hits = HITS.replace("import sys", f"import sys\nstore = None\n{late}", 1)
    run_forked(hits, str(tmp_path / "store"), "")
    log.unlink(missing_ok=True)
    with LocalStore(tmp_path / "store", read_only=True) as reader:
        assert (reader.get("c"), reader.counters()) == (b"c", {"hits": 1})


@pytest.mark.parametrize("order", ["opened before", "opened and closed meanwhile"])
def test_beside_another_process(run_forked, tmp_path, log, order):
    """What another process stored while this one was there is moved into the database, whichever of them ends last."""
    path = str(tmp_path / "store")
    if order == "opened before":
        with LocalStore(path) as store:
            store.put("c", b"c")
            run_forked(HITS, path, "")
            assert log.exists()
    else:
        run_forked(HITS, path, BESIDE)
    log.unlink(missing_ok=True)
    with LocalStore(path, read_only=True) as reader:
        assert reader.get("c") == b"c"


def test_a_connection_that_is_kept_until_the_end(run_python, tmp_path):
    """A library in C may keep modules until the interpreter clears them; closing a connection after that says nothing.

    The interpreter clears this program's names last.
    """
    program = """
import ctypes, sys
from ejcache.stores.local import index
from ejcache.stores.local.store import LocalStore

for module in (index, sys.modules["__main__"]):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))
store = LocalStore(sys.argv[1])
store.put("a", b"a")
kept = store._manager._index
"""
    assert run_python(program, str(tmp_path / "store")).stderr == ""


def test_a_dropped_store_closes_its_index(tmp_path):
    """Python warns of nothing, also where it was part of a reference cycle, as a program's own objects often are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()  # what other tests have left
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for cyclic in (False, True):
            store = LocalStore(tmp_path)
            store.put("k", b"v")
            if cyclic:
                store.itself = store
            del store
            gc.collect()
            assert list((tmp_path / "v1/local/present").iterdir()) == []
        assert LocalStore(tmp_path).get("k") == b"v"
        gc.collect()

    assert [str(warning.message) for warning in caught] == []
