"""Candidates that crash, hang or fail: each is tried once, the program is right, and it ends with its own status."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
import time

import jax
import jax.numpy as jnp
import pytest
from autotune_helpers import QUICK, key
from autotune_simulation import planted
from forking import Forked
from helpers import run_program
from soak_turns import some

from ejcache.autotune import AutotuneStore, Candidate, autotuned
from ejcache.autotune.chooser import chooser_for
from ejcache.autotune.records.crash_journal import CandidateJournal
from ejcache.autotune.records.record import RETRY_SECONDS, Record, Status, decode_record, encode_record

PROGRAM = """
import os, signal, sys, jax, jax.numpy as jnp, numpy as np
from ejcache.autotune import AutotuneStore, Tuner, autotuned
from ejcache.autotune.measure import tuning_run
from ejcache.autotune.measure.trial import WorkerThread

tuning_run._GRACE_SECONDS = 0.01  # what hangs takes all processors for as long as it is waited for
store, way = AutotuneStore(sys.argv[1], seeds=()), sys.argv[2]
run = WorkerThread.run

def run_impatiently(thread, function, *, timeout=None):
    # Little time for the run that hangs alone: the others, and to lower this one, may be slow on a busy machine.
    is_run = getattr(function, "func", None) is tuning_run.first_run
    hangs = is_run and way.startswith("hang") and function.args[0].configuration == {"n": 2}
    return run(thread, function, timeout=0.3 if hangs else timeout)

WorkerThread.run = run_impatiently

def tried(line):
    with open(sys.argv[3], "a") as file:
        file.write(line + chr(10))

def ends(x):
    tried("ran")
    os.kill(os.getpid(), signal.SIGSEGV)
    signal.pause()  # another thread may get the signal

@autotuned(configs=[{"n": 1}, {"n": 2}, {"n": 3}], name="hostile", store=store,
           tuner=Tuner(workers=1, warmup=2, rounds=8))
def op(x, *, n):
    if n == 2 and way == "trace":
        tried("ran")
        os._exit(7)
    if n == 2 and way == "segfault":
        return x + jax.pure_callback(ends, jax.ShapeDtypeStruct((), x.dtype), x)
    if n == 2 and way == "hang in parallel":
        tried("ran")
        loop = jax.lax.while_loop(lambda s: s[0] >= 0, lambda s: (s[0] * 0 + 1, s[1] @ s[1]), (x[0], jnp.eye(500)))
        return x + loop[1][0, 0]
    if n == 2:
        tried("ran")
        return x + jax.lax.while_loop(lambda s: s[0] >= 0, lambda s: (s[0] * 0 + 1, s[1] + 1), (x[0], x[0]))[1]
    if way == "fails":
        tried("ran")
        raise RuntimeError(f"no block {n}")
    return x + 0 * n

x = np.ones(4, np.float32)
print("result", np.asarray(op(x)).sum())
record = store.find(op.key(x))
print("record", record and [(c.configuration["n"], c.status.value) for c in record.record.candidates])
"""


PREEMPTED = """
import os, sys, jax, jax.numpy as jnp, numpy as np
from ejcache.autotune import AutotuneStore, Tuner, autotuned
from ejcache.autotune.measure import tuning_run

store, start = AutotuneStore(sys.argv[1], seeds=()), sys.argv[2]
first_run, run_once = tuning_run.first_run, tuning_run.run_once

def seconds(trial):
    return 2e-3 if trial.configuration == {"n": 1} else 1e-3

tuning_run.first_run = lambda trial, *given, **options: (seconds(trial), first_run(trial, *given, **options)[1])
tuning_run.run_once = lambda trial, arrays, repeats: (run_once(trial, arrays, 1), seconds(trial))[1]

def seen(x):
    if start == "first":
        os.kill(os.getpid(), 9)  # as a scheduler does, while this candidate happens to run
    return x

