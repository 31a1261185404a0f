"""Threads after `disable()`: none of ejcache's that has nothing to do is left."""

from __future__ import annotations

PROGRAM = """
    import sys, threading
    import jax, numpy as np
    import ejcache
    from ejcache.util.threads import call_with_timeout

    others = set(threading.enumerate())
    for _ in range(2):
        with ejcache.enable(sys.argv[1], min_compile_seconds=0) as cache:
            jax.clear_caches()
            assert float(jax.jit(lambda x: x * 3)(np.float32(14))) == 42
            assert call_with_timeout("a call", lambda: 1, 60) == 1
        ejcache.disable()
        ours = [thread for thread in threading.enumerate() if thread not in others]
        for thread in ours:
            thread.join(60)
        assert not any(thread.is_alive() for thread in ours), ours
        others |= set(threading.enumerate())
    assert (cache.stats().hits, call_with_timeout("a call", lambda: 1, 60)) == (1, 1)
"""


def test_no_idle_thread_is_left(run_forked, tmp_path):
    """Each of them ends, after a miss and after a hit, and a later call gets a thread of its own."""
    run_forked(PROGRAM, str(tmp_path))
