"""PGLE: which variant of a program is loaded, what it costs to decide, and what becomes of its profile."""

from __future__ import annotations

import contextlib
import os
import shutil
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
from cli_helpers import ejcache as cli
from helpers import SUPPORT
from jax._src import lru_cache
from jax.experimental.compilation_cache import compilation_cache as jax_cache
from pgle_helpers import RUNS, made_up_profile, program, watch

import ejcache
from ejcache.cli.listing import read_header
from ejcache.keys.key import PGLE, is_profile_key, is_side_key, parse_key
from ejcache.keys.variants import evicted_before
from ejcache.stores.local.store import LocalStore

FLAGS = {
    "jax_enable_pgle": False,
    "jax_compilation_cache_expect_pgle": False,
    "jax_pgle_profiling_runs": RUNS,
    "jax_pgle_aggregation_percentile": 90,
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": 0,
    "jax_enable_compilation_cache": True,
    "jax_compilation_cache_max_size": -1,
    "jax_compilation_cache_check_contents": False,
    "jax_compilation_cache_dir": None,
}
MISS, WRITE = "PERSISTENT CACHE MISS for PGLE-optimized", "PERSISTENT CACHE WRITE"


@pytest.fixture(autouse=True)
def _flags():
    set_flags(**FLAGS)


def set_flags(**flags):
    for flag, value in flags.items():
        jax.config.update(flag, value)


class PlainJax:
    """JAX's own cache in a directory."""

    def __init__(self, directory):
        self.directory = directory
        assert ejcache.active() is None
        jax_cache.reset_cache()
        jax.config.update("jax_compilation_cache_dir", str(directory))

    def entries(self):
        return {path.name for path in Path(self.directory).glob("*-cache")}

    def delete(self, entry):
        Path(self.directory, entry).unlink()

    @contextlib.contextmanager
    def counted_reads(self, monkeypatch):
        reads = []
        get = lru_cache.LRUCache.get

        def counted(cache, key):
            data = get(cache, key)
            reads.extend([key] if data is not None else [])
            return data

        with monkeypatch.context() as patch:
            patch.setattr(lru_cache.LRUCache, "get", counted)
            yield reads


class Ours:
    """Ours in a directory."""

    def __init__(self, directory):
        self.directory = directory
        ejcache.enable(str(directory), min_compile_seconds=0)

    def entries(self):
        with ejcache.open_store(self.directory) as store:
            return {info.key for info in store.entries() if not is_side_key(info.key)}

    def delete(self, entry):
        with ejcache.open_store(self.directory) as store:
            assert store.delete(entry)

    def delete_profile(self):
        with ejcache.open_store(self.directory) as store:
            (key,) = [info.key for info in store.entries() if is_profile_key(info.key)]
            assert store.delete(key)

    @contextlib.contextmanager
    def counted_reads(self, monkeypatch):
        reads = []

        peek = LocalStore.peek

        def counted(store, key, **options):
            data = peek(store, key, **options)
            reads.extend([key] if data is not None and not is_side_key(key) else [])
            return data

        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, "peek", counted)  # which `get` calls, too
            yield reads


def populate(cache):
    """Run the program with PGLE until it is optimised; the optimised entry."""
    set_flags(jax_enable_pgle=True, jax_compilation_cache_expect_pgle=False)
    with watch():
        before = cache.entries()
        program(calls=1)
        plain = cache.entries() - before
        program(calls=RUNS + 2)
    (optimised,) = cache.entries() - before - plain
    set_flags(jax_enable_pgle=False)
    return optimised


_populated = []


@pytest.fixture
def populated(tmp_path, tmp_path_factory):
    """A cache in which the program is optimised, and the optimised entry: a copy of one that was populated once."""

    def populated(directory=tmp_path):
        if not _populated:
            place = tmp_path_factory.mktemp("populated")
            _populated.extend([place, populate(Ours(place))])
            ejcache.disable()
        place, optimised = _populated
        shutil.copytree(place, directory, dirs_exist_ok=True)
        return Ours(directory), optimised

    return populated


_of_jax = []


