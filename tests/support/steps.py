"""A clock, and a scheduler without threads: time passes, and what is due runs, when the test says so."""

from __future__ import annotations

from ejcache.util.scheduler import Scheduler


class Clock:
    """Seconds that stand still until a test moves them, or a wait by `sleep`; also in place of the module `time`."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    monotonic = __call__

    def sleep(self, seconds):
        self.now += seconds


class Steps(Scheduler):
    """Runs what is due, by `clock`, in `step`."""

    def __init__(self, clock):
        super().__init__(threads=0, clock=clock)

    def step(self):
        """Run what is due now."""
        while self.run_due():
            pass
