"""Real programs, each unchanged with `EJCACHE`: the second start is all hits, and bit for bit the uncached one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from forking import Forked
from helpers import run_program

PROGRAMS = Path(__file__).parents[1] / "programs"


def run(program, tmp_path, *, cached, floor="0"):
    report = tmp_path / "report.json"
    report.unlink(missing_ok=True)
    env = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": floor}
    if cached:
        env |= {"EJCACHE": str(tmp_path / "cache"), "EJCACHE_REPORT": str(report)}
    finished = run_program([sys.executable, program], env=env, cwd=tmp_path, start=Forked)
    return finished.stdout.splitlines()[-1], json.loads(report.read_text()) if cached else None


@pytest.mark.parametrize(
    "name",
    [
        "transforms",
        *(
            pytest.param(name, marks=pytest.mark.soak)
            for name in ("equinox_mlp", "flax_linen", "flax_nnx", "optax_scan")
        ),
    ],
)
def test_the_second_process_starts_from_the_store(name, tmp_path):
    """Hits = requests, no miss, no store; and all three runs print the same digest."""
    program = PROGRAMS / f"{name}.py"

    plain, _ = run(program, tmp_path, cached=False)
    cold, first = run(program, tmp_path, cached=True)
    warm, second = run(program, tmp_path, cached=True)

    assert plain == cold == warm
    assert first["stores"] > 0
    assert first["errors"] == second["errors"] == 0
    assert second["hits"] == second["requests"] > 0
    assert (second["misses"], second["stores"], second["skipped"]) == (0, 0, {})


@pytest.mark.soak
def test_with_the_default_floor_every_long_compilation_hits(tmp_path):
    """What took more than a second is stored and hit; what did not is counted as quick."""
    program = tmp_path / "long.py"
    program.write_text(
        "import jax, jax.numpy as jnp\n"
        "def f(x):\n"
        "    for i in range(150):\n"
        "        x = jnp.sin(jax.lax.sort(x * i, dimension=0)) @ x\n"
        "    return x\n"
        "print(float(jax.jit(f)(jnp.ones((16, 16))).sum()))\n"
    )
    cold, first = run(program, tmp_path, cached=True, floor="1.0")
    warm, second = run(program, tmp_path, cached=True, floor="1.0")

    assert cold == warm
    assert first["stores"] == second["hits"] >= 1
    # One of the quick programs may take a second on a busy machine.
    assert second["skipped"].get("quick", 0) + second["stores"] == first["skipped"]["quick"]
