"""PGLE in a program that spans processes: all ranks use the same variant and the same profile."""

from __future__ import annotations

import json
import threading

import pytest
from helpers import SUPPORT
from jobs import run_job
from notice_boards import NoticeBoard

from ejcache.jax_integration import pgle
from ejcache.jax_integration.seam.coordination_service import CoordinationClient

PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import ejcache
from pgle_helpers import RUNS, made_up_profile, watch
from ejcache.jax_integration.ranks.agreement import RankAgreement
from ejcache.keys.key import PGLE
from ejcache.keys.key import is_profile_key, is_side_key

decide, decided = RankAgreement.decide, []
RankAgreement.decide = lambda self, topic, **given: decided.append(topic) or decide(self, topic, **given)

rank = jax.process_index()
jax.config.update("jax_pgle_profiling_runs", RUNS)
jax.config.update("jax_enable_pgle", True)
sharding = NamedSharding(Mesh(np.array(jax.devices()), "x"), P("x"))
x = jax.make_array_from_callback((4,), sharding, lambda i: np.arange(4.0, dtype=np.float32)[i])

def start(name):
    jax.clear_caches()
    def step(x):
        return (x * 2.0).sum()
    jitted = jax.jit(step)
    with watch(cost=1.0 + rank) as seen:
        for _ in range(RUNS + 2):
            assert float(jitted(x)) == 12.0
    ours = [profile == made_up_profile(1.0) for profile in seen.profiles]
    print(json.dumps([name, seen.compiled, seen.profiled, ours]))
    if name == "one has a damaged one":
        print(json.dumps(["exchanges", sum("/variant/" not in topic for topic in decided)]))
    decided.clear()

def delete(*, optimised, profile):
    with ejcache.open_store(ejcache.active().url) as store:
        for info in list(store.entries()):
            if (optimised and not is_side_key(info.key) and f"-{PGLE}-" in info.key) or (
                profile and is_profile_key(info.key)
            ):
                store.delete(info.key)

start("nothing")
start("all have it")
delete(optimised=False, profile=True)
if rank == 1:
    with ejcache.open_store(ejcache.active().url) as store:
        (key,) = [each.key for each in store.entries() if f"-{PGLE}-" in each.key and not is_side_key(each.key)]
        store.replace(key, store.peek(key)[:-1])
start("one has a damaged one")
if rank == 1:
    delete(optimised=True, profile=True)
start("one lacks it")
delete(optimised=True, profile=False)
start("all have the profile")
delete(optimised=True, profile=rank == 0)
start("one lacks the profile")
"""


def test_ranks_use_the_same_variant(tmp_path):
    """Whatever each of them sees in its own cache."""
    ranks, _ = run_job(PROGRAM, str(SUPPORT), places=tmp_path)
    optimise = [["first pass", "profile"], 2, [True]]
    profile_again = [["profile"], 2, [True]]
    for rank in ranks:
        assert [json.loads(line) for line in rank.stdout.splitlines() if line.startswith('["')] == [
            ["nothing", *optimise],
            ["all have it", [], 0, []],
            ["one has a damaged one", [], 0, []],
            ["exchanges", 2],
            ["one lacks it", *profile_again],
            ["all have the profile", ["profile"], 0, [True]],
            ["one lacks the profile", *profile_again],
        ]


def exchange(board, profile, *, seconds=60.0):
    return pgle.exchange(CoordinationClient(board), "name", profile, seconds=seconds)


def test_a_rank_that_times_out_decides_for_all():
    """The first rank comes too late, and compiles without a profile as the others do."""
    board = NoticeBoard()

    assert exchange(board, None, seconds=0.01) == b""
    assert exchange(board, b"profile") == b""
    assert exchange(board, None) == b""


@pytest.mark.parametrize("first", [True, False])
def test_a_sent_profile_is_everybodys(first):
    """In either order of arrival."""
    board, got = NoticeBoard(), []
    waiting = threading.Thread(target=lambda: got.append(exchange(board, None)))
    if not first:
        waiting.start()
    got.append(exchange(board, b"profile"))
    if first:
        waiting.start()
    waiting.join()
    assert got == [b"profile", b"profile"]


def test_without_the_service_there_is_no_profile():
    """And no error in the program."""

    class Gone:
        def __getattr__(self, name):
            raise RuntimeError("UNAVAILABLE")

    assert exchange(Gone(), b"profile") == b""
    assert exchange(Gone(), None) == b""


SHARED = (
    PROGRAM[: PROGRAM.index('start("nothing")')]
    + """
from ejcache import entry
from ejcache.keys.key import PROFILING

start(sys.argv[2])
variants = set()
with ejcache.open_store(ejcache.active().url) as store:
    for info in list(store.entries()):
        header = entry.decode(store.peek(info.key)).header
        if is_side_key(info.key) or header.name != "jit_step":
            continue
        variants.add((header.variant, header.profile_digest != ""))
        if header.variant == PROFILING:
            # It would stand in for the optimised executable.
            store.delete(info.key)
        elif rank == 1:
            store.replace(info.key, entry.encode(header, b"no executable" * 99))
print(json.dumps(sorted(variants)))
"""
)


@pytest.mark.soak
def test_what_is_shared_without_a_profile_is_no_optimised_executable(tmp_path):
    """With jax_share_binary_between_hosts: the rank that takes it stores it as what the first process compiled."""
    for start, expected in (
        ("nothing", [["pgle", True], ["profiling", False]]),
        ("one cannot load it", [["pgle", True], ["plain", False]]),
    ):
        _, said = run_job(SHARED, str(SUPPORT), start, places=tmp_path, sharing=True)
        assert said == [expected] * 2
