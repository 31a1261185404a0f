"""Storage that refuses everything, or one object: what a start loses."""

from __future__ import annotations

import pytest
from buckets import GcsServerProcess
from dead_ends import leads_to

PROGRAM = """
    import sys
    import jax, numpy as np
    import ejcache
    with ejcache.enable("gs://bucket/cache", min_compile_seconds=0) as cache:
        for factor in range(1, int(sys.argv[1]) + 1):
            def program(x):
                return x * factor
            program.__name__ = f"program_{factor}"
            assert float(jax.jit(program)(np.float32(2))) == 2 * factor
        print(cache.stats().hits)
"""


@pytest.fixture
def start(run_client, tmp_path):
    def run(server, host, *, programs):
        local = {"EJCACHE_LOCAL_DIR": str(tmp_path / host), "EJCACHE_PUBLISH_FROM": "0", "EJCACHE_ASK_FROM": "0"}
        return run_client(PROGRAM, str(programs), env={**leads_to("gs", server.url), **local})

    return run


def outcome(finished):
    return int(finished.stdout.splitlines()[-1])


def test_a_bucket_that_only_asks_to_slow_down(start, tmp_path):
    """Each start says so once, and this host knows it from the first one on."""
    with GcsServerProcess() as server:
        server.add_fault("status", status=429)
        for number in range(3):
            finished = start(server, "host", programs=4)
            assert outcome(finished) == (4 if number else 0)
            assert finished.stderr.count("goes on without it") == len(finished.stderr.splitlines()) <= 1
            assert "asks to slow down" in finished.stderr or number  # later ones may end before they have asked
            (note,) = tmp_path.rglob("scratch/storage")
            assert note.read_text() == "failed\n"


@pytest.mark.parametrize(
    "fault",
    [
        {"action": "status", "status": 500},
        {"action": "status", "status": 429},
        {"action": "stall"},
        {"action": "reset"},
    ],
    ids=["500", "429", "silent", "cut"],
)
def test_one_object_that_keeps_failing(start, fault):
    """A fresh host loses that one program, and has hits for the seven others."""
    with GcsServerProcess() as server:
        assert outcome(start(server, "first", programs=8)) == 0
        server.add_fault(path="entries/.*jit_program_3", **fault)
        assert outcome(start(server, "fresh", programs=8)) == 7
