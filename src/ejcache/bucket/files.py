"""Keeps objects as files below a directory: on a disk, or on a network file system (NFS, a mounted bucket).

A write becomes visible by one `link` (create) or one `rename` (overwrite) of a complete, synced file that has a
temporary name of its own. fsspec's local file system cannot be used: it overwrites in place, and its exclusive creation
is a check followed by a write.

Other users may be able to write to the directory. So nothing below it is reached through a symbolic link, and what is
not a regular file is treated as if it were not there (`util.files`).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from ejcache.bucket.base import ABSENT, Blob, BlobInfo, Bucket, VersionGoneError
from ejcache.bucket.object_names import QUARANTINE, TEMPORARY
from ejcache.bucket.retry import TransientError, try_within
from ejcache.errors import StoreError, StoreForbiddenError, StoreReadOnlyError, StoreUnavailableError
from ejcache.util.directory_access import POLICY, Access
from ejcache.util.files import (
    UnsafeFileError,
    directory_below,
    file_mode,
    open_below,
    open_regular,
    open_with_mode,
    remove_below,
)
from ejcache.util.locks import exclusive
from ejcache.util.writer import process_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ejcache.bucket.retry import RetryPolicy

T = TypeVar("T")

_ABSENT: Final = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
# ESTALE: another host replaced or removed the file under its handle (NFS has no other way to say so).
_TRANSIENT: Final = (errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.EBUSY)
_REFUSED: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
_NO_LOCKS: Final = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF)
_HIDDEN: Final = ".tmp-"
_LOCK: Final = ".lock"
_ABANDONED_SECONDS: Final = 86_400.0


class FileBucket(Bucket):
    """Objects as files below a directory, which is made by the first write.

    Where the file system has no hard links (mounted buckets), creation is a check and a rename: two writers at the same
    moment may both be told that they created the object. The last one's bytes are there then, complete.

    Args:
        path: the directory.
        policy: how long an operation may take.
        local: the directory is on a disk of this machine. Calls then run in the caller's thread; without it, in a
            thread that is left behind at the deadline, since nothing interrupts a call to a mount that has died.
        documents: a person may look into the directory. Temporary files are hidden files beside the objects, instead of
            files in `v1/tmp`, and conditions are decided under a lock on the file `.lock` of the object's directory.
        access: what was decided about the directory; by default it is private if it is made here. What is made below
            has the permissions of the directory that it is in; quarantined copies are always the owner's alone.
    """

    one_identity = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        policy: RetryPolicy | None = None,
        local: bool = False,
        documents: bool = False,
        access: Access | None = None,
    ) -> None:
        self.path = Path(path).absolute()
        super().__init__(f"file://{self.path}", policy=policy)
        self.local = local
        self.conditional = local and documents
        if local:
            self.breaker = None  # a disk that fails answers at once
        self._documents = documents
        self._access = access or Access(self.path)

    def _run(self, what: str, name: str, function: Callable[[], T], timeout: float, *, writing: bool = False) -> T:
        try:
            return function() if self.local else try_within(f"{what} {self.path}/{name}", function, timeout)
        except StoreError:
            raise
        except OSError as exc:
            if exc.errno in _TRANSIENT:
                raise TransientError(str(exc), ambiguous=True) from exc
            if exc.errno in _REFUSED and writing:
                raise StoreReadOnlyError(f"{self.path} cannot be written to: {exc.strerror}") from exc
            if exc.errno in _REFUSED or isinstance(exc, UnsafeFileError):
                raise StoreForbiddenError(f"{what} {self.path}/{name} failed: {exc}") from exc
            raise StoreUnavailableError(f"{what} {self.path}/{name} failed: {exc}") from exc

    def _place(self, name: str) -> Path:
        return self.path / name

    # Reading.

    def _read(self, name: str, start: int, length: int, version: str | None, timeout: float) -> Blob | None:
        return self._run("reading", name, lambda: _read_file(self.path, name, start, length, version), timeout)

    def _stat(self, name: str, timeout: float) -> BlobInfo | None:
        def look() -> BlobInfo | None:
            with _folder(self.path, name) as folder:
                return None if folder is None else _info(name, name.rpartition("/")[2], folder)

        return self._run("looking for", name, look, timeout)

    def _page(
        self, prefix: str, token: str | None, timeout: float, *, deep: bool = True
    ) -> tuple[list[BlobInfo], list[str]]:
        # One directory a page: a server may need longer than one call may take to list all directories.
        folder, start = (token, "") if token is not None else (prefix.rpartition("/")[0], prefix.rpartition("/")[2])
        above = f"{folder}/" if folder else ""

        def visible(names: list[str]) -> list[str]:
            return [name for name in names if name.startswith(start) and not (self._documents and name[0] == ".")]

        def page() -> tuple[list[BlobInfo], list[str]]:
            with _folder(self.path, above) as opened:
                if opened is None:
                    return [], []
                names, folders = _scan(opened)
                infos = [_info(above + name, name, opened) for name in visible(names)]
            below = [above + name for name in sorted(visible(folders), reverse=True) if deep]
            return [info for info in infos if info is not None], below

        return self._run("listing", folder, page, timeout)

    # Writing.

    def _write(self, name: str, data: bytes, version: str | None, timeout: float) -> str | None:
        place = self._place(name)

        def write() -> str | None:
            self._check_folder(name)
            if version in (None, ABSENT):
                return self._replace(place, data, version)
            with self._lock(place, timeout):
                return self._replace(place, data, version)

        return self._run("writing", name, write, timeout, writing=True)

    def _replace(self, place: Path, data: bytes, version: str | None) -> str | None:
        if version is not None and _version_at(place) != version:
            return None
        with self._temporary(place) as temporary:
            # A policy that others could write to would not say whom its owner trusts (`is_declared`).
            is_private, is_policy = place.is_relative_to(self._place(QUARANTINE)), place == self._place(POLICY)
            most = 0o600 if is_private else 0o644 if is_policy else 0o666
            self._in_folder(temporary, lambda: _write_file(temporary, data, most=most))
            status = temporary.stat()
            if version == ABSENT:
                return _version(status) if self._publish(temporary, place) else None
            if version is not None and _version_at(place) != version:
                return None
            self._in_folder(place, lambda: temporary.replace(place))
            return _version(status)

    def _publish(self, temporary: Path, place: Path) -> bool:
        try:
            self._in_folder(place, lambda: os.link(temporary, place))
            return True
        except FileExistsError:
            # If NFS lost the answer to a link, the kernel sends it again and finds it existing: it is our own link.
            return temporary.stat().st_nlink > 1
        except OSError as exc:
            if exc.errno not in _NO_LINKS:
                raise
        with self._lock(place, self.policy.deadline):
            if os.path.lexists(place):
                return False
            self._in_folder(place, lambda: temporary.replace(place))
            return True

    def _check_folder(self, name: str) -> None:
        """Raise `UnsafeFileError` if a directory on the way to `name`, or to temporary files, is a symbolic link."""
        for folder in (name, "" if self._documents else TEMPORARY):
            with _folder(self.path, folder):
                pass

    def _in_folder(self, place: Path, function: Callable[[], T]) -> T:
        """Call `function`, which makes something at `place`, and make the directory it is in if that is missing."""
        try:
            return function()
        except FileNotFoundError:
            self._access.make(place.parent.relative_to(self.path).as_posix().removeprefix("."))
            return function()

    @contextlib.contextmanager
    def _temporary(self, place: Path) -> Iterator[Path]:
        """Yield a file name for this writer alone, on the file system of `place`; the file is removed if it is left."""
        # The name says which process writes, so that a sweep can tell what a dead process has left.
        directory, prefix = (place.parent, _HIDDEN) if self._documents else (self._place(TEMPORARY), "")
        temporary = directory / f"{prefix}{process_name()}"
        try:
            yield temporary
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()

    @contextlib.contextmanager
    def _lock(self, place: Path, seconds: float) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if self._documents:
                lock, deadline = place.parent / _LOCK, time.monotonic() + seconds

                def enter() -> None:
                    # People ship directories of documents, in which they are to find nothing but these.
                    stack.enter_context(exclusive(lock, deadline=deadline, lasting=False))

                try:
                    self._in_folder(lock, enter)
                except OSError as exc:
                    # A mount without locks: of two changes at the same instant one may be lost; both are complete.
                    if exc.errno not in _NO_LOCKS:
                        raise
            yield

    def update(self, name: str, change: Callable[[bytes | None], bytes | None], *, timeout: float = 10.0) -> None:
        """Replace the object by what `change` makes of it, as every bucket does, but in one turn under the lock."""
        if not self._documents:
            return super().update(name, change, timeout=timeout)
        place = self._place(name)

        def turn(seconds: float) -> None:
            self._check_folder(name)
            with self._lock(place, min(timeout, seconds)):
                blob = _read_file(self.path, name, 0, self.part_size, None)
                data = change(None if blob is None else blob.data)
                if data is not None:
                    self._replace(place, data, None)

        def attempt(seconds: float) -> None:
            self._run("changing", name, lambda: turn(timeout if self.local else seconds / 2), seconds, writing=True)

        return self._ask(f"changing {self.path}/{name}", attempt)

    def _delete(self, name: str, version: str | None, timeout: float) -> bool:
        place = self._place(name)

        def delete() -> bool:
            try:
                if version is None:
                    return remove_below(self.path, name)
                self._check_folder(name)
                if _version_at(place) != version:
                    return False
                with self._lock(place, timeout):
                    return self._delete_version(place, version)
            except OSError as exc:
                if exc.errno in _ABSENT:
                    return False
                raise

        return self._run("deleting", name, delete, timeout, writing=True)

    def _delete_version(self, place: Path, version: str) -> bool:
        # Renamed first: of several processes that delete one version exactly one gets it, and a file that has just been
        # put in its place is put back.
        with self._temporary(place) as aside:
            self._in_folder(aside, lambda: place.rename(aside))
            if _version_at(aside) == version:
                return True
            with contextlib.suppress(FileExistsError):
                os.link(aside, place)
            return False

    def sweep(self, *, older_than: float = _ABANDONED_SECONDS) -> int:
        """Remove hidden files that writers of documents left when they were killed; how many.

        Args:
            older_than: seconds; a younger file may belong to a process that is still writing.
        """
        count = 0
        for directory, _, names in os.walk(self.path):
            for name in names:
                file = Path(directory, name)
                with contextlib.suppress(OSError):
                    if name.startswith(_HIDDEN) and time.time() - file.stat().st_mtime > older_than:
                        file.unlink()
                        count += 1
        return count


@contextlib.contextmanager
def _folder(root: Path, name: str) -> Iterator[int | None]:
    """Open the directory that `name` below `root` is in; None if there is none.

    Raises:
        UnsafeFileError: a directory on the way is a symbolic link.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(directory_below(root, name.rpartition("/")[0]))
        except OSError as exc:
            if exc.errno not in _ABSENT:
                raise
            folder = None
        yield folder


