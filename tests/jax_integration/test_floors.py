"""Floors: what is stored, where, and who is asked for it, with a floor that somebody has set and without one."""

from __future__ import annotations

import itertools
import json
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from capabilities import require

import ejcache
from ejcache.cache.exit_report import report_line
from ejcache.jax_integration import misses
from ejcache.jax_integration.activate import current_settings
from ejcache.jax_integration.publishing import Publisher
from ejcache.keys import variants
from ejcache.settings.described import SETTINGS
from ejcache.settings.table import Floors, Origin

FLOOR = "jax_persistent_cache_min_compile_time_secs"
DEFAULT = Floors(keep=0.01, publish=0.1, ask=0.1)
QUICK, MIDDLING, SLOW = 0.005, 0.05, 0.5
ONE_SECOND = Floors(keep=1.0, publish=1.0, ask=0.1)


@pytest.fixture
def compile_one(monkeypatch):
    """Compiles a program, which takes so many seconds by the clock that the compilation reads, and checks its value.

    It gives a constant, of few numbers where it is to be tiny: XLA makes no code for that.
    """
    step = 0.0
    clock = itertools.accumulate(iter(lambda: step, None))
    monkeypatch.setattr(misses, "time", SimpleNamespace(monotonic=lambda: next(clock), time=time.time))

    def compile_one(factor, seconds, *, numbers=256):
        nonlocal step
        step = seconds
        values = np.arange(factor, factor + numbers, dtype=np.float32)
        jax.clear_caches()
        assert np.array_equal(jax.jit(lambda: values)(), values)

    return compile_one


@pytest.fixture
def start(bucket, tmp_path, monkeypatch):
    """Begins the next process on this host, or on another one, with its cache in the bucket."""

    def start(host="one", **settings):
        ejcache.disable()
        monkeypatch.setenv("EJCACHE_LOCAL_DIR", str(tmp_path / host))
        bucket.clear_requests()
        return ejcache.enable("gs://bucket/a", **settings)

    return start


def requests_for(server, kind="entries"):
    """The requests for entries since the process began, when it has written all it had to."""
    ejcache.disable()
    return [record.method for record in server.requests if kind in record.path]


def published(server):
    """The programs and the texts in the bucket."""
    names = [name for name in server.objects() if "/entries/" in name]
    return sum("module_text" not in name for name in names), sum("module_text" in name for name in names)


def test_the_defaults_of_jax():
    """The table knows the value that each of JAX's flags has when nobody has set it."""
    for setting in SETTINGS:
        if setting.flag and hasattr(jax.config, setting.flag) and setting.flag != "jax_compilation_cache_dir":
            known = setting.default if setting.jax_default is None else setting.jax_default
            assert getattr(jax.config, setting.flag) == known, setting.name


def test_nobody_has_set_a_floor(tmp_path):
    """Without a floor of anybody's there are two: one for this host, and one for what other hosts get."""
    ejcache.enable(str(tmp_path))
    assert current_settings().floors == DEFAULT
    assert current_settings()["min_compile_seconds"].origin is Origin.DEFAULT
    with ejcache.enable(str(tmp_path), min_compile_seconds=3):
        assert current_settings().floors == Floors(3.0, 3.0, 0.1)
    assert current_settings().floors == DEFAULT
    ejcache.enable(str(tmp_path), min_entry_size=5)
    assert current_settings().floors == DEFAULT


def test_a_keyword_sets_a_floor(tmp_path):
    """JAX's own default value is a floor, too, if it is given as a keyword."""
    ejcache.enable(str(tmp_path), min_compile_seconds=1.0)
    assert current_settings().floors == ONE_SECOND
    assert getattr(jax.config, FLOOR) == 1.0


def test_a_call_after_activation_sets_a_floor(tmp_path):
    """So is the value of a later call of `jax.config.update`, JAX's own default among them."""
    ejcache.enable(str(tmp_path))
    jax.config.update(FLOOR, 1.0)
    assert current_settings().floors == ONE_SECOND
    jax.config.update(FLOOR, 0)
    assert current_settings().floors == Floors(0, 0, 0)


