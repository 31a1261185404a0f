"""Keeps leases between the processes of one host, by locked files.

The kernel releases the lock of a process that dies. A process that is stopped (Ctrl-Z, a debugger) keeps its lock, and
must not hold the others up. So the holder also renews the time stamp of its file; when it no longer does, the next
process deletes the file and creates another of the same name. The stopped holder then has a lock on a file that no
process opens any more.

    lease := process id " " host newline      for people who wait; an empty file is a lease, too
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from typing import TYPE_CHECKING, Final

from ejcache.coordination.leases import HeldLease, LeaseState, lease_scheduler
from ejcache.errors import StoreBusyError, StoreUnavailableError
from ejcache.util.files import make_below, open_like_directory
from ejcache.util.locks import exclusive, locked_descriptors, try_lock
from ejcache.util.store_keys import key_digest

if TYPE_CHECKING:
    from pathlib import Path

    from ejcache.util.scheduler import Scheduler


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
        """Take the lease; None if another living process has it, or takes it meanwhile at each try.

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
        """Look at the lease; None if there is none. Its state is `abandoned` if no process holds its lock any more."""
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

    def look_for_dead(self, key: str) -> LeaseState | None:
        """Return the lease if the operating system says that its holder is dead."""
        state = self.look(key)
        return state if state is not None and state.abandoned else None

    def take_over(self, key: str, seen: LeaseState) -> _LocalLease | None:
        """Return the lease of a dead or stopped holder, or None if it has changed since `seen`."""
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
            return open_like_directory(path, flags)
        except FileNotFoundError:
            make_below(self._directory)
            return open_like_directory(path, flags)

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
