"""Leases: of all processes that want to do one piece of work, one at a time may, and others notice when it dies.

A lease saves work and decides nothing: entries are created only if absent, with or without a lease. So a lease may be
released, taken over or ignored at any moment; at worst, a program is compiled twice.

The holder renews its lease in heartbeats, changes that waiting processes see. A waiting process takes the holder for
dead when it has missed three heartbeats in a row, by its own monotonic clock: no two clocks are compared.

Leases between the processes of one host: locked files.

The kernel releases the lock of a process that dies. A process that is stopped (Ctrl-Z, a debugger) keeps its lock, and
must not hold the others up. So the holder also renews the time stamp of its file; when it no longer does, the next
process deletes the file and creates another of the same name. The stopped holder then has a lock on a file that no
process opens any more.

    lease := process id " " host newline      for people who wait; an empty file is a lease, too, of an earlier version

Leases between hosts: small objects in shared storage.

    v1/leases/<key>      JSON: holder, fence, beat, interval; done, once others can see what the work left

A lease is created on the condition that there is none. Each heartbeat and each takeover is written on the condition
that the object is still the one that was seen. A file system cannot compare on writing, but it can decide who removes
a version and who creates the next one; there, a takeover is these two steps. `fence` is always 0: ejcache 0.1 expects
the field. (It was a fencing token; nothing in storage could check one.)
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import threading
import time
import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from ejcache.bucket.base import ABSENT
from ejcache.bucket.layout import escape_key, process_in_words, process_name
from ejcache.errors import MALFORMED, StoreBusyError, StoreError, StoreReadOnlyError, StoreUnavailableError
from ejcache.util.lifecycle import ExitPhase, at_exit
from ejcache.util.locks import exclusive, locked_descriptors, try_lock
from ejcache.util.log import log
from ejcache.util.scheduler import Scheduler
from ejcache.util.text import key_digest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ejcache.bucket.base import Bucket


MISSED_BEATS: Final = 3
_EXIT_SECONDS: Final = 2.0
"""How long the release of leases may take at exit. Others take over a lease that is not released by then."""

lease_scheduler: Final = Scheduler(name="ejcache-leases")
"""Renews and releases the leases of this process. Not for anything else: heartbeats must not wait behind uploads."""


@dataclass(frozen=True, slots=True)
class LeaseState:
    """A lease as another process sees it.

    Attributes:
        token: changes with every heartbeat and with every holder.
        interval: seconds between heartbeats, as the holder wrote.
        abandoned: the operating system says that the holder is dead.
        holder: `process 812 on node-3`, for people; empty if it is unknown.
        is_done: the holder says that others can see what its work left.
    """

    token: str
    interval: float
    abandoned: bool = False
    holder: str = ""
    is_done: bool = False


class HeldLease(ABC):
    """A lease of this process: renewed in the background until it is released or another process takes it over.

    Args:
        interval: seconds between heartbeats.
        scheduler: whose threads renew and release it.

    Attributes:
        lost: a heartbeat found that another process has taken it over.
    """

    def __init__(self, interval: float, scheduler: Scheduler) -> None:
        self.lost = False
        self._interval = interval
        self._scheduler = scheduler
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._is_released = self._ended = False
        _held.add(self)
        scheduler.later(interval, self._renew_and_repeat)

    def release(self, *, after: float = 0.0) -> None:
        """Release the lease in the background, after so many seconds; a second call does nothing. Never raises.

        With `after`, others are told at once that they can see what the work left. In a forked child it does nothing:
        the lease belongs to the parent.
        """
        self._is_released = True
        if self._pid != os.getpid():
            return
        if after:
            self._scheduler.later(0.0, self._show_done)
        if not self._scheduler.later(after, self.end):
            self.end()  # during exit

    def renew(self) -> bool:
        """Show that the holder is alive; False if it holds the lease no longer. Never raises."""
        with self._lock:
            if self._ended or self.lost or self._pid != os.getpid():
                return False
            self.lost = not self._beat()
            return not self.lost

    def end(self) -> None:
        """Release the lease now."""
        with self._lock:
            if not self._ended:
                self._ended = True
                self._delete()

    def _renew_and_repeat(self) -> None:
        if self.renew():
            self._scheduler.later(self._interval, self._renew_and_repeat)

    def _show_done(self) -> None:
        with self._lock:
            if not self._ended and not self.lost:
                self._mark_done()

    def _mark_done(self) -> None:  # noqa: B027 (processes of one host see the entry itself)
        """Tell others that they can see what the work left. With the lock held. Raises nothing."""

    @abstractmethod
    def _beat(self) -> bool:
        """Change what others see; False if another process has the lease. With the lock held. Raises nothing."""

    @abstractmethod
    def _delete(self) -> None:
        """Remove what others see, unless the lease was lost. With the lock held. Raises nothing."""


class Leases(Protocol):
    """Leases by key.

    Attributes:
        grace: seconds for which a lease is held after its work has become visible. A process that looked for the
            result a moment too early then still finds the lease held, and looks again.
    """

    grace: float

    def acquire(self, key: str) -> HeldLease | None:
        """The lease, or None if another holder has it; raises a `StoreError` if the storage cannot say."""

    def look(self, key: str) -> LeaseState | None:
        """The lease as it is now, or None if no process holds it; raises a `StoreError` if the storage cannot say."""

    def take_over(self, key: str, seen: LeaseState) -> HeldLease | None:
        """The lease of a dead holder, or None if it has changed since `seen`; of several callers one gets it."""


class LivenessDetector:
    """Tells a dead holder of a lease from a slow one, from what one waiting process has seen.

    Two looks count as one unless they are a heartbeat apart. So a waiting process that was itself stopped, perhaps
    together with the holder, does not take its own absence for the holder's death.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._token: str | None = None
        self._counted_at = 0.0
        self._missed = 0

    def is_dead(self, state: LeaseState) -> bool:
        """Whether, with this new look at the lease, its holder counts as dead."""
        now = self._clock()
        if state.token != self._token:
            self._token, self._counted_at, self._missed = state.token, now, 0
        elif now - self._counted_at >= state.interval:
            self._counted_at = now
            self._missed += 1
        return state.abandoned or self._missed >= MISSED_BEATS


