"""What proves no damage throws nothing away: odd paths, and storage, memory and limits that fail."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest
from cli_helpers import ejcache
from failing_calls import PRELUDE, failing_calls
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from soak_turns import some
from write_steps import seeing_steps

from ejcache.entry import Header
from ejcache.entry_encoding import encode
from ejcache.errors import StoreError, UntrustedDirectoryError
from ejcache.maintenance.audit import take_back
from ejcache.stores.local.index import EntryIndex
from ejcache.stores.local.index_repair import REBUILDS
from ejcache.stores.local.layout import LONGEST_ROOT
from ejcache.stores.local.store import LocalStore


def entries():
    """Half of them are in rows of the index, half in files."""
    return {f"k{n}": encode(Header(key=f"k{n}"), os.urandom(24_000 * (n % 2) + 50)) for n in range(10)}


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    """A directory with ten entries, closed, and what it holds."""
    path, data = tmp_path_factory.mktemp("intact") / "cache", entries()
    with LocalStore(path) as store:
        for key, value in data.items():
            store.put(key, value)
    return path, data


def whole(path, data):
    """True if a new process finds every entry, in the index that it always had."""
    with LocalStore(path) as store:
        return all(store.get(key) == value for key, value in data.items()) and REBUILDS not in store.counters()


# -- paths -------------------------------------------------------------------------------------------------------------

NAMES = st.one_of(
    st.text("?#%&=:;+ ~'\"\\a/$é日\n\x7f", min_size=1, max_size=12),
    st.sampled_from(["%00", "%2e%2e", "?mode=ro", "file:x", "#", "a?vfs=none", "-", "cache.db", "v1", "..."]),
    st.binary(min_size=1, max_size=8).map(os.fsdecode),
)


def is_name(name):
    return "\0" not in name and "/" not in name and name not in (".", "..") and os.path.expandvars(name) == name


@given(parts=st.lists(NAMES.filter(is_name), min_size=1, max_size=3), slashes=st.sampled_from(["/", "//", "///"]))
@example(parts=["a?mode=memory"], slashes="//")
@example(parts=["%2F%00", "#x", " "], slashes="/")
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), database=None)
def test_an_intact_cache_below_any_path(intact, tmp_path, parts, slashes):
    """A cache that was copied to a path of any bytes is read and written there, and nothing is made elsewhere."""
    filled, data = intact
    top = tmp_path / "paths"
    place = Path(top, *parts)
    shutil.copytree(filled, place)
    try:
        spelt = slashes + str(place).lstrip("/")
        assert whole(spelt, data)
        with LocalStore(spelt) as store:
            assert store.put("new", b"n" * 40_000)
            assert store.get("new") == b"n" * 40_000
        assert len(list(place.glob("v1/local/g-*/cache.db"))) == 1
    finally:
        shutil.rmtree(top)


@given(parts=st.lists(NAMES.filter(is_name), min_size=1, max_size=3))
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), database=None)
def test_sqlite_reads_the_path_that_was_meant(tmp_path, parts):
    """What SQLite makes of the URI is the path, byte for byte: nothing in it is a host, a parameter or a fragment."""
    path = Path("/", *parts)
    scheme, _, rest = path.as_uri().partition("://")
    assert scheme == "file"
    assert unquote_to_bytes(rest) == os.fsencode(path)
    assert rest.startswith("/")
    assert not set(rest) & set("?#")


def below(directory, length):
    """A path of this length in `directory`, in parts that a file system takes."""
    path = str(directory)
    while len(path) < length:
        left = length - len(path) - 1
        path += "/" + "d" * (left if left <= 200 else min(200, left - 2))
    return path


@pytest.mark.parametrize("less", [0, 1, 2])
def test_the_longest_path(tmp_path, less):
    """A path of the length that SQLite takes works, with a log beside its index; a longer one is refused."""
    path = below(os.path.realpath(tmp_path), LONGEST_ROOT - less)
    assert len(path) == LONGEST_ROOT - less
    with LocalStore(path) as store, LocalStore(path) as other:
        assert store.put("k", b"value")
        assert other.get("k") == b"value"
    assert whole(path, {"k": b"value"})
    with pytest.raises(UntrustedDirectoryError, match="SQLite opens an index at a path of at most"):
        LocalStore(below(os.path.realpath(tmp_path), LONGEST_ROOT + 1), read_only=less == 0)


# -- failures ----------------------------------------------------------------------------------------------------------

USED = (
    PRELUDE
    + """
