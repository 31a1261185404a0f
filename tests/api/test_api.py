"""The functions of `import ejcache` that look at a cache and maintain it."""

from __future__ import annotations

import json
import time

import jax
import pytest

import ejcache
from ejcache import entry
from ejcache.errors import NotAStoreError
from ejcache.keys.key import is_side_key
from ejcache.settings.table import Origin


def compile_programs(number, offset=0.25):
    """Compile so many programs that no other test compiles."""
    jax.clear_caches()
    for factor in range(number):
        jax.jit(lambda x, factor=factor: x * (factor + offset) + 1)(2.0)


def fill(url, number=3, size=1000):
    """A cache with so many entries of our own format, the oldest first."""
    with ejcache.open_store(url) as store:
        for index in range(number):
            key = f"jit_f{index}-{'0' * 60}{index:04d}"
            store.put(key, entry.encode(entry.Header(key=key), bytes(size), level=0))
    return str(url)


def test_stats_of_this_process(tmp_path):
    """Without a URL, they are what this process has counted; without a cache, zero."""
    assert ejcache.stats().hits == 0
    cache = ejcache.enable(str(tmp_path), min_compile_seconds=0)
    compile_programs(2)
    assert ejcache.stats() == cache.stats()
    assert ejcache.stats().stores == 2


def test_stats_of_all_processes(tmp_path):
    """With a URL, or when asked for, they are those of every process that has used the cache."""
    with ejcache.enable(str(tmp_path), min_compile_seconds=0):
        compile_programs(1)
        assert ejcache.stats(whole_store=True).stores == 1
    ejcache.disable()
    assert ejcache.stats(tmp_path).stores == 1
    assert ejcache.stats().stores == 0


def test_entries_of_the_active_cache(tmp_path):
    """Programs are listed, and the texts that are stored with them are not."""
    ejcache.enable(str(tmp_path), min_compile_seconds=0)
    assert list(ejcache.entries()) == []
    compile_programs(2)
    listed = list(ejcache.entries())
    assert len(listed) == 2
    assert not any(is_side_key(info.key) for info in listed)


def test_entries_of_a_url(tmp_path):
    """Any cache can be listed without being enabled."""
    assert len(list(ejcache.entries(fill(tmp_path)))) == 3


def test_cache_that_does_not_exist(tmp_path, monkeypatch):
    """A cache that was named must exist; the default one may be empty, and looking at it does not create it."""
    with pytest.raises(NotAStoreError):
        list(ejcache.entries(tmp_path / "none"))
    with pytest.raises(NotAStoreError):
        ejcache.prune(tmp_path / "none", max_size=0)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "default"))
    assert list(ejcache.entries()) == []
    assert ejcache.stats(whole_store=True).stores == 0
    assert ejcache.verify().clean
    assert ejcache.clear().removed == 0
    assert ejcache.prune(max_size=0).removed == 0
    assert not (tmp_path / "default").exists()


def test_no_directory_at_all(monkeypatch, tmp_path):
    """If JAX's directory is None, the message says which setting names no cache."""
    ejcache.enable(str(tmp_path))
    jax.config.update("jax_compilation_cache_dir", None)
    with pytest.raises(ejcache.UsageError, match="jax_compilation_cache_dir names no cache"):
        list(ejcache.entries())


def test_prune_to_a_size(tmp_path):
    """The least recently used go first, and the report says what stays."""
    url = fill(tmp_path)
    size = sum(info.size for info in ejcache.entries(url))
    planned = ejcache.prune(url, max_size=size - 1, dry_run=True)
    assert (planned.removed, planned.left, planned.dry_run) == (1, 2, True)
    assert len(list(ejcache.entries(url))) == 3
    done = ejcache.prune(url, max_size=f"{size - 1}")
    assert (done.removed, done.left, done.failures, done.dry_run) == (1, 2, 0, False)
    assert done.freed + done.left_size == size
    assert len(list(ejcache.entries(url))) == 2


def test_prune_to_a_few_bytes(tmp_path):
    """Ten bytes were meant for gigabytes, and would remove everything."""
    url = fill(tmp_path)
    for size in (10, "10"):
        with pytest.raises(ejcache.SettingError, match="'10GB' for gigabytes, '10B' for bytes"):
            ejcache.prune(url, max_size=size)
    assert ejcache.prune(url, max_size="10B", dry_run=True).removed == 3


