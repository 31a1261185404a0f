"""Whether a bucket, or a directory between hosts, can hold a shared cache. It answers within ten seconds.

Everything is tried on one object of its own, `v1/doctor/<process>`, which is removed again.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Final

from ejcache.stores.shared_layout import process_name
from ejcache.stores.shared_retry import RetryPolicy
from ejcache.upkeep.checkup import Check, Stopwatch, Verdict, failed, fine, skipped, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.stores.shared_bucket import Bucket

__all__ = ["BUDGET", "check_bucket"]

BUDGET: Final = 8.0
"""Seconds for all requests together."""
_ONE: Final = 4.0
"""Seconds for one operation, its retries included."""
_READS: Final = 5
_SLOW: Final = 0.25
_SKEW: Final = 30.0
_DOCTOR: Final = "v1/doctor/"
_PROBE: Final = b"ejcache doctor: may be removed"

_AFTER_REACH: Final = ("list", "create", "create once", "read", "compare and swap", "clock", "latency", "delete")
_AFTER_CREATE: Final = _AFTER_REACH[2:]

_ADVICE: Final = {
    "gs": {
        "reach": "check the bucket's name, the network, and the credentials: `gcloud auth application-default login`, "
        "or EASYDEL_GCS_CLIENT=<file>",
        "list": "allow storage.objects.list (roles/storage.objectUser): ls, stats, prune and eviction need it",
        "create": "allow storage.objects.create (roles/storage.objectUser), or set EJCACHE_READ_ONLY=1 to read only",
        "read": "allow storage.objects.get (roles/storage.objectUser)",
        "delete": "allow storage.objects.delete (roles/storage.objectUser): eviction, leases and journals need it",
    },
    "s3": {
        "reach": "check the bucket's name, the network (AWS_ENDPOINT_URL), and the credentials (AWS_PROFILE, "
        "AWS_ACCESS_KEY_ID)",
        "list": "allow s3:ListBucket on the bucket: ls, stats, prune and eviction need it",
        "create": "allow s3:PutObject, or set EJCACHE_READ_ONLY=1 to read only",
        "read": "allow s3:GetObject",
        "delete": "allow s3:DeleteObject: eviction, leases and journals need it",
    },
}
_OTHER_ADVICE: Final = {
    "reach": "check the path or address, the network or mount, and the credentials",
    "list": "allow the user to list: ls, stats, prune and eviction need it",
    "create": "allow the user to write, or set EJCACHE_READ_ONLY=1 to read only",
    "read": "allow the user to read what others of the job write (umask, access lists)",
    "delete": "allow the user to remove: eviction, leases and journals need it",
}


def check_bucket(bucket: Bucket, *, read_only: bool = False, budget: float = BUDGET) -> Iterator[Check]:
    """Try what a shared cache needs of `bucket`, one check after the other.

    Args:
        bucket: its policy is replaced by a less patient one.
        read_only: only read, as a job would that does not write.
        budget: seconds in all; what is not tried by then is skipped.
    """
    yield from _Checkup(bucket, time.monotonic() + budget).run(read_only=read_only)


class _Checkup:
    def __init__(self, bucket: Bucket, end: float) -> None:
        self.bucket = bucket
        self.end = end
        self.watch = Stopwatch()
        self.name = _DOCTOR + process_name()
        scheme = bucket.url.partition("://")[0]
        self.advice = _ADVICE.get(scheme, _OTHER_ADVICE)

    def run(self, *, read_only: bool) -> Iterator[Check]:
        reach = self._reach()
        yield reach
        if reach.verdict is Verdict.FAILED:
            yield from (skipped(name, "it cannot be reached") for name in _AFTER_REACH)
            return
        yield self._list()
        if read_only:
            yield from (skipped(name, "the cache is read only") for name in _AFTER_REACH[1:])
            return
        create = self._create()
        yield create
        if create.verdict is not Verdict.OK:
            yield from (skipped(name, "there is nothing to try it on") for name in _AFTER_CREATE)
            return
        try:
            for step in (self._once, self._read, self._swap, self._clock, self._latency):
                yield step()
        finally:
            gone = self._delete()
        yield gone

    def _give_time(self) -> None:
        self.bucket.policy = RetryPolicy(deadline=max(0.5, min(_ONE, self.end - time.monotonic())))

    def _reach(self) -> Check:
        self._give_time()
        # Not `stat`: S3 does not say in answer to that whether it is the bucket that is missing.
        self.watch.time(lambda: self.bucket.read(self.name))
        if self.watch.problem is not None:
            return failed("reach", self.watch.problem, self.advice["reach"])
        return fine("reach", f"answered in {self.watch.text}, the connection included")

    def _list(self) -> Check:
        self._give_time()
        self.watch.time(lambda: next(self.bucket.walk("v1/entries/"), None))
        if self.watch.problem is not None:
            return failed("list", self.watch.problem, self.advice["list"])
        return fine("list", f"a page in {self.watch.text}")

    def _create(self) -> Check:
        self._give_time()
        created = self.watch.time(lambda: self.bucket.create(self.name, _PROBE))
        if self.watch.problem is not None:
            return failed("create", self.watch.problem, self.advice["create"])
        if not created:
            return failed("create", "an object that nobody has made is said to exist", "ask whoever runs the storage")
        return fine("create", f"an object in {self.watch.text}")

    def _once(self) -> Check:
        name = "create once"
        self._give_time()
        again = self.watch.time(lambda: self.bucket.create(self.name, b"second"))
        if self.watch.problem is not None:
            return failed(name, self.watch.problem, self.advice["create"])
        if again:
            return failed(
                name,
                "an object that exists was created again: conditions are ignored",
                "use storage (or an emulator, or a gateway) that honours conditional writes: several processes would "
                "all believe that they were first",
            )
        return fine(name, "a second creation is refused")

    def _read(self) -> Check:
        self._give_time()
        found = self.watch.time(lambda: (self.bucket.read(self.name), self.bucket.read(self.name, length=7)))
        if self.watch.problem is not None or found is None:
            return failed("read", self.watch.problem, self.advice["read"])
        whole, part = found
        if whole is None or part is None:
            return failed("read", "an object that was just written is not found", "use storage that shows its writes")
        if (whole.data, part.data) != (_PROBE, _PROBE[:7]):
            return failed("read", "other bytes come back than were written", "use other storage: this one damages them")
        return fine("read", "what was written comes back, whole and in part")

    def _swap(self) -> Check:
        name = "compare and swap"
        self._give_time()

        def swap() -> tuple[bool, bool]:
            before = self.bucket.stat(self.name)
            version = "" if before is None else before.version
            first = self.bucket.write(self.name, _PROBE + b"!", version=version)
            return first is not None, self.bucket.write(self.name, _PROBE, version=version) is None

        swapped = self.watch.time(swap)
        if self.watch.problem is not None or swapped is None:
            return failed(name, self.watch.problem, self.advice["create"])
        if swapped != (True, True):
            return failed(
                name,
                "a write under a condition that does not hold is carried out, or one under a true one is not",
                "use storage that honours conditions: leases cannot be taken over safely here",
            )
        if not self.bucket.conditional:
            return warning(
                name,
                "conditions are compared by the writer, a moment before it writes",
                "nothing to do: at worst two hosts compile the same program at once",
            )
        return fine(name, "a write under a condition that no longer holds is refused")

    def _clock(self) -> Check:
        self._give_time()
        probe = f"{self.name}-clock"
        self.watch.time(lambda: self.bucket.write(probe, _PROBE))
        began, ended = self.watch.began, self.watch.ended
        info = None
        if self.watch.problem is None:
            info = self.watch.time(lambda: self.bucket.stat(probe))
            self.watch.time(lambda: self.bucket.delete(probe))
        if info is None:
            return skipped("clock", "the storage does not say when an object was made")
        # Some storages say whole seconds.
        skew = max(0.0, began - 1 - info.created, info.created - ended - 1)
        if skew > _SKEW:
            return warning(
                "clock",
                f"the storage's clock and this host's differ by {skew:.0f} s",
                "set this host's clock (NTP): ages are measured by it, and credentials are refused beyond five minutes",
            )
        return fine("clock", "the storage's clock and this host's agree" if skew == 0 else f"{skew:.1f} s apart")

    def _latency(self) -> Check:
        taken = []
        for _ in range(_READS):
            self._give_time()
            self.watch.time(lambda: self.bucket.read(self.name))
            if self.watch.problem is not None:
                return failed("latency", self.watch.problem, self.advice["reach"])
            taken.append(self.watch.seconds)
            if time.monotonic() > self.end:
                break
        middle = statistics.median(taken)
        text = f"{middle * 1000:.0f} ms to read a small object (worst of {len(taken)}: {max(taken) * 1000:.0f} ms)"
        if middle > _SLOW:
            return warning("latency", text, "use a bucket in the region where the job runs")
        return fine("latency", text)

    def _delete(self) -> Check:
        self._give_time()
        deleted = self.watch.time(lambda: self.bucket.delete(self.name))
        took = self.watch.text
        if self.watch.problem is not None:
            return failed("delete", self.watch.problem, f"{self.advice['delete']}; {self.bucket.url}/{self.name} stays")
        left = self.watch.time(lambda: self.bucket.stat(self.name))
        if not deleted or left is not None:
            return failed("delete", "an object that was removed is still there", "use storage that shows its removals")
        return fine("delete", f"in {took}")
