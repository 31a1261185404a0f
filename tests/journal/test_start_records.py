"""Start records: their format, which a golden file fixes, and what one process writes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from helpers import line_of, run_program

import ejcache
from ejcache.journal import recorder as recording
from ejcache.journal.line import HIT, ProgramRecord, saved_seconds
from ejcache.journal.recorder import Recorder, recorder
from ejcache.journal.start_records import Process, StartRecord, beginning_of, decode_line, decode_lines, read_starts

GOLDEN = Path(__file__).parent.parent / "data" / "start-record-1.jsonl"

RECORD = StartRecord(
    Process(
        id="19a-00ff",
        host="node-3",
        pid=71,
        rank=2,
        ranks=4,
        program="train.py",
        began=1_700_000_000.0,
        versions={"python": "3.12.1", "ejcache": "0.1.0", "jax": "0.12.0", "jaxlib": "0.12.0", "platform": "cpu"},
        settings={"dir": "gs://bucket/prefix"},
    ),
    [
        ProgramRecord(
            name="jit_step",
            time=1_700_000_003.5,
            url="gs://bucket/prefix",
            key="jit_step-cpu-plain-1-2",
            reason="absent",
            outcome="stored",
            compile_seconds=2.0,
            size=4096,
            caller="/home/me/train.py:31 in main",
            thread="MainThread",
            seconds={"traced": 0.25, "keyed": 0.01, "compiled": 2.0},
            components={"computation": "ab", "jaxlib": "cd"},
            details={"jax": "0.12.0"},
            signature="(f32[8]) -> f32[]",
            module="ef",
        ),
        ProgramRecord(
            name="jit_init", time=1_700_000_004.0, key="k", outcome=HIT, compile_seconds=1.5, preloaded=True,
            seconds={"loaded": 0.5},
        ),
    ],
    {"read an entry": 2},
    3,
)  # fmt: skip


def test_the_format():
    """A line is what the golden file has; lines of one process become one record, whatever else the log holds."""
    line = line_of(RECORD)
    assert line + b"\n" == GOLDEN.read_bytes()
    (again,) = decode_lines([b"not json", line, b'{"v": 2}', line_of(RECORD._replace(dropped=0))])
    assert [program.name for program in again.programs] == ["jit_step", "jit_step", "jit_init", "jit_init"]
    assert again.process == RECORD.process
    assert (dict(again.trouble), again.dropped) == ({"read an entry": 4}, 3)
    assert (saved_seconds(again.programs[-1]), saved_seconds(again.programs[0])) == (1.0, 0.0)
    assert beginning_of(again.programs[-1]) == 1_700_000_003.5


@pytest.mark.parametrize(
    "change",
    [
        {"time": "x"},
        {"time": 1e300},
        {"seconds": []},
        {"seconds": {"traced": None}},
        {"name": 1},
        {"components": None},
        {"components": [1]},
        {"time": 10**4000},
    ],
)
def test_a_damaged_line_is_none(change):
    """A field of another type, or an absurd number, spoils its line only."""
    body = json.loads(line_of(RECORD))
    body["programs"][0] |= change
    assert decode_line(json.dumps(body).encode()) is None


def test_what_a_process_writes():
    """A line holds what came since the last; too many programs are counted only; a fork begins another record."""
    mine = Recorder(most=2)
    mine.is_shared = True
    for number in range(5):
        mine.add(ProgramRecord(name=f"jit_{number}", time=1.0 + number, outcome=HIT))
    mine.add_trouble("read an entry", "it failed")
    mine.write()
    mine.write()
    first = read_starts()[-1]
    assert [program.name for program in first.programs] == ["jit_0", "jit_1"]
    assert (first.dropped, dict(first.trouble), first.process.pid) == (3, {"read an entry": 1}, os.getpid())
    assert decode_lines(mine.lines) == [first]

    mine.after_fork_in_child()
    mine.add(ProgramRecord(name="jit_child", time=9.0, outcome=HIT))
    mine.write()
    assert [each.programs[0].name for each in decode_lines(mine.lines)] == ["jit_child"]
    assert [each.programs[-1].name for each in read_starts()[-2:]] == ["jit_1", "jit_child"]


class Unread(list):
    """Lines that nobody looks through."""

    def __iter__(self):
        raise AssertionError("a line that is added asks for no other")


def test_the_lines_for_journals_are_a_megabyte_at_most(monkeypatch):
    """A process that writes lines for days keeps as many as a journal may hold, and adds each without the others."""
    mine = Recorder()
    mine.is_shared = True
    monkeypatch.setattr("ejcache.journal.recorder.MOST_RECORDED", 700)
    mine.lines = Unread()
    for number in range(9):
        mine.add(ProgramRecord(name="jit_long" * number, time=1.0, outcome=HIT))
        mine.write()
    kept = list.copy(mine.lines)
    assert kept
    assert sum(map(len, kept)) <= 700
    assert len(read_starts()[-1].programs) == 9

    mine.after_fork_in_child()
    mine.is_shared = True
    mine.add(ProgramRecord(name="jit_child", time=1.0, outcome=HIT))
    mine.write()
    assert len(mine.lines) == 1


def test_a_killed_process(run_forked, tmp_path):
    """The misses of a process that was killed are recorded; the next process reads and adds to the same log."""
    program = """
