"""A wing is a folder: without it, the core starts warm, and its tests pass."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest
from helpers import ROOT, run_program

PROGRAM = """
import jax, jax.numpy as jnp, ejcache
cache = ejcache.enable(DIRECTORY, min_compile_seconds=0)
print(jax.jit(lambda x: x @ x + 1)(jnp.ones((8, 8)))[0, 0], ejcache.active().stats().hits > 0, ejcache.__file__)
"""
COMMANDS = """
import sys
from ejcache.cli.main import main
for command in (["--help"], ["ls", "--dir", DIRECTORY], ["config"]):
    print("ends with", main(command))
"""


def wings():
    return sorted(path.parent.name for path in (ROOT / "src" / "ejcache").glob("*/wing.py"))


@pytest.fixture(params=wings())
def core(request, tmp_path):
    """The source of the package without one wing, and the wing's name."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns(request.param))
    assert not (tmp_path / "src" / "ejcache" / request.param).exists()
    return tmp_path / "src", request.param


def python(source, *arguments, **options):
    """Run Python with that source of the package instead of the installed one."""
    environment = {"PYTHONPATH": os.pathsep.join([str(source), str(ROOT / "tests" / "support")])}
    return run_program([sys.executable, "-P", *arguments], env=environment, **options)


def test_the_core_starts_warm_without_a_wing(core, tmp_path):
    """The second process has a hit; commands, settings and public names are those of the rest."""
    source, wing = core
    program, commands = (text.replace("DIRECTORY", repr(str(tmp_path / "cache"))) for text in (PROGRAM, COMMANDS))
    said = [python(source, "-c", program).stdout.split() for _ in range(2)]
    where = str(source / "ejcache" / "__init__.py")
    assert said == [["9.0", "False", where], ["9.0", "True", where]]
    lines = python(source, "-c", commands).stdout.splitlines()
    assert lines.count("ends with 0") == 3
    assert [line for line in lines if line.strip().startswith(wing)] == []


@pytest.mark.parametrize("suite", ["tests/stores/test_local_store.py"])
def test_the_conformance_tests_pass_without_a_wing(core, suite):
    """Those of the local store; `make soak` runs all tests of the core so."""
    run_suite(core, [suite])


@pytest.mark.soak
def test_all_tests_of_the_core_pass_without_a_wing(core):
    """The tests that name the wing are its own, whichever folder they are in."""
    _, wing = core
    own = re.compile(rf"ejcache\.{wing}|ejcache import {wing}|{wing}_")
    tests = [path for path in (ROOT / "tests").rglob("test_*.py") if not own.search(path.read_text())]
    run_suite(core, [str(path.relative_to(ROOT)) for path in tests if path.name != "test_wings.py"])


def run_suite(core, suites):
    source, _ = core
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not soak", *suites],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
