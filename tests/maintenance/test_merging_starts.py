"""Start records of past days are merged into few objects, and none is lost or counted twice."""

from __future__ import annotations

import time

import pytest
from memory_bucket import MemoryBucket

from ejcache.bucket.base import STARTS
from ejcache.cache.recorder import read_starts
from ejcache.cache.starts import Process, ProgramRecord, StartRecord, encode_line
from ejcache.errors import StoreError
from ejcache.maintenance.eviction import run_pass
from ejcache.stores.shared.starts import encode_object
from ejcache.stores.shared.usage import Usage

DAY = 86_400.0


def leave(objects, number, *, days=3, programs=1):
    """Write the record of a process that ran `days` ago."""
    at = time.time() - days * DAY
    line = encode_line(
        StartRecord(Process(id=f"p{number}", began=at), [ProgramRecord("jit_step", time=at, outcome="hit")] * programs)
    )
    day = time.strftime("%Y-%m-%d", time.gmtime(at))
    objects.write(f"{STARTS}{day}/host-{number}-{number:032x}", encode_object([line]))


def records(objects):
    """Programs by process, as a report reads them."""
    found = read_starts(Usage(objects).starts(most=500))
    return {record.process.id: len(record.programs) for record in found}


def names(objects):
    return {info.name for info in objects.walk(STARTS)}


def test_a_past_day_is_merged():
    """Objects of a day before yesterday become one; what is newer, or only a few, stays as it is."""
    objects = MemoryBucket()
    for number in range(20):
        leave(objects, number)
    for number in range(20, 29):
        leave(objects, number, days=0)
    for number in range(30, 33):
        leave(objects, number, days=5)
    before, known = names(objects), records(objects)
    assert run_pass(objects, None, dry_run=True).problems == []
    assert names(objects) == before
    assert run_pass(objects, None).problems == []
    assert len(names(objects) & before) == 9 + 3
    assert len(names(objects)) == 9 + 3 + 1
    assert records(objects) == known
    after = names(objects)
    run_pass(objects, None)
    assert names(objects) == after


def test_many_lines_are_several_objects():
    """A merged object stays below the size that readers take."""
    objects = MemoryBucket()
    for number in range(10):
        leave(objects, number, programs=5_000)
    known = records(objects)
    run_pass(objects, None)
    assert 1 < len(names(objects)) < 10
    assert records(objects) == known


def test_a_merge_that_ends_in_the_middle(monkeypatch):
    """Lines that are in two objects, because the process died before it deleted the first, count once."""
    objects = MemoryBucket()
    for number in range(10):
        leave(objects, number)
    known = records(objects)

    def failing(wanted):
        if list(wanted):
            raise StoreError("gone")
        return []

    with monkeypatch.context() as patched:
        patched.setattr(objects, "delete_many", failing)
        assert "leftovers" in run_pass(objects, None).problems[0]
    assert len(names(objects)) == 11
    assert records(objects) == known


@pytest.mark.parametrize("data", [b"", b"\x78\x9c damaged", encode_object([b"{}" * (1 << 20)])])
def test_objects_that_others_wrote(data):
    """A damaged object, or a very large one, takes no record with it."""
    objects = MemoryBucket()
    for number in range(9):
        leave(objects, number)
    known = records(objects)
    day = next(iter(names(objects))).split("/")[2]
    foreign = f"{STARTS}{day}/notes.txt"
    objects.write(foreign, data)
    objects.write(f"{STARTS}{day}/host-1-{1000:032x}", data)
    assert run_pass(objects, None).problems == []
    assert foreign in names(objects)
    assert records(objects) == known
