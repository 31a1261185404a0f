"""What damage to a local store costs, by when it happens: never an exception, a hang, or bytes of something else."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import shutil
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from archives import flipped
from local_processes import starting

from ejcache.entry import Header
from ejcache.entry_encoding import encode
from ejcache.stores.local.index import digest_of
from ejcache.stores.local.index_repair import REBUILDS
from ejcache.stores.local.quarantine import QUARANTINED_INDEX_BYTES
from ejcache.stores.local.store import DAMAGED_ROWS, LocalStore
from ejcache.stores.local.value_files import INLINE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (100, 2_000, 6_000, 20_000, 60_000)
ENTRIES = {f"k{n}": encode(Header(key=f"k{n}"), random.Random(n).randbytes(SIZES[n % len(SIZES)])) for n in range(10)}
ALL = frozenset(ENTRIES)
FILES = frozenset(key for key, data in ENTRIES.items() if len(data) > INLINE_BYTES)
"""The entries that are in a file of their own; the others are in rows of the index."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A directory with these entries and a counter, closed."""
    path = tmp_path_factory.mktemp("filled") / "store"
    with LocalStore(path) as store:
        for key, data in ENTRIES.items():
            store.put(key, data)
        store.add_counters({"hits": 7})
    return path


@pytest.fixture
def path(filled, tmp_path):
    """A copy of it."""
    return shutil.copytree(filled, tmp_path / "store")


def index_of(path):
    (found,) = path.glob("v1/local/g-*/cache.db")
    return found


def file_of(path, key="k4"):
    ((name,),) = sql(path, "SELECT filename FROM Cache WHERE key = ?", key)
    return index_of(path).parent / name


def sql(path, statement, *parameters):
    connection = sqlite3.connect(index_of(path))
    with connection:
        rows = connection.execute(statement, parameters).fetchall()
    connection.close()
    return rows


def overwrite(path, offset, data):
    with index_of(path).open("r+b") as file:
        file.seek(offset)
        file.write(data)


def put_in_place(path, suffix, data):
    index_of(path).with_name("cache.db" + suffix).write_bytes(data)


class Trap:
    """Something whose unpickling would be seen."""

    def __reduce__(self):
        return os.mkdir, ("unpickled",)


GARBAGE = random.Random(0).randbytes(50_000)
PICKLE = pickle.dumps(Trap())


class Damage(NamedTuple):
    """A kind of damage.

    Attributes:
        do: does it to the store at a path.
        kept: the keys that the next process finds.
        said: its counters then.
        read: the keys that a process finds which may only read.
    """

    do: Callable[[Path], object]
    kept: frozenset[str]
    said: dict[str, int]
    read: frozenset[str]


def of_index(do, **said):
    """The entries in rows are lost, and those in files are found by their headers."""
    return Damage(do, FILES, {REBUILDS: 1, **said}, frozenset())


def harmless(do):
    return Damage(do, ALL, {"hits": 7}, ALL)


def of_entry(do, key="k4"):
    """This entry is deleted, and counted."""
    return Damage(do, ALL - {key}, {"hits": 7, DAMAGED_ROWS: 1}, ALL - {key})


def of_row(key, columns):
    return of_entry(lambda path: sql(path, f"UPDATE Cache SET {columns} WHERE key = '{key}'"), key)


def of_file(put):
    """Something else lies where the value of k4 was."""

    def replace(path):
        file = file_of(path)
        file.unlink()
        put(file)

    return of_entry(replace)


def tear(path):
    ((page,),) = sql(path, "SELECT rootpage FROM sqlite_master WHERE name = 'Cache'")
    overwrite(path, 4096 * (page - 1), b"\xff" * 4096)


def make_giant(path):
    os.truncate(file_of(path), 6 * 10**9)
    sql(path, "UPDATE Cache SET size = ? WHERE key = 'k4'", 6 * 10**9)


def use_a_tool(path):
    shutil.copy(index_of(path), f"{index_of(path)}.bak")
    with contextlib.closing(sqlite3.connect(index_of(path))) as tool:
        tool.execute("PRAGMA journal_mode = DELETE")
        tool.execute("VACUUM")


