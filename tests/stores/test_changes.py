"""The file of changes of a local store: its format, and what is made of one that is late, cut short or damaged."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

import pytest
from helpers import ROOT
from hypothesis import given
from hypothesis import strategies as st

from ejcache.stores.local.changes import Change, DamageError, decode, decode_base, encode, encode_base
from ejcache.stores.local.store import LocalStore

GOLDEN = ROOT / "tests/data/local_changes/v2-changes"
SIZES = st.none() | st.integers(0, 2**62)
CHANGES = st.dictionaries(
    st.text(max_size=8), st.builds(Change, SIZES, SIZES, st.integers(), st.integers()), max_size=3
)


def test_the_golden_file_is_read_and_written():
    """What earlier versions wrote is read, and the same is written today."""
    data = GOLDEN.read_bytes()
    base = decode_base(data)
    found = decode(data[len(encode_base(base)) :], after=base)
    assert (base, found) == (
        41,
        [
            (0.0, {"0a/jit_f-1": Change(None, 3000, 1_764_400_000_000_000_000, 1_764_400_000_000_000_000)}),
            (0.25, {"0a/jit_f-1": Change(3000, None, 1, 2), "ff/%41": Change(5, 6, -1, 0)}),
            (0.25, {}),
        ],
    )
    written = (encode(base + 1 + n, age, changes) for n, (age, changes) in enumerate(found))
    assert encode_base(base) + b"".join(written) == data


@given(st.integers(0, 2**60), st.lists(st.tuples(st.floats(0, 1e9), CHANGES), max_size=4))
def test_what_is_written_is_read(base, lines):
    """Changes are read as they were written, and from the middle on."""
    encoded = [encode(base + 1 + n, age, changes) for n, (age, changes) in enumerate(lines)]
    assert decode_base(encode_base(base) + b"".join(encoded)) == base
    assert decode(b"".join(encoded), after=base) == lines
    assert decode(b"".join(encoded[1:]), after=base + 1) == lines[1:]


@given(st.data())
def test_damage_is_seen(data):
    """Lines that are cut, changed, or not the next ones are not taken for changes."""
    lines = encode(8, 0.0, {"aa/b": Change(None, 5, 6, 7)}) + encode(9, 0.0, {"aa/b": Change(5, None, 6, 7)})
    kind = data.draw(st.sampled_from(["cut", "changed", "gap"]))
    if kind == "cut":
        end = data.draw(st.integers(1, len(lines) - 1).filter(lambda at: lines[at - 1 : at] != b"\n"))
        damaged, after = lines[:end], 7
    elif kind == "changed":
        at, value = data.draw(st.integers(0, len(lines) - 1)), data.draw(st.integers(0, 255))
        damaged, after = lines[:at] + bytes([value]) + lines[at + 1 :], 7
        if damaged == lines:
            return
    else:
        damaged, after = lines, data.draw(st.integers(0, 20).filter(lambda number: number != 7))
    with pytest.raises(DamageError):
        decode(damaged, after=after)


def fill(path, number=10, **how):
    """Return a store with entries k0 to k9 of 100 bytes; the order has none of the puts of k5 to k9."""
    store = LocalStore(path, max_size=number * 100, **how)
    for n in range(number):
        store.put(f"k{n}", bytes(100))
    return store


def damage_cut(file):
    os.truncate(file, file.stat().st_size - 10)


def damage_emptied(file):
    os.truncate(file, 0)


def damage_flipped(file):
    data = bytearray(file.read_bytes())
    data[-30] ^= 1
    file.write_bytes(data)


def damage_removed(file):
    file.unlink()


def damage_directory(file):
    file.unlink()
    file.mkdir()
    (file / "theirs").write_bytes(b"x")


def damage_older(file):
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(encode_base(int(lines[0]) + 1) + b"".join(lines[1:]))


@pytest.mark.parametrize(
    "damage", [damage_cut, damage_emptied, damage_flipped, damage_removed, damage_directory, damage_older]
)
@pytest.mark.parametrize("who", ["the process that wrote it", "another"])
def test_damage_costs_no_entry(tmp_path, damage, who):
    """Whatever happens to the file, all entries are hits, and then puts are stored in the limit, the oldest evicted."""
    first = fill(tmp_path)
    damage(tmp_path / "v1/local/changes")
    with first if who != "another" else LocalStore(tmp_path, max_size=1000) as store:
        assert all(store.get(f"k{n}") == bytes(100) for n in range(10))
        for n in range(4):
            assert store.put(f"m{n}", bytes(100))
        assert {info.key for info in store.entries()} == {
            *(f"k{n}" for n in range(4, 10)),
            *(f"m{n}" for n in range(4)),
        }
        assert store.size() == 1000
        assert store.check() == []
    first.close()


@pytest.mark.parametrize("what", ["was not stored", "was not removed", "is there with another size"])
def test_the_last_change_of_another_process(tmp_path, what):
    """Files of the last change are looked at, because its writer may have died before it was made, and only these."""
    first = fill(tmp_path, number=8)
    with first, LocalStore(tmp_path, max_size=800) as second:
        assert second.size() == 800
        if what == "was not stored":
            second.replace("k7", bytes(100))
            next(tmp_path.glob("v1/local/*/k7*")).unlink()
            left = 700
        elif what == "was not removed":
            second.delete("k3")
            (tmp_path / "k3").write_bytes(bytes(100))
            place = next(tmp_path.glob("v1/local/*/k4*")).parent
            with LocalStore(tmp_path / "other") as other:  # for its place
                other.put("k3", bytes(100))
            (there,) = (tmp_path / "other/v1/local").glob("*/k3*")
            target = tmp_path / "v1/local" / there.relative_to(tmp_path / "other/v1/local")
            assert place.parent == target.parent.parent
            (tmp_path / "k3").rename(target)
            left = 800
        else:
            second.replace("k7", bytes(100))
            next(tmp_path.glob("v1/local/*/k7*")).write_bytes(bytes(60))
            left = 760
        assert first.size() == left == second.size()
        assert first.check() == []


def test_a_write_that_cannot_be_made_is_known(tmp_path, monkeypatch):
    """A put whose file cannot get its name changes no sum, in this process and in others."""
    rename = os.rename

    def refuse(source, target, **how):
        if how:
            raise PermissionError(13, "closed to this user", str(target))
        return rename(source, target)

    with fill(tmp_path) as store, LocalStore(tmp_path, max_size=1000) as other:
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", refuse)
            with pytest.raises(OSError, match="closed to this user"):
                store.put("new", bytes(300))
        assert not store.contains("new")
        assert store.size() == 700 == other.size()
        assert store.put("new", bytes(300))
        assert other.size() == 1000
        assert store.check() == other.check() == []


def test_many_at_once(tmp_path):
    """What one process removes or stores by thousands is no work of the next one that comes."""
    keys = [f"k{n}" for n in range(3000)]
    with LocalStore(tmp_path) as store, LocalStore(tmp_path) as other:
        for key in keys:
            store.put(key, b"x")
        assert other.size() == 3000
        assert len((tmp_path / "v1/local/changes").read_bytes()) < 60_000
        assert store.delete_many(keys[:2500]) == set(keys[:2500])
        assert len((tmp_path / "v1/local/changes").read_bytes()) < 60_000
        assert other.size() == 500
        (index,) = tmp_path.glob("v1/local/order-*/cache.db")
        with closing(sqlite3.connect(index)) as connection:
            assert connection.execute("SELECT count(*) FROM Cache").fetchone()[0] <= 501
        assert other.check() == []


def test_hints_of_two_processes(tmp_path):
    """Two processes that put and use in turns evict as one would."""
    with LocalStore(tmp_path, max_size=1000) as one, LocalStore(tmp_path, max_size=1000) as two:
        for n in range(10):
            (one, two)[n % 2].put(f"k{n}", bytes(100))
        expected = [f"k{n}" for n in range(10)]
        for n in range(110):
            used = expected.pop(n % 7)
            (one, two)[n % 3 == 0].note_used(used)
            expected.append(used)
            (two, one)[n % 5 == 0].put(f"m{n}", bytes(100))
            expected = [*expected[1:], f"m{n}"]
            assert {info.key for info in one.entries()} == set(expected), n
        assert one.size() == two.size() == 1000
        assert one.check() == two.check() == []
