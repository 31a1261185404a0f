"""Ranks share keys and entries, and what a rank loads from another's entry runs right on its own devices."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from types import SimpleNamespace

import pytest
from forking import Forked
from helpers import ROOT
from pod import Rank, run_pod

from ejcache.jax_integration.lowering.key import device_layout

PROGRAM = ROOT / "tests" / "programs" / "ranks.py"
TOGETHER = {"JAX_SHARE_BINARY_BETWEEN_HOSTS": "1"}


def run(processes: int, cache, env=None, start=Forked) -> list[Rank]:
    """A pod whose values were all right; two devices in each process."""
    ranks = run_pod(PROGRAM, processes=processes, devices=2, cache=cache, env=lambda rank: env or {}, start=start)
    for rank in ranks:
        assert rank.returncode == 0, f"rank {rank.rank}\n{rank.stderr}"
        assert rank.stdout.rstrip().endswith("DONE")
    return ranks


def keys(rank: Rank) -> dict[str, list[str]]:
    [line] = [line for line in rank.stdout.splitlines() if line.startswith("KEYS ")]
    return json.loads(line.removeprefix("KEYS "))


def all_hits(ranks: list[Rank]) -> bool:
    return all(rank.stats["hits"] > 0 and rank.stats["misses"] == 0 for rank in ranks)


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.soak)])
def test_every_rank_has_the_keys_of_rank_0_and_lives_on_its_entries(processes, tmp_path):
    """Directories of their own, then what rank 0 wrote, and a copy of it: keys, values, 100 % hits."""
    # The first rank has another seed of hashes than the others, and other addresses.
    kinds = itertools.chain([subprocess.Popen], itertools.repeat(Forked))

    def start(*arguments, **named):
        return next(kinds)(*arguments, **named)

    cold = run(processes, lambda rank: str(tmp_path / f"cold{rank}"), start=start)

    assert all(keys(rank) == keys(cold[0]) for rank in cold)
    made = keys(cold[0])
    assert len(made) == 8 + (processes == 4)
    # Other devices in the same order are the same program, permuted ones are not.
    assert made["first of each"] == made["last of each"]
    assert len({text for texts in made.values() for text in texts}) == len(made) - 1

    shutil.copytree(tmp_path / "cold0", tmp_path / "copy")
    assert all_hits(run(processes, lambda rank: str(tmp_path / ("copy" if rank == 1 else "cold0"))))
    assert processes == 2 or all_hits(run(processes, lambda rank: str(tmp_path / "cold0")))


@pytest.mark.soak
@pytest.mark.parametrize(
    "env",
    [pytest.param({}, id="each compiles"), pytest.param(TOGETHER, id="shared between hosts")],
)
def test_permuted_meshes_give_right_values_cold_and_warm(env, tmp_path):
    """One directory for all, with jax_share_binary_between_hosts and without; the second start hits everywhere."""
    cold = run(2, lambda rank: str(tmp_path), env)
    warm = run(2, lambda rank: str(tmp_path), env)

    assert cold[0].stats["stores"] > 0
    assert all_hits(warm)


@pytest.mark.soak
def test_what_is_shared_is_bound_to_the_devices_it_was_shared_for(tmp_path):
    """With nothing stored all goes through the sharing, and two meshes of one key get an executable each."""
    for rank in run(2, lambda rank: str(tmp_path), {**TOGETHER, "POD_FLOOR": "1000"}):
        assert (rank.stats["hits"], rank.stats["stores"], rank.stats["errors"]) == (0, 0, 0)


def device(process: int, number: int, **place) -> SimpleNamespace:
    return SimpleNamespace(device_kind="chip", process_index=process, id=number, **place)


def test_devices_are_named_by_their_order_among_those_that_take_part():
    """A rank's own devices are the same on every rank; a permutation, another share and another kind are not."""
    own = device_layout([device(0, 0, slice_index=0), device(0, 1, slice_index=0)])

    assert device_layout([device(3, 2048, slice_index=1), device(3, 2049, slice_index=1)]) == own
    assert device_layout([device(0, 1), device(0, 0)]) != own
    assert device_layout([device(0, 0), device(1, 1)]) != own
    assert device_layout([device(0, 0, slice_index=0), device(0, 1, slice_index=1)]) != own
    other = SimpleNamespace(device_kind="another chip", process_index=0, id=0)
    assert device_layout([other, device(0, 1)]) != own


def test_physical_places_count_where_the_back_end_has_them():
    """A subset of a TPU without its first chip does not take the entry of the subset that has it (jax#38004)."""

    def chips(*numbers: int, core: int = 0, slice_index: int = 0) -> str:
        return device_layout(
            [device(0, n, coords=(n % 2, n // 2, 0), core_on_chip=core, slice_index=slice_index) for n in numbers]
        )

    assert chips(0, 1) == chips(0, 1)
    assert len({chips(0, 1), chips(2, 3), chips(1, 0), chips(0, 1, core=1), chips(0, 1, slice_index=1)}) == 5
