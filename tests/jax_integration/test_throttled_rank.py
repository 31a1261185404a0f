"""One rank whose storage refuses or is silent: the job is right, and the other rank has not waited in vain.

Each rank has a server of its own with the same bucket, and one of the servers has a fault.
"""

from __future__ import annotations

import itertools

import pytest
from buckets import GcsServer
from dead_ends import leads_to
from jobs import run_job

PROGRAM = """
import json, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("a",))
n = len(jax.devices())
x = jax.make_array_from_callback((n,), NamedSharding(mesh, P("a")), lambda i: np.arange(1, n + 1, dtype=np.float32)[i])
began = time.monotonic()
total = jax.jit(lambda x: (x * 3).sum(), out_shardings=NamedSharding(mesh, P()))(x)
print(json.dumps([float(total.addressable_data(0)), time.monotonic() - began]))
"""
FAULTS = {
    "429": {"action": "status", "status": 429},
    "slow": {"action": "latency", "seconds": 20.0},
    "403": {"action": "status", "status": 403},
    "cut": {"action": "reset"},
}


EACH = list(itertools.product(FAULTS, (0, 1)))
FEW = [("429", 0)]


@pytest.mark.parametrize(
    ("fault", "rank"), [pytest.param(*each, marks=[pytest.mark.soak] * (each not in FEW)) for each in EACH]
)
def test_one_rank_without_answers(tmp_path, fault, rank):
    """Whichever rank it is, both compile, and the job ends with the right value."""
    with GcsServer() as good, GcsServer() as bad:
        bad.add_fault(**FAULTS[fault])
        ranks, said = run_job(
            PROGRAM,
            cache=lambda _: "gs://bucket/cache",
            env=lambda each: {
                **leads_to("gs", (bad if each == rank else good).url),
                "EJCACHE_LOCAL_DIR": str(tmp_path / str(each)),
            },
        )
    for each, (value, _) in zip(ranks, said, strict=True):
        assert value == 9.0
        # The ranks reach their agreement: none has given up the other.
        assert "in time" not in each.stderr, each.stderr