@autotuned(configs=[{"n": 1}, {"n": 2}, {"n": 3}], name="preempted", store=store, tuner=Tuner(workers=1, rounds=8))
def op(x, *, n):
    if n == 3:
        raise RuntimeError("no such block")
    return jax.pure_callback(seen, x, x) if n == 2 else x + 0

x = np.ones(4, np.float32)
op(x)
record = store.find(op.key(x)).record
print(record.configuration, sorted((c.configuration["n"], c.status.value) for c in record.candidates))
"""


@pytest.mark.parametrize(
    ("way", "status", "deaths", "parent"),
    [("trace", 7, 3, []), ("segfault", -signal.SIGSEGV, 1, ["-m", "ejcache", "run"])],
)
def test_a_candidate_that_ends_the_process_is_not_tried_again(run_forked, tmp_path, way, status, deaths, parent):
    """The third death is enough, and the first if `ejcache run` saw that a signal of code's ended it. The next start
    knows it and is right.
    """
    arguments = [str(tmp_path / "store"), way, str(tmp_path / "tried")]
    command = [sys.executable, *parent, "-c", PROGRAM, *arguments]
    for _ in range(deaths):
        assert run_program(command, cwd=tmp_path, check=False, start=Forked).returncode == status
    done = run_forked(PROGRAM, *arguments)
    assert "result 4.0" in done.stdout
    assert "(2, 'crashed')" in done.stdout
    assert (tmp_path / "tried").read_text().count("ran") == deaths


def test_a_process_that_is_ended_from_outside_blames_no_candidate(run_forked, tmp_path):
    """A healthy candidate during whose run the job is preempted twice is tried again by the next process, and wins."""
    for _ in range(2):
        assert run_forked(PREEMPTED, str(tmp_path / "store"), "first", check=False).returncode == -signal.SIGKILL
    done = run_forked(PREEMPTED, str(tmp_path / "store"), "second")
    assert done.stdout == "{'n': 2} [(1, 'ok'), (2, 'ok'), (3, 'failed')]\n"


class ToTheEnd(Forked):
    """It takes its modules apart."""

    to_the_end = True


@pytest.mark.parametrize("way", some(["hang in parallel", "hang"], every=2))
def test_a_hang_on_the_device_costs_one_attempt(run_python, run_forked, tmp_path, way):
    """A candidate that never ends is left running; the program is right and ends with its own status, at each start."""
    arguments = [str(tmp_path / "store"), way, str(tmp_path / "tried")]
    # The first process ends as the interpreter does: a thread that waits inside JAX would abort it just then.
    first = run_python(PROGRAM, *arguments, start=ToTheEnd)
    second, third = (run_forked(PROGRAM, *arguments) for _ in range(2))
    for done in (first, second, third):
        assert "result 4.0" in done.stdout
        assert "terminate" not in done.stderr
    assert (tmp_path / "tried").read_text().count("ran") == 1
    # What the hang left unmeasured is measured by the next process: beside it, every other candidate is slow.
    assert "(3, 'ok')" not in first.stdout
    assert second.stdout.count("'ok'") == 2
    assert second.stdout.splitlines()[-1] == third.stdout.splitlines()[-1]


def test_when_all_fail_the_next_start_tries_none(tmp_path, caplog):
    """The failures are stored with their reasons, and the guess is used without compiling anything again."""
    tried = []

    def operation():
        where = AutotuneStore(str(tmp_path / "store"), seeds=())

        @autotuned(configs=[{"n": 1}, {"n": 2}], name="failing", store=where, tuner=QUICK)
        def op(x, *, n):
            tried.append(n)
            raise RuntimeError(f"no block {n}")

        return where, op

    where, op = operation()
    assert op.choose(jnp.ones(4)).configuration == {"n": 1}
    assert sorted(set(tried)) == [1, 2]
    assert 'every candidate failed: {"n":1}: RuntimeError: no block 1; {"n":2}: ' in caplog.text
    tried.clear()
    where, op = operation()
    assert op.choose(jnp.ones(4)).source.value == "heuristic"
    assert tried == []
    assert chooser_for(where).counters["tuning"] == 0
    # A new candidate is tried, and replaces the failures.
    where, op = operation()
    more = autotuned(configs=[{"n": 1}, {"n": 2}, {"n": 3}], name="failing", store=where, tuner=QUICK)
    found = more(lambda x, *, n: x if n == 3 else op.function(x, n=n)).choose(jnp.ones(4))
    assert (found.source.value, found.configuration) == ("tuned", {"n": 3})


def test_each_operation_that_fails_is_named(tmp_path, caplog):
    """A line about the first one says nothing of the next one."""

    def fails(x, *, n):
        raise RuntimeError(f"no block {n}")

    for name in ("one", "another"):
        store = AutotuneStore(str(tmp_path), seeds=())
        autotuned(configs=[{"n": 1}, {"n": 2}], name=name, store=store, tuner=QUICK)(fails).choose(jnp.ones(4))
    said = [each.partition("(")[0] for each in caplog.messages if "every candidate failed" in each]
    assert len(set(said)) == 2, caplog.messages


def test_transient_failures_expire():
    """A lack of memory while running and a time-out are tried again after a day; what the compiler refuses is not."""
    now = time.time()
    refused = Candidate({"n": 1}, Status.FAILED, error="RESOURCE_EXHAUSTED: vmem", measured=now - 2 * RETRY_SECONDS)
    lacking = dataclasses.replace(refused, transient=True)
    late = Candidate({"n": 3}, Status.TIMEOUT, measured=now - 2 * RETRY_SECONDS)
    assert [item.expired(now) for item in (refused, lacking, late)] == [False, True, True]
    assert not dataclasses.replace(late, measured=now).expired(now)
    kept = Record(key(), {"n": 1}, candidates=(refused, lacking, late))
    assert {c.transient for c in decode_record(encode_record(kept)).candidates} == {True, False}


def test_a_lack_of_memory_while_running_is_transient(monkeypatch):
    """The candidate is tried again after a day, with the others' times kept."""
    machine = planted({0: 0.002, 1: 0.001, 2: 0.003})
    machine.install(monkeypatch)
    run = machine.run

    def full(configuration, repeats=1):
        if configuration == 1:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1073741824 bytes")
        return run(configuration, repeats)

    machine.run = full
    record = machine.tune([0, 1, 2])
    assert [(c.configuration, c.transient) for c in record.candidates if c.status is Status.FAILED] == [(1, True)]
    assert record.configuration == 0
    machine.run = run
    again = machine.tune([0, 1, 2], known=record)
    assert again.candidate(1).status is Status.FAILED
    old = tuple(dataclasses.replace(c, measured=c.measured - 2 * RETRY_SECONDS) for c in record.candidates)
    assert machine.tune([0, 1, 2], known=dataclasses.replace(record, candidates=old)).configuration == 1