def test_a_call_before_activation_sets_a_floor(tmp_path):
    """A call before activation counts if its value is not JAX's default: that one looks as if nobody had called."""
    jax.config.update(FLOOR, 2.0)
    ejcache.enable(str(tmp_path))
    assert current_settings().floors == Floors(2.0, 2.0, 0.1)
    ejcache.disable()
    jax.config.update(FLOOR, 1.0)
    ejcache.enable(str(tmp_path))
    assert current_settings().floors == DEFAULT


SHOW = """
import sys
from ejcache.settings.table import Floors
import jax
{before}
import ejcache
from ejcache.jax_integration.activate import current_settings
from ejcache.jax_integration.publishing import Publisher
ejcache.enable("cache")
floors = current_settings().floors
print(floors.keep, floors.publish, current_settings()["min_compile_seconds"].source)
"""


@pytest.mark.parametrize(
    ("env", "before", "shown"),
    [
        ({FLOOR.upper(): "1.0"}, "", f"1.0 1.0 {FLOOR.upper()}"),
        ({FLOOR.upper(): "0"}, "", f"0.0 0.0 {FLOOR.upper()}"),
        ({"ALLOW_FULL_CACHE": "1"}, "", "0.0 0.0 ALLOW_FULL_CACHE"),
        ({}, "", "0.01 0.1 default"),
        (
            {},
            f"from absl import app, flags; jax.config.config_with_absl(); flags.FLAGS(['p', '--{FLOOR}=1.0'])",
            f"1.0 1.0 --{FLOOR}",
        ),
    ],
    ids=["JAX's default", "zero", "full cache", "nothing", "absl"],
)
def test_the_environment_sets_a_floor(run_forked, env, before, shown):
    """A variable or an option of the program sets a floor, with JAX's own default value, too."""
    if "absl" in before:
        require("absl")
    assert run_forked(SHOW.format(before=before), env=env).stdout.strip() == shown


def test_a_local_cache(tmp_path, compile_one):
    """Of a cache that only this host uses, everything from a hundredth of a second on is stored."""
    cache = ejcache.enable(str(tmp_path))
    for factor, seconds in enumerate((QUICK, MIDDLING, SLOW), 2):
        compile_one(factor, seconds)
        compile_one(factor, seconds)
    counted = cache.stats()
    assert (counted.hits, counted.stores, counted.skipped) == (2, 2, {"quick": 2})
    assert counted.to_dict()["left_out"] == 2
    assert counted.to_dict()["left_out_seconds"] == pytest.approx(2 * QUICK)
    assert counted.to_dict()["kept_here"] == 0


def test_a_shared_cache(bucket, start, compile_one):
    """The slow program is published, the middling one kept on its host, and none of the three asked for once more."""
    programs = {2: QUICK, 3: MIDDLING, 4: SLOW}
    cold = start()
    for factor, seconds in programs.items():
        compile_one(factor, seconds)
    assert cold.stats().to_dict()["kept_here"] == 1
    assert cold.stats().to_dict()["kept_here_seconds"] == pytest.approx(MIDDLING)
    assert requests_for(bucket) == ["GET"] * 3
    # Nobody knew how fast this host is, until the first one had compiled.
    assert requests_for(bucket, "leases") == ["DELETE"]
    assert published(bucket) == (1, 1)
    assert "2 stored, 1 of them on this host only" in report_line(cold.stats(), ["gs://bucket"])

    warm = start()
    for factor, seconds in programs.items():
        compile_one(factor, seconds)
    assert (warm.stats().hits, warm.stats().misses_by_reason) == (2, {"quick": 1})
    assert requests_for(bucket) == []
    assert requests_for(bucket, "leases") == []

    other = start("two")
    for factor, seconds in programs.items():
        compile_one(factor, seconds)
    assert (other.stats().hits, other.stats().misses) == (1, 2)
    assert requests_for(bucket) == ["GET"] * 3


