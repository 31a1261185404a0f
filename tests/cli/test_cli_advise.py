"""`ejcache advise`: of the last starts, and of a program that it runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from cli_helpers import ejcache
from forking import ForkedWithChildren
from helpers import run_program

from ejcache.journal.line import STORED, ProgramRecord, encode_line
from ejcache.journal.recorder import START_LOG
from ejcache.journal.start_records import read_starts

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np

@jax.jit
def step(x):
    return jnp.tanh(x).sum()

for size in (3, 5, 9, 17):
    step(np.ones(size, np.float32))
print("trained")
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    return str(tmp_path / "train.py")


def advise(*arguments, cwd):
    command = [sys.executable, "-m", "ejcache", "advise", *arguments]
    return run_program(command, cwd=cwd, check=False, start=ForkedWithChildren)


def test_of_a_program_that_it_runs(script, tmp_path):
    """Its line, in each of the three forms; nothing is left of the empty cache."""
    done = advise("--fresh", "--json", script, cwd=tmp_path)
    (found,) = json.loads(done.stdout)["findings"]
    assert (done.returncode, found["kind"], found["line"]) == (1, "shape_varies", 9)
    assert Path(found["file"]) == Path(script)

    shown = ejcache("advise")
    assert shown.status == 1
    assert "a shape varies (step)" in shown.out
    assert ejcache("advise", "--github").out.startswith("::warning file=")
    assert ejcache("advise", "--ignore", "shape_varies").out == "nothing to change was found\n"


def test_of_the_program_that_it_runs_alone(script, tmp_path):
    """What another program of this host does at the same time is no finding of it."""
    (tmp_path / "quiet.py").write_text(
        "import subprocess, sys, jax, numpy as np\n"
        f"subprocess.run([sys.executable, {script!r}], env={{**__import__('os').environ, 'EJCACHE_RUN_COUNTS': ''}})\n"
        "jax.jit(lambda x: x + 1)(np.ones(3))\n"
    )
    done = advise("--fresh", "--all", "--json", "quiet.py", cwd=tmp_path)
    assert json.loads(done.stdout)["findings"] == []
    assert {each.process.program for each in read_starts()} == {"quiet.py", "train.py"}


def compiled(size):
    """A program of this size, which took a hundredth of a second to compile."""
    return ProgramRecord(
        name="jit_step",
        key=f"k{size}",
        time=float(size),
        reason="absent",
        components={"computation": str(size)},
        caller="/home/me/train.py:31 in main",
        outcome=STORED,
        details={"defined": "/home/me/train.py:10 step", "weak": "", "committed": ""},
        signature=f"(tensor<{size}x8xf32>) -> tensor<f32>",
        seconds={"compiled": 0.01},
        compile_seconds=0.01,
    )


def test_smaller_findings():
    """They are counted, and shown if asked for."""
    programs = [compiled(size) for size in (5, 9, 12, 16)]
    START_LOG.append(encode_line({"id": "p", "program": "train.py", "began": 1.0}, programs))
    shown = ejcache("advise")
    assert shown.status == 0
    assert shown.out.splitlines() == [
        "nothing to change was found that saves 0.05 s or more",
        "1 smaller finding would save 0.02 s: ejcache advise --all shows it",
    ]
    assert ejcache("advise", "--github").out == ""
    said = ejcache("advise", "--json").json
    assert (said["findings"], said["smaller_findings"]) == ([], {"number": 1, "saves": 0.02})
    of_report = ejcache("report", "--json").json
    assert (of_report["findings"], of_report["smaller_findings"]) == ([], said["smaller_findings"])
    assert "1 smaller finding would save 0.02 s" in ejcache("report").out

    every = ejcache("advise", "--all", "--json")
    assert every.status == 1
    assert [each["kind"] for each in every.json["findings"]] == ["shape_varies"]
    assert every.json["smaller_findings"]["number"] == 0


def test_usage(script):
    assert ejcache("advise").status == 1
    assert "no start was recorded" in ejcache("advise").err
    wrong = ejcache("advise", "--ignore", "shapes")
    assert wrong.status == 2
    assert "shape_varies" in wrong.err
    assert ejcache("advise", "--fresh", "--dir", "/tmp/x", script).status == 2
