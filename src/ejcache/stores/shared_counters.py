"""Counters of many processes without a hot object: each writes its own, and a reader adds them up.

    v1/counters/<host>-<pid>-<uuid>     JSON: sums, written (seconds since the epoch)
    v1/counters/=baseline               JSON: sums, written, folded (names and versions)

A bucket allows about one write a second to an object, and a file system between hosts has no lock worth the name. So
a process keeps its sums in memory and overwrites an object of its own with them, rarely. A reset cannot change other
processes' objects; it records what they amount to, and readers subtract it.

The objects of processes that have written nothing for long are folded into the baseline by upkeep, because a pod leaves
one for each of its processes at every start. First the baseline takes over their sums and their names, under the
condition that nobody has changed it, then they are removed: whoever reads in between, or after a crash in between,
leaves out an object that is named there. A process that wakes up afterwards finds its object gone, and starts another.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ejcache.errors import StoreError
from ejcache.stores.breaker import breaker_for
from ejcache.stores.objects import ABSENT
from ejcache.stores.shared_layout import COUNTERS, process_name
from ejcache.stores.shared_workers import at_exit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ejcache.stores.objects import ConditionalObjects
    from ejcache.stores.shared_bucket import BlobInfo, Bucket

__all__ = ["SharedCounters", "fold_counters"]

_BASELINE: Final = f"{COUNTERS}=baseline"
_LONGEST_INTERVAL: Final = 60.0
_NEGLIGIBLE: Final = 1e-9
_WRITE_SECONDS: Final = 1.0
"""A bucket refuses a second write of one object within this time."""
_QUIET_SECONDS: Final = 86_400.0
"""A process that has written nothing for so long has ended, or has nothing to say."""
_MOST_FOLDED: Final = 2000
_THREADS: Final = 8


class SharedCounters:
    """The counters of one store, as one of its users sees and adds to them. Safe for threads and across forks.

    Args:
        bucket: where they are kept.
        interval: seconds between two writes at least; it doubles with every write up to a minute. 0 writes at once.

    Attributes:
        failed: the last write did; what it would have written is kept for the next one.
    """

    def __init__(self, bucket: Bucket, *, interval: float = 1.0) -> None:
        self._bucket = bucket
        self._interval = interval
        self.failed = False
        self._reset()
        _everyone.add(self)

    def _reset(self) -> None:
        # Also in a forked child, which inherits sums that its parent writes, and a lock that nobody may release.
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._name = COUNTERS + process_name()
        self._version = ABSENT
        self._sums: Counter[str] = Counter()
        self._written: Counter[str] = Counter()
        self._written_at = float("-inf")
        self._dirty = False
        self._wait = self._interval
        self._timer: threading.Timer | None = None

    def add(self, amounts: Mapping[str, float]) -> None:
        """Add; written within the interval, by another thread, or at once without one. Never raises a `StoreError`."""
        with self._lock:
            for name, amount in amounts.items():
                if amount:
                    self._sums[name] += amount  # type: ignore[assignment]  # Counter is typed for int alone
                    self._dirty = True
            if not self._dirty:
                return
            if self._interval > 0:
                self._schedule()
                return
        self.flush()

    def _schedule(self) -> None:
        if self._timer is not None:
            return
        timer = threading.Timer(self._wait, self.flush)
        timer.daemon = True
        # At the end of a program no thread can be started; `flush` runs then anyway.
        with contextlib.suppress(RuntimeError):
            timer.start()
            self._timer = timer
            self._wait = min(_LONGEST_INTERVAL, self._wait * 2)

    def flush(self) -> bool:
        """Write what was added since the last time; False if that failed, and then the next one does it."""
        with self._writing:
            with self._lock:
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
                if not self._dirty:
                    return True
                self._dirty = False
                if self._interval > 0 and time.monotonic() - self._written_at < _WRITE_SECONDS:
                    self._start_another()  # as at the end of a program
            try:
                if not self._write():
                    self._look_again()
                    self._write()
            except StoreError:
                with self._lock:
                    self._dirty = True
                self.failed = True
                return False
            self.failed = False
            return True

    def _start_another(self) -> None:
        """Have what is new go into another object; with the lock held."""
        self._name, self._version = COUNTERS + process_name(), ABSENT
        self._sums.subtract(self._written)
        self._written = Counter()

    def _look_again(self) -> None:
        blob = self._bucket.read(self._name)
        if blob is not None:
            self._version = blob.version  # a write whose answer did not come had succeeded
            return
        # Upkeep has folded it: what it said stands in the baseline.
        with self._lock:
            self._start_another()

    def _write(self) -> bool:
        """Whether the object still was the one that this process wrote last, and is written."""
        with self._lock:
            sums = self._sums.copy()
        version = self._bucket.write(self._name, _encode(sums), version=self._version)
        if version is None:
            return False
        self._version, self._written, self._written_at = version, sums, time.monotonic()
        return True

    def total(self, *, flush: bool = True) -> dict[str, float]:
        """The sum over all processes since the last reset.

        Raises:
            StoreError: the objects cannot be listed or read.
        """
        if flush:
            for counters in _users():
                if counters._bucket.url == self._bucket.url:  # noqa: SLF001  # other users in this process
                    counters.flush()
        found = self._read()
        return {name: amount for name, amount in found.items() if abs(amount) > _NEGLIGIBLE}

    def reset(self) -> None:
        """Count from zero: what was counted so far, by anybody, no longer shows."""
        current = self.total()
        found = _read_baseline(self._bucket)
        for name, amount in current.items():
            found.sums[name] = found.sums.get(name, 0) - amount
        self._bucket.write(_BASELINE, found.encode())

    def _read(self) -> dict[str, float]:
        # The baseline first: what is folded after that is still there, or is missed once.
        baseline = _read_baseline(self._bucket)
        names = [info.name for info in self._bucket.walk(COUNTERS) if _counts(info, baseline)]
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="ejcache-counters") as pool:
            return _sum([baseline.sums, *map(_decode, pool.map(self._bucket.read, names))])


def fold_counters(objects: ConditionalObjects, infos: Iterable[BlobInfo], *, now: float) -> int:
    """Fold the counters of processes that are long quiet into the baseline, and remove them; how many.

    Args:
        objects: where they are kept.
        infos: a listing of `COUNTERS`.
        now: seconds since the epoch.

    Raises:
        StoreError: the storage failed; nothing is lost, or counted twice.
    """
    old = {info.name: info for info in infos if info.name != _BASELINE and now - info.created > _QUIET_SECONDS}
    if not old:
        return 0
    baseline = _read_baseline(objects)
    # Named by a pass that died before it removed them.
    left = {name: version for name, version in baseline.folded.items() if name in old}
    quiet = [info for info in old.values() if _counts(info, baseline)][:_MOST_FOLDED]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="ejcache-counters") as pool:
        blobs = pool.map(lambda info: objects.read(info.name), quiet)
        read = [(info.name, blob) for info, blob in zip(quiet, blobs, strict=True) if blob is not None]
    folded = {**left, **{name: blob.version for name, blob in read}}
    sums = _sum([baseline.sums, *(_decode(blob) for _, blob in read)])
    if objects.write(_BASELINE, _Baseline(sums, folded, "").encode(), version=baseline.version) is None:
        return 0  # somebody else does it
    return sum(1 for _ in objects.delete_many(list(folded.items())))


@dataclass(frozen=True, slots=True)
class _Baseline:
    """What is added to all that processes say, and which of their objects it contains already."""

    sums: dict[str, float]
    folded: dict[str, str]
    version: str

    def encode(self) -> bytes:
        fields = {"sums": self.sums, "folded": self.folded, "written": time.time()}
        return json.dumps(fields, sort_keys=True).encode()


def _read_baseline(objects: ConditionalObjects) -> _Baseline:
    blob = objects.read(_BASELINE)
    if blob is None:
        return _Baseline({}, {}, ABSENT)
    folded: dict[str, str] = {}
    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError, RecursionError):
        folded = {str(name): str(version) for name, version in json.loads(blob.data)["folded"].items()}
    return _Baseline(_decode(blob), folded, blob.version)


def _counts(info: BlobInfo, baseline: _Baseline) -> bool:
    return info.name != _BASELINE and baseline.folded.get(info.name) != info.version


def _sum(many: Iterable[Mapping[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for one in many:
        for name, amount in one.items():
            sums[name] = sums.get(name, 0) + amount
    return sums


_everyone: Final[weakref.WeakSet[SharedCounters]] = weakref.WeakSet()


def _users() -> list[SharedCounters]:
    while True:
        with contextlib.suppress(RuntimeError):  # another thread has opened a store meanwhile
            return list(_everyone)


def _flush_all() -> None:
    for counters in _users():
        # A storage that failed last time, or others before, is not waited for at the end of a program.
        if not counters.failed and not breaker_for(counters._bucket.url).is_open:  # noqa: SLF001  # the class's half
            counters.flush()


def _after_fork() -> None:
    for counters in _users():
        counters._reset()  # noqa: SLF001


at_exit(_flush_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _encode(sums: Mapping[str, float]) -> bytes:
    return json.dumps({"sums": dict(sums), "written": time.time()}, sort_keys=True).encode()


def _decode(blob: Any) -> dict[str, float]:
    """The sums in an object; none in one that is absent or damaged, since counters are not worth an error."""
    try:
        sums = json.loads(blob.data)["sums"]
        return {str(name): amount for name, amount in sums.items() if isinstance(amount, int | float)}
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return {}
