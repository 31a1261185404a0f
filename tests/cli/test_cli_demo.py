"""`ejcache demo`: the second process starts from what the first stored."""

from __future__ import annotations

import json
import re
import sys

from cli_helpers import ejcache
from helpers import run_program

from ejcache.cli.commands.demo import print_runs


def test_demo_is_warm_the_second_time(tmp_path, capsys):
    """One miss and one store, then one hit and none; the same loss to the bit; the table says so."""
    command = ["-m", "ejcache", "demo", "--blocks", "1", "--dir", tmp_path / "cache", "--json"]
    said = json.loads(run_program([sys.executable, *command]).stdout)
    assert (said["cold"]["report"]["misses"], said["cold"]["report"]["stores"]) == (1, 1)
    assert (said["warm"]["report"]["hits"], said["warm"]["report"]["misses"]) == (1, 0)
    assert said["warm"]["report"]["stores"] == 0
    assert said["same_loss"] is True
    assert [entry["name"] for entry in said["entries"]] == ["jit_train_step"]
    assert ejcache("ls", "--dir", tmp_path / "cache").lines[1].startswith("jit_train_step")
    print_runs(said["cold"], said["warm"], blocks=1)
    shown = capsys.readouterr().out
    assert re.search(r"^compile or load\s+[0-9.]+ s\s+[0-9.]+ s\s+[0-9.]+x$", shown, re.MULTILINE)
    assert "the same loss" in shown
    print_runs(said["cold"], {**said["warm"], "loss": -1.0}, blocks=1)
    assert "ANOTHER loss" in capsys.readouterr().out
