"""What listeners, logs and questions see of the cache is what they see of JAX's own."""

from __future__ import annotations

import logging
import threading
import warnings
from collections import Counter

import jax
import numpy as np
import pytest
from jax._src import compilation_cache, monitoring

import ejcache
from ejcache.errors import StoreUnavailableError
from ejcache.stores.local.store import LocalStore

x = np.arange(8, dtype=np.float32)
held = np.arange(8, dtype=np.float32) / 3
EVENT = "/jax/compilation_cache/"


@pytest.fixture
def events():
    """How often each of the cache's events and durations was sent."""
    seen = Counter()

    def note(name, *_, **__):
        if name.startswith(EVENT):
            seen[name.removeprefix(EVENT)] += 1

    monitoring.register_event_listener(note)
    monitoring.register_event_duration_secs_listener(note)
    compilation_cache.reset_cache()
    yield seen
    monitoring.unregister_event_listener(note)
    monitoring.unregister_event_duration_listener(note)


@pytest.fixture
def enabled(tmp_path):
    return ejcache.enable(str(tmp_path), min_compile_seconds=0)


def run(factor=2.0):
    jax.clear_caches()
    return jax.jit(lambda x: x * factor + 1)(x)


def test_a_task_that_uses_the_cache_is_counted_once(enabled, events):
    """And again after `reset_cache()`, as in JAX."""
    run(2.0), run(3.0)
    assert (events["tasks_using_cache"], events["cache_misses"]) == (1, 2)
    compilation_cache.reset_cache()
    run(4.0)
    assert (events["tasks_using_cache"], events["task_disabled_cache"]) == (2, 0)


def test_a_task_that_switches_the_cache_off_is_counted_once(enabled, events):
    """With JAX's own flag."""
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        run(2.0), run(3.0)
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
    assert (events["tasks_using_cache"], events["task_disabled_cache"]) == (0, 1)


