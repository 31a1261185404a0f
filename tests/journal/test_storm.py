"""A storm over the journals: processes that write them and passes that fold them are killed, and each counts once."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import signal
import time

import pytest
from capabilities import needs

from ejcache.bucket.files import FileBucket
from ejcache.bucket.retry import RetryPolicy
from ejcache.journal.fold import compact
from ejcache.journal.format import SNAPSHOT, decode_lines
from ejcache.journal.line import EntryUse
from ejcache.journal.shared_journal import SharedJournal
from ejcache.maintenance.listed_entries import Listing

pytestmark = needs("fork")

DAY = 86_400.0
MOST = 60
"""Journals of a host."""
TIMES = 3
PASSES = 3
BEGUN, WRITTEN = 1, 2


def patient(directory):
    """The objects there, for which a busy machine is no failure."""
    bucket = FileBucket(directory, policy=RetryPolicy(120.0))
    bucket.breaker = None
    return bucket


class Storm:
    """Hosts that write journals, and passes, which the parent kills and begins again.

    Attributes:
        ledger: what each host has done, kept by hand: a byte for each of its journals, in memory that outlives it.
    """

    def __init__(self, directory, *, hosts, seed=0):
        self.directory, self.hosts = directory, hosts
        self.ledger = mmap.mmap(-1, hosts * MOST)
        self._random = random.Random(seed)
        self._running = {}

    def host(self, number):
        """Note a use and a count of its own in each journal; its clock may be a day off."""
        offset, clock = random.choice([-DAY, 0.0, DAY]), time.time
        time.time = lambda: clock() + offset  # in this child alone
        journal = SharedJournal(patient(self.directory))
        for place in range(number * MOST, (number + 1) * MOST):
            if not self.ledger[place]:
                self.ledger[place] = BEGUN
                journal.note(f"key-{place}", times=TIMES)
                journal.add({f"count-{place}": 1, "all": 1})
                if journal.write():
                    self.ledger[place] = WRITTEN

    def fold(self):
        """Fold until the end."""
        while True:
            listing = Listing()
            compact(patient(self.directory), listing)

    def start(self, number):
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                self.host(number) if number < self.hosts else self.fold()
            os._exit(0)
        self._running[number] = child

    def kill(self, number):
        child = self._running.pop(number)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    def await_another_journal(self):
        """Until one more is written, or none is left to be written: on a busy machine that takes its time."""
        before = self.ledger[:].count(WRITTEN)
        while self.ledger[:].count(WRITTEN) == before and 0 in self.ledger[:]:
            time.sleep(0.001)

    def run(self, kills):
        """Kill one after the other, and begin each anew; at the end all."""
        for number in range(self.hosts + PASSES):
            self.start(number)
        for _ in range(kills):
            # As often a pass as a host: a pass has more moments to die in.
            low = self._random.choice([0, self.hosts])
            number = self._random.randrange(low, self.hosts + PASSES)
            self.await_another_journal()
            time.sleep(self._random.uniform(0.0, 0.05))  # so that it dies anywhere in its work
            self.kill(number)
            self.start(number)
        for number in list(self._running):
            self.kill(number)


@pytest.mark.parametrize(("hosts", "kills"), [
    (3, 5),
    pytest.param(24, 300, marks=pytest.mark.soak),
    pytest.param(64, 300, marks=pytest.mark.soak),
])  # fmt: skip
def test_each_journal_counts_once(tmp_path, hosts, kills):
    """Sums and uses are those that are kept by hand, before and after the passes that follow, and none is twice."""
    storm = Storm(tmp_path / "shared", hosts=hosts)
    storm.run(kills)
    bucket = patient(tmp_path / "shared")
    written = {place for place in range(hosts * MOST) if storm.ledger[place] == WRITTEN}
    begun = {place for place in range(hosts * MOST) if storm.ledger[place] == BEGUN}
    assert len(written) >= hosts
    for passes in range(3):
        sums = SharedJournal(bucket).total()
        counted = {int(name.removeprefix("count-")) for name in sums if name != "all"}
        assert set(sums.values()) - {sums["all"]} <= {1}
        assert written <= counted <= written | begun
        assert sums["all"] == len(counted)
        if passes:
            used = dict(decode_lines(bucket.read(SNAPSHOT).data))
            assert {int(key.removeprefix("key-")) for key in used} == counted
            assert {use.times for use in used.values()} == {TIMES}
            assert all(isinstance(use, EntryUse) and use.when <= time.time() for use in used.values())
        listing = Listing()
        compact(bucket, listing)
