"""The pytest plug-in, on a small suite: inert, then cold in one process, then warm in two."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from buckets import GcsServer
from forking import Forked, ForkedWithChildren
from helpers import SMALL_SUITE, run_program

from ejcache_pytest import slowest

SUITE = """
import os, sys
import pytest

def cached():
    import ejcache
    return ejcache.active()

def compile(factor):
    import jax
    return jax.jit(lambda x: (x * factor).sum())

@pytest.fixture
def compiled():
    import numpy as np
    x, program = np.ones(3, np.float32), compile(2)
    program(x)
    return x, program

def test_alone():
    assert not {"jax", "ejcache.cache"} & set(sys.modules)

@pytest.mark.no_ejcache
def test_without():
    compile(3)(1.0)
    assert not os.environ.get("EJCACHE") or cached() is None

def test_slow():
    compile(4)(1.0)

@pytest.mark.no_compile
def test_prepared(compiled):
    x, program = compiled
    assert float(program(x)) == 6

@pytest.mark.no_compile
def test_unprepared():
    compile(5)(1.0)

def run(sizes):
    import numpy as np
    step = compile(6)
    for size in sizes:
        step(np.ones(size, np.float32))

@pytest.mark.max_compiles(4)
def test_few():
    import jax.numpy as jnp
    run((3, 5, 9))
    assert jnp.ones(3).sum() == 3

@pytest.mark.max_compiles(2)
def test_many():
    run((4, 6, 10, 21))
