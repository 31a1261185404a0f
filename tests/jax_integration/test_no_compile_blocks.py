"""`with ejcache.enable(...)` and `with ejcache.disabled()`: what holds in the block, and what comes back after it."""

from __future__ import annotations

import json

import jax
import pytest

import ejcache
from ejcache.cache.reading import CacheReader
from ejcache.jax_integration.activate import current_settings
from ejcache.settings.described import SETTINGS

FLAGS = [s.flag for s in SETTINGS if s.flag and hasattr(jax.config, s.flag)]


def flags():
    return {flag: getattr(jax.config, flag) for flag in FLAGS}


def state():
    """What `enable` changes: the cache in use, JAX's flags, and every setting with its origin."""
    cache = ejcache.active()
    if cache is None:
        return None, flags(), None
    settings = current_settings()
    return cache.url, flags(), [(each.name, settings[each.name].value, settings[each.name].origin) for each in SETTINGS]


def test_block_ends_as_it_began(tmp_path):
    """Outside of the block, ejcache is not enabled and JAX's flags are as they were."""
    before = state()
    with ejcache.enable(str(tmp_path), max_size="1GB", namespace="x", min_compile_seconds=0) as cache:
        assert ejcache.active() is cache
        assert current_settings().max_size == 10**9
        assert current_settings().namespace == "x"
    assert state() == before


def test_exception_in_a_block(tmp_path):
    """The state comes back on an exception too, which is not swallowed."""
    before = state()
    with pytest.raises(ZeroDivisionError), ejcache.enable(str(tmp_path), read_only=True):
        _ = 1 / 0
    assert state() == before


def test_nested_blocks(tmp_path):
    """Each block brings back what the one around it had set, values of settings that are not JAX flags included."""
    with ejcache.enable(str(tmp_path / "a"), namespace="a", max_size=10**6) as outer:
        first = state()
        with ejcache.enable(str(tmp_path / "b"), namespace="b", read_only=True, max_size=10**7) as inner:
            assert ejcache.active() is inner
            second = state()
            with ejcache.enable(namespace="c"):
                assert ejcache.active() is inner
                assert current_settings().namespace == "c"
            assert state() == second
        assert state() == first
        assert ejcache.active() is outer


def test_nested_blocks_of_one_cache(tmp_path):
    """The same directory may be enabled again within its own block."""
    with ejcache.enable(str(tmp_path), max_size=10**6) as outer:
        with ejcache.enable(str(tmp_path), max_size=10**7) as inner:
            assert inner is outer
            assert current_settings().max_size == 10**7
        assert current_settings().max_size == 10**6
        assert ejcache.active() is outer
    assert ejcache.active() is None


def test_block_in_an_enabled_process(tmp_path):
    """After the block, the cache that was enabled without `with` is in use again."""
    cache = ejcache.enable(str(tmp_path / "a"))
    before = state()
    with ejcache.enable(str(tmp_path / "b"), explain_misses=True, max_size=10**6):
        pass
    assert state() == before
    assert ejcache.active() is cache


def test_flags_changed_in_the_block(tmp_path):
    """A flag that `enable` set comes back whatever the block did with it; other flags are the program's."""
    with ejcache.enable(str(tmp_path / "a")):
        with ejcache.enable(max_size=10**6):
            jax.config.update("jax_compilation_cache_max_size", 10**5)
            jax.config.update("jax_explain_cache_misses", True)
        assert current_settings().max_size == -1
        assert current_settings().explain_misses is True


def test_disabled_inside_an_enabled_block(tmp_path):
    """`disable()` within a block does not keep the state before the block from coming back."""
    cache = ejcache.enable(str(tmp_path / "a"), namespace="a", max_size=10**6)
    before = state()
    with ejcache.enable(str(tmp_path / "b"), namespace="b"):
        ejcache.disable()
        assert ejcache.active() is None
    assert state() == before
    assert ejcache.active() is cache


def test_block_does_not_overrule_the_environment(tmp_path, run_forked):
    """A block that has ended is not a program's wish to have no cache, as `disable` is: `EJCACHE` still enables it."""
    program = """
    import sys, jax, ejcache
    with ejcache.enable(sys.argv[1]):
        pass
    if sys.argv[2] == "disable":
        ejcache.disable()
    jax.devices()
    print(ejcache.active() is not None)
    """
    for then, enabled in (("go on", True), ("disable", False)):
        done = run_forked(program, str(tmp_path / "a"), then, env={"EJCACHE": str(tmp_path / "b")})
        assert done.stdout == f"{enabled}\n"


def test_disabled_block(tmp_path):
    """Within it nothing is cached; after it everything is as before."""
    cache = ejcache.enable(str(tmp_path), min_compile_seconds=0)
    before = state()
    with ejcache.disabled():
        assert ejcache.active() is None
        jax.jit(lambda x: x * 3.25 + 1)(2.0)
    assert state() == before
    assert cache.stats().stores == 0
    jax.jit(lambda x: x * 4.25 + 1)(2.0)
    assert cache.stats().stores > 0


def test_disabled_blocks_nest(tmp_path):
    """An inner block does not end the outer one."""
    ejcache.enable(str(tmp_path))
    with ejcache.disabled():
        with ejcache.disabled():
            assert ejcache.active() is None
        assert ejcache.active() is None
    assert ejcache.active() is not None


def test_enable_in_a_disabled_block(tmp_path):
    """It takes effect after the block; a block of its own ends before."""
    with ejcache.disabled():
        with ejcache.enable(str(tmp_path / "a")):
            assert ejcache.active() is None
        ejcache.enable(str(tmp_path / "b"))
        assert ejcache.active() is None
    cache = ejcache.active()
    assert cache is not None
    assert cache.url == str(tmp_path / "b")


def test_ejit_in_a_disabled_block():
    """A function that is decorated in the block is not cached in it, and the cache is on afterwards."""
    with ejcache.disabled():
        double = ejcache.ejit(lambda x: x * 2)
        assert double(2.0) == 4.0
        assert ejcache.active() is None
    assert ejcache.active() is not None


def test_disabled_block_without_ejcache(run_forked, tmp_path):
    """JAX's own cache, when it is in charge, stores nothing within the block, and does so again after it."""
    done = run_forked(
        """
        import json, os, sys
        import jax, ejcache
        jax.config.update("jax_compilation_cache_dir", sys.argv[1])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        counts = []
        def compile(number):
            jax.jit(lambda x: x * number + 1)(2.0)
            counts.append(len([n for n in os.listdir(sys.argv[1]) if n.endswith("-cache")]))
        compile(1.5)
        with ejcache.disabled():
            compile(2.5)
        compile(3.5)
        print(json.dumps(counts))
        """,
        str(tmp_path / "plain"),
    )
    first, within, after = json.loads(done.stdout)
    assert first > 0
    assert within == first
    assert after > within


def test_cache_that_was_not_returned_by_enable(tmp_path):
    """In a `with` statement it is closed at the end of the block, and can be used again."""
    reader = CacheReader(str(tmp_path), open_store=lambda: ejcache.open_store(str(tmp_path)))
    with ejcache.CompilationCache(reader) as cache:
        assert cache.put("key", b"value", compile_seconds=9.0)
    assert cache.get("key") == b"value"
    cache.close()
