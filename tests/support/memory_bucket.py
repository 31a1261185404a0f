"""A bucket in this process's memory, for tests of code that uses buckets."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Final

from ejcache.bucket.base import ABSENT, Blob, BlobInfo, Bucket, VersionGoneError
from ejcache.util.locks import ForkLock

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.bucket.retry import RetryPolicy

__all__ = ["MemoryBucket"]

_numbers: Final = itertools.count(1)


class MemoryBucket(Bucket):
    """Objects in memory. Safe for threads; a forked child starts with a copy.

    Args:
        clock: when an object is written, in seconds since the epoch.

    Attributes:
        before: called before each try of a request, with its kind (read, stat, write, delete, page), the object's name,
            and of a read the first byte and how many; what it raises is the storage's answer.
    """

    def __init__(self, *, policy: RetryPolicy | None = None, clock: Callable[[], float] = time.time) -> None:
        super().__init__(f"memory://bucket-{next(_numbers)}", policy=policy)
        self._objects: dict[str, tuple[bytes, str, float]] = {}
        self._versions = itertools.count(1)
        self._clock = clock
        self.before: Callable[..., object] = lambda kind, name, *span: None

    def _read(self, name: str, start: int, length: int, version: str | None, timeout: float) -> Blob | None:
        self.before("read", name, start, length)
        found = self._objects.get(name)
        if version is not None and (found is None or found[1] != version):
            raise VersionGoneError
        return None if found is None else Blob(found[0][start : start + length], found[1], len(found[0]))

    def _stat(self, name: str, timeout: float) -> BlobInfo | None:
        self.before("stat", name)
        found = self._objects.get(name)
        return None if found is None else BlobInfo(name, len(found[0]), found[2], found[1])

    def _write(self, name: str, data: bytes, version: str | None, timeout: float) -> str | None:
        self.before("write", name)
        with _lock:
            if version is not None and version != self._version(name):
                return None
            written = str(next(self._versions))
            self._objects[name] = bytes(data), written, self._clock()
            return written

    def _delete(self, name: str, version: str | None, timeout: float) -> bool:
        self.before("delete", name)
        with _lock:
            if name not in self._objects or (version is not None and version != self._version(name)):
                return False
            del self._objects[name]
            return True

    def _page(
        self,
        prefix: str,
        token: str | None,
        timeout: float,
        *,
        deep: bool = True,
    ) -> tuple[list[BlobInfo], list[str]]:
        self.before("page", prefix)
        return [
            BlobInfo(name, len(data), created, version)
            for name, (data, version, created) in list(self._objects.items())
            if name.startswith(prefix) and (deep or "/" not in name[len(prefix) :])
        ], []

    def _version(self, name: str) -> str:
        found = self._objects.get(name)
        return ABSENT if found is None else found[1]


_lock: Final = ForkLock()
