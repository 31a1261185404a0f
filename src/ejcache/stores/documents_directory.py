"""Documents in a directory, on a local disk or a network file system.

Files are published by `link` (create) or `rename` (replace) from a temporary name of their writer's own, which both
kinds of file system do atomically. Modes follow the umask, so that a group can share a directory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.errors import StoreBusyError, StoreError, StoreReadOnlyError, StoreUnavailableError
from ejcache.settings import make_user_directory_above
from ejcache.stores.documents import DocumentStore, check_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["DirectoryDocuments"]

_TEMPORARY: Final = ".tmp-"
_LOCK: Final = ".lock"
_ABANDONED_SECONDS: Final = 86_400.0
_NO_LINKS: Final = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_NO_LOCKS: Final = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF}


class DirectoryDocuments(DocumentStore):
    """Documents as files below `root`, which need not exist.

    Args:
        root: the directory; `~` is expanded.
        read_only: write nothing, not even the directory.
    """

    def __init__(self, root: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self.root = Path(root).expanduser().absolute()
        self.url = str(self.root)
        self.read_only = read_only

    def __repr__(self) -> str:
        return f"DirectoryDocuments({self.url!r})"

    def read(self, path: str) -> bytes | None:
        try:
            return self._file(path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            raise _translated(exc, f"reading {self.url}/{path}") from exc

    def create(self, path: str, data: bytes) -> bool:
        self._check_writable()
        target = self._file(path)
        with _translation(f"writing {target}"):
            temporary = self._write_temporary(target, data)
            try:
                return self._link(temporary, target, time.monotonic() + 10.0)
            finally:
                temporary.unlink(missing_ok=True)

    def replace(self, path: str, data: bytes) -> None:
        self._check_writable()
        with _translation(f"writing {self.url}/{path}"):
            self._replace(self._file(path), data)

    def update(self, path: str, change: Callable[[bytes | None], bytes | None], *, timeout: float = 10.0) -> None:
        self._check_writable()
        target = self._file(path)
        with _translation(f"changing {target}"):
            _make_parent(target)
            with _locked(target.parent / _LOCK, time.monotonic() + timeout):
                data = change(self.read(path))
                if data is not None:
                    self._replace(target, data)

    def list(self, prefix: str) -> Iterator[str]:
        above = prefix.rpartition("/")[0]
        start = self._file(above) if above else self.root
        try:
            for directory, below, names in os.walk(start, onerror=_unless_absent):
                relative = Path(directory).relative_to(self.root).as_posix()
                base = "" if relative == "." else f"{relative}/"
                below[:] = sorted(name for name in below if not name.startswith("."))
                for name in sorted(names):
                    if not name.startswith(".") and f"{base}{name}".startswith(prefix):
                        yield f"{base}{name}"
        except OSError as exc:
            raise _translated(exc, f"listing {start}") from exc

    def delete(self, path: str) -> bool:
        self._check_writable()
        try:
            self._file(path).unlink()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as exc:
            raise _translated(exc, f"deleting {self.url}/{path}") from exc
        return True

    def discard(self, path: str, data: bytes) -> bool:
        self._check_writable()
        target = self._file(path)
        if not target.parent.is_dir():
            return False
        # What is there can only be changed by an update, which takes the lock, too.
        with _translation(f"deleting {target}"), _locked(target.parent / _LOCK, time.monotonic() + 10.0):
            return self.read(path) == data and self.delete(path)

    def stamp(self, path: str) -> str | None:
        try:
            status = self._file(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            raise _translated(exc, f"looking for {self.url}/{path}") from exc
        return f"{status.st_mtime_ns}-{status.st_size}-{status.st_ino}"

    def sweep(self, *, older_than: float = _ABANDONED_SECONDS) -> int:
        """Remove what writers that were killed left behind; how many files.

        Args:
            older_than: seconds; a younger temporary file may be another process's, in the middle of its work.
        """
        self._check_writable()
        count = 0
        for directory, _, names in os.walk(self.root):
            for name in names:
                if not name.startswith(_TEMPORARY):
                    continue
                file = Path(directory, name)
                with contextlib.suppress(OSError):
                    if time.time() - file.stat().st_mtime > older_than:
                        file.unlink()
                        count += 1
        return count

    def _file(self, path: str) -> Path:
        return self.root / check_path(path)

    def _write_temporary(self, target: Path, data: bytes) -> Path:
        _make_parent(target)
        host = "".join(c if c.isalnum() or c == "-" else "_" for c in socket.gethostname())[:60]
        temporary = target.parent / f"{_TEMPORARY}{host}-{os.getpid()}-{uuid.uuid4().hex}"
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return temporary

    def _replace(self, target: Path, data: bytes) -> None:
        temporary = self._write_temporary(target, data)
        try:
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def _link(self, temporary: Path, target: Path, deadline: float) -> bool:
        try:
            os.link(temporary, target)
        except FileExistsError:
            # NFS repeats a request whose answer was lost: then the link that is in the way is our own.
            return temporary.stat().st_nlink == 2
        except OSError as exc:
            if exc.errno not in _NO_LINKS:
                raise
            with _locked(target.parent / _LOCK, deadline):
                if target.exists():
                    return False
                temporary.replace(target)
        return True


def _make_parent(target: Path) -> None:
    make_user_directory_above(target)
    target.parent.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def _locked(path: Path, deadline: float) -> Iterator[None]:
    """Hold the lock on the file `path`, which is made if need be, on whatever file system has locks.

    Raises:
        StoreBusyError: another process held it until `deadline` (monotonic seconds).
    """
    import fcntl

    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError:
        # Another user made it; a local file system locks what is only read, too.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise StoreBusyError(f"another process kept {path} locked for too long") from None
                time.sleep(random.uniform(0.0005, 0.005))  # noqa: S311 (jitter)
            except OSError as exc:
                if exc.errno not in _NO_LOCKS:
                    raise
                # A mount without locks: of two updates at the same instant one may be lost, none is torn.
                break
        yield
        with contextlib.suppress(OSError):
            # Not only by closing: a child that was forked meanwhile has a copy of the descriptor.
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _translation(what: str) -> Iterator[None]:
    try:
        yield
    except StoreError:
        raise
    except OSError as exc:
        raise _translated(exc, what) from exc


def _translated(exc: OSError, what: str) -> StoreError:
    kind = StoreReadOnlyError if exc.errno in {errno.EROFS, errno.EACCES, errno.EPERM} else StoreUnavailableError
    return kind(f"{what}: {exc.strerror or exc}")


def _unless_absent(exc: OSError) -> None:
    if not isinstance(exc, FileNotFoundError | NotADirectoryError):
        raise exc
