"""The soak of direct mode tells what it would have done with a program, and compares it with what is traced."""

from __future__ import annotations

import json

import pytest
from helpers import ROOT, python_command, run_program

from ejcache.fingerprint.coverage import available

PROGRAM = """
from functools import partial
import jax, jax.numpy as jnp

class Model:
    scale = 3.0

    @partial(jax.jit, static_argnums=0)
    def __call__(self, x):
        return self.scale * x

@jax.jit
def noisy(x):
    jax.debug.print("{}", x)
    return x

Model()(jnp.ones(3))
noisy(jnp.ones(3))
"""


@pytest.mark.skipif(not available(), reason="direct mode needs Python 3.12")
def test_a_program_is_soaked(tmp_path):
    """At the third start a jitted method would have hit, and a function with a host callback is refused."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    tool = ROOT / "tools" / "direct_soak.py"
    done = run_program(python_command(tool, "--program", str(program), "--json"), cwd=tmp_path)
    (report,) = json.loads(done.stdout)
    assert [counts.get("unproven", 0) for counts in report["starts"]] == [0, 1, 0], report
    assert report["starts"][-1] == {"checked": 1, "refused": 1}, report
    assert (report["wrong"], report["problem"]) == ([], ""), report
