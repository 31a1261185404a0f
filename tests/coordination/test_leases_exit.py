"""Leases at the exit of a process."""

from __future__ import annotations

import threading

from store_processes import in_fork

from ejcache.coordination.leases import HeldLease, end_leases, lease_scheduler
from ejcache.util.scheduler import Scheduler


class SlowLease(HeldLease):
    """A lease whose removal takes as long as the test wants."""

    def __init__(self, scheduler=lease_scheduler):
        self.began, self.may_end, self.deleted = threading.Event(), threading.Event(), False
        super().__init__(600.0, scheduler)

    def _beat(self):
        return True

    def _delete(self):
        self.began.set()
        assert self.may_end.wait(200)
        self.deleted = True


def test_exit_waits_for_a_release_that_has_begun():
    """A lease that is being released in the background when the process exits is removed before it ends."""

    def exit_while_it_is_released():
        lease = SlowLease()
        lease.release()
        assert lease.began.wait(200)
        drain, waiting = lease_scheduler.drain, []

        def watched_drain(**limits):
            waiting.append(lease_scheduler.waiting)
            lease.may_end.set()
            return drain(**dict.fromkeys(limits, 200.0))

        lease_scheduler.drain = watched_drain
        end_leases()
        return waiting[0] >= 1, lease.deleted

    # A fork has no leases of other tests.
    assert in_fork(exit_while_it_is_released) == (True, True)


def test_a_release_for_which_no_thread_starts_is_made_at_once(monkeypatch):
    """Python starts no thread any more when it finalizes: the lease must not stay until it expires."""
    monkeypatch.setattr("ejcache.util.scheduler.start_daemon", lambda *_, **__: False)
    lease = SlowLease(Scheduler())
    lease.may_end.set()
    lease.release()
    assert lease.deleted
