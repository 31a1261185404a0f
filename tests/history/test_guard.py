"""`warn_recompiles`: the n-th compilation of one function, with what to change."""

from __future__ import annotations

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ejcache


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
        assert warned(lambda: [jnp.ones(n) + 1 for n in range(31, 36)]) == []
    finally:
        end()


def test_a_number_of_compilations():
    with pytest.raises(ValueError, match=re.escape("warn_recompiles(0)")):
        ejcache.warn_recompiles(0)