_held: Final[weakref.WeakSet[HeldLease]] = weakref.WeakSet()


def end_leases(*, released_only: bool = False) -> None:
    """Release the leases of this process now, for a bounded time; with `released_only`, those whose work is done."""
    for lease in list(_held):
        # A release that has begun holds the lock. The exit waits for it, too, or the lease would stay.
        is_there = not lease._ended or lease._lock.locked()  # noqa: SLF001 (the other half of the class)
        if lease._pid == os.getpid() and is_there and (lease._is_released or not released_only):  # noqa: SLF001
            lease_scheduler.submit(lease.end)
    lease_scheduler.drain(patience=_EXIT_SECONDS, limit=_EXIT_SECONDS)


at_exit(ExitPhase.LEASES, end_leases)


_TRIES: Final = 10
_GUARD_SECONDS: Final = 1.0
_HOLDER: Final = re.compile(rb"([0-9]{1,10}) ([A-Za-z0-9_.-]{1,80})\n")
_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class LocalLeases:
    """Leases that the processes of one host respect. Safe for threads, processes and forks.

    Args:
        directory: on a local file system; created with the first lease.
        interval: seconds between heartbeats.
        grace: see `Leases`.
        scheduler: renews the leases.
    """

    def __init__(
        self, directory: Path, *, interval: float = 2.0, grace: float = 0.0, scheduler: Scheduler = lease_scheduler
    ) -> None:
        self.grace = grace
        self._directory = directory
        self._interval = interval
        self._scheduler = scheduler

    def acquire(self, key: str) -> _LocalLease | None:
        """The lease, or None if a living process has it.

        Raises:
            StoreUnavailableError: no file can be locked in the directory.
        """
        path = self._path(key)
        try:
            for _ in range(_TRIES):
                fd = self._open(path)
                try:
                    if not try_lock(fd):
                        return None
                    if _is_at(fd, path):
                        locked_descriptors.add(fd)
                        _sign(fd)
                        lease = _LocalLease(fd, path, self._interval, self._scheduler)
                        fd = -1
                        return lease
                    # Released or taken over between opening and locking: try the new file.
                finally:
                    if fd >= 0:
                        os.close(fd)
        except OSError as exc:
            raise StoreUnavailableError(f"no lease can be taken in {self._directory}: {exc}") from exc
        return None

    def look(self, key: str) -> LeaseState | None:
        """The lease as it is now, or None if no process holds it."""
        path = self._path(key)
        try:
            fd = os.open(path, os.O_RDONLY | _FLAGS)
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise StoreUnavailableError(f"the lease {path} cannot be read: {exc}") from exc
        try:
            about = os.fstat(fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                abandoned = True
            except BlockingIOError:
                abandoned = False
            holder = _HOLDER.match(os.read(fd, 100))
        except OSError as exc:
            raise StoreUnavailableError(f"the lease {path} cannot be read: {exc}") from exc
        finally:
            os.close(fd)
        token = f"{about.st_ino}-{about.st_mtime_ns}"
        name = "" if holder is None else f"process {int(holder[1])} on {holder[2].decode()}"
        return LeaseState(token, self._interval, abandoned, name)

    def take_over(self, key: str, seen: LeaseState) -> _LocalLease | None:
        """The lease of a dead or stopped holder, or None if it has changed since `seen`."""
        if seen.abandoned:
            return self.acquire(key)
        path = self._path(key)
        try:
            # One process at a time: the second one then finds a file that differs from what it has seen.
            with exclusive(self._directory / "takeover.lock", deadline=time.monotonic() + _GUARD_SECONDS):
                now = self.look(key)
                if now is None or now.token != seen.token:
                    return None
                path.unlink(missing_ok=True)
                return self.acquire(key)
        except StoreBusyError:
            return None
        except OSError as exc:
            raise StoreUnavailableError(f"the lease {path} cannot be taken over: {exc}") from exc

    def _open(self, path: Path) -> int:
        flags = os.O_RDWR | os.O_CREAT | _FLAGS
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            return os.open(path, flags, 0o600)

    def _path(self, key: str) -> Path:
        if self._directory.is_symlink():
            raise StoreUnavailableError(f"{self._directory} is a symbolic link, so no lease is taken there")
        return self._directory / f"{key_digest(key, 40)}.lease"


class _LocalLease(HeldLease):
    def __init__(self, fd: int, path: Path, interval: float, scheduler: Scheduler) -> None:
        self._fd = fd
        self._path = path
        super().__init__(interval, scheduler)

    def _beat(self) -> bool:
        with contextlib.suppress(OSError):
            os.utime(self._fd)
        return _is_at(self._fd, self._path)

    def _delete(self) -> None:
        with contextlib.suppress(OSError):
            if _is_at(self._fd, self._path):
                self._path.unlink()
        locked_descriptors.unlock(self._fd)


def _sign(fd: int) -> None:
    host = re.sub(r"[^A-Za-z0-9_.-]", "_", os.uname().nodename)[:80] or "host"
    with contextlib.suppress(OSError):  # a full disk: the lock alone is the lease
        os.pwrite(fd, f"{os.getpid()} {host}\n".encode(), 0)


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False


LEASES: Final = "v1/leases/"
_MAX_BYTES: Final = 4096
_LONGEST_INTERVAL: Final = 60.0


@dataclass(frozen=True, slots=True)
class _LeaseRecord:
    holder: str
    beat: int
    interval: float
    done: bool = False

    def encode(self) -> bytes:
        fields = {"holder": self.holder, "fence": 0, "beat": self.beat, "interval": self.interval}
        if self.done:
            fields["done"] = True
        return json.dumps(fields, sort_keys=True).encode()


def _decode(data: bytes) -> _LeaseRecord | None:
    """The record in a lease object; None if it is not one that ejcache writes."""
    try:
        fields = json.loads(data)
        holder, beat, interval = fields["holder"], fields["beat"], fields["interval"]
    except MALFORMED:
        return None
    if not isinstance(holder, str) or type(beat) is not int or type(interval) not in (int, float):
        return None
    # Compared before it is converted: an int may be too large for a float. NaN fails every comparison.
    if not 0 <= interval <= 1e9 or not abs(beat) < 1 << 62:
        return None
    return _LeaseRecord(holder, beat, min(float(interval), _LONGEST_INTERVAL), fields.get("done") is True)


class StoreLeases:
    """Leases that all users of a shared store respect. Safe for threads, processes and forks.

    Args:
        bucket: where they are kept.
        interval: seconds between heartbeats; buckets allow about one write per second to an object.
        grace: see `Leases`.
        scheduler: renews the leases.
    """

    def __init__(
        self, bucket: Bucket, *, interval: float = 3.0, grace: float = 1.0, scheduler: Scheduler = lease_scheduler
    ) -> None:
        self.grace = grace
        self._bucket = bucket
        self._interval = interval
        self._scheduler = scheduler
        self._refusal: StoreReadOnlyError | None = None

    def acquire(self, key: str) -> _StoreLease | None:
        """The lease, or None if another process has it; one request.

        Raises:
            StoreReadOnlyError: an earlier lease could be created but not changed or deleted with these credentials.
                Such a lease stays behind, and every other process waits for it, so no more are taken.
        """
        if self._refusal is not None:
            raise StoreReadOnlyError(f"no leases are taken, because they could not be released: {self._refusal}")
        return self._write(_name(key), version=ABSENT)

    def look(self, key: str) -> LeaseState | None:
        """The lease as it is now, or None if no process holds it; one request."""
        blob = self._bucket.read(_name(key), length=_MAX_BYTES)
        if blob is None:
            return None
        # No living holder wrote what cannot be decoded; it is taken over like the lease of a dead one.
        record = _decode(blob.data)
        if record is None:
            return LeaseState(blob.version, self._interval)
        return LeaseState(blob.version, record.interval, holder=process_in_words(record.holder), is_done=record.done)

    def take_over(self, key: str, seen: LeaseState) -> _StoreLease | None:
        """The lease of a dead holder, or None if it has changed since `seen`."""
        name = _name(key)
        if self._bucket.conditional:
            return self._write(name, version=seen.token)
        if not self._bucket.delete(name, version=seen.token):
            return None
        return self._write(name, version=ABSENT)

    def _write(self, name: str, *, version: str) -> _StoreLease | None:
        record = _LeaseRecord(process_name(), 0, self._interval)
        written = self._bucket.write(name, record.encode(), version=version)
        return None if written is None else _StoreLease(self, name, record, written)

    @property
    def refused(self) -> bool:
        """Whether these credentials cannot change or delete a lease."""
        return self._refusal is not None

    def note_refusal(self, exc: StoreReadOnlyError) -> None:
        """Take no more leases: these credentials cannot change or delete one."""
        if self._refusal is None:
            log.info("ejcache: leases cannot be released (%s), so each process compiles what it misses", exc)
        self._refusal = exc


class _StoreLease(HeldLease):
    def __init__(self, leases: StoreLeases, name: str, record: _LeaseRecord, version: str) -> None:
        self._leases = leases
        self._bucket = leases._bucket  # noqa: SLF001 (the other half of the class)
        self._name = name
        self._record = record
        self._version = version
        super().__init__(record.interval, leases._scheduler)  # noqa: SLF001

    def _beat(self) -> bool:
        if self._leases.refused:
            return True
        record = replace(self._record, beat=self._record.beat + 1)
        try:
            written = self._bucket.write(self._name, record.encode(), version=self._version)
        except StoreReadOnlyError as exc:
            self._leases.note_refusal(exc)
            return True
        except StoreError as exc:
            log.debug("a heartbeat of %s was not written: %s", self._name, exc)
            return True
        if written is None:
            return self._is_ours()
        self._record, self._version = record, written
        return True

    def _mark_done(self) -> None:
        self._record = replace(self._record, done=True)
        self.lost = not self._beat()

    def _delete(self) -> None:
        if self.lost:
            return
        try:
            if not self._bucket.delete(self._name, version=self._version) and self._is_ours():
                self._bucket.delete(self._name, version=self._version)
        except StoreReadOnlyError as exc:
            self._leases.note_refusal(exc)
        except StoreError as exc:
            log.debug("the lease %s was not released; others will take it over: %s", self._name, exc)

    def _is_ours(self) -> bool:
        """Whether the object is still this process's, with another version: the answer to a write was lost."""
        try:
            blob = self._bucket.read(self._name, length=_MAX_BYTES)
        except StoreError:
            return True  # unknown; the next heartbeat asks again
        found = None if blob is None else _decode(blob.data)
        if blob is None or found is None or found.holder != self._record.holder:
            return False
        self._record, self._version = found, blob.version
        return True


def _name(key: str) -> str:
    return LEASES + escape_key(key)
