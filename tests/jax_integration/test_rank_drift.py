"""Ranks whose programs differ, or of which one has no cache: the job ends as with plain JAX, and a warning says why.

The collectives are gloo's, which fail in a rank that waits for 30 s.
"""

from __future__ import annotations

import pytest
from jobs import run_job

PROGRAM = """
import json, os, sys, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

kind, rank = sys.argv[1], jax.process_index()
if kind == f"only {rank}":
    import ejcache
    ejcache.enable(sys.argv[2] + f"/{rank}", min_compile_seconds=0)
if kind == "version" and rank == 1:
    from ejcache.jax_integration.seam import key_parts

    key_parts.jaxlib_version = lambda: "0.99.0"
constant = 3.0 if kind == "constant" and rank == 1 else 2.0
began = time.monotonic()

def step(x):
    return (x * constant).sum()

groups = [jax.devices()] if kind != "two programs" else [jax.devices()[:2], jax.devices()[2:]]
mine = groups[rank // 2] if kind == "two programs" else groups[0]
mesh = Mesh(np.array(mine), ("a",))
n = len(mine)
x = jax.make_array_from_callback(
    (n,), NamedSharding(mesh, P("a")), lambda i: np.ones(n, np.float32)[i] * (1 + rank // 2 * (kind == "two programs"))
)
f = jax.jit(step, out_shardings=NamedSharding(mesh, P()))
if kind == "two programs" and rank >= 2:
    f = jax.jit(lambda x: step(x) + 1, out_shardings=NamedSharding(mesh, P()))
total = float(f(x).addressable_data(0))
import ejcache
print(json.dumps([total, time.monotonic() - began, ejcache.stats().misses if ejcache.active() else None]))
"""


def run(tmp_path, kind, *, processes=2, cached=True):
    ranks, said = run_job(
        PROGRAM,
        kind,
        str(tmp_path),
        processes=processes,
        places=tmp_path if cached and not kind.startswith("only") else None,
        env=lambda rank: (
            {"XLA_FLAGS": "--xla_force_host_platform_device_count=1 --xla_cpu_max_isa=AVX2"}
            if kind == "flag" and rank == 1
            else {}
        ),
        timeout=100.0,
    )
    assert not any("Traceback" in rank.stderr for rank in ranks)
    return ranks, said


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("constant", ["the components that differ are computation;", "dense<2.0", "dense<3.0", "is `"]),
        pytest.param("flag", ["variables", "the environment variable XLA_FLAGS", "AVX2"], marks=pytest.mark.soak),
        pytest.param("version", ["the components that differ are jaxlib;", "0.99.0"], marks=pytest.mark.soak),
    ],
)
def test_ranks_that_compile_different_programs(tmp_path, kind, words):
    """Each compiles its own at once, as without a cache; each says what differs; nothing is stored, or loaded later."""
    for _ in range(2):
        ranks, said = run(tmp_path, kind)
        assert [total for total, *_ in said] == [5.0 if kind == "constant" else 4.0] * 2
        for rank in ranks:
            (line,) = [each for each in rank.stderr.splitlines() if "compile different programs" in each]
            assert "jit_step" in line
            for word in words:
                assert word in line
            assert rank.stats["misses_by_reason"].get("disagreed", 0) >= 1


@pytest.mark.parametrize("kind", ["only 0", pytest.param("only 1", marks=pytest.mark.soak)])
def test_one_rank_without_ejcache(tmp_path, kind):
    """The other does not wait for it, and says once which rank it is."""
    ranks, said = run(tmp_path, kind)
    assert [total for total, *_ in said] == [4.0, 4.0]
    rank, other = int(kind[-1]), 1 - int(kind[-1])
    assert f"rank {other} has not enabled ejcache" in ranks[rank].stderr
    assert "in time" not in ranks[rank].stderr
    assert "ejcache" not in ranks[other].stderr


@pytest.mark.soak
def test_ranks_that_run_two_programs_on_purpose(tmp_path):
    """Other devices, other programs: all hit on the second start, and nobody warns."""
    for hits in (0, 1):
        ranks, said = run(tmp_path, "two programs", processes=4)
        assert [total for total, *_ in said] == [4.0, 4.0, 9.0, 9.0]
        assert all("different programs" not in rank.stderr for rank in ranks)
        assert all(bool(rank.stats["hits"]) == bool(hits) for rank in ranks)
