"""How many cores this process may use."""

from __future__ import annotations

import os

import pytest

from ejcache.util import cores


@pytest.mark.parametrize(
    ("quota", "has_second"),
    [("200000 100000", True), ("150000 100000", False), ("max 100000", True), ("", True), ("1 0", True), (None, True)],
)
def test_a_quota_of_less_than_two_cores_leaves_no_second_one(quota, has_second, monkeypatch, tmp_path):
    monkeypatch.setattr(cores, "cores", lambda: 64)
    monkeypatch.setattr(cores, "_QUOTA", str(tmp_path / "cpu.max"))
    if quota is not None:
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert cores.has_second_core() is has_second


def test_a_process_that_is_pinned_to_one_core_has_no_second_one():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cores.cores() == 1
        assert not cores.has_second_core()
    finally:
        os.sched_setaffinity(0, before)
