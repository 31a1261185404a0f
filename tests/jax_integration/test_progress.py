"""Lines about compilations that take long, and none about others."""

from __future__ import annotations

import io
import re

import pytest
from steps import Steps

from ejcache.history.host_log import record_miss
from ejcache.jax_integration.progress import CompileProgress
from ejcache.journal.line import STORED, ProgramRecord

COMPILING = """
import sys, threading, time
import jax, ejcache
from ejcache.jax_integration import progress
from ejcache.util.scheduler import Scheduler

said = threading.Event()

class Stream:
    def write(self, text):
        print(text, end="", flush=True)
        said.set()
    def flush(self):
        pass

real = progress.CompileProgress
progress.CompileProgress = lambda: real(after={after})
sys.stderr = Stream()
cache = ejcache.enable(min_compile_seconds=0)
progress.show_progress()

from ejcache.jax_integration.seam.compilation_watch import before_each_compilation
def slowly(program):
    if {after} == 0:
        said.wait(60)
before_each_compilation(slowly)

def train_step(x):
    return x * 3 + 1

jax.jit(train_step)(2.0).block_until_ready()
stats = cache.stats()
print(stats.hits, stats.misses)
"""


@pytest.fixture
def steps(clock):
    return Steps(clock)


def test_lines_of_a_long_compilation(clock, steps, capsys):
    """Lines come after 5, 10 and 20 seconds, and one at the end; afterwards there are none."""
    progress = CompileProgress(scheduler=steps)
    with progress.of("jit_train_step"):
        for _ in range(30):
            clock.now += 1
            steps.step()
    for _ in range(100):
        clock.now += 1
        steps.step()
    assert capsys.readouterr().err.splitlines() == [
        "ejcache: compiling jit_train_step, 5 s so far",
        "ejcache: compiling jit_train_step, 10 s so far",
        "ejcache: compiling jit_train_step, 20 s so far",
        "ejcache: compiled jit_train_step in 30 s",
    ]


def test_how_long_it_took_last_time(clock, steps, capsys):
    """The lines say how long the last compilation of a program of this name took, as the miss log has it."""
    for seconds in (12.0, 92.0):
        record_miss(
            ProgramRecord(
                time=1.0, url="", reason="", outcome=STORED, compile_seconds=seconds, key="", name="jit_train_step"
            )
        )
    with CompileProgress(scheduler=steps).of("jit_train_step"):
        clock.now += 6
        steps.step()
    assert "6 s so far; it took 92 s last time\n" in capsys.readouterr().err


def test_nothing_about_a_quick_compilation(clock, steps, capsys):
    """A compilation of less than five seconds prints nothing, also if it fails, and also later."""
    progress = CompileProgress(scheduler=steps)

    def fail():
        with progress.of("jit_f"):
            clock.now += 4
            steps.step()
            raise ValueError("not compiled")

    with pytest.raises(ValueError, match="not compiled"):
        fail()
    clock.now += 100
    steps.step()
    assert capsys.readouterr().err == ""


def test_a_closed_stream(clock, steps, monkeypatch):
    """A program that has closed its stderr compiles on."""
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr("sys.stderr", stream)
    with CompileProgress(scheduler=steps).of("jit_f"):
        clock.now += 6
        steps.step()


def test_in_a_program(run_forked):
    """A long compile prints lines until it ends, and a hit prints none."""
    lines = run_forked(COMPILING.format(after=0)).stdout.splitlines()
    assert re.match(r"ejcache: compiling jit_train_step, \d+ s so far", lines[0])
    assert any(line.startswith("ejcache: compiled jit_train_step in ") for line in lines)
    assert lines[-1] == "0 1"
    assert run_forked(COMPILING.format(after=0)).stdout.splitlines() == ["1 0"]
