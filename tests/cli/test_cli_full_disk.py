"""`ejcache prune`, with and without `--all`, on a disk without a free byte."""

from __future__ import annotations

import json

import pytest
from capabilities import needs
from small_disk import on_small_disk
from soak_turns import some

pytestmark = needs("mount")

SCRIPT = """
import contextlib, json, os, random, shutil
from cli_helpers import ejcache, key_text, put
from ejcache.stores.local.store import LocalStore

kind, beside, *commands = sys.argv[1:]
number, size = {"large": (60, 150_000), "small": (200, 9_000)}[kind]
keys = [key_text(f"jit_step{n:03}") for n in range(number)]
free = lambda: os.statvfs(".").f_bavail * os.statvfs(".").f_frsize

def run(cache, command):
    with LocalStore(cache) as store:
        for key in keys:
            put(store, key, random.randbytes(size))
        store.add_counters({"hits": 7})
        assert store.get(keys[0]) is not None
        length = len(store.peek(keys[0]))
    other = LocalStore(cache) if beside == "beside" else None
    with open("others", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * (1 << 18)):
            pass
    with open("others", "ab", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    assert free() == 0
    said = ejcache(*command.split(), "--dir", cache, "--json")
    if other is not None:
        left = sorted(info.key for info in other.entries())
        assert other.get(keys[1]) is None
    got = free()
    if other is not None:
        other.close()
    with LocalStore(cache) as store:
        left_now = sorted(info.key for info in store.entries())
        assert other is None or left == left_now
        assert store.check() == []
        intact = all(len(store.peek(key)) == length for key in left_now)
        counters = store.counters()
    os.unlink("others")
    with LocalStore(cache) as store:
        again = store.put("after", b"a" * 100_000)
    shutil.rmtree(cache)
    return dict(
        status=said.status, report=json.loads(said.out), free=got, left=len(left_now), intact=intact,
        hits=counters["hits"], again=again, length=length, err=said.err,
    )

print(json.dumps([run(f"cache{n}", command) for n, command in enumerate(commands)]))
"""
ROUNDING = 300_000
"""The order and its journal."""
EACH = [(kind, number, beside) for kind, number in (("large", 60), ("small", 200)) for beside in ("alone", "beside")]


@pytest.mark.parametrize(("kind", "number", "beside"), some(EACH, every=3))
def test_a_full_disk(tmp_path, kind, number, beside):
    """Large entries and small ones, while another process has the cache open or not.

    With `--max-size` stays what the limit allows, and the bytes that the report names are free; with `--all` nothing
    stays, and with a KEY all but that entry. The counters stay.
    """
    limit, everything, one = ("prune --max-size 1MB", "prune --all --yes", "prune --all jit_step001")
    found = json.loads(on_small_disk(tmp_path, SCRIPT, kind, beside, limit, everything, one))
    wanted = {"status": 0, "err": "", "intact": True, "hits": 7, "again": True}
    assert [{name: each[name] for name in wanted} for each in found] == [wanted] * 3
    kept = [each["left"] for each in found]
    assert kept == [1_000_000 // found[0]["length"], 0, number - 1]
    assert found[0]["report"]["left_entries"] == kept[0]
    for each in found:
        report = each["report"]
        assert report["removed_entries"] == number - each["left"]
        assert report["removed_size"] == report["removed_entries"] * each["length"]
        assert each["free"] >= report["removed_size"] - ROUNDING
