"""Opening files and directories that another user may have prepared: links, pipes and devices are refused.

A user who can write to a shared directory can put a symbolic link where ejcache expects a file or directory of its own.
Following it would copy a private file into the store, or delete files outside of it. A plain `open` of a named pipe
waits for good. So the root of a cache may be reached through links (a link to a scratch disk is common), and nothing
below it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_FILE: Final = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_APPEND: Final = _FILE | os.O_WRONLY | os.O_APPEND
_DIRECTORY: Final = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_DIRECTORY", 0)
_KINDS: Final = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class UnsafeFileError(OSError):
    """A link, a pipe, a device or a directory is where a file of a cache is expected, or the file is too large."""


def open_regular(path: str | os.PathLike[str], *, dir_fd: int | None = None) -> int:
    """A descriptor of the regular file at `path`, for reading. Never waits, and follows no link in the last component.

    Raises:
        UnsafeFileError: what is there is not a regular file.
        OSError: it cannot be opened.
    """
    return _open(path, _FILE, dir_fd)


def append_regular(path: str | os.PathLike[str], data: bytes, *, create: bool = True) -> os.stat_result:
    """Append `data`, by one write, to the regular file at `path`.

    What several processes append to one file on a local file system does not mix.

    Args:
        path: the file.
        data: a few kilobytes, or a line of a log.
        create: make the file, for this user alone, if there is none.

    Returns:
        The file as it is then.

    Raises:
        UnsafeFileError: what is there is not a regular file.
        OSError: it cannot be written, or not all of `data` was.
    """
    descriptor = _open(path, _APPEND | (os.O_CREAT if create else 0), None)
    try:
        if os.write(descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def read_regular(path: str | os.PathLike[str], *, max_size: int, length: int | None = None) -> bytes:
    """The bytes of the regular file at `path`, or its first `length`.

    Args:
        path: the file.
        max_size: bytes; a larger file is refused before it is read, unless `length` asks for less than all of it.
        length: bytes to read at most.

    Raises:
        UnsafeFileError: it is not a regular file, or larger than `max_size`.
        OSError: it cannot be read.
    """
    descriptor = open_regular(path)
    with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123  # a descriptor, not a path
        size = os.fstat(descriptor).st_size
        if length is None and size > max_size:
            raise UnsafeFileError(errno.EFBIG, f"{os.fspath(path)} has {size} bytes and at most {max_size} are read")
        wanted = max_size if length is None else min(length, max_size)
        parts = []
        while wanted > 0 and (part := file.read(min(wanted, 1 << 24))):
            parts.append(part)
            wanted -= len(part)
    return b"".join(parts)


@contextlib.contextmanager
def directory_below(root: str | os.PathLike[str], name: str) -> Iterator[int]:
    """A descriptor of the directory `name` below `root`, itself for an empty name; no link below `root` is followed.

    Args:
        root: of a cache; it may be reached through links.
        name: relative path with slashes.

    Raises:
        UnsafeFileError: a component of `name` is a symbolic link.
        OSError: it cannot be opened.
    """
    descriptor = os.open(root, _DIRECTORY & ~getattr(os, "O_NOFOLLOW", 0))
    try:
        for component in filter(None, name.split("/")):
            if component in (".", ".."):
                raise UnsafeFileError(errno.EINVAL, f"{name} is not a name below {os.fspath(root)}")
            try:
                below = os.open(component, _DIRECTORY, dir_fd=descriptor)
            except OSError as exc:
                # Linux says ENOTDIR for a link that O_DIRECTORY and O_NOFOLLOW meet together.
                if exc.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(component, descriptor):
                    raise UnsafeFileError(
                        errno.ELOOP, f"{os.fspath(root)}/{name}: {component} is a symbolic link, so it is not used"
                    ) from exc
                raise
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def open_below(root: str | os.PathLike[str], name: str) -> int:
    """As `open_regular`, for the file `name` below `root`; no link below `root` is followed."""
    above, _, last = name.rpartition("/")
    with directory_below(root, above) as directory:
        return open_regular(last, dir_fd=directory)


def remove_below(root: str | os.PathLike[str], name: str) -> bool:
    """Remove the file or link `name` below `root`, never what a link points to; False if it was not there.

    Raises:
        UnsafeFileError: a directory above it is a symbolic link.
        OSError: it cannot be removed.
    """
    above, _, last = name.rpartition("/")
    try:
        with directory_below(root, above) as directory:
            os.unlink(last, dir_fd=directory)
    except FileNotFoundError:
        return False
    return True


def _open(path: str | os.PathLike[str], flags: int, dir_fd: int | None) -> int:
    try:
        descriptor = os.open(path, flags, 0o600, dir_fd=dir_fd)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise UnsafeFileError(errno.ELOOP, f"{os.fspath(path)} is a symbolic link, so it is not used") from exc
        if exc.errno == errno.ENXIO:
            raise UnsafeFileError(errno.ENXIO, f"{os.fspath(path)} is a socket or device, so it is not used") from exc
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    what = next((name for is_kind, name in _KINDS if is_kind(mode)), "not a file")
    raise UnsafeFileError(errno.EINVAL, f"{os.fspath(path)} is {what}, so it is not used")


def _is_link(name: str, dir_fd: int) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISLNK(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode)
    return False
