"""Small documents under readable paths: what people may open in an editor, as opposed to the entries of a `Store`.

Autotune records are such documents. The rules that every backend keeps:

* a document is whole or absent, whenever and however a writer dies;
* `create` creates only: of several writers of one path exactly one gets True, and what it wrote stands;
* `update` reads, changes and writes with nobody in between;
* absence is `None` or False, trouble is a `StoreError`, and no call waits without a deadline.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, TypeVar

from ejcache.errors import InvalidKeyError, StoreBusyError, StoreReadOnlyError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from ejcache.stores.shared_bucket import Bucket

__all__ = ["BucketDocuments", "DeadlineDocuments", "DocumentStore", "check_path", "open_documents"]

T = TypeVar("T")

_COMPONENT: Final = 240
_RESERVED: Final = '\\:*?"<>|'


def check_path(path: str) -> str:
    """`path` itself, if every backend can hold a document there.

    Raises:
        InvalidKeyError: it is absolute, leaves the root, has an empty, hidden or overlong component, or a control
            character.
    """
    for part in path.split("/"):
        hidden = not part or part.startswith(".")
        if hidden or len(part.encode()) > _COMPONENT or any(ord(c) < 32 or c in _RESERVED for c in part):
            raise InvalidKeyError(f"no document can be kept under the path {path!r}")
    return path


class DocumentStore(ABC):
    """Documents under paths, shared by threads and processes.

    Attributes:
        url: the root that the paths are relative to.
        read_only: writes raise `StoreReadOnlyError`.
        remote: a read costs a request to another machine.
    """

    url: str
    read_only: bool = False
    remote: bool = False

    @abstractmethod
    def read(self, path: str) -> bytes | None:
        """The document, or None."""

    @abstractmethod
    def create(self, path: str, data: bytes) -> bool:
        """Write the document if there is none; False if there is."""

    @abstractmethod
    def replace(self, path: str, data: bytes) -> None:
        """Write the document whether or not there is one; readers see the old or the new one, whole."""

    @abstractmethod
    def update(self, path: str, change: Callable[[bytes | None], bytes | None], *, timeout: float = 10.0) -> None:
        """Replace the document by what `change` makes of it; None leaves it as it is.

        `change` may be called several times, always with the document as it is then. A process that is killed meanwhile
        has changed all or nothing.

        Raises:
            StoreBusyError: others kept changing it, or kept it locked, for `timeout` seconds.
        """

    @abstractmethod
    def list(self, prefix: str) -> Iterator[str]:
        """The paths that begin with `prefix`, in no particular order."""

    @abstractmethod
    def delete(self, path: str) -> bool:
        """Remove the document; False if there was none."""

    @abstractmethod
    def discard(self, path: str, data: bytes) -> bool:
        """Remove the document if it still is exactly `data`; False if it is not.

        So a reader that met a damaged one does not remove the good one that was put in its place meanwhile.
        """

    @abstractmethod
    def stamp(self, path: str) -> str | None:
        """A text that changes with every change of the document, for less than a read; None without a document."""

    def close(self) -> None:  # noqa: B027  # most have nothing to release
        """Release connections; the store opens them again when it is used again."""

    def _check_writable(self) -> None:
        if self.read_only:
            raise StoreReadOnlyError(f"{self.url} was opened read-only")


class BucketDocuments(DocumentStore):
    """Documents in a bucket, or wherever else objects have versions."""

    def __init__(self, bucket: Bucket, *, read_only: bool = False) -> None:
        self.bucket = bucket
        self.url = bucket.url
        self.read_only = read_only
        self.remote = True

    def read(self, path: str) -> bytes | None:
        blob = self.bucket.read(check_path(path))
        return None if blob is None else blob.data

    def create(self, path: str, data: bytes) -> bool:
        self._check_writable()
        return self.bucket.create(check_path(path), data)

    def replace(self, path: str, data: bytes) -> None:
        self._check_writable()
        self.bucket.write(check_path(path), data)

    def update(self, path: str, change: Callable[[bytes | None], bytes | None], *, timeout: float = 10.0) -> None:
        from ejcache.stores.shared_bucket import ABSENT

        self._check_writable()
        deadline = time.monotonic() + timeout
        attempt = 0
        while time.monotonic() < deadline:
            blob = self.bucket.read(check_path(path))
            data = change(None if blob is None else blob.data)
            if data is None or self.bucket.write(path, data, version=ABSENT if blob is None else blob.version):
                return
            attempt += 1
            # A bucket takes about one write a second to one object: the losers of a round must spread out.
            time.sleep(random.uniform(0, min(1.0, 0.02 * 2.0**attempt)))  # noqa: S311 (jitter)
        raise StoreBusyError(f"others kept changing {self.url}/{path}")

    def list(self, prefix: str) -> Iterator[str]:
        for info in self.bucket.walk(prefix):
            yield info.name

    def delete(self, path: str) -> bool:
        self._check_writable()
        return self.bucket.delete(check_path(path))

    def discard(self, path: str, data: bytes) -> bool:
        self._check_writable()
        blob = self.bucket.read(check_path(path))
        return blob is not None and blob.data == data and self.bucket.delete(path, version=blob.version)

    def stamp(self, path: str) -> str | None:
        info = self.bucket.stat(check_path(path))
        return None if info is None else info.version

    def close(self) -> None:
        self.bucket.close()


class DeadlineDocuments(DocumentStore):
    """Documents on a mount that may go dead: a call that hangs is left behind at its deadline."""

    def __init__(self, inner: DocumentStore, *, seconds: float = 10.0) -> None:
        from ejcache.stores.shared_retry import RetryPolicy

        self.inner = inner
        self.url = inner.url
        self.read_only = inner.read_only
        self.remote = True
        self._policy = RetryPolicy(deadline=seconds)

    def read(self, path: str) -> bytes | None:
        return self._within(f"reading {self.url}/{path}", lambda: self.inner.read(path))

    def create(self, path: str, data: bytes) -> bool:
        return self._within(f"writing {self.url}/{path}", lambda: self.inner.create(path, data))

    def replace(self, path: str, data: bytes) -> None:
        self._within(f"writing {self.url}/{path}", lambda: self.inner.replace(path, data))

    def update(self, path: str, change: Callable[[bytes | None], bytes | None], *, timeout: float = 10.0) -> None:
        wait = timeout / 2
        self._within(f"changing {self.url}/{path}", lambda: self.inner.update(path, change, timeout=wait))

    def list(self, prefix: str) -> Iterator[str]:
        yield from self._within(f"listing {self.url}/{prefix}", lambda: tuple(self.inner.list(prefix)))

    def delete(self, path: str) -> bool:
        return self._within(f"deleting {self.url}/{path}", lambda: self.inner.delete(path))

    def discard(self, path: str, data: bytes) -> bool:
        return self._within(f"deleting {self.url}/{path}", lambda: self.inner.discard(path, data))

    def stamp(self, path: str) -> str | None:
        return self._within(f"looking for {self.url}/{path}", lambda: self.inner.stamp(path))

    def _within(self, what: str, action: Callable[[], T]) -> T:
        from ejcache.stores.shared_workers import call_with_timeout

        # The time of one try is the time of all: a second one would only leave a second thread behind.
        seconds = self._policy.deadline
        return self._policy.run(what, lambda _: call_with_timeout(what, action, seconds))


def open_documents(url: str | os.PathLike[str], *, read_only: bool = False) -> DocumentStore:
    """The documents below `url`: a directory, `file:///directory`, `gs://bucket/prefix`, or another bucket's URL.

    Nothing is made and nobody is asked before the first use. Whoever can write there decides which configurations a
    program runs with: open only what you trust.

    Raises:
        UsageError: no backend takes such a URL.
    """
    from ejcache.stores.opening import local_path, open_bucket_at

    path = local_path(url)
    if path is not None:
        from ejcache.stores.documents_directory import DirectoryDocuments
        from ejcache.stores.filesystems import is_network_filesystem

        directory = DirectoryDocuments(path, read_only=read_only)
        return DeadlineDocuments(directory) if is_network_filesystem(path) else directory
    return BucketDocuments(open_bucket_at(url), read_only=read_only)
