"""JAX's own base class of tests, with a cache: it fails a test that changes a flag or JAX's cache object."""

from __future__ import annotations

import re
import sys

import pytest
from forking import Forked
from helpers import run_program

SUITE = """
import jax, jax.numpy as jnp, numpy as np
from jax._src import compilation_cache as own
from jax._src import test_util as jtu
from jax._src.lib import xla_client

assert own._cache is None

class Cases(jtu.JaxTestCase):
    def test_compiles(self):
        self.assertAllClose(jax.jit(lambda x: x * 2)(np.float32(3)), np.float32(6))

    def test_compiles_again(self):
        self.assertAllClose(jax.jit(lambda x: x * 2)(np.float32(3)), np.float32(6))

    def test_gradient(self):
        self._CompileAndCheck(jax.grad(lambda x: jnp.sin(x).sum()), lambda: [np.ones(4, np.float32)])

    def test_compiles_after_a_reset(self):
        own.reset_cache()
        self.assertEqual(jax.jit(lambda x: x - 2)(5), 3)

    def test_lowers_and_compiles(self):
        self.assertEqual(jax.jit(lambda x: x + 7).lower(1).compile()(1), 8)
"""


TWICE = """
import os
child = os.fork()  # the first start, which ends before the second one begins: this is imported once for both
assert not child or os.waitpid(child, 0)[1] == 0
"""


@pytest.fixture
def suite(tmp_path):
    def run(*options, before="", **env):
        (tmp_path / "test_cases.py").write_text(SUITE + before)
        arguments = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
        done = run_program(arguments, cwd=tmp_path, env=env, check=False, start=Forked)
        assert done.stdout.count("5 passed") == (2 if before else 1), done
        return {word: int(number) for number, word in re.findall(r"(\d+) (hits?|misses|miss)\b", done.stdout)}

    return run


@pytest.mark.soak
def test_pytest_plugin_cold_and_warm(suite, tmp_path):
    """Every test passes as without a cache, and the second run loads what the first one stored."""
    assert suite() == {}
    options = "--ejcache-dir", str(tmp_path / "cache")
    suite(*options)
    assert suite(*options)["hits"] >= 4


def test_environment(suite, tmp_path):
    """`EJCACHE=` enables the cache in the middle of the first test."""
    variables = {"EJCACHE": f"{tmp_path}/cache/", "EJCACHE_MIN_COMPILE_SECONDS": "0", "EJCACHE_REPORT": "1"}
    suite(before=TWICE, **variables)
    assert list((tmp_path / "cache").iterdir())
