"""Stores that version 0.1.0 wrote (tests/data/stores) are read as they were written, and used on."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from helpers import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import mixed_fleet

import ejcache

DATA = Path(__file__).parent.parent / "data" / "stores"


def test_golden_stores(tmp_path):
    """Every entry, counter and tuned record of a local, a shared and a tuned store is found."""
    shutil.copytree(DATA, tmp_path / "stores")
    assert mixed_fleet.problems(tmp_path / "stores") == []


def test_what_this_version_writes(tmp_path):
    """The same stores, written by this version, are read as they were written."""
    mixed_fleet.write(tmp_path)
    assert mixed_fleet.problems(tmp_path) == []


@pytest.mark.parametrize("name", ["local", "shared"])
def test_the_layout_is_the_same(tmp_path, name):
    """This version gives an entry the name, and an object the bytes, that version 0.1.0 gave them."""
    mixed_fleet.write(tmp_path)
    below = {
        path.relative_to(root / name).as_posix(): path.read_bytes()
        for root in (DATA,)
        for path in (root / name / "v1" / "entries").rglob("*")
        if path.is_file()
    }
    for relative, data in below.items():
        assert (tmp_path / name / relative).read_bytes() == data
    with ejcache.open_store(tmp_path / name) as store:
        for key in mixed_fleet.KEYS:
            assert store.get(key) == mixed_fleet.entry_of(key)
