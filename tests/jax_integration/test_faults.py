"""An error in the cache's own steps, of whatever type, costs that step and never the program."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax._src import compiler

import ejcache
from ejcache.coordination.single_flight import SingleFlight
from ejcache.jax_integration import pipeline, publishing
from ejcache.stores.local.store import LocalStore

x = np.arange(8, dtype=np.float32)
ERRORS = [RecursionError, MemoryError, ValueError, OSError]


@pytest.fixture
def cache(tmp_path):
    return ejcache.enable(str(tmp_path), min_compile_seconds=0)


def run(factor):
    jax.clear_caches()
    assert np.array_equal(jax.jit(lambda: x * factor)(), x * factor)


def raising(error):
    def fail(*_, **__):
        raise error("ours")

    return fail


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (pipeline, "make_key"),
        (LocalStore, "get"),
        (LocalStore, "put"),
        (LocalStore, "add_counters"),
        (SingleFlight, "run"),
        (publishing.compiling, "module_text"),
        (publishing, "record_miss"),
    ],
)
def test_an_error_of_ours_is_not_the_programs(owner, name, cache, monkeypatch):
    """The program compiles and runs, cold and warm."""
    for error in ERRORS:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, raising(error))
            run(2.0)
    run(2.0)
    run(2.0)
    assert cache.stats().hits >= 1


def test_a_lease_that_cannot_be_released_compiles_nothing_twice(cache, monkeypatch):
    """The executable that was compiled is the program's."""
    real = SingleFlight.run
    for number, error in enumerate(ERRORS, 1):

        def failing(self, key, error=error, **named):
            real(self, key, **named)
            raise error("ours")

        monkeypatch.setattr(SingleFlight, "run", failing)
        run(2.0 + number)
        assert cache.stats().stores == cache.stats().misses == number, error


def test_the_programs_own_error_is_the_programs(cache, monkeypatch):
    """Also where releasing the lease fails on its way out, with the cause that it had."""
    real = SingleFlight.run

    def failing(self, key, **named):
        try:
            real(self, key, **named)
        finally:
            raise KeyError("ours")

    def out_of_memory(*_):
        raise RuntimeError("RESOURCE_EXHAUSTED") from ValueError("the cause")

    monkeypatch.setattr(SingleFlight, "run", failing)
    monkeypatch.setattr(compiler, "backend_compile_and_load", out_of_memory)
    with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED") as raised:
        run(4.0)
    assert isinstance(raised.value.__cause__, ValueError)


def test_the_flag_lets_the_error_through(cache, monkeypatch):
    """`jax_raise_persistent_cache_errors`, for a person who looks for the reason."""
    monkeypatch.setattr(LocalStore, "get", raising(RecursionError))
    jax.config.update("jax_raise_persistent_cache_errors", True)
    try:
        with pytest.raises(RecursionError):
            run(5.0)
    finally:
        jax.config.update("jax_raise_persistent_cache_errors", False)