"""
OFTEN = re.compile(r"(?:<lambda>|_lambda_?) was compiled or loaded \d times.*max_compiles allows 2", re.DOTALL)


@pytest.fixture
def suite(tmp_path):
    (tmp_path / "test_small.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")

    def run(*options, start=subprocess.Popen, **env):
        arguments = [sys.executable, "-m", "pytest", *options]
        # The options of the suite around this one are not meant for it.
        return run_program(
            arguments, cwd=tmp_path, env={"PYTEST_ADDOPTS": SMALL_SUITE, **env}, check=False, start=start
        )

    return run


OFF = """
import os, sys
import pytest
ended = [pytest.main(["-k", "alone"])]
open("pytest.ini", "a").write("ejcache = 1\\n")
os.environ["EJCACHE"] = "0"
sys.exit(ended + [pytest.main(["-k", "alone"])] != [0, 0])
"""


def test_inert_without_the_option(tmp_path, suite):
    """Neither JAX nor ejcache is imported for it, and nothing is forbidden or printed.

    A variable that turns the cache off goes before a line of the configuration.
    """
    done = run_program([sys.executable, "-c", OFF], cwd=tmp_path, env={"PYTEST_ADDOPTS": SMALL_SUITE}, check=False)
    assert (done.returncode, done.stdout.count("1 passed")) == (0, 2), done
    assert "ejcache: " not in done.stdout


@pytest.mark.parametrize("place", ["gs:/bucket/ci", "foo://x"])
def test_a_place_that_no_cache_can_be_at(suite, tmp_path, place):
    """It is a usage error that names the place, and no directory of that name is made."""
    finished = suite("--ejcache-dir", place, start=Forked)
    assert finished.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"--ejcache-dir: '{place}' cannot be opened as a store" in finished.stderr
    assert not list(tmp_path.rglob("gs:"))


def test_cold_and_warm(suite, tmp_path):
    """Every worker uses one cache; the line counts all of them; markers hold."""
    cold = suite("-k", "not alone", "--ejcache-dir", "kept", start=Forked)
    failed = r"^FAILED test_small.py::test_unprepared - ejcache\S*CompileForbiddenError"
    assert re.search(failed, cold.stdout, re.MULTILINE), cold
    assert "2 failed, 4 passed" in cold.stdout
    assert OFTEN.search(cold.stdout), cold
    line = rf"ejcache: saved [\d.]+ of [\d.]+ s{{}}: (\d+) hits?, (\d+) miss(?:es)?.* \({tmp_path}/kept\)"
    hits, misses = re.search(line.format(""), cold.stdout).groups()
    assert (int(hits), int(misses) > 1) == (0, True)
    assert re.search(r"slowest compilations: [\d.]+ s test_small.py::test_", cold.stdout)

    # A variable goes before a line that names no cache.
    (tmp_path / "pytest.ini").write_text("[pytest]\nejcache = 1\naddopts = -n 2 --dist loadgroup\n")
    warm = suite("-k", "not alone and not unprepared", start=ForkedWithChildren, EJCACHE=f"{tmp_path}/kept/")
    assert "1 failed, 4 passed" in warm.stdout, warm
    assert OFTEN.search(warm.stdout), warm
    hits, misses = re.search(line.format("(?: in 2 processes)?"), warm.stdout).groups()
    assert (int(hits) > 1, int(misses)) == (True, 0)
    assert "slowest" not in warm.stdout


def test_help(pytestconfig):
    """`pytest --help` says what each option does."""
    parser = pytestconfig._parser
    helps = {each.names()[0]: each.attrs().get("help") for each in parser.getgroup("ejcache").options}
    assert helps
    assert [name for name, text in helps.items() if not text] == []


def test_the_slowest_tests():
    """At least three that compiled at all, and each that compiled for a second."""
    assert slowest({"a": 0.5, "b": 1.5, "c": 0.0, "d": 0.2}) == "1.50 s b, 0.50 s a, 0.20 s d"
    assert slowest({"a": 0.5, "b": 1.5, "c": 2.0, "d": 1.0, "e": 1.25}) == "2.00 s c, 1.50 s b, 1.25 s e, 1.00 s d"
    assert slowest({}) == ""


@pytest.mark.parametrize("query", ["", "?anonymous"], ids=["refused", "anonymous"])
def test_a_bucket_that_is_only_read(suite, query):
    """As in CI of a fork, which has no credentials: the tests pass, and the last lines say that nothing was sent.

    pytest shows the log with tests that fail only.
    """
    with GcsServer() as server:
        storage = {"STORAGE_EMULATOR_HOST": server.url}
        server.add_fault("status", status=403, method="POST", message="Anonymous caller may not create")
        done = suite("-k", "slow", "--ejcache", start=Forked, EJCACHE=f"gs://bucket/ci{query}", **storage)
        assert (done.returncode, "1 passed" in done.stdout) == (0, True), done
        assert re.search(r"[1-9] stored, [1-9]\d* uploads? refused \(gs://bucket/ci", done.stdout), done
        warned = "^ejcache: gs://bucket/ci is only read by this process: .*Anonymous caller may not create"
        assert bool(re.search(warned, done.stdout, re.MULTILINE)) == (not query)


SHORT = """
import jax, pytest

def test_compiles():
    jax.jit(lambda x: x * 7)(1.0)

@pytest.mark.no_ejcache
def test_compiles_without_the_cache():
    jax.jit(lambda x: x * 8)(1.0)
"""


@pytest.mark.parametrize("workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.soak)])
def test_a_warm_suite_proves_that_it_is(suite, tmp_path, workers):
    """With --ejcache-fail-on-compile, a cold run fails and names its tests, also of workers; a warm one passes."""
    (tmp_path / "test_small.py").write_text(SHORT)
    options = ("--ejcache-dir", "kept", "--ejcache-fail-on-compile", *workers)
    cold = suite(*options, start=ForkedWithChildren)
    assert (cold.returncode, "2 passed" in cold.stdout) == (1, True), cold
    named = re.findall(r"FAILED because of --ejcache-fail-on-compile: (\S+) compiled", cold.stdout)
    assert named == ["test_small.py::test_compiles"]
    warm = suite(*options, start=ForkedWithChildren)
    assert (warm.returncode, "FAILED" in warm.stdout) == (0, False), warm
