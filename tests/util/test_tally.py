"""Counters in memory are counted once, reported once, and start from zero in a forked child."""

from __future__ import annotations

import threading

from store_processes import in_fork

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
    begun, go_on = threading.Event(), threading.Event()

    class Slow(float):
        def __radd__(self, other):
            begun.set()
            assert go_on.wait(60)
            return float(self) + other

    def child():
        tally.add(hits=1)
        return tally.totals()

    tally = Tally()
    counting = threading.Thread(target=tally.add, kwargs={"hits": Slow(7)})
    counting.start()
    assert begun.wait(60)
    assert in_fork(child) == {"hits": 1}
    go_on.set()
    counting.join()
    assert tally.totals() == {"hits": 7}