@pytest.fixture
def populated_plain(tmp_path_factory):
    """The same in JAX's own cache, always in one directory: JAX 0.10 has it in the key."""
    if not _of_jax:
        place = tmp_path_factory.mktemp("plain")
        _of_jax.extend([place, populate(PlainJax(place / "cache"))])
        shutil.copytree(place / "cache", place / "copy")
    place, optimised = _of_jax
    shutil.rmtree(place / "cache")
    shutil.copytree(place / "copy", place / "cache")
    return PlainJax(place / "cache"), optimised


def observe(cache, monkeypatch, *, pgle, expect):
    """What a later start sees with these flags."""
    set_flags(jax_enable_pgle=pgle, jax_compilation_cache_expect_pgle=expect)
    with warnings.catch_warnings(record=True) as said, cache.counted_reads(monkeypatch) as reads, watch() as seen:
        warnings.simplefilter("always")
        program(calls=RUNS + 2)
    told = [text for text in map(str, (each.message for each in said)) if "PERSISTENT CACHE" in text]
    return {
        "compiled": seen.compiled,
        "profiled": seen.profiled,
        "said": [next(known for known in (MISS, WRITE) if text.startswith(known)) for text in told],
        "reads": len(reads),
    }


TABLE = {
    # PGLE, expected, there: compilations, profiled runs, warnings
    (True, False, True): ([], 0, []),
    (True, True, True): ([], 0, []),
    (True, False, False): (["profile"], RUNS, []),
    (True, True, False): (["profile"], RUNS, [MISS, WRITE]),
    (False, False, True): (["plain"], 0, []),
    (False, False, False): (["plain"], 0, []),
    (False, True, True): ([], 0, []),
    (False, True, False): ([], 0, [MISS]),
}


@pytest.mark.parametrize(("case", "expected"), TABLE.items(), ids=lambda case: "-".join(map(str, case))[:24])
def test_which_variant_is_used(case, expected, populated, populated_plain, tmp_path, monkeypatch):
    """As JAX has it and documents it, but no executable is read in order to decide."""
    pgle, expect, there = case
    plain, optimised = populated_plain
    if not there:
        plain.delete(optimised)
    theirs = observe(plain, monkeypatch, pgle=pgle, expect=expect)
    cache, optimised = populated(tmp_path / "ours")
    cache.delete_profile()
    if not there:
        cache.delete(optimised)
    ours = observe(cache, monkeypatch, pgle=pgle, expect=expect)

    loads = int(pgle or expect)
    decided = ours.pop("reads") - loads, theirs.pop("reads") - loads
    assert ours == theirs
    assert (ours["compiled"], ours["profiled"], ours["said"]) == expected
    assert decided[0] == 0
    assert decided[1] == {(True, True, False): 1, (False, True, False): 1}.get(case, int(pgle or expect) * there)


def test_one_warning_for_each_program(populated, monkeypatch):
    """JAX repeats it at each compilation."""
    cache, optimised = populated()
    cache.delete(optimised)
    cache.delete_profile()

    said = [observe(cache, monkeypatch, pgle=False, expect=True)["said"] for _ in range(3)]

    assert said == [[MISS], [], []]


def test_variants_are_of_one_program(populated, tmp_path):
    """One logical key, and the optimised entry says which profile made it."""
    cache, optimised = populated()
    program(calls=1)

    variants = {parse_key(key).variant: parse_key(key) for key in cache.entries()}
    assert variants.keys() == {"plain", "profiling", PGLE}
    assert len({(parts.logical, parts.environment) for parts in variants.values()}) == 1
    with ejcache.open_store(tmp_path) as store:
        header = read_header(store, optimised)
        (kept,) = [read_header(store, info.key) for info in store.entries() if is_profile_key(info.key)]
    assert header.variant == PGLE
    assert header.profile_digest == kept.profile_digest != ""
    assert header.logical_key == kept.logical_key == variants["plain"].logical
    assert header.extra["profile"] == {"percentile": 90, "runs": RUNS, "devices": 1}


