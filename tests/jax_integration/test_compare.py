"""`ejcache run --compare`: what is at fault where a loaded program gives another result than a fresh one."""

from __future__ import annotations

import json
import shutil
import sys

import jax
import pytest
from forking import Forked, ForkedBeforeEjcache, ForkedWithChildren
from helpers import run_program

from ejcache import entry
from ejcache.entry import encode
from ejcache.stores.opening import open_store

HEAD = """
import functools, os, sys
import jax, jax.numpy as jnp, numpy as np
import ejcache
what = os.environ.get("WHAT", "")
"""
LOADER = """
if what == "loader":
    from ejcache.jax_integration.seam import patch

    own = patch.load_executable
    loaded = {}

    def load(raw, placement):  # what XLA loads for one program is another one
        executable = own(raw, placement)
        name = executable.hlo_modules()[0].name
        loaded[name] = executable
        return loaded["jit_times_4"] if name == "jit_times_5" else executable

    patch.load_executable = load
"""
UNCOPIED = """
if what == "uncopied":
    from ejcache.jax_integration.seam import comparing

    def fail(self):  # memory ends, or this JAX has no size of an argument
        raise NotImplementedError

    comparing.ProgramRun.copy_inputs = fail
"""
PROGRAM = f"""{HEAD}{LOADER}{UNCOPIED}
def times(factor):
    def function(x):
        return jnp.tanh(x @ x).at[0, 0].multiply(factor)  # one number of another program is another one
    function.__name__ = function.__qualname__ = f"times_{{factor}}"
    return jax.jit(function)

for factor in (4, 5):
    print(np.asarray(times(factor)(np.full((4, 4), 0.5, np.float32))).sum())
print([name for name in sys.modules if "compar" in name and name.startswith("ejcache.jax_integration")])
if what == "status":
    sys.exit(3)
"""
MANY = f"""{HEAD}
jax.config.update("jax_num_cpu_devices", 2)
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("x",))
x = np.arange(16, dtype=np.float32)

@functools.partial(jax.jit, donate_argnums=0)
def donates(state, x):
    return {{"w": state["w"] + x, "n": state["n"] + 1}}, x.sum()

draw = jax.jit(lambda key: (jax.random.normal(key, (3,)), jax.random.split(key)))
nan = jax.jit(lambda x: (x / x, jnp.log(-x), x.astype(jnp.bfloat16), x > 1, x.astype(jnp.int8)))
shard = jax.jit(lambda x: x * 2 + 1)
mapped = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))
spread = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")
back = jax.jit(lambda x: jax.pure_callback(lambda x: x * 2, x, x))
says = jax.jit(lambda x: jax.debug.callback(lambda x: None, x))
changes = jax.jit(lambda kept, x: kept.__setitem__(..., kept[...] + x))
kept = jax.new_ref(0 * x) if hasattr(jax, "new_ref") else None
state, key = {{"w": 0 * x, "n": 0}}, jax.random.key(1)
for _ in range(3):
    state, total = donates(state, x)
    normal, _ = draw(key)
    nan(x)
    shard(jax.device_put(x, NamedSharding(mesh, P("x"))))
    spread(x.reshape(2, 8))
    says(x)
    if kept is not None:
        changes(kept, x)
    found = (state["w"], total, normal, mapped(x), back(x), x if kept is None else kept[...])
print(*(float(np.asarray(each).sum()) for each in found), int(state["n"]))
"""
OTHERS = f"""{HEAD}
from jax._src import compiler
from jax._src.interpreters import pxla
from jaxlib.mlir import ir

compile_it, call, count = compiler.backend_compile_and_load, pxla.ExecuteReplicated.__call__, 0

def compile_otherwise(backend, module, *arguments):  # XLA chooses another constant in each compilation
    global count
    count += 1
    with module.context:
        module = ir.Module.parse(str(module).replace("dense<2.000000e+00>", f"dense<{{2 + count / 1000}}>"))
    return compile_it(backend, module, *arguments)

def restless(self, *arguments):  # its sums depend on the order of its threads
    global count
    count += 1
    results = call(self, *arguments)
    if "summed" in self.name:
        results = [jax.device_put(np.asarray(each) + count * 1e-6) for each in results]
    return results

if what:
    compiler.backend_compile_and_load, pxla.ExecuteReplicated.__call__ = compile_otherwise, restless

@jax.jit
def scaled(x):
    return jnp.sin(x) * 2.0

@jax.jit
def summed(x):
    return jnp.sin(x) * 3.0

for _ in range(5):
    for function in (scaled, summed):
        function(np.ones(8, np.float32))
"""
WORD = f"""{HEAD}
K = 3.0 if what else 2.0

@ejcache.ejit(reuse_lowering="w")
def step(x):
    return x * K

print(np.asarray(step(np.ones(4, np.float32)))[0])
"""


def run(place, text, *options, check=True, start=ForkedWithChildren, **environment):
    """Start a program with the cache in this directory: what it printed, its exit status and the summary."""
    path = place / "train.py"
    path.write_text(text)
    command = [sys.executable, "-m", "ejcache", "run", "--dir", place / "cache", *options, path]
    return run_program(command, env={"EJCACHE_MIN_COMPILE_SECONDS": "0", **environment}, check=check, start=start)


