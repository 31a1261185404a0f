"""Counters of many processes, without an object that all of them write.

    v1/counters/<process name>     JSON: sums, written (seconds since the epoch)
    v1/counters/=baseline          JSON: sums, written, folded (names and versions)

A bucket accepts about one write a second to one object, and network file systems have no reliable locks. So each
process keeps its sums in memory and now and then overwrites an object of its own with them; a reader adds up all
objects. A reset cannot change the objects of other processes. It writes their sums, negated, into the baseline.

A pod leaves one object for each of its processes at every start. So an eviction pass folds the objects that nobody has
written for a day into the baseline: first it writes their sums and their names into the baseline, on the condition
that nobody else has changed it, and then it deletes them. A reader leaves out the objects that the baseline names,
also if the pass died in between. A process that goes on after its object was folded starts another object.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import weakref
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ejcache.bucket.base import ABSENT
from ejcache.bucket.layout import COUNTERS, is_process_name, process_name
from ejcache.errors import MALFORMED, StoreError
from ejcache.util.lifecycle import ExitPhase, at_exit, track_forks
from ejcache.util.parallel import in_parallel
from ejcache.util.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ejcache.bucket.base import Blob, BlobInfo, Bucket

__all__ = ["MAX_BYTES", "SharedCounters", "decode_sums", "fold_counters"]

MAX_BYTES: Final = 1 << 20
"""A larger object holds no counters of ours, and is not read. The baseline names at most 2,000 objects."""

_BASELINE: Final = f"{COUNTERS}=baseline"
_LONGEST_INTERVAL: Final = 60.0
_NEGLIGIBLE: Final = 1e-9
_LARGEST: Final = 1e30
_WRITE_SECONDS: Final = 1.0
"""A bucket refuses a second write to one object within this time."""
_QUIET_SECONDS: Final = 86_400.0
"""A process that has not written for this time has ended, or counts nothing any more."""
_MOST_FOLDED: Final = 2000
_THREADS: Final = 8

_scheduler: Final = Scheduler(name="ejcache-counters")


class SharedCounters:
    """The counters of one shared store, as this process adds to them. Safe for threads and across forks.

    Args:
        bucket: of the store.
        interval: seconds between two writes; it doubles with every write, up to a minute. 0 writes every change at
            once.

    Attributes:
        failed: the last write failed; the next one writes the same sums.
        leave: `leave(uses, sums)` leaves sums to another process; None if this process can only write its own.
    """

    def __init__(self, bucket: Bucket, *, interval: float = 1.0) -> None:
        self._bucket = bucket
        self._interval = interval
        self.failed = False
        self.leave: Callable[[Mapping[str, float], Mapping[str, float]], object] | None = None
        self.after_fork_in_child()
        _everyone.add(self)
        track_forks(self)

    def after_fork_in_child(self) -> None:
        """Start from zero: the parent writes the sums that it had."""
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._name = COUNTERS + process_name()
        self._version = ABSENT
        self._sums: Counter[str] = Counter()
        self._written: Counter[str] = Counter()
        self._written_at = float("-inf")
        self._dirty = False
        self._wait = self._interval
        self._scheduled = False

    def add(self, amounts: Mapping[str, float]) -> None:
        """Add to the counters. They are written in the background after the interval. Never raises a `StoreError`."""
        if self.leave is None:
            self._bucket.prepare()  # a program that is ending cannot make a client
        with self._lock:
            for name, amount in amounts.items():
                if amount:
                    self._sums[name] += amount  # type: ignore[assignment]  # Counter is typed for int alone
                    self._dirty = True
            if self._interval > 0:
                if self._dirty and not self._scheduled:
                    # During exit no thread starts and `later` returns False; the exit phase then calls `flush`.
                    wait = self._wait if self.leave is None or self._bucket.is_prepared else _LONGEST_INTERVAL
                    self._scheduled = _scheduler.later(wait, self._flush_scheduled)
                    self._wait = min(_LONGEST_INTERVAL, self._wait * 2)
                return
        self.flush()

    def _flush_scheduled(self) -> None:
        with self._lock:
            self._scheduled = False
        self.flush()

    def flush(self) -> bool:
        """Write what was added since the last write; False if the storage failed."""
        with self._writing:
            with self._lock:
                if not self._dirty:
                    return True
                self._dirty = False
                if self._interval > 0 and time.monotonic() - self._written_at < _WRITE_SECONDS:
                    self._start_another()  # happens when the program ends right after a write
            try:
                if not self._write():
                    self._refresh_version()
                    self._write()
            except StoreError:
                with self._lock:
                    self._dirty = True
                self.failed = True
                return False
            self.failed = False
            return True

    def flush_or_leave(self) -> None:
        """`flush` if this process can make a request; otherwise leave to another process what was added."""
        breaker = self._bucket.breaker
        is_refused = breaker is not None and breaker.is_open
        # Do not wait, when the program ends, for storage that failed just before.
        if self._bucket.is_prepared and not is_refused and not self.failed and self.flush():
            return
        if self.leave is None:
            return
        with self._writing, self._lock:
            left = {name: amount - self._written[name] for name, amount in self._sums.items()}
            self._sums = self._written.copy()
            self._dirty = False
        self.leave({}, {name: amount for name, amount in left.items() if amount})

    def _start_another(self) -> None:
        """Write the new amounts into another object; called with the lock held."""
        self._name, self._version = COUNTERS + process_name(), ABSENT
        self._sums.subtract(self._written)
        self._written = Counter()

    def _refresh_version(self) -> None:
        info = self._bucket.stat(self._name)
        if info is not None:
            self._version = info.version  # the answer to our last write was lost, but the write succeeded
            return
        with self._lock:
            self._start_another()  # a pass has folded our object into the baseline

    def _write(self) -> bool:
        """Write the sums; False if the object is not the one that this process wrote last."""
        with self._lock:
            sums = self._sums.copy()
        version = self._bucket.write(self._name, _encode({"sums": sums}), version=self._version)
        if version is None:
            return False
        self._version, self._written, self._written_at = version, sums, time.monotonic()
        return True

    def total(self, *, flush: bool = True) -> dict[str, float]:
        """The sums of all processes since the last reset.

        Args:
            flush: write this process's sums first.

        Raises:
            StoreError: the objects cannot be listed or read.
        """
        if flush:
            for counters in _users():
                if counters._bucket.url == self._bucket.url:  # noqa: SLF001  # other stores of this process
                    counters.flush()
        # Read the baseline first. An object that is folded after that is still listed, or is missed in this one read;
        # it is never counted twice.
        baseline = _read_baseline(self._bucket)
        names = (info.name for info in self._bucket.walk(COUNTERS) if _counts(info, baseline))
        sums = Counter(baseline.sums)
        for blob in in_parallel(self._read, names, threads=_THREADS):
            sums.update(decode_sums(blob))
        return {name: amount for name, amount in sums.items() if abs(amount) > _NEGLIGIBLE}

    def _read(self, name: str) -> Blob | None:
        return _read_limited(self._bucket, name)

    def reset(self) -> None:
        """Count from zero. Raises StoreError if the storage fails."""
        current = self.total()
        baseline = _read_baseline(self._bucket)
        sums = Counter(baseline.sums)
        sums.subtract(current)
        self._bucket.write(_BASELINE, _encode({"sums": sums, "folded": baseline.folded}))


def fold_counters(objects: Bucket, infos: Iterable[BlobInfo], *, now: float) -> int:
    """Fold the counters of ended processes into the baseline, and delete them; returns how many were deleted.

    Args:
        objects: of the store.
        infos: a listing of `COUNTERS`.
        now: seconds since the epoch.

    Raises:
        StoreError: the storage failed; nothing is lost or counted twice.
    """
    old = {info.name: info for info in infos if _is_ours(info.name) and now - info.created > _QUIET_SECONDS}
    if not old:
        return 0
    baseline = _read_baseline(objects)
    # These are in the baseline already: a pass died before it deleted them.
    folded = {name: version for name, version in baseline.folded.items() if name in old}
    quiet = [info.name for info in old.values() if _counts(info, baseline)][:_MOST_FOLDED]
    sums = Counter(baseline.sums)
    blobs = in_parallel(lambda name: _read_limited(objects, name), quiet, threads=_THREADS)
    for name, blob in zip(quiet, blobs, strict=True):
        if blob is not None:
            sums.update(decode_sums(blob))
            folded[name] = blob.version
    if objects.write(_BASELINE, _encode({"sums": sums, "folded": folded}), version=baseline.version) is None:
        return 0  # another process is folding
    return sum(1 for _ in objects.delete_many(folded.items()))


@dataclass(frozen=True, slots=True)
class _Baseline:
    """What readers add to the sums of all processes, and which of their objects it contains already."""

    sums: dict[str, float]
    folded: dict[str, str]
    version: str


def _read_baseline(objects: Bucket) -> _Baseline:
    blob = _read_limited(objects, _BASELINE)
    if blob is None:
        return _Baseline({}, {}, ABSENT)
    folded: dict[str, str] = {}
    with contextlib.suppress(*MALFORMED):
        folded = {str(name): str(version) for name, version in json.loads(blob.data)["folded"].items()}
    return _Baseline(decode_sums(blob), folded, blob.version)


def _read_limited(objects: Bucket, name: str) -> Blob | None:
    return objects.read(name, length=MAX_BYTES + 1)


def _counts(info: BlobInfo, baseline: _Baseline) -> bool:
    return _is_ours(info.name) and baseline.folded.get(info.name) != info.version


def _is_ours(name: str) -> bool:
    """Whether `name` is the name of one process's counters; other files are neither read nor deleted."""
    return is_process_name(name.removeprefix(COUNTERS))


def _encode(fields: Mapping[str, Mapping[str, object]]) -> bytes:
    return json.dumps({**fields, "written": time.time()}, sort_keys=True).encode()


def decode_sums(blob: Blob | None) -> dict[str, float]:
    """The sums in an object. Absent, damaged or absurd counters count as none: counters are not worth an error."""
    try:
        if blob is None or blob.size > MAX_BYTES:
            return {}
        sums = json.loads(blob.data)["sums"]
        return {
            str(name): amount
            for name, amount in sums.items()
            if isinstance(amount, int | float) and -_LARGEST < amount < _LARGEST
        }
    except MALFORMED:
        return {}


_everyone: Final[weakref.WeakSet[SharedCounters]] = weakref.WeakSet()


def _users() -> list[SharedCounters]:
    while True:
        with contextlib.suppress(RuntimeError):  # another thread has opened a store meanwhile
            return list(_everyone)


def _flush_all() -> None:
    for counters in _users():
        counters.flush_or_leave()


at_exit(ExitPhase.COUNTERS, _flush_all)