@pytest.mark.parametrize("damage", ["deleted", "damaged", "rejected", "another jaxlib"])
def test_a_kept_profile_is_compiled_with(populated, damage, tmp_path, monkeypatch):
    """An optimised executable that is gone or useless costs one compilation and no profiling."""
    cache, optimised = populated()
    with ejcache.open_store(tmp_path) as store:
        before = read_header(store, optimised)
        if damage == "deleted":
            assert store.delete(optimised)
        elif damage == "damaged":
            store.replace(optimised, store.peek(optimised)[:-1])
        elif damage == "another jaxlib":
            monkeypatch.setattr("ejcache.jax_integration.seam.key_parts.jaxlib_version", lambda: "99")
        else:
            from ejcache import entry

            store.replace(optimised, entry.encode(before, b"no executable"))

    seen = observe(cache, monkeypatch, pgle=True, expect=False)
    again = observe(cache, monkeypatch, pgle=True, expect=False)

    assert (seen["compiled"], seen["profiled"]) == (["profile"], 0)
    assert (again["compiled"], again["profiled"]) == ([], 0)
    with ejcache.open_store(tmp_path) as store:
        made = [key for key in cache.entries() if f"-{PGLE}-" in key]
        (made,) = made if damage in {"deleted", "damaged"} else set(made) - {optimised}
        assert read_header(store, made).profile_digest == before.profile_digest


def test_a_useless_entry_without_a_profile_costs_nothing_new(populated, tmp_path, monkeypatch):
    """The plain executable is loaded, and nothing is stored as optimised that is not."""
    cache, optimised = populated()
    cache.delete_profile()
    for checked in (True, False):  # what would be compiled to check it is another variant
        with ejcache.open_store(tmp_path) as store:
            store.replace(optimised, b"damaged")
        set_flags(jax_compilation_cache_check_contents=checked)
        seen = observe(cache, monkeypatch, pgle=True, expect=False)
        assert (seen["compiled"], seen["profiled"]) == ([], 0)
        assert ejcache.active().stats().to_dict()["checks_by_result"] == {}
    with ejcache.open_store(tmp_path) as store:
        store.put(optimised, b"damaged as well")
    for entry in cache.entries() - {optimised}:
        cache.delete(entry)
    seen = observe(cache, monkeypatch, pgle=True, expect=False)
    assert (seen["compiled"], seen["profiled"]) == (["plain"], 0)
    assert [parse_key(key).variant for key in cache.entries()] == ["plain"]


@pytest.mark.parametrize("why", ["another program", "another percentile", "damaged", "deleted", "namespace"])
def test_a_profile_that_does_not_match_is_not_used(populated, why, tmp_path, monkeypatch):
    """The program is profiled, as without one."""
    cache, optimised = populated()
    cache.delete(optimised)
    factor = 2.0
    if why == "another program":
        factor = 3.0
    elif why == "another percentile":
        set_flags(jax_pgle_aggregation_percentile=50)
    elif why == "damaged":
        with ejcache.open_store(tmp_path) as store:
            (key,) = [info.key for info in store.entries() if is_profile_key(info.key)]
            store.replace(key, store.peek(key)[:-1])
    elif why == "deleted":
        cache.delete_profile()
    else:
        monkeypatch.setenv("EJCACHE_NAMESPACE", "after the incident")

    set_flags(jax_enable_pgle=True)
    with watch(cost=7.0) as seen:
        program(calls=RUNS + 2, factor=factor)

    assert (seen.compiled[-1], seen.profiled) == ("profile", RUNS)
    assert seen.profiles == [made_up_profile(7.0)]
    with ejcache.open_store(tmp_path) as store:
        kept = [info.key for info in store.entries() if is_profile_key(info.key)]
    assert len(kept) == (2 if why in ("another program", "namespace") else 1)


def test_a_profile_serves_a_start_that_only_expects_it(populated, monkeypatch):
    """With PGLE off, what must be compiled is compiled with the profile, and nothing is if something can be loaded."""
    cache, optimised = populated()
    cache.delete(optimised)
    seen = observe(cache, monkeypatch, pgle=False, expect=True)
    assert (seen["compiled"], seen["profiled"], seen["said"]) == ([], 0, [MISS])
    for entry in cache.entries():
        cache.delete(entry)

    seen = observe(cache, monkeypatch, pgle=False, expect=True)

    assert (seen["compiled"], seen["profiled"], seen["said"]) == (["profile"], 0, [WRITE])


