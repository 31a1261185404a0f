"""Counters in memory are counted once, reported once, and start from zero in a forked child."""

from __future__ import annotations

from ejcache.util.tally import Tally


def test_pending_is_taken_once():
    """What was counted is in the totals for good, and pending until it is taken."""
    tally = Tally()
    tally.add(hits=1, seconds=0.5)
    tally.add(hits=2, none=0)
    assert tally.take_pending() == {"hits": 3, "seconds": 0.5}
    assert tally.take_pending() == {}
    assert tally.totals()["hits"] == 3


def test_a_child_starts_from_zero():
    """After a fork the child reports nothing of what its parent counted, even if a thread held the lock."""
    tally = Tally()
    tally.add(hits=1)
    tally._lock = None  # as good as held for ever
    tally.after_fork_in_child()
    tally.add(hits=1)
    assert tally.totals() == {"hits": 1}
