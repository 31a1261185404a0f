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


def of_three_functions():
    """Three functions of one name, each with one program."""

    class One:
        def step(self, x):
            return jnp.sin(x)

    class Two:
        def step(self, x):
            return jnp.cos(x)

    class Three:
        def step(self, x):
            return jnp.tanh(x)

    for each in (One(), Two(), Three()):
        jax.jit(each.step)(np.ones(3, np.float32))
    functions = (
        lambda x: x + 1,
        lambda x: x + 2,
        lambda x: x + 3,
    )
    for function in functions:
        jax.jit(function)(np.ones(3, np.float32))


def test_functions_of_one_name_count_each_for_itself(cache):
    """Whether they are compiled or loaded, a lambda is not the lambda of another line, nor a method that of a class."""
    end = ejcache.warn_recompiles(2)
    try:
        assert warned(of_three_functions) == []
    finally:
        end()
    jax.clear_caches()
    end = ejcache.warn_recompiles(2)
    try:
        assert warned(of_three_functions) == []
        jax.clear_caches()
        assert len(warned(of_three_functions)) == 6
    finally:
        end()


def test_one_lambda_that_is_made_again_and_again_is_one_function(cache):
    """A program that jits a new lambda in each step of a loop has what the guard is for."""
    end = ejcache.warn_recompiles(3)
    try:
        assert len(warned(lambda: [jax.jit(lambda x, n=n: x * n)(np.ones(3, np.float32)) for n in range(5)])) == 1
    finally:
        end()


def test_operations_of_an_entry_without_a_record_do_not_count(cache, monkeypatch):
    """As where a cache was copied to: no record of this host says what a loaded program is."""

    def operations():
        return [jnp.ones(n) + 1 for n in (41, 42, 43)]

    operations()
    jax.clear_caches()
    monkeypatch.setattr("ejcache.history.guard.read_starts", list)
    end = ejcache.warn_recompiles(2)
    try:
        assert warned(operations) == []
    finally:
        end()


def test_a_number_of_compilations():
    with pytest.raises(ValueError, match=re.escape("warn_recompiles(0)")):
        ejcache.warn_recompiles(0)