def test_the_journal_names_who_was_running(clean_environment):
    """A journal that is left unlocked names the candidate; one that is locked belongs to a living process."""
    journal = CandidateJournal("digest")
    with journal.running(2):
        assert CandidateJournal("digest").crashed == {}
        (path,) = (clean_environment / ".cache/ejcache/state/tuning").iterdir()
        left = path.read_bytes()
    journal.close()
    assert not path.exists()

    def found_after(left, block):
        """What the next process finds, and what it leaves if it dies in this block."""
        path.write_bytes(left)
        found = CandidateJournal("digest")
        with block(found):
            left = path.read_bytes()
        found.close()
        return found, left

    def runs(found):
        return found.running(2)

    for _ in range(2):
        found, left = found_after(left, runs)
        assert found.crashed == {}
    found, _ = found_after(left, runs)
    assert found.crashed == {"2": "the process that ran it ended: 3 times within a day"}
    one = left.replace(b"[2,", b"[0,")
    said = b"Fatal Python error: Segmentation fault\n\nCurrent thread"
    found, left = found_after(one + said, lambda found: found.compiling(1))
    assert found.crashed == {"2": "the process that ran it ended: a signal that code causes"}
    # One of two ended the process. Which one is not known yet, so they are compiled one after the other.
    with contextlib.ExitStack() as stack:
        left = left.replace(b'["compiled", "1"]', b'["compiled", "1", "3"]')
        both, _ = found_after(left, lambda found: stack)
    assert (set(both.crashed), both.suspicious) == ({"2"}, True)
    for damaged in (b"", b"\0" * 100, b"[]\nrr", json.dumps({"1": 1}).encode(), b'{"1": [1]}\n["ran"]\n'):
        assert found_after(damaged, runs)[0].crashed == {}


