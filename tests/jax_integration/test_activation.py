"""Switching ejcache on in a process: whose setting wins, what JAX's own switches still do, how it is left again."""

from __future__ import annotations

import logging

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache as jax_cache

import ejcache
from ejcache.errors import UsageError
from ejcache.jax_integration.activate import current_settings
from ejcache.keys.key import is_side_key
from ejcache.settings.table import Origin


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path / "cache")


def programs_in(store):
    """The entries of programs, without the texts kept beside them."""
    return [info for info in store.entries() if not is_side_key(info.key)]


def compile_one(factor=2.0):
    """One compilation of a program that no other test compiles; the value is checked."""
    jax.clear_caches()
    values = np.arange(4.0, dtype=np.float32) * factor
    assert np.array_equal(jax.jit(lambda: values)(), values)


def test_a_compilation_is_stored_and_then_a_hit(directory):
    """The cache that `enable` returns is the one that compilations use, and it counts."""
    cache = ejcache.enable(directory, min_compile_seconds=0)
    assert ejcache.active() is cache

    compile_one()
    compile_one()

    stats = cache.stats()
    assert (stats.misses, stats.stores, stats.hits, stats.errors) == (1, 1, 1, 0)
    assert stats.misses_by_reason == {"absent": 1}
    assert stats.seconds_saved >= 0


def test_compile_time_is_kept_as_a_fraction_of_a_second(directory):
    """JAX's own entries say 0 for everything below a second."""
    cache = ejcache.enable(directory, min_compile_seconds=0)
    compile_one()

    with ejcache.open_store(directory) as store:
        (info,) = programs_in(store)
        from ejcache import entry

        header = entry.decode(store.peek(info.key), key=info.key).header

    assert 0 < header.compile_seconds < 60
    assert header.compile_seconds != int(header.compile_seconds)
    assert header.jax == jax.__version__
    assert cache.stats().stores == 1


def test_the_latest_call_in_the_program_wins(tmp_path):
    """`enable(url)`, `jax.config.update` and `set_cache_dir()` are equals."""
    first, second, third = (str(tmp_path / name) for name in ("first", "second", "third"))
    ejcache.enable(first)
    assert ejcache.active().url == first
    jax.config.update("jax_compilation_cache_dir", second)
    assert ejcache.active().url == second
    jax_cache.set_cache_dir(third)
    assert ejcache.active().url == third
    ejcache.enable(first)
    assert ejcache.active().url == first
    assert current_settings()["dir"].origin is Origin.CALL


def test_a_changed_directory_is_used_from_the_next_compilation_on(tmp_path):
    """JAX ignores it until `reset_cache()`."""
    ejcache.enable(str(tmp_path / "a"), min_compile_seconds=0)
    compile_one()
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "b"))
    compile_one()

    for name in ("a", "b"):
        with ejcache.open_store(str(tmp_path / name)) as store:
            assert len(programs_in(store)) == 1


@pytest.mark.parametrize("by", ["call", "flag"])
def test_a_relative_directory_stays_where_it_was(tmp_path, monkeypatch, by):
    """A program that changes its working directory, as Hydra does, keeps the cache that it began with."""
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    after.mkdir()
    monkeypatch.chdir(before)
    if by == "flag":
        jax.config.update("jax_compilation_cache_dir", "cache")
    cache = ejcache.enable("cache" if by == "call" else None, min_compile_seconds=0)
    monkeypatch.chdir(after)
    compile_one()
    cache.close()
    compile_one()
    assert (cache.stats().stores, cache.stats().hits) == (1, 1)
    assert cache.url == str(before / "cache")
    assert (list(before.iterdir()), list(after.iterdir())) == ([before / "cache"], [])


