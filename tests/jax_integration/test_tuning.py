"""Programs that were compiled without their GPU: used at once, until `warm` has compiled them on one.

A CPU stands for the GPU: XLA tunes nothing on it, and everything else is the same.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from capabilities import needs
from cli_helpers import ejcache as cli
from forking import Forked
from jax._src import compiler
from jax.experimental import topologies
from jobs import run_job
from pod import run_pod

import ejcache
from ejcache.errors import CompileForbiddenError
from ejcache.jax_integration.devices import absent as elsewhere
from ejcache.keys import variants as key_variants
from ejcache.keys.key import CROSS, PGLE, PLAIN, PROFILING, is_side_key, parse_key
from ejcache.keys.variants import evicted_before

pytestmark = needs("saved topologies")
SHAPE = (6,)


@pytest.fixture
def compiled(monkeypatch):
    """The names of what is compiled from here on."""
    made = []
    compile_now = compiler.backend_compile_and_load

    def noting(backend, module, *rest):
        made.append(module.operation.attributes["sym_name"].value)
        return compile_now(backend, module, *rest)

    monkeypatch.setattr(compiler, "backend_compile_and_load", noting)
    monkeypatch.setattr(key_variants, "AUTOTUNED", frozenset({"cpu"}))
    return made


@pytest.fixture
def start(tmp_path):
    """Enables the cache as a process that starts now."""

    def start(**settings):
        ejcache.disable()
        jax.clear_caches()
        return ejcache.enable(str(tmp_path / "cache"), min_compile_seconds=0, preload=False, **settings)

    return start


def step(x):
    return jnp.tanh(x) * 11


def absent_devices():
    here = topologies.get_attached_topology()
    return list(topologies.TopologyDescription.deserialize(here.serialize()).devices)


def warm_for_absent():
    shape = jax.ShapeDtypeStruct(SHAPE, jnp.float32, sharding=jax.sharding.SingleDeviceSharding(absent_devices()[0]))
    with jax.default_device(None):
        return ejcache.warm(step, shape).outcome


def run():
    x = jax.device_put(jnp.ones(SHAPE), jax.devices()[0])
    return jax.jit(step)(x)


def variants():
    found = [parse_key(each.key) for each in ejcache.entries() if not is_side_key(each.key)]
    return sorted(each.variant for each in found if each.name == "jit_step")


def test_what_was_compiled_without_its_gpu_is_a_variant_of_its_own(start, compiled):
    """It is stored once, found again by the next `warm`, listed and verified, and a process with the device uses it."""
    start()
    assert (warm_for_absent(), warm_for_absent()) == ("compiled", "hit")
    assert (compiled, variants()) == (["jit_step"], [CROSS])
    cache = start()
    found = run().tolist()
    assert compiled.count("jit_step") == 1
    assert cache.stats().hits >= 1
    ejcache.disable()
    jax.clear_caches()
    assert run().tolist() == found
    url = str(cache.url)
    assert CROSS in cli("ls", "--dir", url).out
    assert cli("verify", "--dir", url).status == 0


def test_a_job_says_once_that_it_is_not_tuned(start, compiled, caplog):
    """In a block of `forbid_compile` it is a hit, too."""
    start()
    warm_for_absent()
    start()
    x = jax.device_put(jnp.ones(SHAPE), jax.devices()[0])
    with ejcache.forbid_compile():
        jax.jit(step)(x)
        with pytest.raises(CompileForbiddenError):
            jax.jit(lambda x: x * 77)(x)
    assert compiled.count("jit_step") == 1
    (said,) = [record.message for record in caplog.records if "XLA has not tuned it" in record.message]
    assert "ejcache warm" in said


def test_warm_on_the_device_stores_a_tuned_one_beside_it(start, compiled):
    """It is no hit for `warm` there, which compiles; every later start, and the next `warm`, loads the result."""
    start()
    warm_for_absent()
    start()
    x = jax.device_put(jnp.ones(SHAPE), jax.devices()[0])
    assert ejcache.warm(step, x).outcome == "compiled"
    assert (compiled.count("jit_step"), variants()) == (2, [CROSS, PLAIN])
    cache = start()
    run()
    assert (compiled.count("jit_step"), cache.stats().misses) == (2, 0)
    start()
    assert (ejcache.warm(step, x).outcome, warm_for_absent()) == ("hit", "hit")
    assert compiled.count("jit_step") == 2


POD = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import ejcache
from ejcache.jax_integration.seam.compilation_watch import before_each_compilation
from ejcache.keys import variants

variants.AUTOTUNED = frozenset({"cpu"})
compiled = []
before_each_compilation(compiled.append)

def step(x):
    return jnp.cumsum(x * 3) + x.sum()

how = sys.argv[1]
if how == "save":
    from ejcache.jax_integration.devices.targets import save_target
    save_target("pod", sys.argv[2])
elif how == "warm":
    ejcache.enable(sys.argv[2], min_compile_seconds=0)
    with ejcache.target("pod") as devices:
        split = NamedSharding(Mesh(np.array(devices), "x"), PartitionSpec("x"))
        print(ejcache.warm(jax.jit(step), jax.ShapeDtypeStruct((8,), "float32", sharding=split)).outcome)
else:
    split = NamedSharding(Mesh(np.array(jax.devices()), "x"), PartitionSpec("x"))
    x = jax.make_array_from_callback((8,), split, lambda i: np.arange(8, dtype=np.float32)[i])
    if how == "warm here":
        ejcache.warm(step, x)
    result = jax.jit(step)(x)
    with ejcache.open_store(sys.argv[2]) as store:
        variants = sorted(info.key.split("-")[2] for info in store.entries() if info.key.startswith("jit_step-"))
    found = [np.asarray(own.data).tolist() for own in result.addressable_shards]
    print(json.dumps([compiled.count("jit_step"), ejcache.active().stats().hits, variants, found]))
"""


