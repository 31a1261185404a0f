"""Processes that are killed in the middle of their work leave a whole, bounded, unlocked store."""

from __future__ import annotations

import json
import sys

import pytest
from helpers import ROOT

from ejcache.stores.local.store import LocalStore

TOOL = ROOT / "tools" / "kill_storm.py"


@pytest.fixture
def kill_storm(monkeypatch):
    """The tool as a module."""
    monkeypatch.syspath_prepend(str(TOOL.parent))
    monkeypatch.delitem(sys.modules, "kill_storm", raising=False)
    import kill_storm

    return kill_storm


def storm(run_forked, tmp_path, *arguments, timeout=280, **options):
    return run_forked(TOOL, "--dir", str(tmp_path / "store"), "--json", *arguments, timeout=timeout, **options)


def test_short_storm(run_forked, tmp_path):
    """Six kills: no bad read, no stuck lock, no exception, no orphan on disk, nothing that check objects to."""
    outcome = json.loads(storm(run_forked, tmp_path, "--kills", "6").stdout)
    assert outcome["problems"] == []
    assert outcome["kills"] == 6


def test_larger_store_comes_within_the_limit_first(run_forked, tmp_path):
    """Nothing that a storm looks at is of a larger store that was there before."""
    with LocalStore(tmp_path / "store", max_size=2_000_000) as store:
        for n in range(3):
            store.put(f"old-{n}", bytes(600_000))
    outcome = json.loads(storm(run_forked, tmp_path, "--kills", "0", "--limit", "1MB", check=False).stdout)
    assert outcome["over_limit"] == 0
    assert 0 < outcome["size"] <= 1_000_000


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_long_storm(run_forked, tmp_path, seed):
    """Two hundred kills, three times."""
    done = storm(run_forked, tmp_path, "--kills", "200", "--seed", str(seed), timeout=580)
    assert json.loads(done.stdout)["problems"] == []


def test_what_nobody_accounts_for_is_found(run_forked, tmp_path):
    """The storm fails when the disk holds more than the limit and the declared overhead."""
    orphan = tmp_path / "store" / "v1" / "orphan"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(bytes(30_000_000))
    done = storm(run_forked, tmp_path, "--kills", "1", check=False)
    assert done.returncode == 1
    assert "bytes on disk are over" in done.stderr


def test_every_problem_is_said(kill_storm):
    """Each number that must be zero or bounded fails the storm when it is not."""
    fine = {"hits": 1, "stores": 1, "limit": 10, "allowed": 20}
    assert kill_storm.Outcome(**fine).problems() == []
    for trouble in (
        {"bad_reads": 1},
        {"over_limit": 1},
        {"exceptions": 1},
        {"stuck": 1},
        {"size": 11},
        {"disk_usage": 21},
        {"disk_usage_closed": 21},
        {"counted": 1},
        {"counters_say": 1},
        {"hits": 0},
        {"objections": ["orphan"]},
    ):
        assert len(kill_storm.Outcome(**{**fine, **trouble}).problems()) == 1
