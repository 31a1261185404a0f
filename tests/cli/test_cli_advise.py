"""`ejcache advise`: of the last starts, and of a program that it runs."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from cli_helpers import ejcache
from helpers import run_program

from ejcache.advice.advise import advise as advised
from ejcache.cache.recorder import read_starts
from ejcache.cli.commands.advise import measuring
from ejcache.misses.log import recall_programs

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
    return run_program([sys.executable, "-m", "ejcache", "advise", *arguments], cwd=cwd, check=False)


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


DEEP = """
import jax, jax.numpy as jnp, numpy as np

def forward(layers, x):
    for w in layers:
        x = jnp.tanh(x @ w) + jnp.sin(x)
    return x

layers = [np.ones((8, 8), np.float32)] * 60
jax.jit(forward)(layers, np.ones((4, 8), np.float32))
"""


def test_a_loop_is_compiled_in_place_of_a_block(tmp_path):
    """Without that the finding says nothing of compiling; with it, the seconds of both."""
    (tmp_path / "deep.py").write_text(DEEP)
    advise("--fresh", "deep.py", cwd=tmp_path)
    with measuring() as measure:
        (found,) = advised(read_starts(), recall_programs, least=-1.0, measure=measure)
        (unmeasured,) = advised(read_starts(), recall_programs, least=-1.0)
    assert (found.kind, found.line, unmeasured.basis) == ("repeated_block", 6, "estimated")
    assert re.search(r"compiling takes \d+\.\d\d s with the loop and \d+\.\d\d s without", found.message)
    assert "--measure" in unmeasured.message


def test_usage(script):
    assert ejcache("advise").status == 1
    assert "no start was recorded" in ejcache("advise").err
    wrong = ejcache("advise", "--ignore", "shapes")
    assert wrong.status == 2
    assert "shape_varies" in wrong.err
    assert ejcache("advise", "--fresh", "--dir", "/tmp/x", script).status == 2