def _read_file(root: Path, name: str, start: int, length: int, version: str | None) -> Blob | None:
    try:
        fd = _open(root, name)
    except UnsafeFileError as exc:
        # A link, a pipe or a directory is not an object; behind a linked directory there may be some.
        if exc.errno == errno.ELOOP and not (root / name).is_symlink():
            raise
        return None
    except OSError as exc:
        if exc.errno in _ABSENT:
            return None
        raise
    try:
        status = os.fstat(fd)
        found = _version(status)
        if version is not None and found != version:
            raise VersionGoneError
        os.lseek(fd, start, os.SEEK_SET)
        return Blob(_read_all(fd, min(length, status.st_size - start)), found, status.st_size)
    finally:
        os.close(fd)


def _open(root: Path, name: str) -> int:
    """Open as `open_below` does; where /proc says what was opened, with one system call for all directories."""
    try:
        fd = open_regular(f"{root}/{name}")
    except OSError:
        return open_below(root, name)  # which says whether it is the file, or a directory above it is a link
    with contextlib.suppress(OSError):
        if os.readlink(f"/proc/self/fd/{fd}") == f"{_real_path(str(root))}/{name}":  # noqa: PTH115 (slower)
            return fd
    os.close(fd)
    return open_below(root, name)


@functools.lru_cache(maxsize=64)
def _real_path(root: str) -> str:
    return os.path.realpath(root)


