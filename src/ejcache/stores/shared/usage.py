"""What a process used and counted of a shared cache: in journals, which a maintenance pass folds.

    v1/used/<day>/<process name>-<n>     a usage journal (`journal_format`): uses and sums since the one before
    v1/counters/=baseline                JSON: sums, written (seconds since the epoch), folded (names and versions)
    v1/counters/<process name>           JSON: sums; written by earlier versions only

A bucket records no access time, accepts about one write a second to one object, and network file systems have no
reliable locks. So each process collects in memory what it uses and counts, and writes at most one small journal a
minute, which nobody changes. A process that is killed loses its last minute. One that ends without a client for the
storage, or cannot reach it, leaves what it has to the next process of its host (`HostLog`).

The counters of the cache are the sums of the baseline and of all journals that it does not name. A pass first adds the
sums of journals to the baseline, with their names, on the condition that nobody else has changed it, and then deletes
them: they are counted once, also if the pass dies in between. A reset is a journal of the negated sums.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from ejcache.bucket.base import ABSENT
from ejcache.bucket.layout import COUNTERS, is_process_name, process_name
from ejcache.errors import MALFORMED, StoreError, StoreReadOnlyError
from ejcache.stores.shared.journal_format import decode_sums, encode, finite_sums
from ejcache.util.lifecycle import ExitPhase, at_exit, track_forks
from ejcache.util.parallel import in_parallel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ejcache.bucket.base import Blob, BlobInfo, Bucket
    from ejcache.stores.host_log import HostLog

log = logging.getLogger("ejcache")

USED: Final = "v1/used/"
MAX_BASELINE: Final = 4 << 20
"""A larger object holds no counters of ours, and is not read."""

_BASELINE: Final = f"{COUNTERS}=baseline"
_NEGLIGIBLE: Final = 1e-9
_START: Final = 1 << 16
"""Bytes of a journal that hold its sums."""
_QUIET_SECONDS: Final = 86_400.0
"""A process of an earlier version that has not written its counters for this time has ended."""
_THREADS: Final = 8


class Usage:
    """What this process uses and counts of one shared cache. Safe for threads; a forked child has its own.

    Args:
        bucket: of the cache.
        log: of this host, for what cannot be sent; None for nowhere.
        at_once: write each change of a counter at once.
        most: of how many entries the last use is remembered.
    """

    def __init__(self, bucket: Bucket, *, log: HostLog | None = None, at_once: bool = False, most: int) -> None:
        self._bucket = bucket
        self._log = log
        self._at_once = at_once
        self._most = most
        self.after_fork_in_child()
        _everyone.add(self)
        track_forks(self)

    def after_fork_in_child(self) -> None:
        """Leave what was used and counted to the parent, and write journals of another name."""
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._name = process_name()
        self._number = 0
        # Only single operations on these two, which the interpreter makes atomic: `note_used` is on the path of a hit.
        self.last_used: dict[str, float] = {}
        self._used: dict[str, float] = {}
        self._sums: Counter[str] = Counter()
        self._unsent: tuple[str, dict[str, float], dict[str, float]] | None = None
        self._failed = False
        self._refused = False

    def note_used(self, key: str, when: float | None = None) -> None:
        """Note a use, at `when` seconds since the epoch or now."""
        if len(self._used) < self._most or key in self._used:
            self._used[key] = max(when or time.time(), self._used.get(key, 0.0))
            if len(self.last_used) >= self._most:
                self.last_used = {}
            self.last_used[key] = self._used[key]

    def add(self, amounts: Mapping[str, float]) -> None:
        """Add to the counters. Never raises a `StoreError`."""
        if self._log is None:
            self._bucket.prepare()  # a program that is ending cannot make a client
        with self._lock:
            self._sums.update(amounts)
        if self._at_once:
            self.write()

    def write(self) -> bool:
        """Write a journal, if anything was used or counted since the last one. Never raises a `StoreError`.

        Returns:
            False if the storage failed; the next call writes the same journal again, so that one that was written
            although no answer came is there once.
        """
        with self._writing:
            while not self._refused and (self._unsent is not None or self._begin()):
                name, used, sums = self._unsent or ("", {}, {})
                try:
                    self._bucket.write(name, encode(used, sums=sums), version=ABSENT)
                except StoreReadOnlyError as exc:
                    log.debug("this process may not write usage journals: %s", exc)
                    self._refused = True
                except StoreError as exc:
                    log.debug("a usage journal was not written: %s", exc)
                    self._failed = True
                    return False
                self._unsent = None
            self._failed = False
            return True

    def _begin(self) -> bool:
        """Begin the next journal; False if it would be empty."""
        used, sums = self._take()
        if used or sums:
            self._unsent = self._next_name(), used, sums
        return self._unsent is not None

    def _take(self) -> tuple[dict[str, float], dict[str, float]]:
        used: dict[str, float] = {}
        with contextlib.suppress(KeyError):
            while True:
                key, when = self._used.popitem()
                used[key] = when
        with self._lock:
            sums, self._sums = self._sums, Counter()
        return used, {name: amount for name, amount in sums.items() if amount}

    def _next_name(self) -> str:
        self._number += 1
        return f"{USED}{time.strftime('%Y-%m-%d', time.gmtime())}/{self._name}-{self._number - 1}"

    def write_or_leave(self) -> None:
        """`write` if this process can make a request; otherwise leave to another process what was not written."""
        breaker = self._bucket.breaker
        is_refused = breaker is not None and breaker.is_open
        # Do not wait, when the program ends, for storage that failed just before.
        if self._bucket.is_prepared and not is_refused and not self._failed and self.write():
            return
        if self._log is not None:
            with self._writing:
                unsent, self._unsent = self._unsent, None
                used, sums = self._take()
            if unsent is not None:
                used = {**unsent[1], **used}
                for name, amount in unsent[2].items():
                    sums[name] = sums.get(name, 0) + amount
            self._log.leave_usage(used, sums)

    def is_left_due(self) -> bool:
        """Whether this process should make requests only to send what earlier ones have left."""
        return self._log is not None and self._log.is_usage_due()

    def take_left(self) -> None:
        """Count what earlier processes of this host have left as used and counted by this one."""
        if self._log is not None:
            used, sums = self._log.take_usage()
            for key, when in used.items():
                self.note_used(key, when)
            self.add(sums)

    def total(self, *, write: bool = True) -> dict[str, float]:
        """The counters of all processes since the last reset, as far as they have written them.

        Args:
            write: what this process has not written counts, too.

        Raises:
            StoreError: the objects cannot be listed or read.
        """
        if write:
            for usage in _users():
                if usage._bucket.url == self._bucket.url:  # noqa: SLF001  # other stores of this process
                    usage.write()
        # The baseline first. A journal that is folded after that is still listed, or is missed in this one read; it is
        # never counted twice.
        baseline = Baseline.read(self._bucket)
        journals = [i.name for i in self._bucket.walk(USED) if is_journal_name(i.name) and not baseline.has(i)]
        counters = [i.name for i in self._bucket.walk(COUNTERS) if _is_counters(i.name) and not baseline.has(i)]
        sums = Counter(baseline.sums)
        for blob in in_parallel(lambda name: self._bucket.read(name, length=_START), journals, threads=_THREADS):
            sums.update(decode_sums(b"" if blob is None else blob.data))
        for blob in in_parallel(lambda name: _read_limited(self._bucket, name), counters, threads=_THREADS):
            sums.update(decode_counters(blob))
        return {name: amount for name, amount in sums.items() if abs(amount) > _NEGLIGIBLE}

    def reset(self) -> None:
        """Count from zero. Raises StoreError if the storage fails."""
        negated = {name: -amount for name, amount in self.total().items()}
        self._bucket.write(self._next_name(), encode({}, sums=negated), version=ABSENT)


class Baseline(NamedTuple):
    """The sums of what was folded, and the names of it that may still be there."""

    sums: dict[str, float]
    folded: dict[str, str]
    version: str

    @classmethod
    def read(cls, objects: Bucket) -> Baseline:
        """The baseline; raises StoreError if the storage fails."""
        blob = _read_limited(objects, _BASELINE)
        if blob is None:
            return cls({}, {}, ABSENT)
        folded: dict[str, str] = {}
        with contextlib.suppress(*MALFORMED):
            folded = {str(name): str(version) for name, version in json.loads(blob.data)["folded"].items()}
        return cls(decode_counters(blob), folded, blob.version)

    def has(self, info: BlobInfo) -> bool:
        """Whether the sums of this object are in the baseline. Earlier versions wrote counters again and again."""
        folded = self.folded.get(info.name)
        return folded is not None and (folded == info.version or not info.name.startswith(COUNTERS))

    def fold(self, objects: Bucket, found: Mapping[str, tuple[str, Mapping[str, float]]], listed: set[str]) -> bool:
        """Add sums to the baseline; False if another process has changed it meanwhile.

        Args:
            objects: of the cache.
            found: version and sums of each object that is folded now.
            listed: the names of all objects that there are; what is not there any more need not be named.
        """
        sums = Counter(self.sums)
        for _, amounts in found.values():
            sums.update(amounts)
        folded = {name: version for name, version in self.folded.items() if name in listed}
        folded |= {name: version for name, (version, _) in found.items()}
        if folded == self.folded and not found:
            return True
        data = {"sums": sums, "folded": folded, "written": time.time()}
        return objects.write(_BASELINE, json.dumps(data, sort_keys=True).encode(), version=self.version) is not None


def is_journal_name(name: str) -> bool:
    """Whether `name` is that of a usage journal; other files are neither read nor deleted."""
    _day, _, rest = name.removeprefix(USED).partition("/")
    process, _, number = rest.rpartition("-")
    return number.isdecimal() and is_process_name(process)


def quiet_counters(
    objects: Bucket, infos: Iterable[BlobInfo], baseline: Baseline, *, now: float
) -> dict[str, tuple[str, dict[str, float]]]:
    """Version and sums of the counters that ended processes of earlier versions left; none of those in the baseline."""
    old = [i for i in infos if _is_counters(i.name) and now - i.created > _QUIET_SECONDS and not baseline.has(i)]
    blobs = in_parallel(lambda info: _read_limited(objects, info.name), old, threads=_THREADS)
    found = zip(old, blobs, strict=True)
    return {info.name: (blob.version, decode_counters(blob)) for info, blob in found if blob is not None}


def decode_counters(blob: Blob | None) -> dict[str, float]:
    """The sums in an object. Absent, damaged or absurd counters count as none: counters are not worth an error."""
    try:
        return {} if blob is None or blob.size > MAX_BASELINE else finite_sums(json.loads(blob.data)["sums"])
    except MALFORMED:
        return {}


def _is_counters(name: str) -> bool:
    return is_process_name(name.removeprefix(COUNTERS))


def _read_limited(objects: Bucket, name: str) -> Blob | None:
    return objects.read(name, length=MAX_BASELINE + 1)


_everyone: Final[weakref.WeakSet[Usage]] = weakref.WeakSet()


def _users() -> list[Usage]:
    while True:
        with contextlib.suppress(RuntimeError):  # another thread has opened a store meanwhile
            return list(_everyone)


def _write_all() -> None:
    for usage in _users():
        usage.write_or_leave()


at_exit(ExitPhase.COUNTERS, _write_all)
