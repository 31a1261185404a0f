"""Counters of many processes without a hot object: each writes its own, and a reader adds them up.

A bucket allows about one write a second to an object, and a file system between hosts has no lock worth the name. So
a process keeps its sums in memory and overwrites an object of its own with them, rarely. A reset cannot change other
processes' objects; it records what they amount to, and readers subtract it.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from ejcache.errors import StoreError
from ejcache.stores.breaker import breaker_for
from ejcache.stores.shared_layout import COUNTERS, process_name
from ejcache.stores.shared_workers import at_exit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ejcache.stores.shared_bucket import Bucket

__all__ = ["SharedCounters"]

_BASELINE: Final = f"{COUNTERS}=baseline"
_LONGEST_INTERVAL: Final = 60.0
_NEGLIGIBLE: Final = 1e-9
_WRITE_SECONDS: Final = 1.0
"""A bucket refuses a second write of one object within this time."""


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
                    # As at the end of a program: what is new goes into another object.
                    self._name = COUNTERS + process_name()
                    self._sums.subtract(self._written)
                    self._written = Counter()
                sums = self._sums.copy()
                data = _encode(sums)
            try:
                self._bucket.write(self._name, data)
            except StoreError:
                with self._lock:
                    self._dirty = True
                self.failed = True
                return False
            self._written, self._written_at = sums, time.monotonic()
            self.failed = False
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
        baseline = _decode(self._bucket.read(_BASELINE))
        for name, amount in current.items():
            baseline[name] = baseline.get(name, 0) - amount
        self._bucket.write(_BASELINE, _encode(baseline))

    def _read(self) -> dict[str, float]:
        sums: dict[str, float] = {}
        for info in self._bucket.walk(COUNTERS):
            for name, amount in _decode(self._bucket.read(info.name)).items():
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
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}
