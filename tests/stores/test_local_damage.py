"""A damaged index or value never raises, hangs, or gives another file's bytes: it is removed or rebuilt."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import sqlite3
import time

import pytest
from local_processes import starting

from ejcache.entry import Header, encode
from ejcache.errors import StoreUnavailableError
from ejcache.stores.local.index_repair import REBUILDS
from ejcache.stores.local.layout import QUARANTINED_INDEX_BYTES
from ejcache.stores.local.store import DAMAGED_ROWS, LocalStore
from ejcache.stores.local.values import INLINE_BYTES, digest_of

SIZES = (100, 2_000, 6_000, 20_000, 60_000)


def value(n):
    """The bytes of key n, which begin with the key and are kept in a row or in a file, in turns."""
    return b"key%03d|" % n + random.Random(n).randbytes(SIZES[n % len(SIZES)])


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A directory with 100 entries and a counter, closed."""
    path = tmp_path_factory.mktemp("filled") / "store"
    with LocalStore(path) as store:
        for n in range(100):
            store.put(f"k{n}", value(n))
        store.add_counters({"hits": 7})
    return path


@pytest.fixture
def path(filled, tmp_path):
    """A copy of it."""
    return shutil.copytree(filled, tmp_path / "store")


def index_of(path):
    (found,) = path.glob("v1/local/g-*/cache.db")
    return found


def sql(path, statement, *parameters):
    connection = sqlite3.connect(index_of(path))
    with connection:
        rows = connection.execute(statement, parameters).fetchall()
    connection.close()
    return rows


def flip(path, generator, bits):
    data = bytearray(index_of(path).read_bytes())
    for _ in range(bits):
        data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    index_of(path).write_bytes(data)


def overwrite(path, offset, data):
    with index_of(path).open("r+b") as file:
        file.seek(offset)
        file.write(data)


def put_in_place(path, suffix, data):
    index_of(path).with_name("cache.db" + suffix).write_bytes(data)


