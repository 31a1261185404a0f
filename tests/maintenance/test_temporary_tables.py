"""Listings and plans that are larger than the memory they are given."""

from __future__ import annotations

import gc
import sqlite3
import textwrap

import pytest
from helpers import python_command, run_program, traced_memory, uses
from sqlite_connections import opened_connections
from store_suite import ODD_KEYS

from ejcache.errors import EntryCorruptError, StoreError
from ejcache.journal.entry_use import EntryUse
from ejcache.journal.objects import decode_lines, encode_ordered
from ejcache.maintenance.eviction_plan import EvictionPlan, EvictionPolicy
from ejcache.maintenance.listed_entries import Listing
from ejcache.maintenance.temporary_tables import TemporaryTables
from ejcache.stores.listing import EntryInfo


def long_key(number):
    return f"jit_step-cpu-plain-{number:040x}-{0:024x}"


def infos(count):
    return (EntryInfo(long_key(number), 10, float(number), float(number)) for number in range(count))


def test_entries_with_their_uses():
    """An entry was last used when the latest of all journals says so, or when it was made; odd keys come back whole."""
    with Listing() as listing:
        listing.add(EntryInfo(key, 3, 5.0, 5.0, str(n)) for n, key in enumerate(ODD_KEYS))
        listing.note_uses(uses({ODD_KEYS[0]: 7, ODD_KEYS[1]: 2, "gone": 9}).items(), now=100.0)
        listing.note_uses(uses({ODD_KEYS[0]: 6, ODD_KEYS[2]: 1000}).items(), now=100.0)
        used = {entry.key: entry.last_used for entry in listing.entries()}
        assert used == dict.fromkeys(ODD_KEYS, 5.0) | {ODD_KEYS[0]: 7.0, ODD_KEYS[2]: 100.0}
        assert {entry.key: (entry.size, entry.version) for entry in listing.entries()}[ODD_KEYS[1]] == (3, "1")


def test_damage_in_the_middle_notes_nothing():
    """Of uses that turn out damaged halfway none is noted, and what was known stays."""

    def damaged():
        yield "a", EntryUse(50.0)
        raise EntryCorruptError("cut short")

    with Listing() as listing:
        listing.note_uses([("a", EntryUse(1.0))], now=100.0)
        with pytest.raises(EntryCorruptError):
            listing.note_uses(damaged(), now=100.0)
        assert list(listing.uses()) == [("a", EntryUse(1.0))]


def test_a_plan_of_many_entries_takes_no_memory():
    """Planning and reading the plan of ten times as many entries takes no more of Python's memory."""

    def peak(count):
        with traced_memory() as most:
            with EvictionPlan(infos(count), now=1e6, policy=EvictionPolicy(max_size=5 * count)) as planned:
                assert (planned.count, planned.size) == (count // 2, 5 * count)
                assert (planned.left, planned.left_size) == (count // 2, 5 * count)
                first = next(iter(planned))
            assert first.entry.key == long_key(0)
        return most[0]

    def least(count):
        # A thread that another test has left behind allocates at times, too.
        return min(peak(count) for _ in range(2))

    peak(100)  # what is imported and kept once
    assert least(4_000) < 1.5 * least(400)


def test_a_snapshot_of_many_uses_takes_what_it_is_compressed_to():
    """Encoding a snapshot and noting it takes a few times its bytes, not an object for each use."""
    used = [(long_key(number), EntryUse(float(number))) for number in range(8_000)]
    with traced_memory() as peak:
        data = encode_ordered(lambda: iter(used), compress=True)
    assert dict(decode_lines(data)) == dict(used)
    assert peak[0] < 2 * len(data) + 1_000_000


def test_a_plan_can_be_read_again():
    """Each reading of a plan gives the same deletions, also two readings at once."""
    with EvictionPlan(infos(50), now=1e6, policy=EvictionPolicy(older_than=1e6 - 10, max_size=300)) as planned:
        first, second = iter(planned), iter(planned)
        pairs = list(zip(first, second, strict=True))
        assert len(pairs) == planned.count == 20
        assert all(one == other for one, other in pairs)
        assert [str(one.reason) for one, _ in pairs] == ["older_than"] * 10 + ["max_size"] * 10


def test_no_room_for_temporary_files():
    """Where a table does not fit into the temporary directory, the error is ours and names the variable."""
    script = """
    import resource, signal
    from ejcache.errors import StoreError
    from ejcache.maintenance.temporary_tables import TemporaryTables
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    tables = TemporaryTables("CREATE TABLE t (a BLOB)")
    try:
        tables.insert("INSERT INTO t VALUES (?)", ((bytes(1000),) for _ in range(20_000)))
    except StoreError as exc:
        print(exc)
        print(next(tables.rows("SELECT count(*) FROM t"))[0])
    """
    said, rows = run_program(python_command(textwrap.dedent(script))).stdout.splitlines()
    assert "SQLITE_TMPDIR" in said
    assert rows == "0"


def test_a_closed_table_says_so():
    """Using a table that was closed raises our error, not SQLite's."""
    tables = TemporaryTables("CREATE TABLE t (a)")
    tables.close()
    with pytest.raises(StoreError, match="closed"):
        tables.run("DELETE FROM t")
    with pytest.raises(StoreError, match="closed"):
        next(tables.rows("SELECT * FROM t"))


def test_a_program_that_ends_leaves_tables_alone(run_forked):
    """A thread may be at work on tables when the program ends, where closing them crashes or hangs: nobody does."""
    program = """
        import sqlite3
        from ejcache.maintenance.temporary_tables import TemporaryTables

        class Connection(sqlite3.Connection):
            def close(self):
                print("closed")
                super().close()

        connect = sqlite3.connect
        sqlite3.connect = lambda *arguments, **options: connect(*arguments, **options, factory=Connection)
        TemporaryTables("CREATE TABLE t (a)").close()
        tables = TemporaryTables("CREATE TABLE t (a)")
        print("the end")
    """
    assert run_forked(program).stdout == "closed\nthe end\n"


def test_forgotten_without_a_word(monkeypatch, recwarn):
    """Tables that nobody closes are closed with their last reference."""
    gc.collect()
    recwarn.clear()  # of what other tests have left
    connections = opened_connections(monkeypatch)
    tables = TemporaryTables("CREATE TABLE t (a)")
    del tables
    gc.collect()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connections[0].execute("SELECT 1")
    assert not recwarn.list


def test_closed_while_somebody_reads():
    """A reader that is left standing does not mind that the tables are closed before it."""
    tables = TemporaryTables("CREATE TABLE t (a)")
    tables.insert("INSERT INTO t VALUES (?)", [(1,), (2,)])
    rows = tables.rows("SELECT a FROM t")
    assert next(rows) == (1,)
    tables.close()
    rows.close()
