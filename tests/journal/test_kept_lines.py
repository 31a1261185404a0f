"""Start records of past days are merged into few objects, and none is lost or counted twice."""

from __future__ import annotations

import contextlib
import time

import pytest
from memory_bucket import MemoryBucket

from ejcache.errors import StoreError
from ejcache.journal.format import JOURNALS, encode_journal, is_records_name
from ejcache.journal.line import ProgramRecord, encode_line
from ejcache.journal.recorder import Recorder
from ejcache.journal.shared_journal import SharedJournal
from ejcache.journal.start_records import read_starts
from ejcache.maintenance.eviction import run_pass

DAY = 86_400.0


def line(number, *, days=0, programs=1):
    """What a process that ran `days` ago tells of itself."""
    at = time.time() - days * DAY
    program = ProgramRecord("jit_step", time=at, outcome="hit")
    return encode_line({"id": f"p{number}", "began": at}, [program] * programs)


def leave(objects, number, *, days=3, programs=1):
    """Write the records that a pass has kept `days` ago."""
    day = time.strftime("%Y-%m-%d", time.gmtime(time.time() - days * DAY))
    data = encode_journal({}, record=[line(number, days=days, programs=programs)])
    objects.write(f"{JOURNALS}{day}/records-host-{number}-{number:032x}", data)


def records(objects):
    """Programs by process, as a report reads them."""
    found = read_starts(SharedJournal(objects).records(most=500))
    return {record.process.id: len(record.programs) for record in found}


def recorder_of(usage):
    """A recorder whose lines the journal tells; the test writes them."""
    teller = Recorder()
    usage.tell(teller)
    return teller


def names(objects):
    return {info.name for info in objects.walk(JOURNALS) if is_records_name(info.name)}


def test_from_journals():
    """Each journal has the lines since the last one; a pass keeps those of many in one object, and each once."""
    objects = MemoryBucket()
    for number in range(5):
        usage = SharedJournal(objects)
        usage.add({"hits": 1})
        usage.write()
        usage.add({"hits": 1})
        teller = recorder_of(usage)
        teller.lines.append(line(number))
        usage.write()
        teller.lines.append(line(number, programs=2))
        usage.write_or_hand_over()
        usage.write_or_hand_over()
    assert len(list(objects.walk(JOURNALS))) == 15
    known = records(objects)
    assert known == {f"p{number}": 3 for number in range(5)}
    assert run_pass(objects, None, dry_run=True).problems == []
    assert names(objects) == set()
    for _ in range(2):
        assert run_pass(objects, None).problems == []
        assert (len(names(objects)), records(objects)) == (1, known)
    assert {info.name for info in objects.walk(JOURNALS)} == {*names(objects), f"{JOURNALS}snapshot"}
    assert usage.total() == {"hits": 10}


@pytest.mark.parametrize("dies", ["write", "delete_many"])
def test_a_pass_that_dies(monkeypatch, dies):
    """Records that are in a journal still, and in what the pass has kept, count once."""
    objects = MemoryBucket()
    usage = SharedJournal(objects)
    recorder_of(usage).lines.append(line(1))
    usage.write_or_hand_over()
    write = objects.write

    def failing(*arguments, **options):
        if dies == "write" and not arguments[0].endswith("snapshot"):
            return write(*arguments, **options)
        raise StoreError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(objects, dies, failing)
        with contextlib.suppress(StoreError):
            run_pass(objects, None)
    assert len(names(objects)) == 1
    assert len(list(objects.walk(JOURNALS))) == 2 + (dies == "delete_many")
    assert records(objects) == {"p1": 1}
    run_pass(objects, None)
    assert records(objects) == {"p1": 1}


def test_old_records_go():
    """After thirty days."""
    objects = MemoryBucket()
    leave(objects, 1)
    run_pass(objects, None, now=lambda: time.time() + 29 * DAY)
    assert len(names(objects)) == 1
    run_pass(objects, None, now=lambda: time.time() + 31 * DAY)
    assert names(objects) == set()


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
    for number in range(12):
        leave(objects, number, programs=1_500)
    known = records(objects)
    run_pass(objects, None)
    assert 1 < len(names(objects)) < 10
    assert records(objects) == known
    assert all(info.size < 2 << 20 for info in objects.walk(JOURNALS))


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


@pytest.mark.parametrize("data", [b"", b"\x78\x9c damaged", encode_journal({}, record=[b"{}" * (1 << 20)])])
def test_objects_that_others_wrote(data):
    """A damaged object, or a very large one, takes no record with it."""
    objects = MemoryBucket()
    for number in range(9):
        leave(objects, number)
    known = records(objects)
    day = next(iter(names(objects))).split("/")[2]
    foreign = f"{JOURNALS}{day}/records-notes.txt"
    objects.write(foreign, data)
    objects.write(f"{JOURNALS}{day}/records-host-1-{1000:032x}", data)
    assert run_pass(objects, None).problems == []
    assert objects.read(foreign).data == data
    assert records(objects) == known
