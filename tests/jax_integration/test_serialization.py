"""`jax.experimental.serialize_executable` of an executable that came from the cache."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.experimental.serialize_executable import deserialize_and_load, serialize

import ejcache
from ejcache import entry
from ejcache.keys.key import is_side_key

x = np.linspace(0, 1, 16, dtype=np.float32)


def compiled(factor=2.0):
    """A program that XLA compiles to a function of its own."""
    jax.clear_caches()
    return jax.jit(lambda x: jax.numpy.sin(x) * factor).lower(x).compile()


def stored(directory):
    with ejcache.open_store(str(directory)) as store:
        return [entry.decode(store.get(i.key), key=i.key).raw for i in store.entries() if not is_side_key(i.key)]


@pytest.fixture
def directory(tmp_path):
    ejcache.enable(str(tmp_path), min_compile_seconds=0)
    return tmp_path


@pytest.mark.parametrize("times", [1, 2, 3])
def test_it_serialises_to_the_stored_bytes(directory, times):
    """XLA's own bytes of an executable that it has loaded cannot run; the stored ones can."""
    for _ in range(times):
        program = compiled()
    data, in_tree, out_tree = serialize(program)

    (raw,) = stored(directory)
    assert raw in data
    again = deserialize_and_load(data, in_tree, out_tree)
    assert np.allclose(again(x), np.sin(x) * 2)


def test_each_executable_has_its_own_bytes(directory):
    """Of two programs, whichever was loaded last."""
    programs = [compiled(factor) for factor in (2.0, 3.0, 2.0, 3.0)]
    for program, factor in zip(programs, (2.0, 3.0, 2.0, 3.0), strict=True):
        again = deserialize_and_load(*serialize(program))
        assert np.allclose(again(x), np.sin(x) * factor)
    assert ejcache.active().stats().hits == 2


def test_an_entry_that_is_gone_is_logged(directory, caplog):
    """What XLA makes of a loaded executable may not run, and that was silent."""
    compiled(5.0)
    program = compiled(5.0)
    with ejcache.open_store(str(directory)) as store:
        for info in list(store.entries()):
            store.delete(info.key)
    serialize(program)
    assert "EASYDEL_RECOMPILE_FORCE" in caplog.text
