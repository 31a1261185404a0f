"""`ejcache run --compare`: what is at fault where a loaded program gives another result than a fresh one."""

from __future__ import annotations

import json
import subprocess
import sys

import jax
import pytest
from forking import Forked
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
PROGRAM = (
    HEAD
    + """
def scanned(length):
    def scan(x):
        return jax.lax.scan(lambda c, _: (jnp.tanh(c @ c) * 1.01, None), x, None, length=length)
    scan.__name__ = scan.__qualname__ = f"scan_{length}"
    return jax.jit(scan)

for length in (4, 5):
    for _ in range(2):
        print(float(scanned(length)(jnp.full((16, 16), 0.06))[0].sum()))
"""
)
MANY = (
    HEAD
    + """
jax.config.update("jax_num_cpu_devices", 2)
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("x",))
x = jnp.arange(16.0)

@functools.partial(jax.jit, donate_argnums=0)
def donates(state, x):
    return {"w": state["w"] + x, "n": state["n"] + 1}, x.sum()

state = {"w": jnp.zeros(16), "n": 0}
for number in range(3):
    state, total = donates(state, x)
    keys = jax.jit(lambda key: (jax.random.normal(key, (3,)), jax.random.split(key)))(jax.random.key(number))
    nan = jax.jit(lambda x: (x / x, jnp.log(-x), x.astype(jnp.bfloat16), x > 1, x.astype(jnp.int8)))(x * number)
    sharded = jax.jit(lambda x: x * 2 + 1)(jax.device_put(x, NamedSharding(mesh, P("x"))))
    mapped = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))(x)
    spread = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(x.reshape(2, 8))
    back = jax.jit(lambda x: jax.pure_callback(lambda x: x * 2, x, x))(x)
    jax.jit(lambda x: jax.debug.callback(lambda x: None, x))(x)
print(*(float(each.sum()) for each in (state["w"], total, keys[0], mapped, back)), int(state["n"]))
"""
)
XLA = (
    HEAD
    + """
from jax._src import compiler
from jaxlib.mlir import ir

own, count = compiler.backend_compile_and_load, 0

def compile_otherwise(backend, module, *arguments):  # XLA chooses another constant in each compilation
    global count
    count += 1
    with module.context:
        module = ir.Module.parse(str(module).replace("dense<2.000000e+00>", f"dense<{2 + count / 1000}>"))
    return own(backend, module, *arguments)

if what == "xla":
    compiler.backend_compile_and_load = compile_otherwise
scaled = jax.jit(lambda x: jnp.sin(x) * 2.0)
for _ in range(5):
    scaled(jnp.ones(8))
"""
)


@pytest.fixture
def start(tmp_path):
    """Start a program with the cache, and return what it printed, its exit status and the summary."""

    def run(text, *options, check=True, start=Forked, **environment):
        path = tmp_path / "train.py"
        path.write_text(text)
        command = [sys.executable, "-m", "ejcache", "run", "--dir", tmp_path / "cache", *options, path]
        return run_program(command, env={"EJCACHE_MIN_COMPILE_SECONDS": "0", **environment}, check=check, start=start)

    return run


def exchange(tmp_path, of, by):
    """Store the executable of one program under the key of another one, as a right entry."""
    with open_store(tmp_path / "cache") as store:
        keys = {
            name: next(each.key for each in store.entries() if each.key.startswith(f"{name}-")) for name in (of, by)
        }
        entries = {name: entry.decode(store.get(key)) for name, key in keys.items()}
        store.replace(keys[of], encode(entries[of].header, entries[by].raw))
    return keys[of]


def test_an_entry_of_another_program(start, tmp_path):
    """The program, its output, the fault and the command are named. The exit status is 1; that of the script wins."""
    right = start(PROGRAM).stdout
    key = exchange(tmp_path, "jit_scan_5", "jit_scan_4")
    found = start(PROGRAM, "--compare", check=False)
    assert found.returncode == 1
    assert found.stdout != right  # the program goes on with what was loaded
    (said,) = [line for line in found.stderr.splitlines() if "jit_scan_5 differs" in line]
    assert "256 of 256 elements" in said
    assert "THE CACHE: fresh compilations agree with each other" in said
    assert said.endswith(f"ejcache recall {key}")
    assert "1 differ: the cache is at fault" in found.stderr
    ended = start(PROGRAM + "sys.exit(3)\n", "--compare", "--json", check=False)
    assert ended.returncode == 3
    (difference,) = json.loads(ended.stderr.splitlines()[-1])["comparison"]["differences"]
    assert (difference["program"], difference["fault"], difference["key"]) == ("jit_scan_5", "cache", key)