@pytest.mark.parametrize(
    "settings", [{"min_entry_size": 10_000_000}, {"min_compile_seconds": 100}, {"read_only": True}]
)
def test_a_miss_that_writes_nothing_is_no_cache_miss(settings, tmp_path, events):
    """Neither the event nor PGLE's warning about an unexpected write."""
    ejcache.enable(str(tmp_path), **{"min_compile_seconds": 0, **settings})
    jax.config.update("jax_compilation_cache_expect_pgle", True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            run()
    finally:
        jax.config.update("jax_compilation_cache_expect_pgle", False)
        ejcache.disable()
    assert events["compile_requests_use_cache"] == 1
    assert events["cache_misses"] == 0


def test_a_hit_on_another_threads_compilation_has_its_durations(enabled, events):
    """A listener that sums up what the cache has saved misses none."""
    programs = [jax.jit(lambda x: x @ x + 3.5) for _ in range(4)]
    matrix = np.eye(64, dtype=np.float32)
    threads = [threading.Thread(target=program, args=(matrix,)) for program in programs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert events["cache_hits"] == enabled.stats().hits
    assert events["compile_time_saved_sec"] == events["cache_retrieval_time_sec"] == events["cache_hits"]


def test_failures_are_logged_with_type_and_program_once_for_each_kind(enabled, caplog, monkeypatch):
    """Reads first, then writes: a second kind of failure is not hidden by the first."""

    def failing(*_, **__):
        raise StoreUnavailableError

    monkeypatch.setattr(LocalStore, "get", failing)
    run(2.0), run(3.0)
    monkeypatch.setattr(LocalStore, "put", failing)
    run(4.0), run(5.0)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    said = [line for line in said if "the program goes on without it" in line]
    assert len(said) == 2
    assert all("StoreUnavailableError" in line for line in said)
    assert "read" in said[0]
    assert "write" in said[1]
    assert "'jit__lambda'" in said[1]


def test_the_cache_is_enabled_when_we_cache(tmp_path, monkeypatch):
    """Also in the default directory, which JAX's flag does not name."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ejcache.enable()
    assert compilation_cache.is_persistent_cache_enabled() is True
    jax.config.update("jax_enable_compilation_cache", False)
    assert compilation_cache.is_persistent_cache_enabled() is False
    jax.config.update("jax_enable_compilation_cache", True)
    ejcache.disable()
    assert compilation_cache.is_persistent_cache_enabled() is (jax.config.jax_compilation_cache_dir is not None)


def _over_devices(x):
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("i",))
    return jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i")))


@pytest.mark.parametrize(
    "call",
    [
        lambda: jax.jit(lambda x: x * 5)(x),
        lambda: jax.pmap(lambda x: x * 5)(x[None]),
        lambda: jax.jit(lambda x: x + held)(x),
        lambda: jax.jit(lambda x: x * 5)(_over_devices(x)),
    ],
    ids=["jit", "pmap", "constants", "sharded"],
)
def test_programs_of_each_kind_are_stored_once(enabled, call):
    """And found by the next process, as which cleared memories count."""
    first = call()
    before = enabled.stats()
    jax.clear_caches()
    again = call()
    after = enabled.stats()
    assert np.array_equal(first, again)
    assert before.stores > 0
    assert (after.stores, after.misses) == (before.stores, before.misses)
    assert after.hits > before.hits


def test_another_profile_version_is_another_program(enabled):
    """`jax_xla_profile_version` is a part of the key."""
    run()
    stored = enabled.stats().stores
    jax.config.update("jax_xla_profile_version", jax.config.jax_xla_profile_version + 2)
    run()
    assert enabled.stats().stores == stored + 1


@pytest.mark.parametrize("log_compiles", [True, False])
def test_hits_are_logged_as_compilations_are(enabled, caplog, log_compiles):
    """At WARNING with `jax_log_compiles`, and else not."""
    run()
    caplog.clear()
    with jax.log_compiles(log_compiles):
        run()
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any("Persistent compilation cache hit" in line for line in warned) is log_compiles


def test_a_hit_dumps_what_a_compilation_dumps(enabled, tmp_path):
    """`xla_dump_to` in compiler options neither changes the key nor loses the optimised program after a hit."""
    for name in ("cold", "warm"):
        jax.clear_caches()
        jax.jit(lambda x: x * 7, compiler_options={"xla_dump_to": str(tmp_path / name)})(x)
    assert (enabled.stats().stores, enabled.stats().hits) == (1, 1)
    for name in ("cold", "warm"):
        assert len(list((tmp_path / name).glob("*after_optimizations.txt"))) == 1


def test_what_is_written_and_left_out_is_logged_for_debugging(enabled, caplog):
    """With the name and the key, without `jax_explain_cache_misses`."""
    caplog.set_level(logging.DEBUG, "ejcache")
    run(2.0)
    ejcache.enable(min_compile_seconds=100)
    run(3.0)
    said = [record.getMessage() for record in caplog.records if "jit__lambda" in record.getMessage()]
    assert any("; stored; key 'jit__lambda-" in line for line in said)
    assert any("not stored: it compiled in less than the minimum" in line for line in said)


def test_a_miss_does_not_ask_whether_its_entry_arrived(enabled, monkeypatch):
    """How its entry fared is known: the store is not asked for it before the lease is released."""
    asked, contains, put = [], LocalStore.contains, LocalStore.put

    def noted(store, key):
        asked.append(key)
        return contains(store, key)

    def noted_put(store, key, data, **options):
        before = len(asked)
        created = put(store, key, data, **options)
        del asked[before:]  # it looks itself whether another process was quicker
        return created

    monkeypatch.setattr(LocalStore, "contains", noted)
    monkeypatch.setattr(LocalStore, "put", noted_put)
    run(2.0)
    assert enabled.stats().stores == 1
    assert asked == []


def test_a_removed_directory_stays_removed(run_forked, tmp_path):
    """Counters that were not yet written do not make it again at exit or at `reset_cache()`."""
    finished = run_forked(
        """
        import pathlib, shutil, sys
        import ejcache, jax
        from jax.experimental.compilation_cache import compilation_cache
        place = pathlib.Path(sys.argv[1])
        ejcache.enable(str(place), min_compile_seconds=0)
        for _ in range(2):
            jax.clear_caches()
            jax.jit(lambda x: x + 1)(1)
        shutil.rmtree(place)
        compilation_cache.reset_cache()
        jax.clear_caches()
        ejcache.active().flush()
        print(place.exists())
        """,
        str(tmp_path / "cache"),
    )
    assert finished.stdout.split() == ["False"]
    assert not (tmp_path / "cache").exists()


def test_counters_of_forked_children_arrive(run_forked, tmp_path):
    """Also of one that ends by `os._exit`, which runs no exit handlers."""
    finished = run_forked(
        """
        import os, sys, time
        import ejcache
        cache = ejcache.enable(sys.argv[1], min_compile_seconds=0)
        cache.put("key", b"value")
        assert cache.get("key")
        for _ in range(3):
            child = os.fork()
            if child == 0:
                assert cache.get("key")
                os._exit(0)
            os.waitpid(child, 0)
        print(cache.stats(whole_store=True).hits)
        """,
        str(tmp_path / "cache"),
    )
    assert finished.stdout.split() == ["4"]
