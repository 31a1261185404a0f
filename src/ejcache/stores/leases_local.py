"""Leases between processes of one host, as locked files.

The kernel releases the lock of a process that dies, however it dies. One that is stopped keeps it; so a holder also
touches its file now and then, and one that does not any more loses the file's name to the next: its lock is then on a
file that nobody opens.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import threading
import time
from typing import TYPE_CHECKING, Final

from ejcache.errors import StoreBusyError, StoreUnavailableError
from ejcache.stores.heart import Heart, heart
from ejcache.stores.leases import Sighting
from ejcache.stores.local_locks import exclusive

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["LocalLeases"]

_TRIES: Final = 10
_GUARD_SECONDS: Final = 1.0

_held: Final[set[int]] = set()


class LocalLeases:
    """Leases that the processes of one host respect. Safe for threads, processes and forks.

    Args:
        directory: on a local file system; made when the first lease is.
        interval: seconds between heartbeats.
        grace: see `Leases`.
        beats: calls the heartbeats.
    """

    def __init__(self, directory: Path, *, interval: float = 2.0, grace: float = 0.0, beats: Heart = heart) -> None:
        self.grace = grace
        self._directory = directory
        self._interval = interval
        self._heart = beats

    def acquire(self, key: str) -> _LocalLease | None:
        """The lease, or None if somebody who lives has it.

        Raises:
            StoreUnavailableError: no file can be locked there.
        """
        path = self._path(key)
        try:
            for _ in range(_TRIES):
                fd = self._opened(path)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(fd)
                    return None
                except BaseException:
                    os.close(fd)
                    raise
                if _is_at(fd, path):
                    return self._begun(fd, path)
                os.close(fd)  # released or taken over between opening and locking
        except OSError as exc:
            raise StoreUnavailableError(f"no lease can be had in {self._directory}: {exc}") from exc
        return None

    def look(self, key: str) -> Sighting | None:
        """Who has the lease, or None if nobody has."""
        path = self._path(key)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise StoreUnavailableError(f"the lease {path} cannot be looked at: {exc}") from exc
        try:
            about = os.fstat(fd)
            fence = _fence(os.pread(fd, 20, 0))
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                abandoned = True
            except BlockingIOError:
                abandoned = False
        except OSError as exc:
            raise StoreUnavailableError(f"the lease {path} cannot be looked at: {exc}") from exc
        finally:
            os.close(fd)
        return Sighting(f"{about.st_ino}-{about.st_mtime_ns}", fence, self._interval, abandoned)

    def take_over(self, key: str, seen: Sighting) -> _LocalLease | None:
        """The lease of a dead or stopped holder, or None if it has changed since it was seen."""
        if seen.abandoned:
            return self.acquire(key)
        path = self._path(key)
        try:
            # One at a time: the second to come finds a file that it has not seen.
            with exclusive(self._directory / "takeover.lock", deadline=time.monotonic() + _GUARD_SECONDS):
                now = self.look(key)
                if now is None or now.token != seen.token:
                    return None
                path.unlink(missing_ok=True)
                lease = self.acquire(key)
                if lease is not None:
                    lease.raise_fence(now.fence + 1)
                return lease
        except StoreBusyError:
            return None
        except OSError as exc:
            raise StoreUnavailableError(f"the lease {path} cannot be taken over: {exc}") from exc

    def _opened(self, path: Path) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            return os.open(path, flags, 0o600)

    def _begun(self, fd: int, path: Path) -> _LocalLease:
        _held.add(fd)
        lease = _LocalLease(self._heart, fd, path, self._interval)
        lease.raise_fence(_fence(os.pread(fd, 20, 0)) + 1)
        self._heart.add(lease)
        return lease

    def _path(self, key: str) -> Path:
        return self._directory / f"{hashlib.sha256(key.encode()).hexdigest()[:40]}.lease"


class _LocalLease:
    def __init__(self, beats: Heart, fd: int, path: Path, interval: float) -> None:
        self.interval = interval
        self.fence = 0
        self.lost = False
        self._heart = beats
        self._fd: int | None = fd
        self._path = path
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def raise_fence(self, fence: int) -> None:
        self.fence = max(self.fence, fence)
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._fd, b"%d" % self.fence, 0)

    def release(self, *, after: float = 0.0) -> None:
        if self._pid != os.getpid():
            return  # in a forked child it is the parent's
        if after > 0:
            self._heart.end(self, after=after)
        else:
            self.end()

    def beat(self) -> bool:
        with self._lock:
            if self._fd is None:
                return False
            with contextlib.suppress(OSError):
                os.utime(self._fd)
            self.lost = not _is_at(self._fd, self._path)
            return not self.lost

    def end(self) -> None:
        self._heart.remove(self)
        with self._lock:
            fd, self._fd = self._fd, None
            if fd is None:
                return
            with contextlib.suppress(OSError):
                if _is_at(fd, self._path):
                    self._path.unlink()
                # Not only by closing: a child that was forked meanwhile may have a copy of the descriptor.
                fcntl.flock(fd, fcntl.LOCK_UN)
            _held.discard(fd)
            os.close(fd)


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False


def _fence(data: bytes) -> int:
    return int(data) if data.isdigit() else 0


def _close_in_child() -> None:
    for fd in _held:
        with contextlib.suppress(OSError):
            os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)
