"""Stored executables compared with fresh ones: bytes that differ prove nothing, another program does."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import ejcache
from ejcache import entry
from ejcache.keys.key import is_side_key

X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path / "cache")


def multiply(x):
    return x @ x * 2


def add(x):
    return x + x


def sort(x):
    return jax.numpy.sort(x @ x, axis=0)


def compile_one(function):
    jax.clear_caches()
    return np.asarray(jax.jit(function)(X))


@pytest.mark.parametrize("function", [multiply, sort])
def test_a_right_entry_passes_though_its_bytes_may_differ(directory, function):
    """A `sort` serialises to other bytes each time; its program is the same."""
    cache = ejcache.enable(directory, min_compile_seconds=0, check_contents=True)
    expected = compile_one(function)
    assert compile_one(function).tobytes() == expected.tobytes()

    stats = cache.stats()
    assert stats.to_dict()["checks_by_result"] == {"same": 1}
    assert stats.misses_by_reason == {"absent": 1, "checked": 1}
    compile_one(function)
    assert cache.stats().hits == 1, "a key is checked once in a process"


def plant(directory, *, under, other):
    """Put the executable of `other` under the key of `under`, in an envelope that is intact in every way."""
    with ejcache.open_store(directory) as store:
        keys = {entry.decode(store.peek(i.key)).header.name: i.key for i in store.entries() if not is_side_key(i.key)}
        key = keys[f"jit_{under.__name__}"]
        header = entry.decode(store.peek(key), key=key).header
        store.replace(key, entry.encode(header, entry.decode(store.peek(keys[f"jit_{other.__name__}"])).raw))
        return key


def test_a_wrong_entry_is_proven_and_taken_out_and_raised_as_jax_does(directory):
    """A poisoned entry that passes every checksum: found, purged, and said by JAX's own error."""
    cache = ejcache.enable(directory, min_compile_seconds=0)
    expected = compile_one(multiply)
    compile_one(add)
    key = plant(directory, under=multiply, other=add)
    jax.config.update("jax_compilation_cache_check_contents", True)
    try:
        with pytest.raises(RuntimeError, match="inconsistency"):
            compile_one(multiply)
    finally:
        jax.config.update("jax_compilation_cache_check_contents", False)
    with ejcache.open_store(directory) as store:
        assert not store.contains(key)
    assert cache.stats().to_dict()["checks_by_result"] == {"different": 1}
    assert compile_one(multiply).tobytes() == expected.tobytes()


def test_a_plug_in_that_does_not_show_its_programs_proves_nothing(directory, monkeypatch):
    """Nor its bytes; that is no error in the program, and no entry is taken out for it."""
    from ejcache.jax_integration.seam import compiling

    def lacking(executable):
        raise RuntimeError("UNIMPLEMENTED: GetHloModules")

    cache = ejcache.enable(directory, min_compile_seconds=0)
    expected = compile_one(multiply)
    monkeypatch.setattr(compiling, "optimised_program", lacking)
    monkeypatch.setattr(compiling, "serialize_executable", lacking)
    jax.config.update("jax_compilation_cache_check_contents", True)
    try:
        assert compile_one(multiply).tobytes() == expected.tobytes()
    finally:
        jax.config.update("jax_compilation_cache_check_contents", False)
    assert cache.stats().to_dict()["checks_by_result"] == {"unsure": 1}
    assert compile_one(multiply).tobytes() == expected.tobytes()
    assert cache.stats().hits == 1, "the entry is still there"