def test_the_ranks_of_a_job_load_it_together_until_a_warm_of_all_ranks_has_compiled_it(run_forked, tmp_path):
    """The lowest rank stores the plain entry, and all ranks of the next job load that."""
    url = str(tmp_path / "cache")
    assert [rank.returncode for rank in run_pod(POD, "save", url, devices=2, start=Forked)] == [0, 0]
    assert run_forked(POD, "warm", url).stdout.split() == ["compiled"]

    def job(how):
        return run_job(POD, how, url, devices=2, cache=lambda _: url)[1]

    first, second = job("run")
    assert [first[:3], second[:3]] == [[0, 1, [CROSS]]] * 2
    assert [rank[0] for rank in job("warm here")] == [1, 1]
    again = job("run")
    assert [rank[:3] for rank in again] == [[0, 1, [CROSS, PLAIN]]] * 2
    assert [rank[3] for rank in again] == [first[3], second[3]]


def test_would_hit_counts_it(start, compiled):
    """The key is that of the entry that would be loaded."""
    start()
    warm_for_absent()
    start()
    program = jax.jit(step).lower(jax.device_put(jnp.ones(SHAPE), jax.devices()[0]))
    assert ejcache.would_hit(program)
    assert "-cross-" in ejcache.key_of(program)


def test_it_is_plain_where_everything_was_measured_before(start, compiled, monkeypatch, tmp_path):
    """XLA is told to fail where a measurement is missing; where it does, the program is compiled without that."""
    (tmp_path / "measured").mkdir()
    monkeypatch.setattr(elsewhere, "autotune_directory", lambda options: str(tmp_path / "measured"))
    asked = []
    # A compiler for CPU takes this option and measures nothing.
    with_overrides = elsewhere.with_overrides
    monkeypatch.setattr(
        elsewhere, "with_overrides", lambda options, over: asked.append(over) or with_overrides(options, over)
    )
    start()
    warm_for_absent()
    assert (asked, variants()) == ([], [CROSS])
    ejcache.clear()
    (tmp_path / "measured" / "result.pb").write_text("")
    start()
    warm_for_absent()
    assert asked == [{"xla_gpu_require_complete_aot_autotune_results": True}]
    assert variants() == [PLAIN]


def test_better_variants_outlive_worse_ones():
    """Where the limit on size is reached, what no process uses any more goes first."""
    text = f"jit_f-gpu-{{}}-{'a' * 40}-{'b' * 24}"
    named = {variant: text.format(variant) for variant in (PGLE, PLAIN, PROFILING, CROSS)}
    assert evicted_before(named[PLAIN]) == (named[CROSS],)
    assert set(evicted_before(named[PGLE])) == {named[CROSS], named[PLAIN], named[PROFILING]}
    assert evicted_before(named[CROSS]) == evicted_before(named[PROFILING]) == ()
    assert evicted_before(named[PLAIN].replace("-gpu-", "-cpu-")) == ()