import os, signal, sys, jax, jax.numpy as jnp, ejcache
from ejcache.journal.recorder import START_LOG
ejcache.enable(sys.argv[1], min_compile_seconds=0)
jax.jit(lambda x: jnp.tanh(x) * 3)(1.0)
list(START_LOG.lines())  # the log is written in the background, and before it is read
print("compiled", flush=True)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""
    for how, status in (("killed", -9), ("ended", 0)):
        done = run_forked(program, str(tmp_path / how), how, check=False)
        assert (done.returncode, done.stdout) == (status, "compiled\n")
    assert [[program.outcome == HIT for program in record.programs] for record in read_starts()[-2:]] == [[False]] * 2


def test_a_process_whose_working_directory_is_gone(run_python):
    """What it loaded is recorded, and its end is silent."""
    program = """
import os
from ejcache.journal.line import HIT, ProgramRecord
from ejcache.journal.recorder import recorder
place = os.path.abspath("gone")
os.mkdir(place)
os.chdir(place)
os.rmdir(place)
recorder.add(ProgramRecord(key="gone", outcome=HIT, time=1.0))
"""
    assert run_python(program).stderr == ""
    assert read_starts()[-1].programs[0].key == "gone"


POOL = """
import multiprocessing, sys
from ejcache.journal.recorder import recorder
from ejcache.journal.line import HIT, ProgramRecord

def work(number):
    recorder.add(ProgramRecord(key=f"k{number}", outcome=HIT, time=1.0))

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(work, range(4))
"""


def test_a_worker_that_learns_late_that_it_is_one(monkeypatch):
    """A spawned worker that imported the recorder with the program's main module writes at once all the same."""
    mine = Recorder()
    monkeypatch.setattr("multiprocessing.process.parent_process", object)
    mine.add(ProgramRecord(key="k0", outcome=HIT, time=1.0))
    assert [each.key for record in decode_lines(recording.START_LOG.lines()) for each in record.programs] == ["k0"]


def test_workers_that_a_pool_ends(tmp_path):
    """`with Pool()` ends its workers by a signal: what they loaded is recorded all the same."""
    program = tmp_path / "pool.py"
    program.write_text(POOL)
    run_program([sys.executable, program])
    assert sorted(each.key for record in read_starts() for each in record.programs) == ["k0", "k1", "k2", "k3"]


def test_events(caplog):
    """Listeners get what is recorded; one that raises is named once, and the other one still hears."""
    heard = []

    def broken(event):
        raise ValueError("no")

    off_broken, off = ejcache.on_event(broken), ejcache.on_event(heard.append)
    try:
        recorder.add(RECORD.programs[0])
        recorder.add(RECORD.programs[1])
        recorder.add_trouble("write an entry", "the disk is full")
    finally:
        off()
        off_broken()
        off()
    recorder.add(RECORD.programs[1])
    assert [type(event).__name__ for event in heard] == [
        "ProgramCompiled",
        "ProgramStored",
        "ProgramLoaded",
        "CacheTrouble",
    ]
    assert (heard[0].compile_seconds, heard[0].reason, heard[2].saved, heard[3].kind) == (
        2.0,
        "absent",
        1.0,
        "write an entry",
    )
    assert [r.message for r in caplog.records if r.levelname == "WARNING"] == [
        "ejcache: test_events.<locals>.broken, which on_event was given, raises ValueError: no"
    ]