def test_prune_by_age_and_name(tmp_path):
    """Ages are seconds or text; a name narrows the rules."""
    url = fill(tmp_path)
    assert ejcache.prune(url, older_than="1d").removed == 0
    assert ejcache.prune(url, name="jit_f1").removed == 1
    assert ejcache.prune(url, unused_for=0, name="jit_f2").removed == 1
    assert [info.key[:6] for info in ejcache.entries(url)] == ["jit_f0"]


def test_prune_without_a_rule(tmp_path):
    """Nothing is removed by accident."""
    with pytest.raises(ejcache.UsageError, match="without a rule"):
        ejcache.prune(fill(tmp_path))


def test_prune_of_a_bucket(bucket):
    """In a bucket, entries in use stay; the limits stored with it apply when no rule is given."""
    url = fill("gs://bucket/prefix")
    with pytest.raises(ejcache.UsageError, match="without a rule"):
        ejcache.prune(url)
    assert ejcache.prune(url, max_entries=0).removed == 0
    assert len(list(ejcache.entries(url))) == 3


def test_clear(tmp_path):
    """Every entry goes."""
    url = fill(tmp_path)
    assert ejcache.clear(url).removed == 3
    assert list(ejcache.entries(url)) == []


def test_verify(tmp_path):
    """Damage is found, and repaired when asked for."""
    url = fill(tmp_path)
    assert ejcache.verify(url).entries == 3
    with ejcache.open_store(url) as store:
        store.replace("jit_g-1", b"no entry")
    assert not ejcache.verify(url).clean
    assert ejcache.verify(url, fix=True).clean
    assert ejcache.verify(url).entries == 3


def test_why(tmp_path):
    """The latest miss is explained, by name or by cache, with the nearest entry."""
    ejcache.enable(str(tmp_path), min_compile_seconds=0)
    assert ejcache.why("nothing") == []

    def scaled(x):
        return x * 3.5

    jax.jit(scaled)(1.0)
    time.sleep(0.01)  # the nearest entry must be older than the miss, by a clock with coarse steps
    jax.clear_caches()
    jax.jit(scaled)(jax.numpy.ones(3))
    (latest,) = ejcache.why("scaled")
    assert latest.sentence.startswith("argument x changed: f32[] -> f32[3]")
    assert latest.text == f"jit_scaled was compiled because {latest.sentence} (beside the call with f32[])"
    both = ejcache.why("scaled", dir=tmp_path, last=5)
    assert len(both) == 2
    assert both[0].sentence == latest.sentence
    assert ejcache.why("scaled", dir=tmp_path / "other") == []
    assert ejcache.why("scaled", since="1h") == [latest]
    assert ejcache.why("scaled", since="0s") == []
    with pytest.raises(ejcache.UsageError):
        ejcache.why(last=0)


def test_why_after_the_cache_is_gone(tmp_path):
    """The reason of a miss is given, as by `ejcache why`, when its cache no longer exists."""
    import shutil

    with ejcache.enable(str(tmp_path / "gone"), min_compile_seconds=0):
        compile_programs(1, offset=0.75)
    ejcache.disable()
    shutil.rmtree(tmp_path / "gone")
    (explanation,) = ejcache.why()
    assert "was compiled because it is new here" in explanation.text
    assert "there is no cache at" in explanation.note


def test_current_settings(tmp_path):
    """The settings with their origins, whether or not ejcache is enabled."""
    assert ejcache.current_settings()["max_size"].origin is Origin.DEFAULT
    with ejcache.enable(str(tmp_path), max_size="1MB"):
        settings = ejcache.current_settings()
        assert settings.max_size == 10**6
        assert settings["max_size"].origin is Origin.CALL


def test_looking_does_not_import_jax(run_python, tmp_path):
    """A script that only looks at a cache does not pay for JAX, nor for pytest, which only the plug-in needs."""
    done = run_python(
        """
        import json, sys, ejcache
        ejcache.current_settings(); ejcache.stats(); ejcache.why()
        names = [len(list(ejcache.entries(sys.argv[1]))), ejcache.verify(sys.argv[1]).entries]
        print(json.dumps([names, sorted({"jax", "pytest"} & {*sys.modules})]))
        """,
        fill(tmp_path / "cache"),
    )
    assert json.loads(done.stdout) == [[3, 3], []]