def test_deaths_are_counted_within_one_day(clean_environment, monkeypatch):
    """A job that is killed once a night at the same candidate does not blame the candidate, and a bad day does."""
    began = time.time()

    def dies_at(hours):
        """A process starts at this hour, and dies with the candidate: what it blames for earlier deaths."""
        monkeypatch.setattr(time, "time", lambda: began + hours * 3600)
        journal = CandidateJournal("digest")
        (path,) = (clean_environment / ".cache/ejcache/state/tuning").iterdir()
        with journal.running(2):
            left = path.read_bytes()
        journal.close()
        path.write_bytes(left)
        os.utime(path, (began + hours * 3600,) * 2)
        return set(journal.crashed)

    for hours in (0, 23, 46, 69, 70, 71):
        assert dies_at(hours) == set(), hours
    assert dies_at(72) == {"2"}
    assert dies_at(120) == set()


def test_a_journal_of_another_process_is_not_written(clean_environment, tmp_path):
    """Of two that tune one key, the second has no journal. A file that it opens has the number of the journal's."""
    first, second = CandidateJournal("digest"), CandidateJournal("digest")
    with (tmp_path / "next").open("wb"):
        with second.running(2):
            pass
        second.close()
    assert (tmp_path / "next").read_bytes() == b""
    first.close()


def test_a_candidate_that_works_only_under_jit(tmp_path, caplog, runs_take):
    """It is chosen, and a call without jit says so and runs with the best of the others."""
    runs_take(lambda configuration: (3 - configuration["n"]) / 1e3)

    @autotuned(
        configs=[{"n": 0}, {"n": 1}, {"n": 2}],
        name="only jitted",
        store=AutotuneStore(str(tmp_path), seeds=()),
        tuner=QUICK,
    )
    def op(x, *, n):
        if n == 2 and not isinstance(x, jax.core.Tracer):
            raise RuntimeError("17 TB are needed")
        return jax.lax.fori_loop(0, n, lambda _, y: y, x)

    x = jnp.ones(4)
    assert op.tune(x).configuration == {"n": 2}
    for _ in range(2):
        assert op(x).sum() == 4
    (said,) = [each for each in caplog.messages if "works only under jax.jit" in each]
    assert '{"n":2} of only jitted' in said
    assert '{"n":1}, the best of the others: RuntimeError: 17 TB are needed' in said
    assert jax.jit(op)(x).sum() == 4
    with pytest.raises(TypeError, match="not a valid JAX type"):
        op("no array")


def test_an_error_in_a_host_callback_is_recorded_with_its_cause(tmp_path):
    """And not as the first line of a traceback alone."""

    def lacks(_):
        raise MemoryError("4 TB are needed")

    @autotuned(
        configs=[{"n": 0}, {"n": 1}], name="calls back", store=AutotuneStore(str(tmp_path), seeds=()), tuner=QUICK
    )
    def op(x, *, n):
        return jax.pure_callback(lacks, x, x) if n else x

    failed = op.tune(jnp.ones(4)).candidate({"n": 1})
    assert "MemoryError: 4 TB are needed" in failed.error
    assert failed.reason == "resources"