import errno, os, shutil, sys
from functools import partial
from ejcache.errors import StoreError
from ejcache.stores.local import writer
from ejcache.stores.local.store import LocalStore
from ejcache.util.log import log

filled, place, error, first, last, step = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
with LocalStore(filled) as store:
    data = {info.key: store.peek(info.key) for info in store.entries()}
assert len(data) == 10
said = []
log.warning = lambda *about: said.append(about)  # of damage; warn_once says what failed
failed = 0
rounds = [(percent, early) for percent in range(first, last, step) for early in (False, True)]
for seed, (percent, early) in enumerate(rounds):
    path = f"{place}/{seed}"
    shutil.copytree(filled, path)
    if seed % 3 == 0:  # a killed process has left its presence, and its log
        open(f"{path}/v1/local/present/1-0123456789ab", "w").close()
    def attempt(call, *arguments):
        try:
            return call(*arguments)
        except (StoreError, MemoryError) as exc:
            assert str(exc).count(chr(10)) == 0, exc

    def fail():
        fail_calls(path, percent, error, seed, memory=error == errno.ENOMEM)

    early and fail()
    store = attempt(partial(LocalStore, path, max_size=None, timeout=0.2))
    early or fail()
    if store is not None:
        for key in data:
            assert attempt(store.peek, key) in (None, data[key])
            assert attempt(store.get, key) in (None, data[key])
            attempt(store.contains, key)
            store.note_used(key)
        attempt(store.put, "new", b"n" * 30_000 * (seed % 4))
        attempt(store.add_counters, {"hits": 1})
        attempt(lambda: list(store.entries()))
        attempt(store.check)
        attempt(store.close)
    failed += _failed.value
    fail_calls(path, 0)
    with LocalStore(path, max_size=None) as store:
        assert {key: store.get(key) for key in data} == data, (error, percent, seed)
        counters = store.counters()
        assert not {"local_rebuilds", "local_damaged_rows"} & set(counters), counters
        assert store.check() == [], (error, percent, seed)
    assert not os.path.exists(f"{path}/v1/quarantine")
    assert os.listdir(f"{path}/v1/local/present") == []
    shutil.rmtree(path)
