"""Presence files: a process that lives is never taken for a dead one."""

from __future__ import annotations

import fcntl

from ejcache.util import locks
from ejcache.util.locks import Presence, dead_presences, living


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