def test_on_a_gpu_nobody_is_asked_for_the_untuned_variant_of_a_quick_program(bucket, start, compile_one, monkeypatch):
    """A program that nobody has noted costs a second request there, and a program that is noted as quick costs none."""
    monkeypatch.setattr(variants, "AUTOTUNED", frozenset({"cpu"}))
    for stated in (["GET"] * 2, []):
        cache = start()
        compile_one(2, QUICK)
        assert requests_for(bucket) == stated
    assert cache.stats().misses_by_reason == {"quick": 1}


def test_what_was_ever_stored(bucket, start, compile_one):
    """An entry that was stored with a lower floor is found whatever the floor is now."""
    start(min_compile_seconds=0)
    compile_one(5, QUICK)
    assert requests_for(bucket)[0] == "GET"
    assert published(bucket) == (1, 0)
    for host, settings in (("one", {}), ("two", {}), ("three", {"min_compile_seconds": 60.0})):
        cache = start(host, **settings)
        compile_one(5, QUICK)
        assert cache.stats().hits == 1, host


def test_a_floor_that_is_set(bucket, start, compile_one):
    """A floor that is set holds for this host and for the others: what is below it is stored nowhere."""
    for _ in range(2):
        cache = start(min_compile_seconds=0.2)
        for factor, seconds in {6: MIDDLING, 7: 0.15, 8: SLOW}.items():
            compile_one(factor, seconds)
        counted = cache.stats().to_dict()
        assert counted["skipped"] == {"quick": 2}
        assert counted["left_out_seconds"] == pytest.approx(MIDDLING + 0.15)
    assert counted["hits"] == 1
    # Another host may have published what takes longer than a request, with a lower floor.
    assert requests_for(bucket) == ["GET"]


def test_a_lower_floor_forgets_notes(bucket, start, compile_one):
    """What is known to be quick is asked for and published as soon as a floor of zero asks for that."""
    start()
    compile_one(9, QUICK)
    cache = start(min_compile_seconds=0)
    compile_one(9, QUICK)
    assert cache.stats().misses_by_reason == {"absent": 1}
    assert published(bucket) == (1, 0) if requests_for(bucket) else False
    cache = start()
    compile_one(9, QUICK)
    assert cache.stats().hits == 1


def test_a_host_without_a_disk_for_copies(bucket, start, compile_one):
    """Without a local tier on a disk, this process's memory keeps what is not published, and its notes."""
    cache = start(local_max_size=0)
    for factor, seconds in {10: QUICK, 11: MIDDLING, 12: SLOW}.items():
        compile_one(factor, seconds)
        compile_one(factor, seconds)
    assert (cache.stats().hits, cache.stats().misses_by_reason) == (2, {"absent": 3, "quick": 1})
    assert requests_for(bucket) == ["GET"] * 3
    assert published(bucket) == (1, 1)


def test_a_rank_that_does_not_publish(bucket, start, compile_one, monkeypatch):
    """Of a program's ranks the lowest publishes. What is not published, each of their hosts keeps."""
    publish = Publisher.publish

    def publish_as_third(self, compilation, *arguments, **options):
        compilation.publisher = 2
        return publish(self, compilation, *arguments, **options)

    monkeypatch.setattr(Publisher, "publish", publish_as_third)
    for _ in range(2):
        cache = start()
        for factor, seconds in {18: MIDDLING, 19: SLOW}.items():
            compile_one(factor, seconds)
    assert (cache.stats().hits, cache.stats().skipped) == (1, {"other_rank": 1})
    assert requests_for(bucket) == ["GET"]
    assert published(bucket)[0] == 0


