"""Files in directories that others may write to: replaced atomically, opened safely, and whether they are trusted.

Replacing a local file atomically.

Opening files and directories that another user may have prepared: links, pipes and devices are refused.

A user who can write to a shared directory can put a symbolic link where ejcache expects a file or directory of its own.
Following it would copy a private file into the store, or delete files outside of it. A plain `open` of a named pipe
waits for good. So the root of a cache may be reached through links (a link to a scratch disk is common), and nothing
below it.

Whether code may be loaded from a directory: who could have put it there.

A directory that ejcache makes has mode 0700. One that it finds may belong to another user, or be writable by others;
both could have put an executable of their own into it, which would then run as this user. Trusted are

* directories of this user and of root. Of the directories above them, only those are refused that any user may change
  and that have no sticky bit (`why_replaceable`). There, another user can exchange a directory while it is in use. A
  member of a group that may change a directory above, or its owner, can do that as well; but group directories are
  where many clusters keep all their data, so they are accepted;
* group permissions, if no other user is known to be in the group: the private group that Debian and Red Hat give each
  user, with a umask of 002, and the `fsGroup` that Kubernetes gives a volume;
* for root inside a container, directories of any user: a bind mount belongs to a user of the host. Inside any
  container, directories above are not examined: an `emptyDir` of Kubernetes has mode 0777, and the users in a container
  belong to one job.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import re
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator


_TEMPORARY: Final = r"\.ejcache-\d+-[0-9a-f]{16}\.tmp"


def write_atomically(path: str | os.PathLike[str], data: bytes, *, mode: int = 0o600) -> None:
    """Create or replace the file at `path`: a reader sees all of the old content or all of `data`.

    The data is written under a temporary name in the same directory (`is_temporary` recognises it) and renamed. If this
    process is killed in between, the temporary file remains. Of several writers, the last one wins.

    Args:
        path: the file; its directory must exist. A link is replaced, not followed.
        data: the content.
        mode: permissions of the file, further restricted by the umask.

    Raises:
        OSError: the file could not be written; the old one is unchanged.
    """
    target = Path(path)
    temporary = target.with_name(f".ejcache-{os.getpid()}-{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
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
    """Whether a file of this name was being written by `write_atomically`."""
    return re.fullmatch(_TEMPORARY, name) is not None


_FILE: Final = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_APPEND: Final = _FILE | os.O_WRONLY | os.O_APPEND
_DIRECTORY: Final = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_DIRECTORY", 0)


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
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise UnsafeFileError(errno.EINVAL, f"{os.fspath(path)} is a directory, a pipe or a device, so it is not used")


def _is_link(name: str, dir_fd: int) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISLNK(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode)
    return False


_CONTAINER_MARKS: Final = ("/.dockerenv", "/run/.containerenv", "/var/run/secrets/kubernetes.io")


def why_untrusted(path: str | os.PathLike[str], about: os.stat_result) -> str:
    """Why a directory may hold code of another user, as a sentence; "" if it is trusted.

    Args:
        path: the directory, for the sentence.
        about: its status; not that of a link.
    """
    user = os.geteuid()
    if about.st_uid not in (user, 0) and (user != 0 or not _in_container()):
        return f"{os.fspath(path)} belongs to {_user_name(about.st_uid)}, who could have put code there"
    if about.st_mode & stat.S_IWOTH:
        return f"any user can write to {os.fspath(path)} (mode {stat.S_IMODE(about.st_mode):04o}) and put code there"
    if about.st_mode & stat.S_IWGRP and not _is_private_group(about.st_gid, user):
        return (
            f"the group {_group_name(about.st_gid)} can write to {os.fspath(path)}"
            f" (mode {stat.S_IMODE(about.st_mode):04o}) and put code there"
        )
    return ""


def why_replaceable(path: str | os.PathLike[str]) -> str:
    """Why any user could replace the directory at `path`, as a sentence; "" if only few users, or none, could.

    Args:
        path: the directory, which need not exist. Links to it are followed.
    """
    real = Path(os.path.realpath(path))
    for part in (real, *real.parents):
        try:
            mode = part.stat().st_mode
        except OSError:
            continue  # not there yet, or behind a directory that is not for this user
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            if _in_container():
                return ""
            return f"any user can rename what is in {part} (mode {stat.S_IMODE(mode):04o}) and put code in its place"
    return ""


def _in_container() -> bool:
    if any(Path(mark).exists() for mark in _CONTAINER_MARKS):
        return True
    try:
        # In a user namespace, as rootless containers have it, "root" is an ordinary user of the host.
        return Path("/proc/self/uid_map").read_text().split()[:2] != ["0", "0"]
    except OSError:
        return False


def _is_private_group(gid: int, user: int) -> bool:
    try:
        group = grp.getgrgid(gid)
    except (KeyError, OSError):
        # In a container, the group of a volume has no name. Elsewhere, the directory of users may be out of reach.
        return _in_container()
    try:
        name = pwd.getpwuid(user).pw_name
    except (KeyError, OSError):
        name = str(user)
    return set(group.gr_mem) <= {name} and (gid == user or group.gr_name == name)


def _user_name(uid: int) -> str:
    try:
        return f"the user {pwd.getpwuid(uid).pw_name} (id {uid})"
    except (KeyError, OSError):
        return f"the user with id {uid}"


def _group_name(gid: int) -> str:
    try:
        return f"{grp.getgrgid(gid).gr_name} (id {gid})"
    except (KeyError, OSError):
        return f"with id {gid}"
