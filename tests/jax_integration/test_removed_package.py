"""`pip install -U ejcache` beside a running program takes away the modules that it has not imported yet."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from forking import ForkedBeforeEjcacheToTheEnd
from helpers import run_program

import ejcache

PROGRAM = """
import shutil, sys
import jax, numpy as np
import ejcache

moment, cache, package = sys.argv[1:]
assert ejcache.__file__.startswith(package), ejcache.__file__
ejcache.enable(cache, min_compile_seconds=0)
if moment == "after a hit":
    assert float(jax.jit(lambda x: x * 2)(np.float32(21))) == 42
if moment != "never":
    shutil.rmtree(package)
assert float(jax.jit(lambda x: x * 2)(np.float32(21))) == 42
assert float(jax.jit(lambda x: x * 3)(np.float32(14))) == 42
assert float(jax.jit(lambda x: x + 1)(np.float32(41))) == 42
"""


def test_a_program_whose_package_is_removed_compiles_on(tmp_path):
    """What can't be imported any more is done without: the program computes what it does without a cache."""
    package = tmp_path / "installed" / "ejcache"
    for moment in ("never", "after enable", "after a hit"):
        shutil.copytree(Path(ejcache.__file__).parent, package, dirs_exist_ok=True)
        command = [sys.executable, "-c", PROGRAM, moment, tmp_path / "cache", package]
        environment = {"PYTHONPATH": str(package.parent), "EJCACHE_PRELOAD": "0"}
        run_program(command, env=environment, start=ForkedBeforeEjcacheToTheEnd)
