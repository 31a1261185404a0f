"""`key_of` and `would_hit`: the key of a lowered program, and whether the cache has it, without compiling."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from capabilities import needs
from jax._src import compiler

import ejcache
from ejcache.jax_integration.seam import patch as seam
from ejcache.keys.key import is_side_key


@pytest.fixture
def cache(tmp_path):
    return ejcache.enable(str(tmp_path / "cache"), min_compile_seconds=0, preload=False)


def lowered(number=2.0):
    jax.clear_caches()

    def asked(x):
        return jnp.tanh(x) * number

    return jax.jit(asked).lower(jax.ShapeDtypeStruct((7,), jnp.float32))


def stored():
    return [each.key for each in ejcache.entries() if not is_side_key(each.key)]


@pytest.mark.parametrize("compiled_before", [False, True])
def test_the_key_is_the_one_that_the_entry_gets(cache, compiled_before):
    """Also of a program that JAX has compiled, and remembers."""
    program = lowered()
    if not compiled_before:
        assert not ejcache.would_hit(program)
        key = ejcache.key_of(program)
        assert stored() == []
        program.compile()
    else:
        program.compile()
        key = ejcache.key_of(program)
    cache.flush()
    assert stored() == [key]
    assert ejcache.key_of(program) == ejcache.key_of(lowered()) == key
    assert ejcache.would_hit(program)
    assert ejcache.would_hit(lowered())
    assert ejcache.key_of(lowered(3.0)) != key
    assert not ejcache.would_hit(lowered(3.0))


def test_nothing_is_compiled_read_or_counted(cache, monkeypatch):
    """Counters, the miss log and the compiler stay as they were; what JAX compiles afterwards is what it would have."""
    lowered().compile()
    cache.flush()
    program, other = lowered(), lowered(5.0)
    before = cache.stats().to_dict()
    with monkeypatch.context() as patched:
        patched.setattr(compiler, "backend_compile_and_load", None)
        patched.setattr(seam, "load_executable", None)
        assert (ejcache.would_hit(program), ejcache.would_hit(other)) == (True, False)
        assert ejcache.key_of(program) != ejcache.key_of(other)
    assert cache.stats().to_dict() == before
    with ejcache.forbid_compile():
        assert not ejcache.would_hit(other)
    program.compile()
    other.compile()
    after = cache.stats()
    assert (after.hits, after.misses) == (before["hits"] + 1, before["misses"] + 1)


def test_a_program_that_is_never_stored_has_no_key(run_forked, tmp_path):
    """None, nothing counted, and it compiles afterwards as ever."""
    code = """
        import sys, jax, ejcache
        from jax.sharding import Mesh, NamedSharding, PartitionSpec
        cache = ejcache.enable(sys.argv[1], min_compile_seconds=0)
        def inspecting(x):
            y = 2 * x
            jax.debug.inspect_array_sharding(y, callback=print)
            return y
        split = NamedSharding(Mesh(jax.devices(), "x"), PartitionSpec("x"))
        program = jax.jit(inspecting).lower(jax.ShapeDtypeStruct((8,), "float32", sharding=split))
        before = cache.stats().to_dict()
        assert ejcache.key_of(program) is None and not ejcache.would_hit(program)
        assert cache.stats().to_dict() == before
        program.compile()
    """
    two = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    assert "NamedSharding" in run_forked(code, str(tmp_path / "cache"), env=two).stdout


def test_without_a_cache_there_is_no_key(cache):
    """In a block of `ejcache.disabled`, and after `disable` where EJCACHE forbids it, nothing is compiled either."""
    program = lowered()
    with ejcache.disabled():
        assert ejcache.key_of(program) is None
        assert not ejcache.would_hit(program)


def test_the_optimised_executable_comes_first(tmp_path):
    """Where PGLE's entries are expected, the key is theirs if there is one, and otherwise the next best."""
    ejcache.enable(str(tmp_path / "cache"), min_compile_seconds=0, preload=False, expect_pgle=True)
    program = lowered()
    key = ejcache.key_of(program)
    assert "-profiling-" in key
    assert not ejcache.would_hit(program)
    with ejcache.open_store(str(tmp_path / "cache")) as store:
        store.put(key.replace("-profiling-", "-pgle-"), b"never read")
    assert ejcache.key_of(program) == key.replace("-profiling-", "-pgle-")
    assert ejcache.would_hit(program)


@needs("saved topologies")
def test_a_program_for_a_target_has_the_key_of_its_devices(cache, tmp_path, run_forked):
    """The one that a process with those devices asks for."""
    code = """
        import sys, jax, jax.numpy as jnp, ejcache
        def asked(x):
            return jnp.tanh(x) * 2.0
        ejcache.enable(sys.argv[1])
        with ejcache.target("four") as devices:
            shape = jax.ShapeDtypeStruct((8,), "float32", sharding=jax.sharding.SingleDeviceSharding(devices[0]))
            print(ejcache.key_of(jax.jit(asked).lower(shape)), ejcache.would_hit(jax.jit(asked).lower(shape)))
            ejcache.warm(asked, shape)
            print(ejcache.would_hit(jax.jit(asked).lower(shape)))
    """
    here = """
        import sys, jax, jax.numpy as jnp, ejcache
        def asked(x):
            return jnp.tanh(x) * 2.0
        ejcache.enable(sys.argv[1])
        shape = jax.ShapeDtypeStruct((8,), "float32", sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))
        print(ejcache.key_of(jax.jit(asked).lower(shape)), ejcache.would_hit(jax.jit(asked).lower(shape)))
    """
    url = str(tmp_path / "other")
    four = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    save = "import sys, ejcache.cli.main; sys.exit(ejcache.cli.main.main())"
    run_forked(save, "target", "save", "four", "--dir", url, env=four)
    key, hit, after = run_forked(code, url, env={**four, "XLA_FLAGS": None}).stdout.split()
    assert (hit, after) == ("False", "True")
    assert run_forked(here, url, env=four).stdout.split() == [key, "True"]
