"""Direct mode on the command line: its records, its counters, what `why` says of it, and `verify --direct`."""

from __future__ import annotations

import pytest
from cli_helpers import ejcache, fill, key_text

from ejcache import entry
from ejcache.jax_integration.direct.records import DIRECT_RECORD_KIND, DirectDocument, encode_document
from ejcache.keys.key import direct_record_key
from ejcache.stores.local.store import LocalStore

RECORD = direct_record_key("train.step", "signature", "environment")


@pytest.fixture
def cache(tmp_path):
    """A cache with two entries and the records of one function."""
    fill(tmp_path / "cache", "jit_step", "jit_eval")
    with LocalStore(tmp_path / "cache") as store:
        put_record(store)
    return tmp_path / "cache"


def put_record(store, *, damaged=False):
    payload = encode_document(DirectDocument("train.step"))
    data = bytearray(entry.encode(entry.Header(key=RECORD, kind=DIRECT_RECORD_KIND, name="train.step"), payload))
    data[-40] ^= damaged
    store.replace(RECORD, bytes(data))


def stored(directory):
    with LocalStore(directory, read_only=True) as store:
        return {info.key for info in store.entries()}


def test_records_are_no_entries(cache, tmp_path):
    """`ls`, `show` and the numbers of entries leave records out; sizes and the count of what lies beside have them."""
    with LocalStore(cache, read_only=True) as store:
        size = store.size()
    listed = ejcache("ls", "--dir", cache, "--json").json
    assert sorted(row["name"] for row in listed["entries"]) == ["jit_eval", "jit_step"]
    assert (listed["total_entries"], listed["total_size"], listed["side_objects"]) == (2, size, 1)
    counted = ejcache("stats", "--dir", cache, "--json").json
    assert (counted["entries"], counted["size"], counted["side_objects"]) == (2, size, 1)
    assert 0 < counted["side_size"] < size
    assert " in 1 text, profile or record\n" in ejcache("stats", "--dir", cache).out
    assert ejcache("show", "train.step", "--dir", cache).status == 1
    assert ejcache("show", "step", "--dir", cache, "--json").json["name"] == "jit_step"
    other = tmp_path / "other"
    assert ejcache("push", other, "--dir", cache, "--json").json["copied_entries"] == 2
    assert RECORD in stored(other)


def test_records_are_verified_and_repaired(cache):
    """`verify` reads records; `--fix` takes a damaged one out of use."""
    assert ejcache("verify", "--dir", cache).status == 0
    with LocalStore(cache) as store:
        put_record(store, damaged=True)
    found = ejcache("verify", "--dir", cache, "--json")
    assert (found.status, [each["key"] for each in found.json["findings"]]) == (1, [RECORD])
    assert ejcache("verify", "--dir", cache, "--fix").status == 0
    assert stored(cache) == {key_text("jit_step"), key_text("jit_eval")}


def test_records_are_removed(cache):
    """`clear` removes all records, `prune` by its limits; a rule for the names of programs leaves them."""
    assert ejcache("clear", "jit_eval", "--dir", cache).status == 0
    assert ejcache("prune", "--name", "jit_*", "--dir", cache).status == 0
    assert stored(cache) == {RECORD}
    planned = ejcache("prune", "--max-size", "0", "-n", "--dir", cache, "--json").json
    assert (planned["planned_entries"], planned["planned_side_objects"]) == (0, 1)
    assert ejcache("clear", "--yes", "--dir", cache).status == 0
    assert stored(cache) == set()


def test_stats_show_direct_mode_where_it_was_used(cache):
    """The calls of direct functions, by verdict; without such a call there is no line."""
    assert "Direct mode" not in ejcache("stats", "--dir", cache).out
    with LocalStore(cache) as store:
        store.add_counters({"direct_hit": 3, "direct_refused": 1})
    shown = [line.split() for line in ejcache("stats", "--dir", cache).lines]
    assert ["Direct", "mode", "4", "calls"] in shown
    assert ["hit", "3", "/", "4", "(75.0%)"] in shown
    assert ["refused", "1", "/", "4", "(25.0%)"] in shown
    direct = ejcache("stats", "--dir", cache, "--json").json["direct"]
    assert (direct["hit"], direct["refused"], direct["wrong"]) == (3, 1, 0)