def test_a_directory_that_hosts_share(tmp_path, compile_one, monkeypatch):
    """On a shared directory, other hosts get what took a tenth of a second, and this host keeps the rest."""
    monkeypatch.setenv("EJCACHE_LOCAL_DIR", str(tmp_path / "local"))
    (tmp_path / "shared" / "v1" / "entries").mkdir(parents=True)
    for _ in range(2):
        cache = ejcache.enable(str(tmp_path / "shared"))
        for factor, seconds in {13: QUICK, 14: MIDDLING, 15: SLOW}.items():
            compile_one(factor, seconds)
        ejcache.disable()
    assert (cache.stats().hits, cache.stats().misses_by_reason) == (2, {"quick": 1})
    entries = [path.name for path in (tmp_path / "shared" / "v1" / "entries").rglob("jit_*")]
    assert len(entries) == 1


def test_a_job_that_only_reads(bucket, start, compile_one):
    """It asks for what it has found to be quick no more, and keeps asking for what others may yet publish."""
    for _ in range(2):
        start(read_only=True)
        for factor, seconds in {16: QUICK, 17: MIDDLING}.items():
            compile_one(factor, seconds)
        requests = requests_for(bucket)
    assert requests == ["GET"]


@pytest.mark.soak
def test_programs_on_defaults(bucket, run_client, tmp_path):
    """A program's second start on the host asks the bucket for none of its programs, whatever time each has taken."""
    program = """
        import json, jax, numpy as np, ejcache
        cache = ejcache.enable("gs://bucket/b")
        x = np.arange(6, dtype=np.float32)
        for number in range(8):
            assert np.allclose(jax.jit(lambda x: jax.numpy.tanh(x) * number)(x), np.tanh(x) * number, rtol=1e-5)
        print(json.dumps(cache.stats().to_dict()))
    """
    env = {"EJCACHE_LOCAL_DIR": str(tmp_path / "local")}
    cold = json.loads(run_client(program, env=env).stdout)
    asked, quick = (cold["misses_by_reason"].pop(reason, 0) for reason in ("absent", "quick"))
    assert (asked + quick, cold["misses_by_reason"]) == (8, {})
    assert asked >= 3
    bucket.clear_requests()
    warm = json.loads(run_client(program, env=env).stdout)
    assert warm["hits"] == cold["stores"]
    assert warm["misses_by_reason"].get("quick", 0) == 8 - cold["stores"]
    # What compiled quickly the first time, and slowly now on a busy machine, is published now.
    assert "GET" not in requests_for(bucket)


def test_no_host_is_asked_for_tiny_programs_once_three_were_quick(bucket, start, compile_one):
    """The first start on an empty bucket would else wait for a request for each program of one operation."""
    cache = start()
    for factor in range(6):
        compile_one(factor, QUICK, numbers=1)
    compile_one(7, QUICK)
    assert cache.stats().misses_by_reason == {"absent": 4, "quick": 3}
    assert requests_for(bucket).count("GET") == 4


def test_hosts_are_asked_for_tiny_programs_where_one_was_slow(bucket, start, compile_one):
    """As on an accelerator, whose compiler needs a while for any program: another host has published it."""
    cache = start()
    for factor, seconds in enumerate((QUICK, SLOW, QUICK, QUICK, QUICK)):
        compile_one(factor, seconds, numbers=1)
    assert cache.stats().misses_by_reason == {"absent": 5}


def test_hosts_are_asked_for_tiny_programs_below_a_floor_that_is_set(bucket, start, compile_one):
    """Where tiny programs are published, they are asked for."""
    cache = start(min_compile_seconds=0)
    for factor in range(5):
        compile_one(factor, MIDDLING, numbers=1)
    assert cache.stats().misses_by_reason == {"absent": 5}


def test_hosts_are_asked_for_tiny_programs_where_compiling_is_forbidden(bucket, start, compile_one):
    """What a slower host has published is served to a program that may not compile it."""
    start("two")
    compile_one(9, SLOW, numbers=1)
    cache = start("one")
    for factor in range(4):
        compile_one(factor, QUICK, numbers=1)
    with ejcache.forbid_compile():
        compile_one(9, QUICK, numbers=1)
    assert cache.stats().hits == 1
