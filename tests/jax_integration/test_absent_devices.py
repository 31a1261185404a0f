"""Programs for devices that the compiling process does not have: compiled and stored once, and never loaded there."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from capabilities import needs
from jax.experimental import topologies

TOPOLOGIES = {
    "cpu": pytest.param(
        "cpu",
        marks=needs("saved topologies"),
    ),
    "tpu": pytest.param("tpu", marks=[needs("libtpu"), pytest.mark.soak]),
}

PROGRAM = """
import json, pathlib, sys
import jax, jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import ejcache
from ejcache.keys.key import is_side_key
from ejcache.jax_integration.seam.compilation_watch import before_each_compilation
from ejcache.jax_integration.seam import patch as seam

platform, url, how = sys.argv[1:]
cache = ejcache.enable(url, min_compile_seconds=0)
loads, compiled = [], []
load = seam.load_executable
seam.load_executable = lambda *given: loads.append(1) or load(*given)
before_each_compilation(compiled.append)
if platform == "tpu":
    devices = topologies.get_topology_desc("v5e:2x2", "tpu").devices
else:
    devices = topologies.TopologyDescription.deserialize(pathlib.Path("topology").read_bytes()).devices
split = NamedSharding(Mesh(devices, "x"), PartitionSpec("x"))

def step(x):
    return jnp.tanh(x) @ x.T

shape = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=split)
outcome = ""
if how == "compile":
    jax.jit(step).lower(shape).compile()
else:
    outcome = ejcache.warm(step, shape).outcome
cache.flush()
with ejcache.open_store(url) as store:
    entries = [info.key for info in store.entries() if not is_side_key(info.key)]
print(json.dumps({"loads": len(loads), "compiled": len(compiled), "entries": entries, "outcome": outcome,
                  "reasons": cache.stats().misses_by_reason, "errors": cache.stats().errors}))
"""

SAVE = """
import pathlib, jax
from jax.experimental import topologies
pathlib.Path("topology").write_bytes(topologies.get_attached_topology().serialize())
"""


@pytest.fixture
def run(run_forked, tmp_path):
    """Runs the program, for a platform and in one of its ways; returns what it printed."""
    if hasattr(topologies.TopologyDescription, "serialize"):
        run_forked(SAVE, env={"XLA_FLAGS": "--xla_force_host_platform_device_count=2"})

    def run(platform, how):
        # The process that compiles has another number of devices.
        env = {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
        done = run_forked(PROGRAM, platform, str(tmp_path / "cache"), how, env=env)
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.mark.parametrize("platform", TOPOLOGIES.values())
def test_who_wants_an_executable_of_absent_devices_compiles_it_and_it_is_stored_once(run, platform):
    """The second process finds the entry, tries to load nothing, and stores no second one."""
    first = run(platform, "compile")
    assert (first["compiled"], first["loads"], first["reasons"]) == (1, 0, {"absent": 1})
    again = run(platform, "compile")
    assert (again["compiled"], again["loads"], again["reasons"]) == (1, 0, {"no_devices": 1})
    assert again["entries"] == first["entries"]
    assert len(first["entries"]) == 1
    assert again["errors"] == 0


@pytest.mark.parametrize("platform", TOPOLOGIES.values())
def test_warming_for_absent_devices_compiles_once(run, platform):
    """A later `warm` compiles nothing, and of two at once one compiles while the other waits for its entry."""
    with ThreadPoolExecutor() as threads:
        both = list(threads.map(lambda _: run(platform, "warm"), range(2)))
    assert sorted((each["compiled"], each["outcome"]) for each in both) == [(0, "hit"), (1, "compiled")]
    again = run(platform, "warm")
    assert (again["compiled"], again["outcome"]) == (0, "hit")
    assert len(again["entries"]) == 1
    assert [each["loads"] for each in (*both, again)] == [0, 0, 0]
