"""Locks between the processes of one host (`exclusive`), between threads (`ThreadLock`), across forks (`ForkLock`).

The file locks are `flock` locks: the kernel releases them when their holder dies, however it dies. filelock takes the
lock of `exclusive`, on a file that is opened here: it would not open another user's file, and where there is no `flock`
its locks by path turn into files that a killed process leaves behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Self

from ejcache.errors import StoreBusyError
from ejcache.util.files import open_like_directory
from ejcache.util.jitter import between
from ejcache.util.lifecycle import track_forks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    class _ReentrantLock:
        def acquire(self, *, timeout: float = -1) -> bool: ...
        def release(self) -> None: ...
        def __enter__(self) -> object: ...
        def __exit__(self, *about: object) -> None: ...

else:
    # The interpreter's type, which it does not export by name; a class of Python's under gevent and eventlet.
    _ReentrantLock = type(threading.RLock())

OPEN_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""A lock file is neither reached through a link that another program may have made, nor waited for if it is a pipe."""


class _LockedDescriptors:
    """Descriptors that a forked child closes, because a `flock` lock lives as long as any copy of its descriptor."""

    def __init__(self) -> None:
        self._held: set[int] = set()

    def add(self, fd: int) -> None:
        """Have forked children close `fd`."""
        self._held.add(fd)

    def close(self, fd: int) -> None:
        """Close `fd`, unless this is a forked child, in which it is closed already."""
        if fd in self._held:
            self._held.discard(fd)
            os.close(fd)

    def unlock(self, fd: int, *, remove: Path | None = None) -> None:
        """Release the lock and close `fd`. Closing alone is not enough while a forked child still has a copy.

        Args:
            fd: of the locked file.
            remove: its path, if it is removed before others can lock it.
        """
        self.release(fd, remove=remove)
        self.close(fd)

    def release(self, fd: int, *, remove: Path | None = None) -> None:
        """Release the lock alone, with the arguments of `unlock`."""
        if fd in self._held:
            with contextlib.suppress(OSError):
                if remove is not None:
                    remove.unlink()
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)

    def after_fork_in_child(self) -> None:
        for fd in self._held:
            with contextlib.suppress(OSError):
                os.close(fd)
        self._held.clear()


locked_descriptors: Final = track_forks(_LockedDescriptors())


def pause(deadline: float, *, poll: float = 0.0005) -> bool:
    """Sleep for at most `poll` seconds; False, without sleeping, once `deadline` (monotonic seconds) has passed."""
    left = deadline - time.monotonic()
    if left <= 0:
        return False
    time.sleep(min(left, between(poll / 5, poll)))
    return True


class ForkLock(_ReentrantLock):
    """A reentrant lock between threads that is held across each fork.

    Without it, a child that is forked while another thread holds the lock inherits a lock that no thread will ever
    release, and data that is half changed. For short sections only: a fork waits for the lock.
    """

    def __init__(self) -> None:
        super().__init__()
        self._forks = 0
        track_forks(self)

    def before_fork(self) -> None:
        self.acquire()
        self._forks += 1

    def after_fork_in_parent(self) -> None:
        if self._forks:  # not if it was created between `before_fork` and the fork
            self._forks -= 1
            self.release()

    after_fork_in_child = after_fork_in_parent


class ThreadLock(_ReentrantLock):
    """A lock between threads with a deadline, and not reentrant: `with lock.until(deadline): …`.

    A signal handler that uses the lock while its own thread holds it gets an error. It must not enter a transaction
    that the code which it interrupted has half done.

    Args:
        what: what the lock protects, for the error.
    """

    # An exception from a signal handler (Ctrl-C) is raised between two instructions of Python. If it came between
    # acquiring and the `try` that releases, or inside a release that is written in Python, the lock would stay taken
    # for the rest of the process. So the release is the C method `__exit__`, and `acquire` is inside a `try`.

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what
        self._deadline = threading.local()
        lock: Any = self  # which type checkers do not take for an RLock
        self._asked = threading.Condition(lock)

    def until(self, deadline: float) -> Self:
        """Return this lock, for a `with` statement of this thread that waits until `deadline` (monotonic seconds)."""
        self._deadline.at = deadline
        return self

    def owned(self) -> bool:
        """True if this thread holds the lock."""
        try:
            self._asked.notify(0)  # it wakes nobody, and refuses where this thread has not the lock
        except RuntimeError:
            return False
        return True

    def __enter__(self) -> Self:
        """Take the lock.

        Raises:
            StoreBusyError: another thread held it until the deadline, or this thread holds it already.
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
def exclusive(
    path: Path, *, deadline: float, poll: float = 0.0005, lasting: bool = True, anew: bool = False
) -> Iterator[None]:
    """Hold the lock on the file `path`, which is created if it does not exist and is used for nothing else.

    Args:
        path: the lock file; its directory must exist.
        deadline: monotonic seconds.
        poll: seconds at most between two attempts.
        lasting: leave the file there. Without it, each holder removes the file, and the next one makes another.
        anew: what this thread holds of it is left over, and is let go: for callers with a `ThreadLock` around this.

    Raises:
        StoreBusyError: another process held the lock until `deadline`.
        OSError: the file cannot be created or opened.
    """
    from filelock import lock_descriptor  # JAX has imported it; a command that takes no lock does not need it

    held, who = False, (os.fspath(path), threading.get_ident())
    if anew:
        _let_go(who, _holders.get(who))
    while not held:
        try:
            fd = open_like_directory(path, os.O_RDWR | os.O_CREAT | OPEN_FLAGS)
        except PermissionError:
            # Another user created it. On a local file system, a file that is open for reading can be locked too.
            fd = os.open(path, os.O_RDONLY | OPEN_FLAGS)
        locked_descriptors.add(fd)
        holder = _holders[who] = [fd]
        try:
            while not lock_descriptor(fd, blocking=False):
                if not pause(deadline, poll=poll):
                    raise StoreBusyError(f"another process kept {path} locked for too long")
            held = lasting or _is_still_at(path, fd)
            if held:
                yield
        finally:
            _let_go(who, holder, remove=path if held and not lasting else None)


_holders: Final[dict[tuple[str, int], list[int]]] = {}
"""The descriptor with which a thread holds a lock, or waits for it.

An exception of a signal handler may come between two steps of a `with` statement, and whoever keeps its traceback keeps
the lock.
"""


def _let_go(who: tuple[str, int], holder: list[int] | None, *, remove: Path | None = None) -> None:
    if holder:
        # Whatever an exception of a signal handler leaves undone here: what is locked is in the holder, where the
        # thread's next call finds it, and what is in no holder any more is not locked.
        locked_descriptors.release(holder[0], remove=remove)
        locked_descriptors.close(holder.pop())
        if _holders.get(who) is holder:
            del _holders[who]


def _is_still_at(path: Path, fd: int) -> bool:
    """True if the file was not removed while this process waited for its lock."""
    status = os.fstat(fd)
    try:
        return status.st_nlink > 0 and os.path.samestat(status, path.lstat())
    except FileNotFoundError:
        return False


def try_lock(fd: int) -> bool:
    """Take the exclusive lock of an open file; False if another descriptor has it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
