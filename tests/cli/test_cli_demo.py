"""`ejcache demo`: the second process starts from what the first stored."""

from __future__ import annotations

import json
import sys

from cli_helpers import ejcache
from helpers import run_program


def test_demo_is_warm_the_second_time(tmp_path):
    """One miss and one store, then one hit and none; the same loss to the bit; the table says so."""
    command = [sys.executable, "-m", "ejcache", "demo", "--blocks", "1", "--dir", tmp_path / "cache"]
    said = json.loads(run_program([*command, "--json"]).stdout)
    assert (said["cold"]["report"]["misses"], said["cold"]["report"]["stores"]) == (1, 1)
    assert (said["warm"]["report"]["hits"], said["warm"]["report"]["misses"]) == (1, 0)
    assert said["warm"]["report"]["stores"] == 0
    assert said["same_loss"] is True
    assert [entry["name"] for entry in said["entries"]] == ["jit_train_step"]
    assert ejcache("ls", "--dir", tmp_path / "cache").lines[1].startswith("jit_train_step")
    again = run_program(command)
    assert "jit_train_step" in again.stdout
    assert "was not cold" in again.stdout
