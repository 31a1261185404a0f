"""Keeps small documents under readable paths, such as autotune records: people may open them in an editor.

Documents are objects of a `Bucket`, whatever that is: files on a disk or a mount, or objects of a real bucket. So

* a document is complete or absent, whenever and however its writer dies;
* `create` only creates: of several writers of one path exactly one gets True, and its bytes are kept;
* `update` reads, changes and writes, and loses no change that another process makes at the same time;
* absence is `None` or False, a failure of the storage is a `StoreError`, and every call has a deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ejcache.bucket.files import FileBucket
from ejcache.errors import InvalidKeyError, StoreReadOnlyError
from ejcache.settings.resolve import settings_in_use
from ejcache.stores.location import Location
from ejcache.stores.opening import decide_location, open_bucket
from ejcache.stores.sharing_detection import detect_shared_storage
from ejcache.util.closing import Closing

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from ejcache.bucket.base import Bucket

_COMPONENT: Final = 240
_RESERVED: Final = '\\:*?"<>|'


def check_path(path: str) -> str:
    """Return `path`, if every kind of storage can hold a document there.

    Raises:
        InvalidKeyError: it is absolute, leaves the root, or has an empty, hidden or overlong component or a control
            character.
    """
    for part in path.split("/"):
        hidden = not part or part.startswith(".")
        if hidden or len(part.encode()) > _COMPONENT or any(ord(c) < 32 or c in _RESERVED for c in part):
            raise InvalidKeyError(f"no document can be kept under the path {path!r}")
    return path


class Documents(Closing):
    """Documents under paths. Safe for threads and processes.

    Args:
        bucket: holds them.
        read_only: writes raise `StoreReadOnlyError`, and nothing is made. A function is asked before each write.

    Attributes:
        url: the root that the paths are relative to: a directory, or a URL.
        remote: a read may cost a request to another machine.
    """

    def __init__(self, bucket: Bucket, *, read_only: bool | Callable[[], bool] = False) -> None:
        self.bucket = bucket
        self.url = bucket.url.removeprefix("file://")
        self._read_only = read_only
        self.remote = not bucket.local

    def __repr__(self) -> str:
        return f"Documents({self.url!r})"

    @property
    def read_only(self) -> bool:
        """True if nothing is written here now."""
        return self._read_only() if callable(self._read_only) else self._read_only

    def read(self, path: str, *, max_size: int | None = None) -> bytes | None:
        """Return the document, or None.

        Args:
            path: of the document.
            max_size: bytes; of a larger document only the first `max_size + 1` bytes are read, which tells it apart.
        """
        blob = self.bucket.read(check_path(path), length=None if max_size is None else max_size + 1)
        return None if blob is None else blob.data

    def create(self, path: str, data: bytes) -> bool:
        """Write the document if there is none; False if there is one."""
        return self.bucket.create(self._writable(path), data)

    def replace(self, path: str, data: bytes) -> None:
        """Write the document whether or not there is one; readers see the old or the new one, complete."""
        self.bucket.write(self._writable(path), data)

    def update(self, path: str, change: Callable[[bytes | None], bytes | None], *, timeout: float = 10.0) -> None:
        """Replace the document by what `change` makes of it; None leaves it as it is. Raises as `Bucket.update`."""
        self.bucket.update(self._writable(path), change, timeout=timeout)

    def list(self, prefix: str) -> Iterator[str]:
        """Yield the paths that begin with `prefix`, in no particular order."""
        for info in self.bucket.walk(prefix):
            yield info.name

    def delete(self, path: str) -> bool:
        """Delete the document; False if there was none."""
        return self.bucket.delete(self._writable(path))

    def discard(self, path: str, data: bytes) -> bool:
        """Delete the document if it still is exactly `data`; False if it is not.

        A reader that met a damaged document does not delete the good one that has replaced it meanwhile.
        """
        blob = self.bucket.read(self._writable(path))
        return blob is not None and blob.data == data and self.bucket.delete(path, version=blob.version)

    def stamp(self, path: str) -> str | None:
        """Return a text that changes with the document, and costs less than a read; None without a document."""
        info = self.bucket.stat(check_path(path))
        return None if info is None else info.version

    def sweep(self) -> int:
        """Delete what writers left in a directory of documents when they were killed, if it is old; how many files."""
        return self.bucket.sweep() if isinstance(self.bucket, FileBucket) else 0

    def close(self) -> None:
        """Release connections; they are opened again by the next use."""
        self.bucket.close()

    def _writable(self, path: str) -> str:
        if self.read_only:
            raise StoreReadOnlyError(f"{self.url} was opened read-only")
        return check_path(path)


def open_documents(url: str | os.PathLike[str], *, read_only: bool | Callable[[], bool] = False) -> Documents:
    """Open the documents below `url`: a directory, `file:///directory`, `gs://bucket/prefix`, or another bucket.

    Nothing is made, and no storage is asked, before the first use. Who can write there decides which configurations a
    program runs with: open only what you trust.

    Raises:
        UsageError: the URL cannot be understood.
    """
    location = Location.parse(url)
    if location.kind != "directory":
        return Documents(open_bucket(location), read_only=True if location.anonymous else read_only)

    local = not detect_shared_storage(location)
    access = decide_location(location, settings_in_use())
    bucket = FileBucket(location.path, local=local, documents=True, access=access)
    return Documents(bucket, read_only=read_only)
