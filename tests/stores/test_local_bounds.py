"""The limit of a local store holds to the byte, in the order of use, at a cost that does not grow with the store."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import time
from functools import partial
from threading import get_ident

import pytest
from soak_turns import some

from ejcache.errors import StoreError
from ejcache.maintenance.eviction import run_pass
from ejcache.maintenance.eviction_plan import EvictionPolicy
from ejcache.stores.local.store import LocalStore
from ejcache.stores.worth import worth

MB = 10**6
DAY = 86_400


def keys_of(store):
    return {info.key for info in store.entries()}


def file_of(path, key):
    (found,) = path.glob(f"v1/local/??/{key}")
    return found


def set_times(path, **times):
    for key, when in times.items():
        os.utime(file_of(path, key), (when, when))


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


def test_what_is_superseded_goes_first(tmp_path):
    """An entry that is of no use while another one exists goes before any other, however lately it was used."""
    rules = {"evict_before": lambda key: [key.removesuffix("-pgle")] if key.endswith("-pgle") else []}
    with LocalStore(tmp_path, max_size=50_000, **rules) as store:
        for key in ("old", "a", "a-pgle", "b"):
            store.put(key, bytes(10_000))
        store.note_used("a")
        store.put("c", bytes(10_000))
        store.put("d", bytes(10_000))
        assert keys_of(store) == {"old", "a-pgle", "b", "c", "d"}
        store.delete("a-pgle")
        store.put("a", bytes(10_000))
        store.put("e", bytes(10_000))
        assert keys_of(store) == {"a", "b", "c", "d", "e"}


@pytest.mark.parametrize(("number", "size"), [(0, 0), (3, 10), (120, 5_000), (400, 100)])
def test_what_the_disk_has_more(tmp_path, number, size):
    """`du` shows at most the bytes of the entries and the declared overhead, which is a block each too much at most."""
    with LocalStore(tmp_path / "s") as store:
        for n in range(number):
            store.put(f"k{n}" + "x" * (n % 3 * 250), bytes(size))
        took = store.size()
        said = subprocess.run(["du", "-s", "-B1", tmp_path / "s/v1/local"], capture_output=True, check=True).stdout
        beyond, declared = int(said.split()[0]) - took, store.overhead(number)
        assert beyond <= declared <= beyond + number * os.statvfs(tmp_path).f_frsize
    assert LocalStore(tmp_path / "none", read_only=True).overhead(0) == 0


def test_many_are_removed_at_once(tmp_path):
    """Several entries are removed at once, and those that are not there are not named."""
    with LocalStore(tmp_path) as store:
        for key in "abcd":
            store.put(key, key.encode() * 10)
        assert store.delete_many(["a", "x", "c", "a"]) == {"a", "c"}
        assert store.delete_many(["a"]) == store.delete_many([]) == set()
        assert keys_of(store) == {"b", "d"}
        assert store.size() == 20


@pytest.mark.parametrize("worth_of", [None, worth])
def test_what_cannot_be_removed_is_passed_over(tmp_path, monkeypatch, worth_of):
    """An entry that this user may not remove stays, others go, and the sum is right."""
    remove = os.unlink

    def unlink(path, **options):
        if str(path) in ("k0", "k1"):
            raise PermissionError(1, "Operation not permitted")
        remove(path, **options)

    with LocalStore(tmp_path, max_size=50_000, worth=worth_of) as store:
        for n in range(5):
            store.put(f"k{n}", bytes(10_000))
        monkeypatch.setattr(os, "unlink", unlink)
        for n in range(5, 8):
            store.put(f"k{n}", bytes(10_000))
        assert keys_of(store) == {"k0", "k1", "k5", "k6", "k7"}
        assert store.delete_many(["k1", "k5"]) == {"k5"}
        report = run_pass(store, EvictionPolicy(everything=True, only=frozenset({"k0", "k6", "k7"})))
        assert (report.removed, report.gone, [key for key, _ in report.failed]) == (2, 0, ["k0"])
        with pytest.raises(StoreError, match="closed to this user"):
            store.delete_many(["k0", "k1"])
        assert keys_of(store) == {"k0", "k1"}
        assert store.size() == 20_000
        assert store.check() == []


TIMES = {
    "a day ago": [time.time() - DAY + n for n in range(6)],
    "a day ahead": [time.time() + DAY + n for n in range(6)],
    "both": [time.time() + DAY * (-1) ** n + n for n in range(6)],
    "all equal": [1_000_000_000.0] * 6,
    "before 1970": [-5.0 + n for n in range(6)],
    "whole seconds": [float(int(time.time()) - 6 + n) for n in range(6)],
}


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize("known", [True, False], ids=["changed later", "found so"])
def test_odd_times(tmp_path, name, known):
    """Whatever the times of files are, puts end, the limit holds, and what was used last stays if they tell."""
    path = tmp_path / "s"
    with LocalStore(path, max_size=60_000) as store:
        for n in range(6):
            store.put(f"k{n}", bytes(10_000))
    if not known:
        for order in path.glob("v1/local/order-*"):
            order.rename(path / "gone")
    set_times(path, **{f"k{n}": when for n, when in enumerate(TIMES[name])})
    with LocalStore(path, max_size=60_000) as store:
        for n in range(5):
            assert store.put(f"m{n}", bytes(10_000))
            store.note_used(f"m{n}")
            assert store.size() <= 60_000
            assert f"m{n}" in keys_of(store)
        if name not in ("a day ahead", "both"):  # a time later than now counts as now
            left = keys_of(store) - {f"m{n}" for n in range(5)}
            assert len(left) == 1
            assert left == {"k5"} or name == "all equal"
        assert all(info.last_used <= time.time() for info in store.entries())
        assert store.check() == []


def test_a_clock_that_is_set_back(tmp_path, monkeypatch):
    """What was put and used while the clock was ahead does not outlive what comes after."""
    ahead, now = 365 * DAY * 10**9, time.time_ns
    with LocalStore(tmp_path, max_size=50_000) as store:
        with monkeypatch.context() as patch:
            patch.setattr(time, "time_ns", lambda: now() + ahead)
            for n in range(5):
                store.put(f"k{n}", bytes(10_000))
        for n in range(4):
            store.put(f"m{n}", bytes(10_000))
            store.note_used(f"m{n}")
        assert {f"m{n}" for n in range(4)} < keys_of(store)
        assert store.check() == []


def looks_of_a_put(path, number, monkeypatch, *, used=True):
    """How many files a put looks at that evicts one, where all were used since the last put.

    What it leaves to the background, which brings the hints up to date, is not the put's.
    """
    with LocalStore(path, max_size=number * 10) as store:
        for n in range(number):
            store.put(f"k{n:05}", bytes(10))
        for n in range(number if used else 0):
            store.note_used(f"k{n:05}")
        looked, stat = [], os.stat
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", lambda path, **how: looked.append((get_ident(), path)) or stat(path, **how))
            assert store.put("new", bytes(10))
        assert store.size() == number * 10
        mine = [path for thread, path in looked if thread == get_ident()]
        return sum(str(name).startswith("k") for name in mine), keys_of(store)


def test_a_put_looks_at_few(tmp_path, monkeypatch):
    """Of a few entries, all that were used since are looked at, and the order is exact; of many, at most 64."""
    looked, kept = looks_of_a_put(tmp_path / "few", 300, monkeypatch)
    assert looked <= 300
    assert "k00000" not in kept
    assert len(kept) == 300
    looked, kept = looks_of_a_put(tmp_path / "many", 1_100, monkeypatch)
    assert looked <= 70
    assert "k00000" not in kept
    looked, kept = looks_of_a_put(tmp_path / "unused", 300, monkeypatch, used=False)
    assert looked <= 2
    assert "k00000" not in kept


def test_a_lowered_limit_evicts_as_many_as_it_asks(tmp_path):
    """A put under a much smaller limit evicts hundreds, the least recently used ones."""
    with LocalStore(tmp_path) as store:
        for n in range(700):
            store.put(f"k{n:03}", bytes(10))
        store.note_used("k000")
    with LocalStore(tmp_path, max_size=100) as store:
        store.put("new", bytes(10))
        assert keys_of(store) == {"k000", "new", *(f"k{n}" for n in range(692, 700))}
        assert store.check() == []


CALLS = ("open", "write", "utime", "rename", "unlink", "pwrite", "ftruncate", "stat", "fstat")


NUMBERS = ("EIO", "ENOSPC", "EDQUOT", "EACCES", "EROFS", "ENOENT", "EMFILE")


def test_the_second_mark_of_a_transaction_is_no_shorter(tmp_path, monkeypatch):
    """A put that has evicted and ends while it says what it makes: the next one knows what is gone."""
    for number in range(25):  # the digits of a checksum are ten or fewer by chance
        with LocalStore(tmp_path / str(number), max_size=50_000) as store:
            for n in range(5):
                store.put(f"k{n}", bytes(10_000))

            def fails(_fd, _length):
                raise OSError(errno.EIO, "it ends here")

            with monkeypatch.context() as patch, contextlib.suppress(StoreError):
                patch.setattr(os, "ftruncate", fails)
                store.put("new", bytes(12_000))
            assert store.size() == sum(info.size for info in store.entries())


@pytest.mark.parametrize(("call", "number"), some([(call, number) for call in CALLS for number in NUMBERS], every=6))
def test_any_call_of_a_put_may_fail(tmp_path, monkeypatch, call, number):
    """A put of which any call fails with any error raises ours or is done, and the sum is exact after it."""
    code = getattr(errno, number)
    with LocalStore(tmp_path, max_size=50_000) as store:
        for n in range(5):
            store.put(f"k{n}", bytes(10_000))
        nth, reached = 0, True
        while reached and nth < 40:
            reached = False

            def failing(function, *arguments, left=[nth], **named):  # noqa: B006 (it is counted down)
                nonlocal reached
                left[0] -= 1
                if left[0] == -1:
                    reached = True
                    raise OSError(code, os.strerror(code), "x")
                return function(*arguments, **named)

            with monkeypatch.context() as patch:
                patch.setattr(os, call, partial(failing, getattr(os, call)))
                try:
                    done = store.put(f"n{nth}", bytes(12_000))
                except StoreError:
                    done = None
            assert store.size() == sum(info.size for info in store.entries()) <= 50_000
            assert done is None or store.get(f"n{nth}") is not None
            nth += 1
        assert nth > 1 or call == "ftruncate"  # which follows a write that evicted many
        assert store.check() == []
        assert list(tmp_path.glob("v1/local/tmp/*")) == []
