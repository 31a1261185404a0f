"""The limit of a local store holds to the byte, at a cost that does not grow with what is stored."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import time

import pytest
from sqlite_connections import opened_connections

from ejcache.maintenance.worth import worth
from ejcache.stores.local.layout import WAL_BYTES
from ejcache.stores.local.quarantine import FIXED_BYTES, declared_overhead
from ejcache.stores.local.store import LocalStore
from ejcache.stores.local.value_files import INLINE_BYTES

MB = 10**6


def keys_of(store):
    return {info.key for info in store.entries()}


def disk_usage(path):
    return sum(entry.lstat().st_blocks * 512 for entry in [path, *path.rglob("*")])


def test_sum_follows_every_change(tmp_path):
    """After any sequence of puts, replacements and deletions the kept sum is the sum, and within the limit."""
    generator = random.Random(5)
    with LocalStore(tmp_path / "s", max_size=100_000) as store:
        for _ in range(400):
            key = f"k{generator.randrange(30)}"
            data = bytes(generator.choice([0, 10, 5_000, INLINE_BYTES - 1, INLINE_BYTES, 20_000]))
            generator.choice([store.put, store.put, store.replace])(key, data)
            if generator.random() < 0.2:
                store.delete(key)
            assert store.size() == sum(info.size for info in store.entries()) <= 100_000
        assert store.check() == []
        files = {file.stat().st_size for file in tmp_path.rglob("*.val")}
        assert files <= {INLINE_BYTES, 20_000}


def test_each_keeps_its_own_limit(tmp_path):
    """Two stores on one directory each enforce their own limit when they put."""
    with LocalStore(tmp_path, max_size=100_000) as wide, LocalStore(tmp_path, max_size=30_000) as narrow:
        for n in range(9):
            wide.put(f"w{n}", bytes(10_000))
        assert wide.size() == 90_000
        narrow.put("n0", bytes(10_000))
        assert keys_of(wide) == {"n0", "w7", "w8"}
        for n in range(9):
            wide.put(f"x{n}", bytes(10_000))
        assert wide.size() == 100_000


def test_least_recently_used_across_stores(tmp_path):
    """What another process used is kept before what nobody used; the order is that of use, not of creation."""
    with LocalStore(tmp_path, max_size=50_000) as store, LocalStore(tmp_path) as reader:
        for n in range(5):
            store.put(f"k{n}", bytes(10_000))
        reader.note_used("k1")
        assert reader.get("k2") is not None
        assert reader.contains("k2")
        store.note_used("k0")
        store.put("k5", bytes(20_000))
        assert keys_of(store) == {"k0", "k1", "k4", "k5"}


def test_use_that_could_not_be_noted(tmp_path):
    """A reader does not wait for a busy index, and the use counts as soon as it can be noted."""
    with LocalStore(tmp_path) as store:
        store.put("k0", bytes(10_000))
        store.put("k1", bytes(10_000))
        (index,) = tmp_path.glob("v1/local/g-*/cache.db")
        other = sqlite3.connect(index, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        store.note_used("k0")
        other.execute("ROLLBACK")
        other.close()
        store.note_used("k0")
        used = {info.key: info.last_used for info in store.entries()}
        assert used["k0"] > used["k1"]
    with LocalStore(tmp_path, max_size=20_000) as store:
        store.put("k2", bytes(10_000))
        assert keys_of(store) == {"k0", "k2"}


def test_uses_within_a_second(tmp_path):
    """Many uses within a second are few transactions; a listing, a write, a fork and closing write them down."""
    with LocalStore(tmp_path) as store, LocalStore(tmp_path) as other:
        for n in range(6):
            store.put(f"k{n}", b"x")
        before = {info.key: info.last_used for info in other.entries()}
        (index,) = tmp_path.glob("v1/local/g-*/cache.db")
        with contextlib.closing(sqlite3.connect(index)) as watching:
            versions, started = set(), time.monotonic()
            for n in range(40):
                store.note_used(f"k{n % 4}")
                versions.add(watching.execute("PRAGMA data_version").fetchone())
            assert len(versions) <= 3 + time.monotonic() - started
        store.put("k6", b"x")
        store.note_used("k4")
        list(store.entries())
        store.note_used("k5")
        store.close()
        after = {info.key: info.last_used for info in other.entries()}
        assert [key for key in before if after[key] == before[key]] == []


def test_uses_are_written_a_moment_later(tmp_path):
    """A process that uses entries and then waits has their times written all the same."""
    with LocalStore(tmp_path) as store, LocalStore(tmp_path) as other:
        for n in range(3):
            store.put(f"k{n}", b"x")
        before = {info.key: info.last_used for info in other.entries()}
        for n in range(3):
            store.note_used(f"k{n}")
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            after = {info.key: info.last_used for info in other.entries()}
            if all(after[key] > before[key] for key in before):
                return
            time.sleep(0.05)
        raise AssertionError("the uses were not written")


def test_uses_while_the_clock_was_ahead(tmp_path):
    """Entries used while the clock was a year ahead go before what is put once it is right again."""
    with LocalStore(tmp_path, max_size=50_000) as store:
        for n in range(5):
            store.put(f"k{n}", bytes(10_000))
    (path,) = tmp_path.glob("v1/local/g-*/cache.db")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as index:
        index.execute("UPDATE Cache SET access_time = access_time + 365 * 86400")
    with LocalStore(tmp_path, max_size=50_000) as store:
        for n in range(4):
            store.put(f"m{n}", bytes(10_000))
            store.note_used(f"m{n}")
        assert keys_of(store) == {"k4", "m0", "m1", "m2", "m3"}


@pytest.mark.parametrize(("worth_of", "order"), [(None, "Cache_access_time"), (worth, "Cache_turn")])
def test_no_statement_scans(tmp_path, monkeypatch, worth_of, order):
    """Every statement of get and put finds its rows by an index: none costs more when more is stored."""
    connections = opened_connections(monkeypatch)
    with LocalStore(tmp_path, max_size=100_000, worth=worth_of) as store:
        for n in range(50):
            store.put(f"k{n}", bytes(5_000))
        connection, statements = connections[-1], []
        connection.set_trace_callback(statements.append)
        store.put("new", bytes(5_000))
        store.put("large", bytes(20_000))
        store.get("new")
        store.note_used("new")
        store.replace("new", bytes(6_000))
        store.delete("new")
        connection.set_trace_callback(None)
        plans = {
            detail
            for statement in statements
            if statement.startswith(("SELECT", "UPDATE", "DELETE", "INSERT"))
            for *_, detail in connection.execute("EXPLAIN QUERY PLAN " + statement)
        }
    assert any(order in plan for plan in plans)
    assert {plan for plan in plans if plan.startswith("SCAN Cache") and f"USING INDEX {order}" not in plan} == set()
    assert not any("TEMP B-TREE" in plan for plan in plans)


def steps_of_a_put(place, number, connections, **options):
    """The steps that SQLite takes for a put that evicts one of so many entries."""
    steps = 0
    with LocalStore(place, max_size=number * 100, **options) as store:
        connection = connections[-1]
        connection.execute("PRAGMA synchronous = OFF")
        for n in range(number + 1):
            store.put(f"key-{n:06}", bytes(100))

        def step():
            nonlocal steps
            steps += 1

        connection.set_progress_handler(step, 1)
        store.put("key-new", bytes(100))
        connection.set_progress_handler(None, 0)
        assert len(list(store.entries())) == number
    return steps


def test_work_of_a_put_does_not_grow(tmp_path, monkeypatch):
    """A put that evicts takes SQLite as many steps among 2,000 entries as among 50, in either order."""
    connections = opened_connections(monkeypatch)
    by_use = [steps_of_a_put(tmp_path / f"use {number}", number, connections) for number in (50, 2_000)]
    by_cost = [steps_of_a_put(tmp_path / f"cost {number}", number, connections, worth=worth) for number in (50, 2_000)]
    assert by_use[1] <= 1.2 * by_use[0]
    assert by_cost[1] <= 1.2 * by_cost[0]
    assert by_cost[1] <= 1.2 * by_use[1]


def test_disk_usage_is_the_declared_one(tmp_path):
    """`du` is within the limit and the declared overhead: many small entries with long keys, large ones, turnover."""
    for name, limit, size, number in (("small", 200_000, 100, 3_000), ("large", 3 * MB, 30_000, 300)):
        path = tmp_path / name
        with LocalStore(path, max_size=limit) as store:
            for n in range(number):
                store.put(f"{n:0>350}", bytes(size))
            entries = len(keys_of(store))
            assert store.size() == limit
            assert entries == limit // size
            assert disk_usage(path) <= limit + declared_overhead(entries, max_size=limit)
        assert disk_usage(path) <= limit + declared_overhead(entries, max_size=limit) - WAL_BYTES


def test_index_shrinks_with_its_entries(tmp_path):
    """Space of the index that entries leave is given back."""
    with LocalStore(tmp_path) as store:
        for n in range(500):
            store.put(f"k{n}", bytes(8_000))
    before = disk_usage(tmp_path)
    with LocalStore(tmp_path, max_size=10_000) as store:
        store.put("last", bytes(8_000))
        assert keys_of(store) == {"last"}
    assert before > 4 * MB
    assert disk_usage(tmp_path) <= 10_000 + FIXED_BYTES


def test_log_stays_short_beside_a_reader(tmp_path):
    """A reader that keeps the write-ahead log from being reused does so until it ends, and the next put folds it."""
    with LocalStore(tmp_path) as store:
        store.put("k", bytes(5_000))
        (index,) = tmp_path.glob("v1/local/g-*/cache.db")
        log = index.with_name("cache.db-wal")
        reader = sqlite3.connect(index, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM Cache").fetchone()
        for _ in range(300):
            store.replace("k", bytes(7_000))
            if log.stat().st_size > WAL_BYTES:
                break
        reader.close()
        for n in range(3):
            store.replace(f"k{n}", bytes(7_000))
        assert log.stat().st_size <= WAL_BYTES
