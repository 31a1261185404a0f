"""The seam knows the JAX that it is built on; where a JAX lacks a name, what needs it is missing, and nothing else."""

from __future__ import annotations

import json
import shutil

import pytest
from forking import ForkedBeforeEjcache
from helpers import SUPPORT, python_command, run_program

from ejcache.jax_integration import in_charge, missing_parts
from ejcache.jax_integration.seam import file_cache
from ejcache.jax_integration.seam import patch as seam

PROGRAM = """
import importlib, json, sys
sys.path.insert(0, sys.argv[3])
import jax, numpy as np
for name in ("jax._src.compiler", "jax._src.lax.linalg", "jax.experimental.serialize_executable"):
    importlib.import_module(name)
from renamed_jax import rename
for each in filter(None, sys.argv[2].split(",")):
    module, _, name = each.rpartition(".")
    rename(module, name)
import ejcache
cache = ejcache.enable(sys.argv[1], min_compile_seconds=0)
values = [float(jax.jit(lambda x: (x * n).sum())(np.arange(8.0))) for n in (2, 3)]
from ejcache.jax_integration import in_charge
stats = ejcache.stats()
print(json.dumps([values, in_charge()[0], stats.hits, stats.misses, ejcache.active() is not None]))
"""
VALUES = [56.0, 84.0]
WRAPPED = ("jax._src.compiler.compile_or_get_cached", *(f"jax._src.compilation_cache.{name}" for name in seam._ASKED))
OF_KEYS = tuple(f"jax._src.cache_key.{name}" for name in seam._OF_KEYS)
OTHERS = (
    *("jax._src.compilation_cache._UNSUPPORTED_RUNTIMES", "jax._src.compilation_cache._cache_initialized"),
    *("jax._src.compilation_cache.is_persistent_cache_enabled", "jax._src.compiler.monitoring"),
    *("jax._src.compiler.get_compile_options", "jax._src.compiler.backend_compile_and_load"),
    *("jax._src.config.config_states", "jax._src.config.share_binary_between_hosts", "jax._src.config.trace_context"),
    *("jax._src.config.trace_context_names", "jax._src.distributed.global_state"),
    *("jax._src.lib.xla_client.LoadedExecutable", "jax._src.source_info_util.is_user_filename"),
    *("jax._src.lib.xla_client.register_custom_call_partitioner", "jax._src.sharding_impls.UnspecifiedValue"),
    *("jax._src.monitoring.unregister_event_duration_listener", "jax._src.traceback_util.register_exclusion"),
    "jax._src.source_info_util.register_exclusion",
    *("jax._src.xla_bridge._init_backend", "jax._src.xla_bridge._plugin_callbacks"),
    *("jax._src.xla_bridge._plugins_registered", "jax.experimental.serialize_executable._JaxPjrtPickler"),
)
FEW = {WRAPPED[0], "jax._src.xla_bridge._init_backend", "jax._src.config.config_states"}
FALLBACK = "jax._src.compilation_cache.get_file_cache"


def names(*all_of_them):
    return [pytest.param(each, marks=() if each in FEW else pytest.mark.soak) for each in all_of_them]


@pytest.fixture
def start(run_python, tmp_path):
    """What a start said in JSON, with these names of JAX renamed, and its lines on stderr."""

    def run(renamed):
        done = run_python(PROGRAM, str(tmp_path / "c"), renamed, str(SUPPORT), start=ForkedBeforeEjcache)
        return json.loads(done.stdout), [line for line in done.stderr.splitlines() if line.startswith("ejcache: ")]

    return run


def test_this_jax_is_as_expected():
    """Nothing is missing: otherwise every other test in here tests something else."""
    assert seam.mismatches() == []
    assert in_charge()[0] == "ours"
    assert missing_parts() == []


def test_one_name_that_is_gone_is_told(monkeypatch):
    """`ejcache doctor` says what a JAX does not give, even if that lacks one name alone."""
    monkeypatch.delattr("jax._src.xla_bridge._init_backend")
    (said,) = missing_parts()
    assert said.endswith(": jax._src.xla_bridge._init_backend is gone")


def test_a_function_of_jax_that_takes_more_is_not_replaced(monkeypatch):
    """Where the store would work behind JAX's cache, JAX calls ours as its own function has to be called."""
    assert file_cache.mismatches() == []

    def get_file_cache(path: str, more: int) -> tuple[object, str]:
        return more, path

    monkeypatch.setattr("jax._src.compilation_cache.get_file_cache", get_file_cache)
    assert any(each.startswith("get_file_cache takes something else") for each in file_cache.mismatches())


@pytest.mark.parametrize("name", names(*WRAPPED, *OF_KEYS))
def test_a_jax_whose_compilations_cannot_be_taken(start, name):
    """The store works behind JAX's own cache: equal values, then hits, and a line that names what is gone."""
    (cold, kept, *_), _ = start(name)
    (warm, _, hits, misses, active), said = start(name)
    assert cold == warm == VALUES
    assert (kept, hits > 0, misses, active) == ("behind", True, 0, True)
    assert len(said) == 1
    assert name in said[0]


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A cache that this JAX has filled."""
    place = tmp_path_factory.mktemp("filled")
    command = python_command(PROGRAM, str(place / "c"), "", str(SUPPORT))
    done = run_program(command, env={"XDG_CACHE_HOME": str(place)}, start=ForkedBeforeEjcache)
    assert json.loads(done.stdout)[0] == VALUES
    return place / "c"


@pytest.mark.parametrize("name", names(*OTHERS))
def test_a_name_that_one_thing_needs(start, filled, tmp_path, name):
    """That thing alone is missing, which is one line at most: the values are equal, and the second start hits."""
    shutil.copytree(filled, tmp_path / "c")
    (found, kept, hits, misses, active), said = start(name)
    assert (found, kept, hits > 0, misses, active) == (VALUES, "ours", True, 0, True)
    assert len(said) <= 1


@pytest.mark.soak
def test_a_name_that_keys_need(start):
    """Without it a key says less, so what is stored under it is not that of a start with the name, nor the reverse."""
    start("")
    for hits, misses in ((0, 2), (2, 0)):
        (found, kept, *counted, active), said = start("jax._src.lib.xla_client.get_topology_for_devices")
        assert (found, kept, counted, active) == (VALUES, "ours", [hits, misses], True)
        assert len(said) <= 1


def test_a_jax_that_takes_no_store(start, tmp_path):
    """JAX's own cache is in charge, in the directory that was asked for; it is said once, with all that is gone."""
    (_, kept, _, _, active), said = start(f"{WRAPPED[0]},{FALLBACK}")
    assert (kept, active) == ("jax", False)
    assert list((tmp_path / "c").glob("*-cache"))
    assert len(said) == 1
    assert all(each in said[0] for each in (WRAPPED[0], FALLBACK, "JAX's own cache stays in charge"))


def test_another_version_of_the_same_jax(run_python, tmp_path):
    """A version says nothing: what is there decides."""
    changed = 'import jax\njax.__version__ = jax.version.__version__ = "99.1.0"\n' + PROGRAM
    found = json.loads(run_python(changed, str(tmp_path / "c"), "", str(SUPPORT), start=ForkedBeforeEjcache).stdout)
    assert found[1] == "ours"