assert said == [], said
print(failed)
"""
)


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory):
    """The variables of a process in which calls can fail."""
    return failing_calls(tmp_path_factory.mktemp("library"))


@pytest.mark.parametrize("name", some(["EIO", "ENOMEM", "EMFILE"], every=3))
def test_an_intact_cache_where_calls_fail(intact, tmp_path, run_python, preloaded, name):
    """Whichever of the calls fail, 1 to 100 of a hundred, every entry is there afterwards, and is hit."""
    done = run_python(USED, str(intact[0]), str(tmp_path), str(getattr(errno, name)), "1", "101", "3", env=preloaded)
    assert int(done.stdout) > 500


CODES = [
    "CORRUPT",
    "NOTADB",
    "ERROR",
    "IOERR_READ",
    "IOERR_CORRUPTFS",
    "SCHEMA",
    "TOOBIG",
    "CONSTRAINT",
    "INTERRUPT",
    "NOMEM",
]


@pytest.mark.parametrize("code", CODES)
def test_an_error_that_proves_no_damage(intact, tmp_path, monkeypatch, code):
    """An error that an intact index can raise, too, costs that call and nothing else."""
    path = shutil.copytree(intact[0], tmp_path / "cache")

    def fail(*_arguments, **_named):
        exc = sqlite3.OperationalError("as SQLite says it")
        exc.sqlite_errorcode = getattr(sqlite3, f"SQLITE_{code}")
        raise exc

    with LocalStore(path) as store, monkeypatch.context() as context:
        context.setattr(EntryIndex, "find", fail)
        for _ in range(3):
            with pytest.raises(StoreError, match="as SQLite says it"):
                store.get("k1")
    assert whole(path, intact[1])


def test_two_caches_in_one_directory(intact, tmp_path):
    """Of two caches that somebody has copied into one directory, one is used; `restore` takes in what the other has."""
    path = shutil.copytree(intact[0], tmp_path / "cache")
    more = {f"m{n}": encode(Header(key=f"m{n}"), os.urandom(50 + 30_000 * n)) for n in range(2)}
    with LocalStore(tmp_path / "other") as store:
        for key, value in more.items():
            store.put(key, value)
    (other,) = (tmp_path / "other").glob("v1/local/g-*")
    shutil.copytree(other, path / "v1/local" / other.name)
    os.utime(path / "v1/local" / other.name, (0, 0))
    with LocalStore(path) as store:
        assert len(list(store.entries())) == 10
        assert take_back(store) == 2
    assert whole(path, intact[1] | more)
    assert len(list(path.glob("v1/local/g-*"))) == 1


# -- back from quarantine ----------------------------------------------------------------------------------------------


def quarantine_index(path, damage=b""):
    """As an earlier version did it with an index that was intact."""
    (generation,) = path.glob("v1/local/g-*")
    kept = path / "v1/quarantine" / "index-0123456789abcdef"
    kept.mkdir(parents=True)
    for file in generation.glob("cache.db*"):
        file.rename(kept / file.name)
    with (kept / "cache.db").open("r+b") as file:
        file.write(damage)
    return kept


def test_an_intact_index_comes_back(intact, tmp_path):
    """Entries that lay in the rows of an index which was quarantined by mistake are taken back in, and it goes."""
    path, data = shutil.copytree(intact[0], tmp_path / "cache"), intact[1]
    kept = quarantine_index(path)
    with LocalStore(path) as store:
        assert store.get("k0") is None
        assert store.put("k2", b"newer")
        assert take_back(store) == 4
        assert store.get("k2") == b"newer"
        assert take_back(store) == 0
        store.delete("k2")
        assert {key: store.get(key) for key in data if key != "k2"} == {key: data[key] for key in data if key != "k2"}
    assert not kept.exists()


def test_a_damaged_index_stays_in_quarantine(intact, tmp_path):
    """What is no database stays for inspection; verify --fix reports nothing about it."""
    path = shutil.copytree(intact[0], tmp_path / "cache")
    kept = quarantine_index(path, b"damaged")
    with LocalStore(path) as store:
        assert take_back(store) == 0
    assert kept.exists()


def test_entries_come_back(tmp_path):
    """An intact copy comes back, a damaged one stays, and so does one that was called wrong; nothing is evicted."""
    good, wrong = (encode(Header(key=key), os.urandom(5_000)) for key in ("good", "wrong"))
    with LocalStore(tmp_path / "cache", max_size=200_000) as store:
        for key, data in {"good": good, "bad": b"EJC1 damaged", "wrong": wrong}.items():
            store.put(key, data)
            assert store.quarantine(key, data, wrong=key == "wrong")
        fill = os.urandom(199_000)
        store.put("fill", fill)
        assert take_back(store) == 0
        store.delete("fill")
        assert take_back(store) == 1
        assert [store.get(key) for key in ("good", "bad", "wrong")] == [good, None, None]
    assert sorted(path.suffix for path in (tmp_path / "cache/v1/quarantine").iterdir()) == [".entry", ".wrong"]


def test_verify_says_what_came_back(intact, tmp_path):
    """`ejcache verify --fix` says how many entries came back; without --fix nothing is touched."""
    path = shutil.copytree(intact[0], tmp_path / "cache")
    kept = quarantine_index(path)
    assert "came back" not in ejcache("verify", "--dir", path).out
    assert kept.exists()
    said = ejcache("verify", "--dir", path, "--fix")
    assert "5 entries that quarantine had kept intact came back in" in said.out
    assert not kept.exists()
    with LocalStore(path) as store:
        assert {key: store.get(key) for key in intact[1]} == intact[1]


def test_a_rebuild_that_fails_loses_nothing(intact, tmp_path):
    """If a new index cannot be made, the value files of the damaged one are where they were, and are found later."""
    path, data = shutil.copytree(intact[0], tmp_path / "cache"), intact[1]
    (index,) = path.glob("v1/local/g-*/cache.db")
    index.write_bytes(b"damaged")

    def hook(step):
        if step == "index-made":
            raise OSError(errno.ENOSPC, "No space left on device")

    for _ in range(2):
        with seeing_steps(hook), pytest.raises(StoreError, match="no room"):
            LocalStore(path)
    with LocalStore(path) as store:
        assert [store.get(f"k{n}") for n in range(1, 10, 2)] == [data[f"k{n}"] for n in range(1, 10, 2)]