@pytest.fixture(scope="module")
def cold(tmp_path_factory):
    """A directory whose cache a first start of `PROGRAM` has filled, and what that printed."""
    place = tmp_path_factory.mktemp("cold")
    return place, run(place, PROGRAM, XDG_CACHE_HOME=str(place)).stdout


@pytest.fixture
def filled(cold, tmp_path):
    """A cache of the test's own that `PROGRAM` has filled."""
    shutil.copytree(cold[0] / "cache", tmp_path / "cache")
    return tmp_path


def exchange(tmp_path, of, by):
    """Store the executable of one program under the key of another one, as a right entry."""
    with open_store(tmp_path / "cache") as store:
        keys = {
            name: next(each.key for each in store.entries() if each.key.startswith(f"{name}-")) for name in (of, by)
        }
        entries = {name: entry.decode(store.get(key)) for name, key in keys.items()}
        store.replace(keys[of], encode(entries[of].header, entries[by].raw))
    return keys[of]


def test_an_entry_of_another_program(filled, cold):
    """The program, its output, the fault and the command are named. The exit status is 1; that of the script wins."""
    key = exchange(filled, "jit_times_5", "jit_times_4")
    found = run(filled, PROGRAM, "--compare", check=False)
    assert found.returncode == 1
    assert found.stdout.splitlines()[:2] != cold[1].splitlines()[:2]  # the program goes on with what was loaded
    (said,) = [line for line in found.stderr.splitlines() if "jit_times_5 differs" in line]
    assert "1 of 16 elements" in said
    assert "THE CACHE: fresh compilations agree with each other" in said
    assert said.endswith(f"ejcache recall {key}")
    assert "1 differ: the cache is at fault" in found.stderr
    ended = run(filled, PROGRAM, "--compare", "--json", check=False, WHAT="status")
    assert ended.returncode == 3
    (difference,) = json.loads(ended.stderr.splitlines()[-1])["comparison"]["differences"]
    assert (difference["program"], difference["fault"], difference["key"]) == ("jit_times_5", "cache", key)
    assert difference["largest"] == pytest.approx(0.7616, abs=1e-3)  # tanh(1), of which one program has 4 and one 5


def test_a_loader_that_is_wrong(filled):
    """The entry is intact, and what XLA makes of it is not: the cache is at fault."""
    found = run(filled, PROGRAM, "--compare", check=False, WHAT="loader", EJCACHE_PRELOAD="0")
    assert "THE CACHE" in found.stderr
    assert "jit_times_5 differs" in found.stderr


def test_inputs_that_cannot_be_copied(filled, cold):
    """What fails before the call is no error of the program either, and is said at the end."""
    found = run(filled, PROGRAM, "--compare", WHAT="uncopied")
    assert found.stdout.splitlines()[:2] == cold[1].splitlines()[:2]
    assert "2 because the comparison failed (NotImplementedError)" in found.stderr


def test_without_compare_nothing_of_it_is_imported(filled):
    """It costs a start nothing."""
    command = [sys.executable, filled / "train.py"]
    (filled / "train.py").write_text(PROGRAM)
    env = {"EJCACHE": str(filled / "cache"), "EJCACHE_MIN_COMPILE_SECONDS": "0"}
    assert run_program(command, env=env, start=ForkedBeforeEjcache).stdout.splitlines()[-1] == "[]"


def test_programs_that_are_equal(tmp_path):
    """Donation, random keys, NaN, shardings, devices: nothing differs. What cannot run twice is left out."""
    plain, found = run(tmp_path, MANY), run(tmp_path, MANY, "--compare", "--json")
    assert found.stdout == plain.stdout
    about = json.loads(found.stderr.splitlines()[-1])["comparison"]
    assert about["differences"] == []
    assert about["programs"] >= 6
    assert about["calls"] >= 3 * 3
    # Before JAX 0.11 they are compiled in each start.
    expected = {"it calls back into Python"} if jax.__version_info__ >= (0, 11) else set()
    assert set(about["left_out"]) == expected | ({"it changes references"} if hasattr(jax, "new_ref") else set())


def test_what_differs_without_the_cache(tmp_path):
    """Fresh compilations that differ, and calls of one executable: the cache is not blamed, nor the program failed."""
    run(tmp_path, OTHERS)
    found = run(tmp_path, OTHERS, "--compare", WHAT="other")
    said = {
        name: next(line for line in found.stderr.splitlines() if f"jit_{name} differs" in line)
        for name in ("scaled", "summed")
    }
    assert "XLA is not deterministic here" in said["scaled"]
    assert "it differs from call to call" in said["summed"]
    assert "THE CACHE" not in found.stderr


def test_a_word_that_is_stale(tmp_path):
    """The function is traced, and what was stored for its word is another module."""
    # A forked process reuses nothing: the command may be one, and what it starts is none.
    environment = {"EJCACHE_REUSE_FLOOR": "0", "EJCACHE_REUSE_CHECK_ONE_IN": "0", "start": Forked}
    for _ in range(2):
        run(tmp_path, WORD, **environment)
    found = run(tmp_path, WORD, "--compare", check=False, WHAT="other", **environment)
    assert (found.stdout, found.returncode) == ("3.0\n", 1)
    assert "__main__.step differs. THE WORD" in found.stderr