def _read_all(fd: int, length: int) -> bytes:
    parts = []
    while length > 0:
        part = os.read(fd, length)
        if not part:
            break
        parts.append(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _write_file(place: Path, data: bytes, *, most: int) -> None:
    """Write a new file with the permissions of its directory, as far as they are among `most`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    fd = open_with_mode(place, flags, file_mode(place.parent) & most)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        # NFS reports a full disk when the file is closed.
        os.close(fd)


def _version(status: os.stat_result) -> str:
    return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"


def _version_at(place: Path) -> str:
    try:
        return _version(place.lstat())
    except OSError as exc:
        if exc.errno in _ABSENT:
            return ABSENT
        raise


def _info(name: str, last: str, folder: int) -> BlobInfo | None:
    """Return the file `last` in the open directory `folder` as an object; None if it is gone or not a regular file."""
    try:
        status = os.stat(last, dir_fd=folder, follow_symlinks=False)
    except OSError as exc:
        if exc.errno in _ABSENT:
            return None
        raise
    if not stat.S_ISREG(status.st_mode):
        return None
    return BlobInfo(name, status.st_size, status.st_mtime, _version(status))


def _scan(folder: int) -> tuple[list[str], list[str]]:
    with os.scandir(folder) as found:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
    return [name for name, is_folder in entries if not is_folder], [name for name, is_folder in entries if is_folder]
