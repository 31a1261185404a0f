"""`warn_recompiles` and the marker `max_compiles`: the n-th compilation of one function, with what to change."""

from __future__ import annotations

import re
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from forking import Forked
from helpers import run_program

import ejcache

SUITE = """
import jax, jax.numpy as jnp, numpy as np, pytest

def run(sizes):
    step = jax.jit(lambda x: jnp.tanh(x).sum())
    for size in sizes:
        step(np.ones(size, np.float32))

@pytest.mark.max_compiles(4)
def test_few():
    run((3, 5, 9))
    assert jnp.ones(3).sum() == 3

@pytest.mark.max_compiles(2)
def test_many():
    run((4, 6, 10, 21))
"""


@pytest.fixture
def cache(tmp_path):
    return ejcache.enable(str(tmp_path / "cache"), min_compile_seconds=0)


def warned(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [each for each in caught if "was compiled" in str(each.message)]


def vary():
    @jax.jit
    def step(x):
        return jnp.tanh(x).sum()

    for size in (3, 5, 9, 17):
        step(np.ones(size, np.float32))


def test_the_third_compilation_warns_once(cache):
    """At the line that calls the function, with the advice about it."""
    end = ejcache.warn_recompiles(3)
    try:
        (warning,) = warned(vary)
    finally:
        end()
    assert warning.filename == __file__
    assert "step was compiled or loaded 3 times in this process" in str(warning.message)
    assert "pad dimension 0 of x" in str(warning.message)
    assert warned(vary) == []


def test_loading_counts_and_operations_do_not(cache):
    """Another process's entries do not hide that a function is traced again and again."""
    vary()
    jax.clear_caches()
    end = ejcache.warn_recompiles(4)
    try:
        assert len(warned(vary)) == 1
        assert warned(lambda: [jnp.ones(n) + 1 for n in range(31, 38)]) == []
    finally:
        end()


def test_a_number_of_compilations():
    with pytest.raises(ValueError, match=re.escape("warn_recompiles(0)")):
        ejcache.warn_recompiles(0)


def test_marker_with_a_cold_cache_and_a_warm_one(tmp_path):
    (tmp_path / "test_small.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "--strict-markers", "-p", "no:cacheprovider", "--ejcache-dir", "cache"]
    for _ in range(2):
        done = run_program(command, cwd=tmp_path, check=False, start=Forked)
        assert "1 failed, 1 passed" in done.stdout, done
        assert re.search(r"(<lambda>|_lambda_?) was compiled or loaded \d times", done.stdout), done
        assert "max_compiles allows 2" in done.stdout
