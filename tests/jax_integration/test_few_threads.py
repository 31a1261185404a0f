"""A user who may have few threads (`ulimit -u`): JAX gets them, and the cache does without."""

from __future__ import annotations

from capabilities import require

PROGRAM = """
    import os, resource, sys, threading
    import jax, numpy as np
    import ejcache

    assert float(jax.jit(lambda x: x * 2)(np.float32(21))) == 42
    os.setgid(54321), os.setuid(54321)
    before = threading.enumerate()
    resource.setrlimit(resource.RLIMIT_NPROC, (60, 60))
    cache = ejcache.enable(sys.argv[1], min_compile_seconds=0)
    assert float(jax.jit(lambda x: x * 3)(np.float32(14))) == 42
    assert threading.enumerate() == before, threading.enumerate()
    print(cache.stats().hits, cache.stats().stores)
"""


def test_no_thread_is_taken_from_jax(open_place, run_forked):
    """The first start stores, and the second one has a hit, without a thread of ours."""
    require("root")
    env = {"HOME": str(open_place), "XDG_CACHE_HOME": str(open_place / "xdg")}
    for expected in ("0 1\n", "1 0\n"):
        finished = run_forked(PROGRAM, str(open_place / "cache"), env=env, cwd=open_place)
        assert (finished.stdout, finished.stderr) == (expected, "")