def test_a_profile_of_the_programs_own_is_part_of_the_key(tmp_path):
    """Given as a compiler option, it is no secret of JAX's: another profile is another executable."""
    cache = Ours(tmp_path)

    for cost in (1.0, 2.0, 1.0):
        jax.clear_caches()
        compiled = jax.jit(lambda x: x + 1).lower(1.0).compile(compiler_options={"fdo_profile": made_up_profile(cost)})
        assert float(compiled(1.0)) == 2.0

    assert {parse_key(key).variant for key in cache.entries()} == {"plain"}
    assert len(cache.entries()) == 2
    assert ejcache.active().stats().hits == 1


def test_optimised_executables_are_not_checked_against_plain_ones(populated, monkeypatch):
    """JAX's check would compile without the profile, and call the entry wrong."""
    cache, _ = populated()
    set_flags(jax_compilation_cache_check_contents=True)

    seen = observe(cache, monkeypatch, pgle=True, expect=False)

    assert (seen["compiled"], seen["profiled"]) == ([], 0)


def test_a_local_store_evicts_plain_before_optimised(tmp_path):
    """Though it was used later; and not the one just written."""
    from ejcache.keys.key import PLAIN, PROFILING, CacheKey

    def key(variant, module="m"):
        return CacheKey(name="jit_f", platform="cpu", variant=variant, components={"computation": module}).text

    with LocalStore(tmp_path, max_size=50, evict_before=evicted_before) as store:
        for each in (key(PGLE), "other", key(PROFILING), key(PLAIN), "last"):
            store.put(each, bytes(10))
        kept = []
        for n in range(4):
            store.put(f"new{n}", bytes(10))
            kept.append({info.key for info in store.entries()} & {key(PGLE), key(PLAIN), key(PROFILING), "other"})
        assert kept == [
            {key(PGLE), key(PLAIN), "other"},
            {key(PGLE), "other"},
            {"other"},
            set(),
        ]


def test_variants_are_listed_as_one_program(populated, tmp_path):
    """`ls` has them together with the profile, `show` finds the optimised one and names the others."""
    _, optimised = populated()
    program(calls=1, factor=5.0)

    said = cli("ls", "--dir", tmp_path, "--sort", "size").lines
    at = next(n for n, line in enumerate(said) if PGLE in line.split("\t"))
    assert all(word in said[at] for word in (f"{RUNS} runs", "p90", "1 device"))
    assert said[at + 1].startswith("└ jit_step")
    rows = cli("ls", "--dir", tmp_path, "--json").json["entries"]
    (profile,) = [row["profile"] for row in rows if row["profile"]]
    assert profile | {"digest": ""} == {"digest": "", "runs": RUNS, "percentile": 90, "devices": 1}

    shown = cli("ls", "--dir", tmp_path, "--json", parse_key(optimised).logical).json
    assert (shown["key"], shown["profile"]) == (optimised, profile)
    assert [each["variant"] for each in shown["variants"]] == [PGLE, "profiling"]
    words = cli("ls", "--dir", tmp_path, parse_key(optimised).logical).out
    assert all(word in words for word in (profile["digest"], f"{RUNS} runs, p90, 1 device", "Also profiling"))


def test_prune_may_spare_what_pgle_made(populated, tmp_path):
    """Optimised entries and profiles stay with --keep-pgle; without, plain ones go first all the same."""
    cache, optimised = populated()

    pruned = cli("prune", "--dir", tmp_path, "--max-entries", "1", "--dry-run", "--json").json
    assert [each["key"] for each in pruned["planned"]] == list(cache.entries() - {optimised})
    assert cli("prune", "--dir", tmp_path, "--max-size", "0", "--keep-pgle").status == 0
    assert cache.entries() == {optimised}
    with ejcache.open_store(tmp_path) as store:
        assert [is_profile_key(info.key) for info in store.entries() if info.key != optimised] == [True]
    assert cli("prune", "--dir", tmp_path, "--max-size", "0").status == 0
    assert cache.entries() == set()


