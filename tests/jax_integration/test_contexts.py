"""JAX lowers a thread's small programs into one MLIR context for longer than by itself, and large ones never."""

from __future__ import annotations

import threading

import jax
import numpy as np
import pytest
from jax._src.interpreters import mlir

import ejcache
from ejcache.jax_integration.seam import contexts

pytestmark = pytest.mark.skipif(
    not hasattr(mlir, "_create_ir_context"), reason="this JAX makes a context for each program"
)

_ONE = np.ones(4, np.float32)
_JAX_USES = 11
"""How many programs JAX lowers into one context."""


@pytest.fixture
def enable(tmp_path):
    def enable():
        return ejcache.enable(str(tmp_path), min_compile_seconds=0)

    return enable


@pytest.fixture(autouse=True)
def made(monkeypatch):
    """The contexts that were made; the test begins with none of an earlier one."""
    original, seen = mlir._create_ir_context, []

    def create():
        seen.append(original())
        return seen[-1]

    monkeypatch.setattr(mlir, "_create_ir_context", create)
    mlir._thread_local_context.set_local(None)
    yield seen
    ejcache.disable()


def program(number):
    return jax.jit(lambda x: x * number + 1)


def run(count, *, first=0):
    for number in range(first, first + count):
        program(number)(_ONE)


def test_small_programs_share_a_context(enable, made):
    """Forty small programs are lowered into one; without the cache, JAX makes a context for every eleventh."""
    enable()
    run(40)
    assert len(made) == 1
    ejcache.disable()
    run(2 * _JAX_USES, first=40)
    assert len(made) >= 2


def test_hits_share_a_context(enable, made):
    """A program that is loaded from the cache counts like one that is compiled."""
    enable()
    run(40)
    jax.clear_caches()
    run(40)
    assert ejcache.stats().hits == 40
    assert len(made) == 1


def test_the_limit(enable, made, monkeypatch):
    """A context is dropped when its programs have more bytes together than the limit."""
    monkeypatch.setattr(contexts, "_MOST_BYTES", 1000)
    enable()
    run(3 * _JAX_USES)
    assert len(made) == 3


def test_a_large_constant(enable, made):
    """A context with a large constant is dropped as JAX drops it, and the constant with it."""
    enable()
    large = np.arange(400_000, dtype=np.float32)
    jax.jit(lambda x: x[0] + jax.numpy.asarray(large).sum())(_ONE)
    run(_JAX_USES)
    assert len(made) == 2
    run(2 * _JAX_USES, first=_JAX_USES)
    assert len(made) == 2


def test_programs_without_a_key(enable, made):
    """What is lowered and never compiled may be of any size, so its context is dropped as JAX drops it."""
    enable()
    for number in range(3 * _JAX_USES):
        program(number).lower(_ONE)
    assert len(made) == 3


def test_one_unknown_program(enable, made):
    """One program without a key is enough for the context to be dropped."""
    enable()
    run(_JAX_USES - 1)
    program(-1).lower(_ONE)
    run(1, first=_JAX_USES)
    assert len(made) == 2


def test_threads(enable, made):
    """Each thread has its own context."""
    enable()
    run(2 * _JAX_USES)
    threads = [threading.Thread(target=run, args=(2 * _JAX_USES,), kwargs={"first": 100 * n}) for n in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 3


def test_keys_do_not_depend_on_it(tmp_path, monkeypatch):
    """A program has the same key in a fresh context, in one that JAX shares, and in one that was used for long."""
    keys = []
    for size in (-1, contexts._MOST_BYTES):
        monkeypatch.setattr(contexts, "_MOST_BYTES", size)
        mlir._thread_local_context.set_local(None)
        directory = str(tmp_path / str(size))
        ejcache.enable(directory, min_compile_seconds=0)
        run(5 * _JAX_USES)
        jax.jit(jax.grad(lambda x: jax.nn.softmax(jax.numpy.tanh(x) * x).max()))(_ONE)
        keys.append(sorted(entry.key for entry in ejcache.entries(directory)))
        ejcache.disable()
        jax.clear_caches()
    assert len(keys[0]) > 5 * _JAX_USES
    assert keys[0] == keys[1]


def test_disable(enable):
    """JAX has its own function again."""
    before = mlir._create_ir_context
    enable()
    assert mlir._create_ir_context is not before
    ejcache.disable()
    assert mlir._create_ir_context is before
