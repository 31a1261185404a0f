"""A program that ends at once, with hits of its host's copies only, leaves what it used and counted to a later one."""

from __future__ import annotations

import contextlib
import time

import pytest
from helpers import line_of

from ejcache.journal.format import JOURNALS, SNAPSHOT, decode_lines
from ejcache.journal.start_records import decode_line
from ejcache.stores.opening import open_bucket
from ejcache.stores.shared.store import SharedStore

PROGRAM = """
import sys
from ejcache import entry
from ejcache.cache.opening import open_cache_store
from ejcache.settings.resolve import resolve

store = open_cache_store(sys.argv[1], resolve())
for n in range(6):
    key = f"jit_f{n}-cpu-plain-{n:064x}"
    if store.get(key) is None:
        store.put(key, entry.encode(entry.Header(key=key), b"x" * 100))
    else:
        store.note_used(key)
assert store.flush(60)  # not only for as long as the end of a program waits
store.add_counters({"hits": 6})
if "asks" in sys.argv:
    store.get(f"jit_g-cpu-plain-{7:064x}")
print(store.tier_counters().get("local_hits", 0), store.shared.bucket.is_prepared)
"""


@pytest.fixture
def url(bucket, tmp_path):
    return f"gs://bucket/{tmp_path.name}"


def test_journals_and_counters_arrive(run_forked, url):
    """Short runs make no client; the next run that makes a request sends what they used and counted, once."""
    assert run_forked(PROGRAM, url).stderr == ""
    with contextlib.closing(open_bucket(url)) as bucket:
        first = len(list(bucket.walk(JOURNALS)))
        for _ in range(3):
            finished = run_forked(PROGRAM, url)
            assert (finished.stdout.strip(), finished.stderr) == ("6 False", "")
        assert len(list(bucket.walk(JOURNALS))) == first
        for runs in (5, 6):
            finished = run_forked(PROGRAM, url, "asks")
            assert (finished.stdout.strip(), finished.stderr) == ("6 True", "")
            with SharedStore(bucket) as shared:
                assert shared.counters()["hits"] == 6 * runs
        journals = [bucket.read(info.name).data for info in bucket.walk(JOURNALS)]
        assert len(journals) == first + 2
        used = [sum(use.times > 0 for _, use in decode_lines(journal)) for journal in journals]
        assert sorted(used) == [0] * first + [6, 6]
        assert bucket.stat(SNAPSHOT) is None


def test_what_was_left_long_ago_is_sent_by_any_run(run_forked, url, tmp_path, monkeypatch):
    """A run that finds usage that is ten minutes old makes a client for it."""
    monkeypatch.setenv("EJCACHE_LOCAL_DIR", str(tmp_path / "copies"))
    assert run_forked(PROGRAM, url).stderr == ""
    assert run_forked(PROGRAM, url).stdout.strip() == "6 False"
    (left,) = tmp_path.rglob("scratch/unsent")
    lines = [decode_line(line)._replace(at=time.time() - 601) for line in left.read_bytes().splitlines()]
    left.write_bytes(b"".join(line_of(line) + b"\n" for line in lines))
    assert run_forked(PROGRAM, url).stdout.strip() == "6 True"
    assert not left.exists()
    with contextlib.closing(open_bucket(url)) as bucket, SharedStore(bucket) as shared:
        assert shared.counters()["hits"] == 18