ROWS = {
    "mode of text": "mode = 3",
    "no mode": "mode = NULL",
    "value of text": "mode = 1, filename = NULL, value = 'text', size = 4",
    "no value": "mode = 1, filename = NULL, value = NULL",
    "pickle": f"mode = 4, filename = NULL, value = x'{PICKLE.hex()}', size = {len(PICKLE)}",
    "wrong size": "size = size + 1",
    "size of text": "size = 'large'",
    "negative size": "size = -5",
    "other key's row": "tag = '0123456789abcdef'",
    "no time": "store_time = 'noon'",
    "name that leads out": "filename = '../../../../victim'",
    "absolute name": "filename = '/etc/hostname', value = NULL, mode = 2",
    "name that is no text": "filename = x'ff00ff'",
    "undecodable name": "filename = CAST(x'ffb1ff' AS TEXT)",
}
DAMAGES = {
    "empty": of_index(lambda path: os.truncate(index_of(path), 0)),
    "half": of_index(lambda path: os.truncate(index_of(path), index_of(path).stat().st_size // 2)),
    "one page": of_index(lambda path: os.truncate(index_of(path), 4096)),
    "odd length": of_index(lambda path: os.truncate(index_of(path), 5000)),
    "zeroed": of_index(lambda path: index_of(path).write_bytes(bytes(100_000))),
    "zeroed header": of_index(lambda path: overwrite(path, 0, bytes(100))),
    "later version": of_index(lambda path: overwrite(path, 18, b"\3\3")),
    "garbage": of_index(lambda path: index_of(path).write_bytes(GARBAGE)),
    "deleted": of_index(lambda path: index_of(path).unlink()),
    "torn table": of_index(tear, hits=7),
    "no tables": of_index(lambda path: sql(path, "DROP TABLE Cache")),
    "no trigger": of_index(lambda path: sql(path, "DROP TRIGGER Settings_size_insert")),
    "no index of keys": of_index(lambda path: sql(path, "DROP INDEX Cache_key_raw")),
    "rollback mode": harmless(lambda path: overwrite(path, 18, b"\1\1")),
    "log garbage": harmless(lambda path: put_in_place(path, "-wal", GARBAGE)),
    "memory garbage": harmless(lambda path: put_in_place(path, "-shm", GARBAGE[:32768])),
    "format garbage": harmless(lambda path: (path / "v1/local/format").write_bytes(b"\xff\0x")),
    "vacuumed and copied": harmless(use_a_tool),
    **{f"row: {name}": of_row("k0", columns) for name, columns in ROWS.items()},
    **{f"row of a file: {name}": of_row("k4", columns) for name, columns in ROWS.items()},
    "file: gone": of_file(lambda file: None),
    "file: short": of_entry(lambda path: os.truncate(file_of(path), 10)),
    "file: long": of_entry(lambda path: os.truncate(file_of(path), 100_000)),
    "file: a directory": of_file(os.mkdir),
    "file: a link": of_file(lambda file: file.symlink_to(file.parents[4] / "victim")),
    "file: a pipe": of_file(os.mkfifo),
    "file: a sparse giant": of_entry(make_giant),
    "file: a pickle": of_row("k4", "mode = 4"),
}


def matrix(*, without=()):
    """A test for each kind of damage but these, and those of the row of a value in a file, which differ in one way."""
    kinds = {name: damage for name, damage in DAMAGES.items() if not name.startswith(without)}
    return pytest.mark.parametrize("damage", kinds.values(), ids=kinds)


@pytest.fixture(autouse=True)
def unharmed(tmp_path, monkeypatch):
    """Nothing outside of the store is touched: a file to which names and links lead, and what a pickle would make."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "victim").write_bytes(b"v" * len(ENTRIES["k4"]))
    yield
    assert (tmp_path / "victim").read_bytes() == b"v" * len(ENTRIES["k4"])
    assert not (tmp_path / "unpickled").exists()


def check_found(store, kept):
    assert store.get_small([*ENTRIES]) == {key: ENTRIES[key] for key in kept - FILES}
    assert {key: data for key in ENTRIES if (data := store.get(key)) is not None} == {key: ENTRIES[key] for key in kept}
    assert {key for key in ENTRIES if store.peek(key, length=4) is not None} == kept


def check_usable(store, kept):
    """The store answers every call, and keeps what is put now."""
    lost = sorted(ALL - kept)
    assert {key for key in ENTRIES if store.contains(key)} == kept
    assert [key for key in lost if store.delete(key)] == []
    assert [key for key in lost if not store.put(key, ENTRIES[key])] == []
    store.replace("k1", b"new")
    store.put("large", b"l" * 100_000)
    now = ENTRIES | {"k1": b"new", "large": b"l" * 100_000}
    assert {key: store.get(key) for key in now} == now
    assert {info.key for info in store.entries()} == now.keys()
    assert store.size() == sum(map(len, now.values()))
    store.check(fix=True)
    # A directory that no store makes is left alone, whatever is in it.
    directories = [each for each in Path(store.path).glob("v1/local/g-*/?/*.val") if each.is_dir()]
    assert len(store.check()) == len(directories)


@matrix()
def test_damage_between_two_runs(path, damage):
    """The next process goes on with what is not damaged, and counts what is."""
    damage.do(path)
    with LocalStore(path) as store:
        check_found(store, damage.kept)
        assert store.counters() == damage.said
        check_usable(store, damage.kept)


@matrix(without="row of a file")
def test_damage_where_nothing_may_be_written(path, damage):
    """A process that may not repair finds nothing of a damaged index, raises nothing, and leaves no trace."""
    damage.do(path)

    def state():
        # SQLite makes the memory for a log itself.
        files = (file for file in path.rglob("*") if file.is_file() and not file.name.endswith("-shm"))
        return {file: (file.stat().st_mtime_ns, file.stat().st_size) for file in files}

    before = state()
    with LocalStore(path, read_only=True) as store:
        check_found(store, damage.read)
        assert store.counters() == {name: n for name, n in damage.said.items() if name == "hits"}
        assert damage.read or list(store.entries()) == []
    assert state() == before


HOLDER = """
import json, sys
from ejcache.stores.local.store import LocalStore
for line in sys.stdin:
    method, *arguments = json.loads(line)
    try:
        if method == "open":
            store = LocalStore(*arguments)
            answer = [store.get("k0") is not None, store.put("held", b"h")]
        elif method == "put":
            answer = store.put(arguments[0], arguments[1].encode())
        else:
            answer = getattr(store, method)(*arguments)
    except BaseException as exc:
        answer = repr(exc)
    print(json.dumps(answer.decode("latin1") if isinstance(answer, bytes) else answer), flush=True)
"""


@pytest.fixture(scope="module")
def other():
    """Another process, which opens a store and answers calls."""
    with starting() as start:
        process = start(HOLDER)

        def call(*message):
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield call


# A tool finds the index locked then, and a log that is exchanged under its owner is an error until that ends.
@matrix(without=("row of a file", "vacuumed", "log garbage"))
def test_damage_while_another_process_has_it_open(path, other, damage):
    """What is damaged under a living process is repaired by the next one that uses it; both go on with that."""
    assert other("open", str(path)) == [True, True]
    damage.do(path)
    with LocalStore(path) as store:
        # Until SQLite comes to what is damaged, it may find more.
        for key, data in ENTRIES.items():
            assert store.get(key) in (None, data)
        check_found(store, damage.kept)
        for key, data in ENTRIES.items():
            assert other("get", key) == (data.decode("latin1") if key in damage.kept else None)
        assert damage.said.items() <= store.counters().items()
        assert other("delete", "held") in (True, False)
        assert other("put", "theirs", "from the other") is True
        assert store.get("theirs") == b"from the other"
        assert store.delete("theirs")
        check_usable(store, damage.kept)
    assert other("close") is None


def flip(path, generator, bits):
    data = index_of(path).read_bytes()
    for _ in range(bits):
        data = flipped(data, generator.randrange(8 * len(data)))
    index_of(path).write_bytes(data)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("bits", [1, 20, 200])
def test_flipped_index(path, seed, bits):
    """With bits of the index flipped, an entry in a file is whole or absent, and the store repairs itself.

    A value that is kept in the index itself may come back changed, in the right length: that is what the entry's
    checksum is for.
    """
    flip(path, random.Random(seed * 1000 + bits), bits)
    with LocalStore(path) as store:
        for key, data in ENTRIES.items():
            found = store.get(key)
            assert found in (None, data) or (len(found) == len(data) and key not in FILES)
        store.replace("k1", b"new")
        assert store.get("k1") == b"new"
        list(store.entries())
        store.check(fix=True)
        assert store.check() == []
        assert store.put("afterwards", b"x" * 50_000)
        assert store.get("afterwards") == b"x" * 50_000


def test_damaged_indexes_are_kept_in_a_bounded_number(path):
    """The newest damaged index that is small enough is kept for inspection; its value files are not."""
    for n in range(3):
        index_of(path).write_bytes(b"damaged %d" % n)
        with LocalStore(path) as store:
            store.put("k", b"x" * 50_000)
    (kept,) = (path / "v1/quarantine").glob("index-*/cache.db")
    assert kept.read_bytes() == b"damaged 2"
    assert len(list(path.rglob("*.val"))) == len(FILES) + 1
    assert [entry.name for entry in (path / "v1/local").iterdir() if entry.name.startswith(("dead", "new"))] == []
    index_of(path).write_bytes(b"x" * (QUARANTINED_INDEX_BYTES + 1))
    LocalStore(path).close()
    assert list((path / "v1/quarantine").glob("index-*/cache.db")) == [kept]


def test_planted_pickled_key_is_refused(path):
    """A key of diskcache's pickled kind is neither listed nor unpickled, and the audit removes it."""
    sql(path, "UPDATE Cache SET key = ?, raw = 0 WHERE key = 'k0'", PICKLE)
    with LocalStore(path) as store:
        assert len(list(store.entries())) == 9
        assert len(store.check(fix=True)) == 1
        assert store.check() == []


def test_absurd_sum_evicts_nothing(path):
    """A damaged sum of sizes is counted anew before anything is evicted for it."""
    ((size,),) = sql(path, "SELECT SUM(size) FROM Cache")
    for absurd in (10**15, -(10**15), "text", None):
        sql(path, "UPDATE Settings SET value = ? WHERE key = 'size'", absurd)
        with LocalStore(path, max_size=size + 100) as store:
            store.replace("extra", b"x" * 10)
            assert len(list(store.entries())) == 11


def test_audit_finds_and_mends(path):
    """The audit names each thing that is wrong with the structures, and mends it when asked to."""
    generation = index_of(path).parent
    ((name,),) = sql(path, "SELECT filename FROM Cache WHERE key = 'k3'")
    (generation / name).unlink()
    ((name,),) = sql(path, "SELECT filename FROM Cache WHERE key = 'k4'")
    os.truncate(generation / name, 5)
    sql(path, "UPDATE Cache SET mode = 4 WHERE key = 'k0'")
    sql(path, "UPDATE Settings SET value = value + 11 WHERE key = 'size'")
    (generation / "a").mkdir(exist_ok=True)
    (generation / "a" / "0123456789abcdef-0123456789abcdef.val").write_bytes(b"orphan")
    (generation / "tmp" / "1-0123456789ab_0123456789abcdef-0123456789abcdef.val").write_bytes(b"unfinished")
    with LocalStore(path) as store:
        problems = store.check()
        for words in (
            "k3 has no file",
            "k4 has a file of 5 bytes",
            "'k0'",
            "wrong by 11",
            "no row names",
            "unfinished",
        ):
            assert any(words in problem for problem in problems), problems
        assert len(problems) == 6
        assert store.check(fix=True) == problems
        assert store.check() == []
        assert len(list(store.entries())) == 7
    with LocalStore(path, read_only=True) as store:
        assert store.check() == []


def test_audit_of_a_torn_index(path):
    """The audit of an index that SQLite finds damaged says so, and a fix starts a new one."""
    ((page,),) = sql(path, "SELECT rootpage FROM sqlite_master WHERE name = 'Cache_access_time'")
    overwrite(path, 4096 * (page - 1) + 8, b"\xff" * 2000)
    with LocalStore(path) as store:
        problems = store.check(fix=True)
        assert problems
        assert all("index is damaged" in problem for problem in problems)
        assert store.check() == []
        assert store.counters()[REBUILDS] == 1


def test_quarantine_keeps_bounded_copies(tmp_path):
    """Damaged entries are kept for inspection in a bounded number and a bounded size, the newest ones."""
    with LocalStore(tmp_path / "a") as store:
        for n in range(12):
            store.put("k", b"damaged %d" % n)
            assert store.quarantine("k", b"another") is False
            assert store.quarantine("k", b"damaged %d" % n) is True
            assert store.get("k") is None
    kept = sorted(file.read_bytes() for file in (tmp_path / "a/v1/quarantine").iterdir())
    assert len(kept) == 8
    assert b"damaged 11" in kept
    with LocalStore(tmp_path / "b", max_size=160_000) as store:
        for _ in range(4):
            store.put("k", b"x" * 4_000)
            store.quarantine("k", b"x" * 4_000)
        store.put("k", b"x" * 20_000)
        store.quarantine("k", b"x" * 20_000)
    assert [file.stat().st_size for file in (tmp_path / "b/v1/quarantine").iterdir()] == [4_000, 4_000]


@pytest.mark.parametrize("damage", ["garbage", "no tables"])
def test_entries_in_files_survive_their_index(tmp_path, damage):
    """A value file says which key it belongs to, so that a new index has its row; other files are deleted."""
    path = tmp_path / "store"
    with LocalStore(path) as store:
        entries = {f"k{n}": encode(Header(key=f"k{n}"), random.Random(n).randbytes(30_000)) for n in range(20)}
        for key, data in entries.items():
            store.put(key, data)
        store.put("row", encode(Header(key="row"), b"small"))
        store.put("not an entry", GARBAGE)
        store.put("another's", encode(Header(key="other"), GARBAGE))
    (file,) = (path / "v1/local").glob(f"g-*/*/{digest_of('k0')}-*.val")
    os.truncate(file, 20_000)
    os.utime(min(path.rglob("*.val")), (2e10, 2e10))
    DAMAGES[damage].do(path)
    with LocalStore(path, max_size=15 * 31_000) as store:
        found = {key: data for key in entries if (data := store.get(key))}
        assert found == {key: entries[key] for key in found}
        assert 14 <= len(found) <= 15
        assert "k0" not in found
        assert store.size() == sum(map(len, found.values())) <= store.max_size
        assert store.check() == []
        assert store.counters()[REBUILDS] == 1
        assert all(info.created <= time.time() for info in store.entries())
        for key in ("row", "not an entry", "another's"):
            assert store.get(key) is None
        assert store.put("row", b"again")
        assert len(list(path.rglob("*.val"))) == len(found)
