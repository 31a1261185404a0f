"""A bucket that is a directory on a network file system (NFS, Lustre, a mounted bucket).

What is written becomes visible by one `link` (create) or `rename` (overwrite) of a file that is complete and synced,
under a name of the writer's own: fsspec's local file system overwrites in place, and its exclusive creation is a look
before a leap. SQLite and locks are not used, because they do not hold between hosts there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from ejcache.errors import StoreReadOnlyError, StoreUnavailableError
from ejcache.stores.shared_bucket import ABSENT, Blob, BlobInfo, Bucket, VersionGoneError
from ejcache.stores.shared_layout import TEMPORARY, process_name
from ejcache.stores.shared_retry import TransientError
from ejcache.stores.shared_workers import call_with_timeout

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.stores.shared_retry import RetryPolicy

__all__ = ["FileBucket"]

T = TypeVar("T")

_ABSENT: Final = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
# ESTALE: another host replaced or removed the file under its handle (NFS has no other way to say so).
_TRANSIENT: Final = (errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.EBUSY)
_REFUSED: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
_MAX_REMEMBERED: Final = 1000


class FileBucket(Bucket):
    """Objects as files below a directory, which is made when something is first written.

    Every call runs in a thread that is left behind at the deadline, since nothing interrupts a dead mount.

    Where the file system has no hard links (mounted buckets), creation is a look and a rename: of two writers at the
    same moment both may then be told that theirs was first, and the last one's stands, whole.

    Args:
        path: of the directory.
    """

    conditional = False

    def __init__(self, path: str | os.PathLike[str], *, policy: RetryPolicy | None = None) -> None:
        self.path = Path(path).absolute()
        super().__init__(f"file://{self.path}", policy=policy)
        self._inodes: dict[str, tuple[int, int]] = {}

    def _run(self, what: str, name: str, function: Callable[[], T], timeout: float, *, writing: bool = False) -> T:
        try:
            return call_with_timeout(f"{what} {self.path}/{name}", function, timeout)
        except OSError as exc:
            if isinstance(exc, StoreReadOnlyError | StoreUnavailableError):
                raise
            if exc.errno in _TRANSIENT:
                raise TransientError(str(exc), ambiguous=True) from exc
            if exc.errno in _REFUSED and writing:
                raise StoreReadOnlyError(f"{self.path} cannot be written to: {exc.strerror}") from exc
            raise StoreUnavailableError(f"{what} {self.path}/{name} failed: {exc}") from exc

    def _place(self, name: str) -> Path:
        return self.path / name

    # Reading.

    def _read(self, name: str, start: int, length: int, version: str | None, timeout: float) -> Blob | None:
        place = self._place(name)

        def read() -> Blob | None:
            try:
                with place.open("rb", buffering=0) as file:
                    status = os.fstat(file.fileno())
                    found = _version(status)
                    if version is not None and found != version:
                        raise VersionGoneError
                    if not stat.S_ISREG(status.st_mode):
                        return None
                    file.seek(start)
                    return Blob(_read_all(file.fileno(), min(length, status.st_size - start)), found, status.st_size)
            except OSError as exc:
                if exc.errno in _ABSENT:
                    return None
                raise

        return self._run("reading", name, read, timeout)

    def _stat(self, name: str, timeout: float) -> BlobInfo | None:
        return self._run("looking for", name, lambda: _info(name, self._place(name)), timeout)

    def _page(
        self, prefix: str, token: str | None, timeout: float, *, deep: bool = True
    ) -> tuple[list[BlobInfo], list[str]]:
        # One directory a page: what is below may be more than a server can list in the time of one call.
        folder, start = (token, "") if token is not None else (prefix.rpartition("/")[0], prefix.rpartition("/")[2])
        root = self._place(folder) if folder else self.path
        above = f"{folder}/" if folder else ""

        def page() -> tuple[list[BlobInfo], list[str]]:
            names, folders = _scan(root)
            infos = [_info(above + name, root / name) for name in names if name.startswith(start)]
            below = [above + name for name in sorted(folders, reverse=True) if deep and name.startswith(start)]
            return [info for info in infos if info is not None], below

        return self._run("listing", folder, page, timeout)

    # Writing.

    def _write(self, name: str, data: bytes, version: str | None, token: str, timeout: float) -> str | None:
        place = self._place(name)

        def write() -> str | None:
            if version is not None and _version_at(place) != version:
                return None
            temporary = self._write_temporary(data)
            try:
                status = temporary.stat()
                while len(self._inodes) >= _MAX_REMEMBERED:
                    self._inodes.pop(next(iter(self._inodes)), None)
                self._inodes[token] = status.st_dev, status.st_ino
                if version == ABSENT:
                    return _version(status) if self._publish(temporary, place) else None
                if version is not None and _version_at(place) != version:
                    return None
                _in_made_folder(place, lambda: temporary.replace(place))
                return _version(status)
            finally:
                temporary.unlink(missing_ok=True)

        return self._run("writing", name, write, timeout, writing=True)

    def _write_temporary(self, data: bytes) -> Path:
        # The name says who writes, so that a sweep can tell what a dead process has left.
        temporary = self._place(f"{TEMPORARY}{process_name()}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = _in_made_folder(temporary, lambda: os.open(temporary, flags, 0o666))
        try:
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                os.fsync(fd)
            finally:
                # NFS reports a full disk when the file is closed.
                os.close(fd)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        return temporary

    def _publish(self, temporary: Path, place: Path) -> bool:
        try:
            _in_made_folder(place, lambda: os.link(temporary, place))
            return True
        except FileExistsError:
            # A link whose answer NFS lost is tried again by the kernel, and then exists: it is ours.
            return temporary.stat().st_nlink > 1
        except OSError as exc:
            if exc.errno not in _NO_LINKS:
                raise
        if os.path.lexists(place):
            return False
        temporary.rename(place)
        return True

    def _version_if_ours(self, name: str, token: str, timeout: float) -> str | None:
        def look() -> str | None:
            try:
                status = self._place(name).stat()
            except FileNotFoundError:
                return None
            return _version(status) if (status.st_dev, status.st_ino) == self._inodes.get(token) else None

        return self._run("looking for", name, look, timeout)

    def _delete(self, name: str, version: str | None, timeout: float) -> bool:
        place = self._place(name)

        def delete() -> bool:
            try:
                if version is None:
                    place.unlink()
                    return True
                if _version_at(place) != version:
                    return False
                # Taken aside first: of several that delete one version exactly one has it, and what was put in its
                # place meanwhile is put back.
                aside = self._place(f"{TEMPORARY}{process_name()}")
                _in_made_folder(aside, lambda: place.rename(aside))
            except OSError as exc:
                if exc.errno in _ABSENT:
                    return False
                raise
            try:
                if _version_at(aside) == version:
                    return True
                with contextlib.suppress(FileExistsError):
                    os.link(aside, place)
                return False
            finally:
                aside.unlink()

        return self._run("deleting", name, delete, timeout, writing=True)


def _read_all(fd: int, length: int) -> bytes:
    parts = []
    while length > 0:
        part = os.read(fd, length)
        if not part:
            break
        parts.append(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _version(status: os.stat_result) -> str:
    return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"


def _version_at(place: Path) -> str:
    try:
        return _version(place.stat())
    except OSError as exc:
        if exc.errno in _ABSENT:
            return ABSENT
        raise


def _info(name: str, place: Path) -> BlobInfo | None:
    try:
        status = place.stat()
    except OSError as exc:
        if exc.errno in _ABSENT:
            return None
        raise
    if not stat.S_ISREG(status.st_mode):
        return None
    return BlobInfo(name, status.st_size, status.st_mtime, _version(status))


def _scan(place: Path) -> tuple[list[str], list[str]]:
    try:
        with os.scandir(place) as found:
            entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
    except OSError as exc:
        if exc.errno in _ABSENT:
            return [], []
        raise
    return [name for name, folder in entries if not folder], [name for name, folder in entries if folder]


def _in_made_folder(place: Path, function: Callable[[], T]) -> T:
    """Call `function`, which makes something at `place`, and make the directory it is in if that is missing."""
    try:
        return function()
    except FileNotFoundError:
        place.parent.mkdir(parents=True, exist_ok=True)
        return function()
