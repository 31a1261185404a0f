"""Threads, forks and late comers share a local store without waiting for ever and without losing anything."""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import threading
import time
import warnings

import pytest
from local_processes import starting
from store_processes import in_fork
from write_steps import seeing_steps

from ejcache.errors import StoreBusyError, StoreError, StoreUnavailableError
from ejcache.stores.local.store import LocalStore
from ejcache.util import locks as local_locks


def replace_until_busy(store):
    for number in range(1000):
        try:
            store.replace("k", bytes(number + 1))
        except StoreBusyError:
            return number
    return None


def test_busy_index_has_a_deadline(tmp_path):
    """While another process holds the order, hits, uses and counters go on; writes raise after the timeout if needed.

    One that has read the order goes on until it has to write it.
    """
    with LocalStore(tmp_path, timeout=0.2) as store:
        store.put("k", b"value")
        (index,) = tmp_path.glob("v1/local/order-*/cache.db")
        other = sqlite3.connect(index, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        try:
            assert store.get("k") == b"value"
            assert store.contains("k")
            before = next(store.entries()).last_used
            store.note_used("k")
            assert next(store.entries()).last_used > before
            assert [info.key for info in store.entries()] == ["k"]
            with LocalStore(tmp_path, timeout=0.2) as late:
                assert late.get("k") == b"value"
                assert late.size() == 5
                with pytest.raises(StoreBusyError):
                    late.put("l", b"")
            store.add_counters({"n": 1})
            assert store.put("l", b"x")
            number = replace_until_busy(store)
            assert 100 < number < 200
            assert store.get("k") == bytes(number)
            for write in (lambda: store.put("m", b""), lambda: store.delete("k")):
                with pytest.raises(StoreBusyError):
                    write()
        finally:
            other.close()
        assert store.put("m", b"x")
        assert store.size() == number + 2
        assert store.counters() == {"n": 1}
        assert store.check() == []
        assert list(tmp_path.glob("v1/local/order-*/cache.db")) == [index]


def test_a_held_lock_has_a_deadline(tmp_path):
    """While another thread or process keeps the store locked, hits go on, and a put raises after the timeout."""
    with LocalStore(tmp_path) as store:
        store.put("k", b"value")
    held, done = threading.Event(), threading.Event()

    def hold():
        with local_locks.exclusive(tmp_path / "v1/local/lock", deadline=time.monotonic()):
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    try:
        for read_only in (False, True):
            with LocalStore(tmp_path, read_only=read_only, timeout=0.2) as late:
                assert late.get("k") == b"value"
        with LocalStore(tmp_path, timeout=0.2) as late, pytest.raises(StoreBusyError):
            late.put("l", b"x")
    finally:
        done.set()
        thread.join()


def test_signal_handler_inside_a_put(tmp_path):
    """A signal handler that uses the store inside one of its own calls gets an error, and no half done transaction."""
    seen = []

    def handler(*_):
        try:
            seen.append(store.put("handler", b"x"))
        except StoreError as exc:
            seen.append(type(exc))

    def interrupt(step):
        if step == "noted" and not seen:
            signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with LocalStore(tmp_path, timeout=0.2) as store, seeing_steps(interrupt):
            assert store.put("k", b"value")
            assert seen == [StoreBusyError]
            assert store.get("k") == b"value"
            assert not store.contains("handler")
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_fork_holds_no_lock(tmp_path):
    """A child that lives on after its parent closed the store keeps nobody out, and is nobody that looks alive."""
    store = LocalStore(tmp_path)
    store.put("k", b"value")
    ready, done = os.pipe(), os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os.write(ready[1], b"r")
        os.read(done[0], 1)
        os._exit(0 if store.get("k") == b"value" and store.put("child", b"x") else 1)
    try:
        os.read(ready[0], 1)
        store.close()
        with LocalStore(tmp_path, timeout=30.0) as other:
            assert other.put("other", b"x")
    finally:
        os.write(done[1], b"d")
        _, status = os.waitpid(child, 0)
        for end in (*ready, *done):
            os.close(end)
    assert status == 0
    with store:
        assert {info.key for info in store.entries()} == {"k", "other", "child"}
        assert store.check() == []


def test_fork_inside_a_call(tmp_path):
    """A fork in the middle of the store's own call: the child gets an error, the parent's call is completed."""
    told = []

    def fork(point):
        if point == "before-commit" and not told:
            told.append(point)

            def child():
                try:
                    return store.get("k"), store.put("l", b"x")
                except StoreUnavailableError as exc:
                    return str(exc)

            told.append(in_fork(child))

    with LocalStore(tmp_path, timeout=0.2) as store, seeing_steps(fork):
        assert store.put("k", b"value") is True
        assert "forked off" in told[1]
        assert store.get("k") == b"value"
        assert store.check() == []


def test_threads(tmp_path):
    """Many threads in one store put, get, close and list at once."""
    failures = []

    def work(number):
        try:
            for n in range(30):
                key = f"k{n % 10}"
                store.put(key, key.encode() * 3_000)
                assert store.get(key) in (None, key.encode() * 3_000)
                if n % 10 == number:
                    store.close()
                    list(store.entries())
                    store.delete(key)
                store.add_counters({"done": 1})
        except BaseException as exc:
            failures.append(exc)

    with LocalStore(tmp_path, max_size=50_000, timeout=120.0) as store:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert store.counters() == {"done": 180}
        assert store.check() == []


def test_listing_holds_no_lock(tmp_path):
    """While somebody is in the middle of a long listing, writers write, and no key is listed twice."""
    with LocalStore(tmp_path) as store, LocalStore(tmp_path, timeout=0.2) as writer:
        for n in range(500):
            store.put(f"k{n:04}", b"")
        listing = store.entries()
        seen = [next(listing).key for _ in range(10)]
        assert writer.delete("k0003")
        assert writer.put("k0003", b"x")
        assert writer.delete("k0400")
        seen += [info.key for info in listing]
        assert len(seen) == len(set(seen)) == 499


def test_two_processes_open_a_new_store_at_once(tmp_path):
    """Of many processes that start at once on a directory that does not exist, all share one store."""
    code = """
        import sys
        from ejcache.stores.local.store import LocalStore
        sys.stdin.readline()
        with LocalStore(sys.argv[1], timeout=60.0) as store:
            store.put(f"k{sys.argv[2]}", b"x" * 20_000)
            store.add_counters({"n": 1})
        print("done", flush=True)
        """
    path = tmp_path / "a" / "b" / "store"
    with starting() as start:
        processes = [start(code, path, n) for n in range(4)]
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            assert process.stdout.readline() == "done\n", process.stderr.read()
    with LocalStore(path) as store:
        assert len(list(store.entries())) == 4
        assert store.counters() == {"n": 4}
    assert len(list(path.glob("v1/local/order-*"))) == 1


def test_a_thread_keeps_no_connection(tmp_path):
    """What other threads have put, the main thread closes and opens, and Python warns of nothing when they end."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store = LocalStore(tmp_path)
        store.put("main", b"x")
        for number in range(3):
            thread = threading.Thread(target=store.put, args=(f"k{number}", b"x"))
            thread.start()
            thread.join()
        assert store.put("main again", b"x")
        assert store.size() == 5
        del store, thread
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