LOADER = """
from ejcache.jax_integration.seam import patch

own = patch.load_executable
loaded = {}

def load(raw, placement):  # what XLA loads for one program is another one
    executable = own(raw, placement)
    name = executable.hlo_modules()[0].name
    loaded[name] = executable
    return loaded["jit_scan_4"] if name == "jit_scan_5" else executable

patch.load_executable = load
"""


def test_a_loader_that_is_wrong(start):
    """The entry is intact, and what XLA makes of it is not: the cache is at fault."""
    text = PROGRAM.replace("for length in", f"if what:\n    exec({LOADER!r})\nfor length in")
    start(text)
    found = start(text, "--compare", check=False, WHAT="loader", EJCACHE_PRELOAD="0")
    assert "THE CACHE" in found.stderr
    assert "jit_scan_5 differs" in found.stderr


def test_programs_that_are_equal(start):
    """Donation, random keys, NaN, shardings, devices: nothing differs. What calls back is left out with a word."""
    plain, found = start(MANY), start(MANY, "--compare", "--json")
    assert found.stdout == plain.stdout
    about = json.loads(found.stderr.splitlines()[-1])["comparison"]
    assert about["differences"] == []
    assert about["programs"] >= 6
    assert about["calls"] >= 3 * 3
    # Before JAX 0.11 they are compiled in each start.
    assert set(about["left_out"]) == ({"it calls back into Python"} if jax.__version_info__ >= (0, 11) else set())


def test_a_compiler_that_is_not_deterministic(start):
    """Fresh compilations differ among themselves: the cache is not blamed, and the program has its own status."""
    start(XLA)
    found = start(XLA, "--compare", WHAT="xla")
    assert "XLA is not deterministic here" in found.stderr
    assert "THE CACHE" not in found.stderr


def test_a_program_that_differs_from_call_to_call(start):
    """With the same executable and the same arguments: the cache is not blamed."""
    text = (
        HEAD
        + """
from jax._src.interpreters import pxla
own, count = pxla.ExecuteReplicated.__call__, 0
if what:
    def restless(self, *arguments):  # its sums depend on the order of its threads
        global count
        count += 1
        results = own(self, *arguments)
        if "summed" in self.name:
            results = [jax.device_put(np.asarray(each) + count * 1e-6) for each in results]
        return results
    pxla.ExecuteReplicated.__call__ = restless
def summed(x):
    return jnp.sin(x) * 3.0
for _ in range(5):
    jax.jit(summed)(jnp.ones(8))
"""
    )
    start(text)
    found = start(text, "--compare", WHAT="calls")
    assert "jit_summed differs" in found.stderr
    assert "it differs from call to call" in found.stderr
    assert "THE CACHE" not in found.stderr


WORD = (
    HEAD
    + """
K = 3.0 if what else 2.0

@ejcache.ejit(reuse_lowering="w")
def step(x):
    return x * K

print(step(jnp.ones(4))[0])
"""
)


def test_a_word_that_is_stale(start):
    """The function is traced, and what was stored for its word is another module."""
    # A forked process reuses nothing.
    environment = {"EJCACHE_REUSE_FLOOR": "0", "EJCACHE_REUSE_CHECK_ONE_IN": "0", "start": subprocess.Popen}
    for _ in range(2):
        start(WORD, **environment)
    assert start(WORD, WHAT="other", **environment).stdout == "2.0\n"  # what the word does not say is not noticed
    found = start(WORD, "--compare", check=False, WHAT="other", **environment)
    assert (found.stdout, found.returncode) == ("3.0\n", 1)
    assert "__main__.step differs. THE WORD" in found.stderr


def test_without_compare_nothing_of_it_is_imported(start):
    """It costs a start nothing."""
    text = PROGRAM + "print([name for name in sys.modules if 'compar' in name and name.startswith('ejcache')])\n"
    start(text)
    assert start(text).stdout.splitlines()[-1] == "[]"
