"""Programs that span processes, and every mixture of what the ranks see: right values, one decision, nothing raised."""

from __future__ import annotations

import itertools
import random

import pytest
from jobs import run_job

import ejcache
from ejcache import entry
from ejcache.keys.key import is_side_key, parse_key

PROGRAM = """
import json, sys
import jax, numpy as np
import ejcache
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

devices = np.array(jax.devices())
meshes = [Mesh(devices, ("a",)), Mesh(devices[::-1], ("a",))]
n = 2 * len(devices)
decisions = []
cache = ejcache.active()
for number in range(int(sys.argv[1])):
    mesh = meshes[number % 2]
    s = NamedSharding(mesh, P("a"))
    x = jax.make_array_from_callback((n,), s, lambda i: np.arange(n, dtype=np.float32)[i])

    def program(x, number=number):
        return x * number + x.sum()

    program.__name__ = f"program_{number}"
    before = cache.stats().hits
    total = jax.jit(program, out_shardings=NamedSharding(mesh, P()))(x)
    expected = np.arange(n) * number + np.arange(n).sum()
    np.testing.assert_allclose(np.asarray(total.addressable_data(0)), expected)
    decisions.append(cache.stats().hits - before)
print(json.dumps(decisions))
"""


def run(tmp_path, *, processes, programs, share=False):
    ranks, said = run_job(PROGRAM, str(programs), processes=processes, devices=2, places=tmp_path, sharing=share)
    assert not any("Traceback" in rank.stderr for rank in ranks)
    return said, ranks


def spoil(directory, number, state):
    """Put what one rank keeps of one program into a state."""
    with ejcache.open_store(str(directory)) as store:
        (key,) = [
            info.key
            for info in store.entries()
            if not is_side_key(info.key) and parse_key(info.key).name == f"jit_program_{number}"
        ]
        data = store.peek(key)
        if state == "cold":
            store.delete(key)
        elif state == "corrupt":
            store.replace(key, data[:-1])
        elif state == "rejected":
            store.replace(key, entry.encode(entry.decode(data).header, b"no executable" * 99))


STATES = ("warm", "cold", "corrupt", "rejected")


MIXTURES = list(itertools.product(STATES, repeat=2))


@pytest.mark.parametrize(
    ("share", "mixtures"),
    [
        pytest.param(False, MIXTURES[:1] + MIXTURES[1::3], id="some"),
        pytest.param(False, MIXTURES, id="each-compiles", marks=pytest.mark.soak),
        pytest.param(True, MIXTURES, id="share-binary", marks=pytest.mark.soak),
    ],
)
def test_every_mixture_of_two_ranks(share, mixtures, tmp_path):
    """A program for each pair of states, of which there are sixteen: both ranks load, or both compile; then all is
    warm again."""
    run(tmp_path, processes=2, programs=len(mixtures), share=share)
    for number, mixture in enumerate(mixtures):
        for rank, state in enumerate(mixture):
            spoil(tmp_path / str(rank), number, state)

    decisions, _ = run(tmp_path, processes=2, programs=len(mixtures), share=share)

    assert decisions[0] == decisions[1]
    assert decisions[0] == [int(mixture == ("warm", "warm")) for mixture in mixtures]
    healed, _ = run(tmp_path, processes=2, programs=len(mixtures), share=share)
    assert healed == [[1] * len(mixtures)] * 2


@pytest.mark.soak
def test_four_ranks_warm_and_mixed(tmp_path):
    """Every rank hits on a warm start with directories of their own (JAX: ranks 1 to 3 never do); mixtures agree."""
    programs = 8
    run(tmp_path, processes=4, programs=programs)
    warm, ranks = run(tmp_path, processes=4, programs=programs)
    assert warm == [[1] * programs] * 4
    assert all(rank.stats["misses"] == rank.stats["stores"] == 0 for rank in ranks)

    rng = random.Random(4)
    spoilt = set()
    for number in range(programs // 2):
        rank, state = rng.randrange(4), rng.choice(STATES[1:])
        spoil(tmp_path / str(rank), number, state)
        spoilt.add(number)
    mixed, _ = run(tmp_path, processes=4, programs=programs)
    assert mixed == [[int(number not in spoilt) for number in range(programs)]] * 4


def test_a_rank_whose_storage_is_unreachable(tmp_path):
    """All compile, as without a cache; the rank says so once, the others keep what they compiled."""
    run(tmp_path, processes=2, programs=1)
    import shutil

    shutil.rmtree(tmp_path / "1")
    (tmp_path / "1").write_text("a file in the way")

    decisions, ranks = run(tmp_path, processes=2, programs=1)

    assert decisions == [[0], [0]]
    assert ranks[1].stderr.count("goes on without it") == 1
    assert ranks[0].stats["misses_by_reason"] == {"disagreed": 1}
    assert (tmp_path / "1").read_text() == "a file in the way"
