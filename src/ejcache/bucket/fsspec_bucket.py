"""A bucket on any other file system that fsspec knows (abfs, sftp, hdfs, …), with the operations that all of them have.

fsspec offers no conditional writes, so creation is a check and a write: two writers at the same moment may both be told
that they created the object, and the last one's bytes are there then. That is never a wrong result, because an entry
states its key and its checksum.
"""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from ejcache.bucket.base import ABSENT, Blob, BlobInfo, Bucket
from ejcache.bucket.retry import RetryPolicy, TransientError, try_within
from ejcache.errors import StoreError, StoreReadOnlyError, StoreUnavailableError
from ejcache.util.lifecycle import exit_before_finalizers, track_forks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["FsspecBucket"]

T = TypeVar("T")

_MAX_REMEMBERED = 1000


class FsspecBucket(Bucket):
    """Objects below a URL; a version is a digest of the content, or the metadata that a listing has.

    Args:
        url: with any protocol that fsspec knows.
        policy: how long an operation may take.
        options: arguments of the file system.
    """

    conditional = False
    part_size = least_part = 1 << 62

    def __init__(
        self, url: str, *, policy: RetryPolicy | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(url, policy=policy)
        self._options = dict(options or {})
        self._digests: dict[str, str] = {}
        self.after_fork_in_child()
        track_forks(self)

    def after_fork_in_child(self) -> None:
        """Make another file system when one is needed: threads and connections are the parent's."""
        self._opened: tuple[Any, str] | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        """Drop the file system; the next use makes it again."""
        self._opened = None

    def _file_system(self) -> tuple[Any, str]:
        opened = self._opened
        if opened is None:
            from fsspec.core import url_to_fs

            options = {"use_listings_cache": False, "skip_instance_cache": True, **self._options}
            file_system, root = url_to_fs(self.url, **options)
            exit_before_finalizers()
            opened = self._opened = file_system, root.rstrip("/")
        return opened

    def _run(self, what: str, function: Callable[[Any, str], T], timeout: float, *, writing: bool = False) -> T:
        try:
            return try_within(f"{what} {self.url}", lambda: function(*self._file_system()), timeout)
        except StoreError:
            raise
        except PermissionError as exc:
            kind = StoreReadOnlyError if writing else StoreUnavailableError
            raise kind(f"{what} {self.url} is not permitted: {exc}") from exc
        except (ImportError, ValueError) as exc:
            raise StoreUnavailableError(f"{self.url} cannot be opened: {exc}") from exc
        except (ConnectionError, TimeoutError) as exc:
            raise TransientError(str(exc), ambiguous=True) from exc
        except TransientError:
            raise
        except Exception as exc:
            # Every file system has its own errors, and nothing says which of them another try could mend.
            raise StoreUnavailableError(f"{what} {self.url} failed: {exc}") from exc

    def _read(
        self,
        name: str,
        start: int,  # noqa: ARG002  # the first part is all of the object
        length: int,
        version: str | None,  # noqa: ARG002
        timeout: float,
    ) -> Blob | None:
        def read(fs: Any, root: str) -> Blob | None:
            try:
                whole = length >= self.part_size
                data = bytes(fs.cat_file(f"{root}/{name}", None if whole else 0, None if whole else length))
            except (FileNotFoundError, IsADirectoryError):
                return None
            return Blob(data, _digest(data), len(data))

        return self._run("reading", read, timeout)

    def _stat(self, name: str, timeout: float) -> BlobInfo | None:
        def look(fs: Any, root: str) -> BlobInfo | None:
            try:
                found = fs.info(f"{root}/{name}")
            except FileNotFoundError:
                return None
            return _info(name, found) if found["type"] == "file" else None

        return self._run("looking into", look, timeout)

    def _version(self, fs: Any, location: str, like: str | None) -> str:
        try:
            if like is not None and like.startswith("sha256:"):
                return _digest(bytes(fs.cat_file(location)))
            return _info("", fs.info(location)).version
        except FileNotFoundError:
            return ABSENT

    def _write(self, name: str, data: bytes, version: str | None, token: str, timeout: float) -> str | None:
        def write(fs: Any, root: str) -> str | None:
            location = f"{root}/{name}"
            # The lock makes the check and the write one step within this process at least.
            with self._lock:
                if version is not None and self._version(fs, location, version) != version:
                    return None
                while len(self._digests) >= _MAX_REMEMBERED:
                    self._digests.pop(next(iter(self._digests)), None)
                self._digests[token] = _digest(data)
                fs.makedirs(location.rpartition("/")[0], exist_ok=True)
                fs.pipe_file(location, data)
            return _digest(data)

        return self._run("writing to", write, timeout, writing=True)

    def _version_if_ours(self, name: str, token: str, timeout: float) -> str | None:
        blob = self._read(name, 0, self.part_size, None, timeout)
        return blob.version if blob is not None and blob.version == self._digests.get(token) else None

    def _delete(self, name: str, version: str | None, timeout: float) -> bool:
        def delete(fs: Any, root: str) -> bool:
            location = f"{root}/{name}"
            with self._lock:
                found = self._version(fs, location, version)
                if found == ABSENT or (version is not None and found != version):
                    return False
                try:
                    fs.rm_file(location)
                except FileNotFoundError:
                    return False
                return True

        return self._run("deleting from", delete, timeout, writing=True)

    def _page(
        self, prefix: str, token: str | None, timeout: float, *, deep: bool = True
    ) -> tuple[list[BlobInfo], list[str]]:
        # One folder a page: listing all that is below could take longer than one call may take.
        folder = prefix.rpartition("/")[0] if token is None else token

        def page(fs: Any, root: str) -> tuple[list[BlobInfo], list[str]]:
            infos, below = [], []
            try:
                found = fs.ls(f"{root}/{folder}" if folder else root, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return [], []
            for item in found:
                name = str(item["name"]).removeprefix(root).strip("/")
                if not name.startswith(prefix) or name == folder:
                    # Some file systems list a folder among its own contents.
                    continue
                if item["type"] == "directory":
                    below += [name] if deep else []
                else:
                    infos.append(_info(name, item))
            return infos, below

        return self._run("listing", page, timeout)


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _info(name: str, found: Mapping[str, Any]) -> BlobInfo:
    stamp = next(
        (found[k] for k in ("mtime", "LastModified", "last_modified", "created", "modified") if found.get(k)), 0
    )
    created = stamp.timestamp() if hasattr(stamp, "timestamp") else float(stamp or 0)
    tag = next((str(found[k]) for k in ("etag", "ETag", "md5", "ino") if found.get(k)), "")
    return BlobInfo(name, int(found.get("size") or 0), created, f"{tag}-{created}-{found.get('size')}")
