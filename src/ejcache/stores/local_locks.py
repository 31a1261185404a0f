"""Locks between the processes of one host, by `flock`: the kernel releases them however their holder dies.

And the lock between the threads of one process, which an interrupt does not lose.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import secrets
import threading
import time
from typing import TYPE_CHECKING, Final, Self

from ejcache.errors import StoreBusyError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    class _ReentrantLock:
        def acquire(self, *, timeout: float) -> bool: ...
        def release(self) -> None: ...
        def _is_owned(self) -> bool: ...
        def __exit__(self, *about: object) -> None: ...

else:
    # The interpreter's own, which it gives no name to.
    _ReentrantLock = type(threading.RLock())

__all__ = ["Presence", "ThreadLock", "departed", "exclusive", "living", "pause"]

# Descriptors that a forked child must not keep: a lock lives as long as any copy of the descriptor it was taken with.
_held: Final[set[int]] = set()


def pause(deadline: float) -> bool:
    """Sleep for part of a millisecond; False, without sleeping, once `deadline` (monotonic seconds) has passed."""
    left = deadline - time.monotonic()
    if left <= 0:
        return False
    time.sleep(min(left, random.uniform(0.0001, 0.0005)))  # noqa: S311 (jitter)
    return True


class ThreadLock(_ReentrantLock):
    """A lock between threads with a deadline, and not reentrant: `with lock.until(deadline): …`.

    A signal handler that comes here while its own thread is inside gets an error, and does not find a transaction half
    done.

    Args:
        what: what it keeps others from, for the error.
    """

    # An exception out of a signal handler (Ctrl-C) comes between two instructions of Python: one between a lock that
    # is taken and the `try` that releases it, or in a release that is Python itself, loses the lock for the rest of
    # the process. So the release is C's own `__exit__`, and what follows `acquire` is inside its `try`.

    def __init__(self, what: str) -> None:
        self._what = what
        self._deadline = threading.local()

    def until(self, deadline: float) -> Self:
        """This lock, for a `with` of this thread that waits until `deadline` (monotonic seconds)."""
        self._deadline.at = deadline
        return self

    def owned(self) -> bool:
        """Whether this thread is inside."""
        return self._is_owned()  # as threading.Condition asks it

    def __enter__(self) -> Self:
        """Take the lock.

        Raises:
            StoreBusyError: another thread held it until the deadline, or this thread is inside.
        """
        if self.owned():
            raise StoreBusyError(f"{self._what} was used by a signal handler inside one of this thread's own calls")
        try:
            taken = self.acquire(timeout=max(0.0, self._deadline.at - time.monotonic()))
        except BaseException:
            if self.owned():
                self.release()
            raise
        if not taken:
            raise StoreBusyError(f"another thread kept {self._what} busy too long")
        return self


@contextlib.contextmanager
def exclusive(path: Path, *, deadline: float) -> Iterator[None]:
    """Hold the lock on the file `path`, which is made if need be.

    Args:
        path: a file that serves as a lock only.
        deadline: monotonic seconds.

    Raises:
        StoreBusyError: another process held it until `deadline`.
        OSError: the file cannot be made or opened.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _held.add(fd)
    try:
        while not _try(fd):
            if not pause(deadline):
                raise StoreBusyError(f"another process kept {path} locked for too long")
        try:
            yield
        finally:
            # Not only by closing: a child that was forked meanwhile may have a copy of the descriptor.
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        _held.discard(fd)
        os.close(fd)


class Presence:
    """A file that is locked for as long as this process has the store open, and that outlives it if it is killed.

    A clean departure removes the file. One that is there and not locked says that its process died at an unknown
    instruction, and what it may have left behind is to be looked for.

    Attributes:
        token: the file's name, which no other process has or had.
    """

    def __init__(self, directory: Path) -> None:
        self.token = f"{os.getpid()}-{secrets.token_hex(6)}"
        self._path = directory / self.token
        self._fd: int | None = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        _held.add(self._fd)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def leave(self, *, clean: bool) -> None:
        """Depart; if not `clean`, whoever opens the store next looks for what this process left."""
        if self._fd is None:
            return
        if clean:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
        fd, self._fd = self._fd, None
        if fd in _held:  # not in a forked child, where it is closed already
            _held.discard(fd)
            os.close(fd)

    def forget(self) -> None:
        """In a forked child: the presence is the parent's."""
        self._fd = None


def departed(directory: Path) -> list[Path]:
    """The presences in `directory` whose processes are dead."""
    return [path for path in _presences(directory) if not _locked(path)]


def living(directory: Path) -> frozenset[str]:
    """The tokens of the presences in `directory` whose processes live."""
    return frozenset(path.name for path in _presences(directory) if _locked(path))


def _presences(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        return []


def _locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _try(fd)
    finally:
        os.close(fd)


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _close_in_child() -> None:
    for fd in _held:
        with contextlib.suppress(OSError):
            os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)
