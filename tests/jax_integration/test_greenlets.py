"""Programs whose threads are greenlets: gevent and eventlet put their own functions in the place of `threading`'s."""

from __future__ import annotations

import json
import sys

import pytest
from forking import Forked, ForkedBeforeEjcacheToTheEnd
from helpers import run_program

PATCHES = {
    "gevent": "from gevent import monkey; monkey.patch_all()",
    "eventlet": "import eventlet; eventlet.monkey_patch()",
}
TWICE = """
child = fork()  # the first start, which ends before the second one begins: JAX is imported once for both
if child:
    assert waitpid(child, 0)[1] == 0
"""
HEAD = """
import json, os, warnings
fork, waitpid = os.fork, os.waitpid
warnings.simplefilter("ignore")
"""
PROGRAM = f"""{HEAD}
{{patch}}
import jax, numpy as np
{TWICE}
values = [float(jax.jit(function)(np.float32(20))) for function in (lambda x: x * 2, lambda x: x + 1)]
import ejcache
found = ejcache.stats()
print(json.dumps([values, found.hits, found.misses, found.errors]))
"""


@pytest.mark.parametrize("library", sorted(PATCHES))
def test_two_starts(tmp_path, server, library):
    """The first start of a new host is right, and the second has all from the cache, a bucket with copies here."""
    env = {
        "HOME": str(tmp_path),
        "EJCACHE": f"gs://bucket/{library}",
        "EJCACHE_MIN_COMPILE_SECONDS": "0",
        "STORAGE_EMULATOR_HOST": server.url,
    }
    command = [sys.executable, "-c", PROGRAM.format(patch=PATCHES[library])]
    first, second = map(json.loads, run_program(command, env=env, timeout=120).stdout.splitlines())
    assert first == [[40.0, 21.0], 0, 2, 0]
    assert second == [[40.0, 21.0], 2, 0, 0]


@pytest.mark.parametrize("library", sorted(PATCHES))
def test_a_program_that_patches_late(tmp_path, library):
    """After ejcache and JAX were imported, the program is right all the same, and so is its next start."""
    program = PROGRAM.format(patch="import jax, ejcache\n" + PATCHES[library])
    env = {"HOME": str(tmp_path), "EJCACHE": f"{tmp_path}/cache/", "EJCACHE_MIN_COMPILE_SECONDS": "0"}
    done = run_program([sys.executable, "-c", program], env=env, timeout=120, start=ForkedBeforeEjcacheToTheEnd)
    assert [[values, errors] for values, *_, errors in map(json.loads, done.stdout.splitlines())] == [[[40, 21], 0]] * 2


@pytest.mark.parametrize("library", sorted(PATCHES))
def test_a_program_that_patches_after_it_compiled(tmp_path, library):
    """Threads of ours run then, and would share locks with greenlets: the program goes on and ends without ejcache."""
    program = f"""{HEAD}
import jax, {library}, numpy as np
{TWICE}
print(jax.jit(lambda x: x * 2)(np.float32(20)))
{PATCHES[library]}
print(jax.jit(lambda x: x + 1)(np.float32(20)), jax.jit(lambda x: x + 2)(np.float32(20)))
"""
    env = {"HOME": str(tmp_path), "EJCACHE": f"{tmp_path}/cache/", "EJCACHE_MIN_COMPILE_SECONDS": "0"}
    finished = run_program([sys.executable, "-c", program], env=env, timeout=120, start=Forked)
    assert finished.stdout == "40.0\n21.0 22.0\n" * 2
    assert finished.stderr.count("replaced Python's threads after ejcache had begun") == 2


def test_a_program_that_patches_when_it_has_modules_of_ours(tmp_path):
    """A module of ours has made locks for its threads, which no greenlet may take: ejcache leaves the program alone."""
    program = PROGRAM.format(patch="import ejcache.coordination.leases\n" + PATCHES["gevent"])
    env = {"HOME": str(tmp_path), "EJCACHE": f"{tmp_path}/cache/", "EJCACHE_MIN_COMPILE_SECONDS": "0"}
    done = run_program([sys.executable, "-c", program], env=env, timeout=120, start=Forked)
    assert list(map(json.loads, done.stdout.splitlines())) == [[[40, 21], 0, 0, 0]] * 2
    assert done.stderr.count("replaced Python's threads after ejcache had begun") == 2


def test_a_patch_after_the_import():
    """A call with a timeout ends also where gevent comes after ejcache; eventlet asks to be the first import."""
    program = f"""
import warnings
warnings.simplefilter("ignore")
from ejcache.util.threads import call_with_timeout
{PATCHES["gevent"]}
print(call_with_timeout("a call", lambda: 5, 60.0))
"""
    assert run_program([sys.executable, "-c", program], timeout=60, start=Forked).stdout == "5\n"