def test_limits_and_floors_may_change_at_any_time(directory):
    """A program that turns a flag after activation is obeyed at the next compilation."""
    cache = ejcache.enable(directory, min_compile_seconds=60)
    compile_one(3.0)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    compile_one(3.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 10_000_000)
    compile_one(4.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    jax.config.update("jax_compilation_cache_max_size", 100)
    compile_one(5.0)
    jax.config.update("jax_compilation_cache_max_size", 0)
    compile_one(6.0)

    assert cache.stats().stores == 1
    assert cache.stats().skipped == {"quick": 1, "small": 1, "large": 1}
    assert ejcache.active() is None


@pytest.mark.parametrize(
    "switch",
    [
        pytest.param(("jax_enable_compilation_cache", False), id="enable-false"),
        pytest.param(("jax_compilation_cache_max_size", 0), id="max-size-0"),
        pytest.param(("jax_compilation_cache_dir", None), id="no-directory"),
    ],
)
def test_disabling_flags_win_over_enable(directory, switch):
    """Nothing is looked up or stored, and nothing is created."""
    ejcache.enable(directory, min_compile_seconds=0)
    jax.config.update(*switch)

    compile_one()

    assert ejcache.active() is None
    with ejcache.open_store(directory, read_only=True) as store:
        assert list(store.entries()) == []


def test_jax_context_manager_disables_for_its_body(directory):
    """`jax.enable_compilation_cache(False)`, where JAX has it thread-local, is obeyed in that thread."""
    from jax._src import config

    cache = ejcache.enable(directory, min_compile_seconds=0)
    with config.enable_compilation_cache(False):
        compile_one(7.0)
    assert cache.stats().requests == 0
    compile_one(7.0)
    assert cache.stats().stores == 1


def test_reset_cache_reopens_and_keeps_the_entries(directory):
    """JAX's `reset_cache()` is not an end: the next compilation uses the store again."""
    cache = ejcache.enable(directory, min_compile_seconds=0)
    compile_one()
    jax_cache.reset_cache()
    compile_one()

    assert cache.stats().hits == 1
    assert ejcache.active() is cache


def test_disable_gives_jax_its_own_cache_back(directory, tmp_path):
    """Flags are as they were, and JAX's cache writes its own files again."""
    own = tmp_path / "own"
    jax.config.update("jax_compilation_cache_dir", str(own))
    ejcache.enable(directory, min_compile_seconds=0.0)
    compile_one()
    ejcache.disable()

    assert ejcache.active() is None
    assert jax.config.jax_compilation_cache_dir == str(own)
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 1.0
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    compile_one()
    assert [path.suffix for path in own.iterdir() if path.name.endswith("-cache")]
    jax_cache.reset_cache()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dir": "nonsense://bucket/x"}, ["nonsense", "file://"]),
        ({"max_size": "ten"}, ["max_size", "'ten'", "10GiB"]),
        ({"max_siz": 10}, ["max_siz", "max_size"]),
        ({"min_compile_seconds": "soon"}, ["min_compile_seconds", "soon"]),
        ({"jax_persistent_cache_min_compile_time_secs": "never"}, ["jax_persistent_cache_min_compile_time_secs"]),
    ],
)
def test_bad_arguments_are_one_clear_sentence_and_change_nothing(arguments, words):
    """The setting, the value, what would be accepted; and ejcache is not half on."""
    with pytest.raises(UsageError) as caught:
        ejcache.enable(**arguments)

    assert all(word in str(caught.value) for word in words)
    assert ejcache.active() is None
    assert jax.config.jax_compilation_cache_dir is None


def test_read_only_reads_and_never_writes(directory):
    """What others stored is used; nothing is added."""
    ejcache.enable(directory, min_compile_seconds=0)
    compile_one()
    ejcache.disable()
    cache = ejcache.enable(directory, min_compile_seconds=0, read_only=True)
    compile_one()
    compile_one(9.0)

    assert (cache.stats().hits, cache.stats().stores, cache.stats().skipped) == (1, 0, {"read_only": 1})


def test_force_recompiles_and_replaces(directory, monkeypatch):
    """EASYDEL_RECOMPILE_FORCE ignores what is stored, and what it compiles takes its place."""
    ejcache.enable(directory, min_compile_seconds=0)
    compile_one()
    with ejcache.open_store(directory) as store:
        (before,) = programs_in(store)
    monkeypatch.setenv("EASYDEL_RECOMPILE_FORCE", "yes")
    compile_one()

    stats = ejcache.active().stats()
    assert (stats.misses_by_reason, stats.stores, stats.hits) == ({"absent": 1, "forced": 1}, 2, 0)
    with ejcache.open_store(directory) as store:
        (after,) = programs_in(store)
    assert after.key == before.key
    assert after.created > before.created


