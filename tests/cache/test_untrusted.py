"""A cache directory that other users own or can write to: jobs use a directory of their own, and say so once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from capabilities import needs
from test_harmless import program, stats_of

needs_root = needs("root")


@pytest.fixture
def prepared(run_forked, tmp_path):
    """A cache that any user of the host could have put code into."""
    directory = tmp_path / "c"
    assert stats_of(run_forked(program(directory)))["stores"] == 3
    (directory / "v1" / "local").chmod(0o777)
    return directory


def test_a_job_uses_a_directory_of_its_own(run_forked, prepared):
    """Nothing is read from the directory or written to it; one warning says why, and what is used instead."""
    before = {path: path.stat().st_mtime_ns for path in prepared.rglob("*")}
    cold, warm = (run_forked(program(prepared)) for _ in range(2))
    assert (stats_of(cold)["hits"], stats_of(cold)["stores"]) == (0, 3)
    assert stats_of(warm)["hits"] == 3
    assert {path: path.stat().st_mtime_ns for path in prepared.rglob("*")} == before
    for finished in (cold, warm):
        assert finished.stderr.count("any user can write to") == 1
        assert f"{prepared}/v1/local" in finished.stderr
        assert "EJCACHE_TRUST_DIR=1" in finished.stderr
        assert "This process uses" in finished.stderr


@needs_root
def test_root_uses_what_root_has_made_in_a_directory_of_another_user(run_forked, tmp_path):
    """As root in a container over a bind mount: the user's directory keeps root's store, which root uses again."""
    directory = tmp_path / "mounted"
    directory.mkdir()
    os.chown(directory, 54321, 54321)
    cold, warm = (run_forked(program(directory / "cache")) for _ in range(2))
    assert stats_of(cold)["stores"] == stats_of(warm)["hits"] == 3
    assert "could have put code" not in warm.stderr
    assert Path(directory / "cache" / "v1").stat().st_uid == 0
