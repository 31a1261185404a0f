"""Shows by locked files which processes have a store open, and which have died with one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from typing import TYPE_CHECKING, Final

from ejcache.util.files import open_like_directory
from ejcache.util.locks import OPEN_FLAGS, locked_descriptors, try_lock
from ejcache.util.store_keys import is_hex

if TYPE_CHECKING:
    from pathlib import Path

_RANDOM_BYTES: Final = 6
"""Of a token, after the number of its process."""


class Presence:
    """A file that is locked as long as this process has a store open, and that remains if the process is killed.

    A process that closes the store removes its file. A file that exists and is not locked belongs to a process that
    died; the next process that opens the store looks for what it left behind.

    Attributes:
        token: the name of the file, unique among all processes and times.
    """

    def __init__(self, directory: Path) -> None:
        self.token = f"{os.getpid()}-{secrets.token_hex(_RANDOM_BYTES)}"
        self._path = directory / self.token
        # It gets its name when it is locked: until then another process would take it for that of a dead one.
        unlocked = directory / f".{self.token}"
        self._fd: int | None = open_like_directory(unlocked, os.O_RDWR | os.O_CREAT | os.O_EXCL | OPEN_FLAGS)
        locked_descriptors.add(self._fd)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unlocked.rename(self._path)
        except OSError:
            # The disk is full, or the directory was removed. The next attempt would leave one more behind.
            locked_descriptors.unlock(self._fd, remove=unlocked)
            raise

    def leave(self, *, clean: bool) -> None:
        """Release the lock; remove the file if `clean`, otherwise leave it for the next process to find."""
        if self._fd is None:
            return
        if clean:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
        fd, self._fd = self._fd, None
        locked_descriptors.close(fd)

    def write(self, data: bytes, place: int) -> None:
        """Write into the file, for the process that finds it when this one has died.

        Raises:
            OSError: the disk is full, or failed.
        """
        if self._fd is not None:
            os.pwrite(self._fd, data, place)

    def forget(self) -> None:
        """Forget the presence in a forked child: it belongs to the parent."""
        self._fd = None


def is_token(name: str) -> bool:
    """True if `name` has the form of a presence's token."""
    process, _, random_digits = name.partition("-")
    return process.isdecimal() and is_hex(random_digits, 2 * _RANDOM_BYTES)


def dead_presences(directory: Path) -> list[Path]:
    """Return the presence files in `directory` whose processes have died."""
    return [path for path in _presences(directory) if not _is_locked(path)]


def living(directory: Path) -> frozenset[str]:
    """Return the tokens of the presence files in `directory` whose processes are alive."""
    return frozenset(path.name for path in _presences(directory) if _is_locked(path))


def _presences(directory: Path) -> list[Path]:
    try:
        return [path for path in directory.iterdir() if is_token(path.name)]
    except FileNotFoundError:
        return []


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | OPEN_FLAGS)
    except OSError as exc:
        # Of another user's, and of one that this process cannot open now, nothing is cleared away.
        return exc.errno not in (errno.ENOENT, errno.ELOOP, errno.ENXIO)
    try:
        return not try_lock(fd)
    finally:
        os.close(fd)