def test_a_profile_is_as_recent_as_its_program():
    """Nobody reads it until it is needed, and it is to be there then."""
    from ejcache.keys.key import CacheKey, profile_key
    from ejcache.maintenance.eviction_plan import EvictionPlan, EvictionPolicy
    from ejcache.stores.base import EntryInfo

    used, unused = (CacheKey(name="jit_f", platform="cpu", components={"computation": text}) for text in "ab")
    entries = [
        EntryInfo(used.text, 10, 0.0, 100.0),
        EntryInfo(profile_key(used), 10, 0.0, 0.0),
        EntryInfo(unused.text, 10, 0.0, 0.0),
        EntryInfo(profile_key(unused), 10, 0.0, 0.0),
    ]

    gone = list(EvictionPlan(entries, now=110.0, policy=EvictionPolicy(unused_for=50.0)))

    assert {deletion.entry.key for deletion in gone} == {unused.text, profile_key(unused)}


def test_a_start_that_loads_the_optimised_entry_uses_its_profile(populated, tmp_path):
    """Otherwise a local put would soon evict it, and it is needed if the entry is lost."""
    populated()
    (profile,) = (path for path in tmp_path.rglob("*") if is_profile_key(path.name))
    os.utime(profile, (1, 1))
    set_flags(jax_enable_pgle=True)

    program(calls=1)

    assert profile.stat().st_mtime > 1


@pytest.mark.parametrize(("flags", "profiled"), [({}, False), ({"jax_enable_pgle": True}, True)])
def test_tuned_records_say_that_they_were_measured_with_a_profile(flags, profiled, tmp_path):
    """Each candidate is profiled and compiled once more before it is timed, and the record outranks others."""
    from ejcache.autotune import AutotuneStore, Tuner, autotuned

    store = AutotuneStore(str(tmp_path / "store"))

    @autotuned(
        configs=[{"steps": 30}, {"steps": 2}],
        name="walk",
        store=store,
        tuner=Tuner(sample_seconds=0.0005),
    )
    def walk(x, *, steps):
        return x + 0 * jax.lax.fori_loop(0, steps, lambda _, y: jax.numpy.tanh(y @ x), x)

    set_flags(**flags)
    x = np.eye(8, dtype=np.float32)
    with watch() as seen:
        key = walk.key(x)
        walk.choose(x)

    assert store.find(key).record.with_profile is profiled
    assert len(seen.profiles) == (2 if profiled else 0)
    assert seen.profiled == RUNS * len(seen.profiles)


def test_the_environment_of_easydel(run_forked, tmp_path):
    """What EASYDEL_AUTO and its users set: JAX's PGLE variables, and command buffers off in XLA_FLAGS."""
    env = {
        "JAX_ENABLE_PGLE": "true",
        "JAX_PGLE_PROFILING_RUNS": "1",
        "JAX_PGLE_AGGREGATION_PERCENTILE": "85",
        "XLA_FLAGS": "--xla_gpu_enable_command_buffer=",
        "PYTHONPATH": str(SUPPORT),
    }
    code = """
        import sys
        import ejcache
        from pgle_helpers import program, watch
        ejcache.enable(sys.argv[1], min_compile_seconds=0)
        with watch() as seen:
            program(calls=3)
        print(seen.compiled, seen.profiled)
    """
    said = [run_forked(code, str(tmp_path / "cache"), env=env).stdout.strip() for _ in range(2)]
    assert said == ["['first pass', 'profile'] 1", "[] 0"]
    profiles = [row["profile"] for row in cli("ls", "--dir", tmp_path / "cache", "--json").json["entries"]]
    assert [(each["runs"], each["percentile"]) for each in profiles if each] == [(1, 85)]


def test_why_names_the_variant(tmp_path):
    """A miss of which nothing else is new says so."""
    Ours(tmp_path)
    set_flags(jax_enable_pgle=True)
    with watch():
        program(calls=RUNS + 2)

    (miss,) = cli("why", "--dir", tmp_path, "--last", "1", "--json").json["explanations"]
    (only,) = miss["differences"]
    assert only["kind"] == "variant"
    assert only["sentence"] == "PGLE changed: compiled to be profiled -> compiled with its profile"