GARBAGE = random.Random(0).randbytes(50_000)
DAMAGES = {
    "empty": lambda path: os.truncate(index_of(path), 0),
    "half": lambda path: os.truncate(index_of(path), index_of(path).stat().st_size // 2),
    "one page": lambda path: os.truncate(index_of(path), 4096),
    "odd length": lambda path: os.truncate(index_of(path), 5000),
    "zeroed": lambda path: index_of(path).write_bytes(bytes(100_000)),
    "zeroed header": lambda path: overwrite(path, 0, bytes(100)),
    "zeroed root": lambda path: overwrite(path, 4096, bytes(4096)),
    "rollback mode": lambda path: overwrite(path, 18, b"\1\1"),
    "later version": lambda path: overwrite(path, 18, b"\3\3"),
    "garbage": lambda path: index_of(path).write_bytes(GARBAGE),
    "deleted": lambda path: index_of(path).unlink(),
    "log garbage": lambda path: put_in_place(path, "-wal", GARBAGE),
    "memory garbage": lambda path: put_in_place(path, "-shm", GARBAGE[:32768]),
    "no tables": lambda path: sql(path, "DROP TABLE Cache"),
    "no trigger": lambda path: sql(path, "DROP TRIGGER Settings_size_insert"),
    "no index": lambda path: sql(path, "DROP INDEX Cache_key_raw"),
    "format garbage": lambda path: (path / "v1/local/format").write_bytes(b"\xff\0x"),
}


def check_usable(store):
    """Whatever happened to it, the store answers every call and keeps what is put now."""
    for n in range(100):
        found = store.get(f"k{n}")
        assert found is None or found == value(n), f"k{n}"
        assert store.contains(f"k{n}") == (found is not None)
    store.replace("k1", b"new")
    store.put("small", b"s" * 10)
    store.put("large", b"l" * 100_000)
    assert (store.get("k1"), store.get("small"), store.get("large")) == (b"new", b"s" * 10, b"l" * 100_000)
    assert {"k1", "small", "large"} <= {info.key for info in store.entries()}
    assert store.size() >= 100_013
    assert store.delete("small") is True
    store.check(fix=True)
    assert store.check() == []


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_between_runs(path, damage):
    """A store whose index was damaged while nobody had it open opens and works."""
    damage(path)
    with LocalStore(path) as store:
        check_usable(store)


HOLDER = """
import json, sys
from ejcache.stores.local.store import LocalStore
store = LocalStore(sys.argv[1])
store.get("k0"), store.put("held", b"h")
print("ready", flush=True)
for line in sys.stdin:
    method, *arguments = json.loads(line)
    try:
        answer = getattr(store, method)(*[a.encode() if method == "put" and n else a for n, a in enumerate(arguments)])
    except BaseException as exc:
        answer = repr(exc)
    print(json.dumps(answer.decode("latin1") if isinstance(answer, bytes) else answer), flush=True)
"""


@pytest.fixture
def start_python():
    """Start an interpreter that ends with the test."""
    with starting() as start:
        yield start


@pytest.fixture
def holder(start_python):
    """Start another process that has the store at a path open, and answers calls."""

    def start(path):
        process = start_python(HOLDER, path)
        assert process.stdout.readline() == "ready\n"

        def call(*message):
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        return call

    return start


@pytest.mark.parametrize(
    "damage", [DAMAGES[name] for name in ("empty", "zeroed root", "rollback mode", "garbage", "deleted")]
)
def test_damage_while_another_has_it_open(path, holder, damage):
    """An index that is damaged under a living process is rebuilt by the next that uses it; both go on with that."""
    call = holder(path)
    damage(path)
    with LocalStore(path) as store:
        check_usable(store)
        for n in range(0, 100, 9):
            found = call("get", f"k{n}")
            assert found is None or found.encode("latin1") == value(n), found
        assert call("put", "theirs", "from the other") in (True, False)
        assert call("get", "theirs") == "from the other"
        assert store.get("theirs") == b"from the other"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("bits", [1, 20, 200])
def test_flipped_index(path, seed, bits):
    """With bits of the index flipped, an entry in a file is whole or absent, and the store repairs itself.

    A value that is kept in the index itself may come back changed, in the right length: that is what the entry's
    checksum is for.
    """
    flip(path, random.Random(seed * 1000 + bits), bits)
    with LocalStore(path) as store:
        for n in range(100):
            found = store.get(f"k{n}")
            in_file = SIZES[n % len(SIZES)] > INLINE_BYTES
            assert found is None or found == value(n) or (len(found) == len(value(n)) and not in_file)
        store.replace("k1", b"new")
        assert store.get("k1") == b"new"
        list(store.entries())
        store.check(fix=True)
        assert store.check() == []
        assert store.put("afterwards", b"x" * 50_000)
        assert store.get("afterwards") == b"x" * 50_000


def test_rebuild_is_counted_and_keeps_counters(path):
    """A rebuilt index says so in a counter, and goes on with the counters that could be read."""
    root = sql(path, "SELECT rootpage FROM sqlite_master WHERE name = 'Cache'")[0][0]
    overwrite(path, 4096 * (root - 1), b"\xff" * 4096)
    with LocalStore(path) as store:
        assert store.get("k3") is None
        assert store.counters() == {"hits": 7, REBUILDS: 1}


def test_damaged_indexes_are_kept_in_a_bounded_number(path):
    """The newest damaged index that is small enough is kept for inspection; its value files are not."""
    for n in range(3):
        index_of(path).write_bytes(b"damaged %d" % n)
        with LocalStore(path) as store:
            store.put("k", b"x" * 50_000)
    (kept,) = (path / "v1/quarantine").glob("index-*/cache.db")
    assert kept.read_bytes() == b"damaged 2"
    assert len(list(path.rglob("*.val"))) == 1
    assert [entry.name for entry in (path / "v1/local").iterdir() if entry.name.startswith(("dead", "new"))] == []
    index_of(path).write_bytes(b"x" * (QUARANTINED_INDEX_BYTES + 1))
    LocalStore(path).close()
    assert list((path / "v1/quarantine").glob("index-*/cache.db")) == [kept]


class Trap:
    """Something whose unpickling would be seen."""

    def __reduce__(self):
        return os.mkdir, ("unpickled",)


@pytest.mark.parametrize("inline", [True, False])
def test_planted_pickle_is_refused(path, tmp_path, monkeypatch, inline):
    """A row of diskcache's pickled mode, in the row or in a file, is removed and counted, and never unpickled."""
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(Trap())
    if inline:
        sql(path, "UPDATE Cache SET mode = 4, value = ?, size = ? WHERE key = 'k0'", data, len(data))
    else:
        ((name,),) = sql(path, "SELECT filename FROM Cache WHERE key = 'k3'")
        (index_of(path).parent / name).write_bytes(data)
        sql(path, "UPDATE Cache SET mode = 4, size = ? WHERE key = 'k3'", len(data))
    key = "k0" if inline else "k3"
    with LocalStore(path, read_only=True) as store:
        assert store.get(key) is None
        assert store.contains(key) is False
    with LocalStore(path) as store:
        assert store.get(key) is None
        assert store.counters()[DAMAGED_ROWS] == 1
        assert store.put(key, b"good") is True
    assert not (tmp_path / "unpickled").exists()


def test_planted_pickled_key_is_refused(path, tmp_path, monkeypatch):
    """A key of diskcache's pickled kind is neither listed nor unpickled, and the audit removes it."""
    monkeypatch.chdir(tmp_path)
    sql(path, "UPDATE Cache SET key = ?, raw = 0 WHERE key = 'k0'", pickle.dumps(Trap()))
    with LocalStore(path) as store:
        assert len(list(store.entries())) == 99
        assert len(store.check(fix=True)) == 1
        assert store.check() == []
    assert not (tmp_path / "unpickled").exists()


PLANTED = {
    "mode of text": "UPDATE Cache SET mode = 3",
    "no mode": "UPDATE Cache SET mode = NULL",
    "value of text": "UPDATE Cache SET mode = 1, filename = NULL, value = 'text', size = 4",
    "no value": "UPDATE Cache SET mode = 1, filename = NULL, value = NULL",
    "wrong size": "UPDATE Cache SET size = size + 1",
    "size of text": "UPDATE Cache SET size = 'large'",
    "negative size": "UPDATE Cache SET size = -5",
    "other key's row": "UPDATE Cache SET tag = '0123456789abcdef'",
    "no time": "UPDATE Cache SET store_time = 'noon'",
    "name that leads out": "UPDATE Cache SET filename = '../../../../victim'",
    "absolute name": "UPDATE Cache SET filename = '/etc/hostname', value = NULL, mode = 2",
    "name that is no text": "UPDATE Cache SET filename = x'ff00ff'",
    "undecodable name": "UPDATE Cache SET filename = CAST(x'ffb1ff' AS TEXT)",
}


@pytest.mark.parametrize("statement", PLANTED.values(), ids=PLANTED)
@pytest.mark.parametrize("key", ["k0", "k4"])
def test_planted_row(path, statement, key):
    """A row that is not as we write them is absent, is removed without touching anything else, and can be put anew."""
    victim = path / "victim"
    victim.write_bytes(b"not ours")
    ((before,),) = sql(path, "SELECT SUM(size) FROM Cache WHERE key != ?", key)
    sql(path, f"{statement} WHERE key = ?", key)
    with LocalStore(path) as store:
        assert store.peek(key) is None
        assert store.contains(key) is False
        assert store.get(key) is None
        assert store.counters()[DAMAGED_ROWS] == 1
        assert store.put(key, b"good") is True
        assert store.get(key) == b"good"
        store.check(fix=True)
        assert store.check() == []
        assert store.size() == before + 4
    assert victim.read_bytes() == b"not ours"


LENGTHS = {"short": 10, "long": 100_000, "a sparse giant": 6 * 10**9}


@pytest.mark.parametrize("how", ["gone", "short", "long", "a directory", "a link", "a pipe", "a sparse giant"])
def test_damaged_value_file(path, how):
    """An entry whose file is gone, of another length or no file is absent by every method, and may be put again.

    A link goes and not what it leads to, a pipe keeps nobody waiting, and a giant costs no memory.
    """
    ((name,),) = sql(path, "SELECT filename FROM Cache WHERE key = 'k4'")
    file = index_of(path).parent / name
    secret = path / "secret"
    secret.write_bytes(b"s" * file.stat().st_size)
    if how in LENGTHS:
        os.truncate(file, LENGTHS[how])
    else:
        file.unlink()
    if how == "a directory":
        file.mkdir()
    elif how == "a link":
        file.symlink_to(secret)
    elif how == "a pipe":
        os.mkfifo(file)
    elif how == "a sparse giant":
        sql(path, "UPDATE Cache SET size = ? WHERE key = 'k4'", LENGTHS[how])
    with LocalStore(path) as store:
        # Only who reads a giant that its row knows sees what it is.
        assert store.contains("k4") is (how == "a sparse giant")
        assert store.get("k4") is None
        assert store.peek("k4", length=4) is None
        assert store.delete("k4") is False
        assert store.put("k4", b"again" * 5_000) is True
        assert store.get("k4") == b"again" * 5_000
    assert set(secret.read_bytes()) == {ord("s")}


def test_absurd_sum_evicts_nothing(path):
    """A damaged sum of sizes is counted anew before anything is evicted for it."""
    ((size,),) = sql(path, "SELECT SUM(size) FROM Cache")
    for absurd in (10**15, -(10**15), "text", None):
        sql(path, "UPDATE Settings SET value = ? WHERE key = 'size'", absurd)
        with LocalStore(path, max_size=size + 100) as store:
            store.replace("extra", b"x" * 10)
            assert len(list(store.entries())) == 101


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
        assert len(list(store.entries())) == 97
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


def test_read_only_store_with_damage(path):
    """A damaged index that cannot be repaired makes an empty store, without an exception and without a trace."""
    index_of(path).write_bytes(b"damaged")
    with LocalStore(path, read_only=True) as store:
        assert store.get("k0") is None
        assert store.contains("k0") is False
        assert list(store.entries()) == []
        assert store.size() == 0
        assert store.counters() == {}
    assert index_of(path).read_bytes() == b"damaged"


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


@pytest.mark.parametrize("damage", ["empty", "half", "garbage", "deleted", "no tables"])
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
    DAMAGES[damage](path)
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


def test_a_damaged_index_leads_nowhere(tmp_path):
    """A link in the place of a directory of values is not followed when the index is rebuilt."""
    outside = tmp_path / "outside"
    outside.mkdir()
    data = encode(Header(key="k"), GARBAGE)
    (outside / f"{digest_of('k')}-{'0' * 16}.val").write_bytes(data)
    path = tmp_path / "store"
    with LocalStore(path) as store:
        store.put("row", b"small")
    (index_of(path).parent / digest_of("k")[0]).symlink_to(outside)
    index_of(path).write_bytes(GARBAGE)
    for read_only in (True, False):
        with pytest.raises(StoreUnavailableError, match="not a file or directory that ejcache makes"):
            LocalStore(path, read_only=read_only)
    assert [file.read_bytes() for file in outside.iterdir()] == [data]
