"""Opens files safely, makes them for those who may see them, and writes them whole or not at all.

A directory is either made for this user alone (`make_private`), or like the one that it is in (`make_below`),
and a file has the permissions of its directory. The umask changes neither. `directory_access` decides about a cache's
root.

Links, pipes and devices that another user may have prepared are refused. A user who can write to a
shared directory can put a symbolic link where ejcache expects a file or directory of its own. Following it would copy a
private file into the store, or delete files outside of it. A plain `open` of a named pipe waits for good. So the root
of a cache may be reached through links (a link to a scratch disk is common), and nothing below it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator


def make_private(directory: Path) -> None:
    """Make a directory, and each missing one above it, for this user alone: mode 0700 whatever the umask.

    Raises:
        OSError: it cannot be made.
    """
    for path in missing_directories(directory):
        path.mkdir(mode=0o700, exist_ok=True)


def missing_directories(directory: Path) -> list[Path]:
    """Return the directories that have to be made for `directory`, from the top down."""
    missing = [] if directory.is_dir() else [directory]
    while missing and not os.path.lexists(missing[-1].parent):
        missing.append(missing[-1].parent)
    return missing[::-1]


def file_mode(directory: str | os.PathLike[str], *, dir_fd: int | None = None) -> int:
    """Return the permissions of our files in `directory`: its own, or private ones where everybody makes files.

    Raises:
        OSError: the directory cannot be looked at.
    """
    mode = os.stat(directory, dir_fd=dir_fd).st_mode
    return 0o600 if mode & stat.S_ISVTX else mode & 0o666 | 0o600


def open_like_directory(path: str | os.PathLike[str], flags: int, *, dir_fd: int | None = None) -> int:
    """Open as `os.open` does a file that may have to be made: who may use its directory may use it.

    Raises:
        OSError: it can be neither made nor opened.
    """
    mode = file_mode(os.path.dirname(path) or ".", dir_fd=dir_fd)  # noqa: PTH120 (a name below `dir_fd` has no path)
    return open_with_mode(path, flags, mode, dir_fd=dir_fd)


def open_with_mode(path: str | os.PathLike[str], flags: int, mode: int, *, dir_fd: int | None = None) -> int:
    """Open as `os.open` does a file that may have to be made, and give it `mode` whatever the umask.

    Raises:
        OSError: it can be neither made nor opened.
    """
    descriptor = os.open(path, flags, mode, dir_fd=dir_fd)
    if mode != 0o600 and os.fstat(descriptor).st_mode & 0o777 != mode:  # the umask took some
        with contextlib.suppress(OSError):  # another user's file has the permissions that it has
            os.fchmod(descriptor, mode)
    return descriptor


_FILE: Final = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_APPEND: Final = _FILE | os.O_RDWR | os.O_APPEND
_DIRECTORY: Final = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_DIRECTORY", 0)


class UnsafeFileError(OSError):
    """A link, a pipe, a device or a directory is where a file of a cache is expected, or the file is too large."""


def open_regular(path: str | os.PathLike[str], *, dir_fd: int | None = None) -> int:
    """Open the regular file at `path` for reading. Never waits, and follows no link in the last component.

    Raises:
        UnsafeFileError: what is there is not a regular file.
        OSError: it cannot be opened.
    """
    return _open(path, _FILE, dir_fd)


def append_regular(path: str | os.PathLike[str], data: bytes, *, create: bool = True) -> os.stat_result:
    """Append the line `data`, by one write, to the regular file at `path`.

    What several processes append to one file on a local file system does not mix. Where the last line was cut short, by
    a full disk or the end of a machine, `data` begins a line of its own.

    Args:
        path: the file.
        data: a line or a few, each with its line break.
        create: make the file, with the permissions of its directory, if there is none.

    Returns:
        The file as it is then.

    Raises:
        UnsafeFileError: what is there is not a regular file.
        OSError: it cannot be written, or not all of `data` was.
    """
    descriptor = _open(path, _APPEND | (os.O_CREAT if create else 0), None)
    try:
        size = os.lseek(descriptor, 0, os.SEEK_END)
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data
        if os.write(descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def read_regular(path: str | os.PathLike[str], *, max_size: int, length: int | None = None) -> bytes:
    """Return the bytes of the regular file at `path`, or its first `length`.

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
    """Open the directory `name` below `root`, itself for an empty name; no link below `root` is followed.

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
    """Open as `open_regular` does, for the file `name` below `root`; no link below `root` is followed."""
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
        making = flags & os.O_CREAT
        descriptor = open_like_directory(path, flags, dir_fd=dir_fd) if making else os.open(path, flags, dir_fd=dir_fd)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise UnsafeFileError(errno.ELOOP, f"{os.fspath(path)} is a symbolic link, so it is not used") from exc
        if exc.errno == errno.ENXIO:
            raise UnsafeFileError(errno.ENXIO, f"{os.fspath(path)} is a socket or device, so it is not used") from exc
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise UnsafeFileError(errno.EINVAL, f"{os.fspath(path)} is a directory, a pipe or a device, so it is not used")


def _is_link(name: str, dir_fd: int) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISLNK(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode)
    return False


_TEMPORARY: Final = r"\.ejcache-\d+-[0-9a-f]{16}\.tmp"


def inherited_mode(mode: int) -> int:
    """Return the mode of a directory with these permissions; where a group may write, files in it get the group."""
    return mode | stat.S_ISGID if mode & stat.S_IWGRP else mode


def make_below(directory: Path) -> None:
    """Make a directory below the root of a cache, and each missing one above it, like the one that it is in.

    Raises:
        OSError: it cannot be made.
    """
    for path in missing_directories(directory):
        mode = stat.S_IMODE(path.parent.stat().st_mode)
        make_with_mode(path, 0o700 if mode & stat.S_ISVTX else mode)


def make_with_mode(path: Path, mode: int, *, gid: int | None = None) -> None:
    """Make one directory with these permissions, unless there is one. Nobody sees it with others.

    What another thread or process makes in it has its permissions and its group, so they are right from the beginning:
    the umask would have its part in those of `mkdir`.

    Args:
        path: the directory.
        mode: its permissions.
        gid: its group; that which the system gives it if None, and where this user is not in that group.

    Raises:
        OSError: it cannot be made.
    """
    if mode & 0o777 == 0o700:
        path.mkdir(mode=0o700, exist_ok=True)
        return
    making = path.with_name(f".ejcache-{os.getpid()}-{os.urandom(8).hex()}.tmp")
    making.mkdir(mode=0o700)
    try:
        if gid is not None:
            with contextlib.suppress(OSError):
                os.chown(making, -1, gid)
        making.chmod(mode)
        making.rename(path)  # in place of an empty one that another process has made like this meanwhile
    except OSError:
        making.rmdir()
        if not path.is_dir():
            raise


def write_atomically(path: str | os.PathLike[str], data: bytes, *, mode: int | None = None) -> None:
    """Create or replace the file at `path`: a reader sees all of the old content or all of `data`.

    The data is written under a temporary name in the same directory (`is_temporary` recognises it) and renamed. If this
    process is killed in between, the temporary file remains. Of several writers, the last one wins.

    Args:
        path: the file; its directory must exist. A link is replaced, not followed.
        data: the content.
        mode: permissions of the file, further restricted by the umask; by default, those of the directory.

    Raises:
        OSError: the file could not be written; the old one is unchanged.
    """
    target = Path(path)
    temporary = target.with_name(f".ejcache-{os.getpid()}-{os.urandom(8).hex()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = open_like_directory(temporary, flags) if mode is None else os.open(temporary, flags, mode)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def is_temporary(name: str) -> bool:
    """True if a file of this name was being written by `write_atomically`."""
    return re.fullmatch(_TEMPORARY, name) is not None
