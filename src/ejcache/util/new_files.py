"""Directories that are made like the one that they are in, and files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path
from typing import Final

from ejcache.util.files import missing_directories, open_like_directory

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