def test_a_namespace_disowns_what_was_stored_before(directory, monkeypatch):
    """Another salt is another generation."""
    cache = ejcache.enable(directory, min_compile_seconds=0)
    compile_one()
    monkeypatch.setenv("EJCACHE_NAMESPACE", "after the incident")
    compile_one()

    assert (cache.stats().hits, cache.stats().stores) == (0, 2)


def test_a_bad_value_in_the_environment_is_said_once_and_ignored(directory, monkeypatch, caplog):
    """The job goes on."""
    monkeypatch.setenv("EJCACHE_READ_ONLY", "perhaps")
    with caplog.at_level(logging.WARNING, logger="ejcache"):
        ejcache.enable(directory, min_compile_seconds=0)
        compile_one()
        compile_one(3.0)

    assert ejcache.active().stats().stores == 2
    assert len([record for record in caplog.records if "EJCACHE_READ_ONLY cannot be" in record.getMessage()]) == 1


WHERE = ("ejcache/below", "ejcache/v1", "gs://bucket/a")


@pytest.mark.parametrize("where", ["", *(pytest.param(where, marks=pytest.mark.soak) for where in WHERE)])
def test_the_users_cache_directory_is_this_users_alone(run_forked, clean_environment, bucket, where):
    """Whatever makes it first, and whatever the umask: what is in it is run. Its own parents are as the umask says."""
    above = clean_environment / ".cache"
    url = where if "://" in where or not where else str(above / where)
    run_forked(
        """
        import os, sys
        os.umask(0)
        import ejcache, jax, numpy
        ejcache.enable(sys.argv[1] or None, min_compile_seconds=0)
        jax.jit(lambda x: x * 2)(numpy.ones(4))
        """,
        url,
    )
    assert above.stat().st_mode & 0o777 == 0o700
    assert (above / "ejcache").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "maker",
    [
        (
            "from ejcache.journal.line import ProgramRecord\nfrom ejcache.history.host_log import record_miss\n"
            "record_miss(ProgramRecord())"
        ),
        (
            "from ejcache.jax_integration.lowering.native_libraries import LibraryDigests\n"
            "from ejcache.settings.directories import state_directory\n"
            "os.utime(__file__, (1, 1))\nLibraryDigests().digest_of([__file__], memo=state_directory() / 'memo')"
        ),
        (
            "from ejcache.cache.opening import open_cache_store\nfrom ejcache.settings.resolve import resolve\n"
            "open_cache_store('gs://bucket/a', resolve()).put('k', b'x')"
        ),
        (
            "from ejcache.settings.directories import user_directory\n"
            "from ejcache.stores.documents import open_documents\n"
            "open_documents(user_directory() / 'autotune').create('a/b.json', b'{}')"
        ),
    ],
)
def test_no_maker_leaves_it_to_the_umask(run_forked, clean_environment, bucket, tmp_path, maker):
    """The miss log, what libraries were like, a bucket's copies, tuned configurations: each may be the first."""
    (tmp_path / "maker.py").write_text(f"import os\nos.umask(0)\n{maker}\n")
    run_forked(tmp_path / "maker.py")
    assert (clean_environment / ".cache" / "ejcache").stat().st_mode & 0o777 == 0o700


def test_why_a_dump_of_xla_lacks_what_was_loaded_is_said_once(directory, tmp_path, caplog):
    """A hit compiles nothing, so XLA writes nothing."""
    options = {"xla_dump_to": str(tmp_path / "dumps")}
    for start in range(3):
        jax.clear_caches()
        with ejcache.enable(directory, min_compile_seconds=0):
            jax.jit(lambda x: x + 1, compiler_options=options)(1.0)
        assert caplog.text.count(f"XLA dumps to {tmp_path}") == min(start, 1)
