"""Presence files: a process that lives is never taken for a dead one. Lock files that are removed still exclude."""

from __future__ import annotations

import fcntl
import math
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ejcache.util import locks
from ejcache.util.locks import exclusive, pause
from ejcache.util.presence import Presence, dead_presences, living


def test_a_presence_is_never_seen_without_its_lock(tmp_path, monkeypatch):
    """Who looks just before the file is locked finds no file of a dead process, which it would remove."""
    seen = []
    lock = fcntl.flock

    def looking(fd, how):
        monkeypatch.setattr(locks.fcntl, "flock", lock)
        seen.append(dead_presences(tmp_path))
        lock(fd, how)

    monkeypatch.setattr(locks.fcntl, "flock", looking)
    presence = Presence(tmp_path)
    assert seen == [[]]
    assert living(tmp_path) == {presence.token}
    presence.leave(clean=False)
    assert [path.name for path in dead_presences(tmp_path)] == [presence.token]
    assert not list(tmp_path.glob(".*"))


def test_waits_leave_the_random_numbers_of_the_program_alone():
    """A program that has seeded them gets the same ones, however often a thread of ejcache waits."""
    before = random.getstate()
    assert pause(time.monotonic() + 60)
    assert random.getstate() == before


def test_who_waits_for_a_lock_file_that_is_removed_still_waits(tmp_path):
    """Each turn removes the file, and no two threads, which are as foreign to each other as processes, share a turn."""
    counter, inside = tmp_path / "counter", []

    def turn(_):
        with exclusive(tmp_path / ".lock", deadline=math.inf, lasting=False):
            inside.append("began")
            counter.write_text(str(int(counter.read_text() if counter.exists() else 0) + 1))
            inside.append("ended")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(turn, range(200)))
    assert counter.read_text() == "200"
    assert inside == ["began", "ended"] * 200
    assert not (tmp_path / ".lock").exists()


def test_a_presence_that_gets_no_name(tmp_path, monkeypatch):
    """Where the file cannot get its name, nothing is left of it: no descriptor, and no file that nobody clears away."""
    monkeypatch.setattr("ejcache.util.presence.secrets.token_hex", lambda _: "0" * 12)
    taken = tmp_path / "present" / f"{os.getpid()}-{'0' * 12}"
    taken.mkdir(parents=True)
    held = set(Path("/dev/fd").iterdir())
    with pytest.raises(OSError, match="directory"):
        Presence(taken.parent)
    assert list(taken.parent.iterdir()) == [taken]
    assert set(Path("/dev/fd").iterdir()) <= held
