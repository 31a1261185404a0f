"""`ejcache prune`, with and without `--all`, on a disk without a free byte."""

from __future__ import annotations

import json

import pytest
from capabilities import needs
from small_disk import on_small_disk
from soak_turns import some

pytestmark = needs("mount")

SCRIPT = """
import contextlib, json, os, random
from cli_helpers import ejcache, key_text, put
from ejcache.stores.local.store import LocalStore

kind, beside, *command = sys.argv[1:]
number, size = {"large": (60, 150_000), "small": (200, 9_000)}[kind]
keys = [key_text(f"jit_step{n:03}") for n in range(number)]
with LocalStore("cache") as store:
    for key in keys:
        put(store, key, random.randbytes(size))
    store.add_counters({"hits": 7})
    assert store.get(keys[0]) is not None
    length = len(store.peek(keys[0]))
other = LocalStore("cache") if beside == "beside" else None
with open("others", "wb", buffering=0) as file, contextlib.suppress(OSError):
    while True:
        file.write(b"x" * 4096)
free = lambda: os.statvfs(".").f_bavail * os.statvfs(".").f_frsize
assert free() == 0
said = ejcache(*command, "--dir", "cache", "--json")
if other is not None:
    left = sorted(info.key for info in other.entries())
    assert other.get(keys[1]) is None
got = free()
if other is not None:
    other.close()
with LocalStore("cache") as store:
    left_now = sorted(info.key for info in store.entries())
    assert other is None or left == left_now
    assert store.check() == []
    intact = all(len(store.peek(key)) == length for key in left_now)
    counters = store.counters()
os.unlink("others")
with LocalStore("cache") as store:
    again = store.put("after", b"a" * 100_000)
print(json.dumps(dict(
    status=said.status, report=json.loads(said.out), free=got, left=len(left_now), intact=intact, hits=counters["hits"],
    again=again, length=length, err=said.err,
)))
"""
ROUNDING = 300_000
"""The order and its journal."""


def run(tmp_path, kind, beside, *command):
    result = json.loads(on_small_disk(tmp_path, SCRIPT, kind, beside, *command))
    assert (result["status"], result["err"]) == (0, "")
    assert (result["intact"], result["hits"], result["again"]) == (True, 7, True)
    return result


EACH = [(kind, number, beside) for kind, number in (("large", 60), ("small", 200)) for beside in ("alone", "beside")]


@pytest.mark.parametrize(("kind", "number", "beside"), some(EACH, every=3))
class TestFullDisk:
    """Large entries and small ones, while another process has the cache open or not."""

    def test_prune(self, tmp_path, kind, number, beside):
        """`prune --max-size` leaves what the limit allows, and frees the bytes that it names."""
        result = run(tmp_path, kind, beside, "prune", "--max-size", "1MB")
        report = result["report"]
        assert report["left_entries"] == result["left"] == 1_000_000 // result["length"]
        assert report["removed_entries"] == number - result["left"]
        assert report["removed_size"] == report["removed_entries"] * result["length"]
        assert result["free"] >= report["removed_size"] - ROUNDING

    def test_clear(self, tmp_path, kind, number, beside):
        """`prune --all` removes all, and keeps the counters."""
        result = run(tmp_path, kind, beside, "prune", "--all", "--yes")
        report = result["report"]
        assert (result["left"], report["removed_entries"]) == (0, number)
        assert report["removed_size"] == number * result["length"]
        assert result["free"] >= report["removed_size"] - ROUNDING

    def test_clear_one(self, tmp_path, kind, number, beside):
        """`prune --all KEY` removes the entry that it names."""
        result = run(tmp_path, kind, beside, "prune", "--all", "jit_step001")
        assert (result["left"], result["report"]["removed_entries"]) == (number - 1, 1)
        assert result["report"]["removed_size"] == result["length"]
