"""A user who may have few threads (`ulimit -u`): JAX gets them, and the cache does without."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

from users import command_of

PROGRAM = """
    import os, resource, sys, threading
    import jax, numpy as np

    first = os.fork()  # which ends before the second start begins: JAX is imported once for both
    assert not first or os.waitpid(first, 0)[1] == 0
    assert float(jax.jit(lambda x: x * 2)(np.float32(21))) == 42
    before = threading.enumerate()
    resource.setrlimit(resource.RLIMIT_NPROC, (60, 60))
    import ejcache
    cache = ejcache.enable(sys.argv[1], min_compile_seconds=0)
    assert float(jax.jit(lambda x: x * 3)(np.float32(14))) == 42
    assert threading.enumerate() == before, threading.enumerate()
    print(cache.stats().hits, cache.stats().stores)
"""


def test_no_thread_is_taken_from_jax(open_place):
    """The first start stores, and the second one has a hit, without a thread of ours."""
    uid = 54321
    command, home = command_of(uid), open_place
    os.chown(home, uid, uid)
    env = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "xdg")}
    program = [*command, sys.executable, "-c", textwrap.dedent(PROGRAM), str(home / "cache")]
    finished = subprocess.run(program, env=env, cwd=home, capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stdout) == (0, "0 1\n1 0\n"), finished.stderr
