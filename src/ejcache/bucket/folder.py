"""Shows a folder of a bucket as a bucket: whoever has it sees no other object, and does not know that it is one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

from ejcache.bucket.base import Blob, BlobInfo, Bucket

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.errors import StoreReadOnlyError

T = TypeVar("T")


class BucketFolder(Bucket):
    """The objects of `root` below a folder. It has the client, the breaker and the deadlines of `root`.

    Args:
        root: of the whole bucket.
        folder: what is put before each name: empty, or ending in a slash; or a function that finds it out, which is
            called at the first request, and again while it raises.

    Requests raise what the function raises.
    """

    def __init__(self, root: Bucket, folder: str | Callable[[], str]) -> None:
        self.root = root
        refused = root.refusal
        super().__init__(root.url, policy=root.policy)
        self.root.refusal = refused
        self._found = folder if isinstance(folder, str) else None
        self._find = folder
        self.breaker, self.pace = root.breaker, root.pace
        self.local, self.conditional, self.one_identity = root.local, root.conditional, root.one_identity
        self.part_size, self.least_part = root.part_size, root.least_part
        self.entries_only = root.entries_only

    @property
    def folder(self) -> str:
        """What is put before each name; raises what the function raises that finds it out."""
        if self._found is None:
            self._found = self._find if isinstance(self._find, str) else self._find()
        return self._found

    @property
    def refusal(self) -> StoreReadOnlyError | None:
        """Why the storage has refused to create an object: the same credentials create those of the whole bucket."""
        return self.root.refusal

    @refusal.setter
    def refusal(self, why: StoreReadOnlyError | None) -> None:
        self.root.refusal = why

    def now(self, name: str) -> float | None:
        """Ask the storage's clock by an object of this name, which lies outside of the folder for a moment."""
        return self.root.now(name)

    def prepare(self, *, wait: float = 0.0) -> None:
        """Begin in the background what the first request needs."""
        self.root.prepare(wait=wait)

    @property
    def is_prepared(self) -> bool:
        """True if what the first request needs is there, or is being made."""
        return self.root.is_prepared

    def is_damaged_on_the_way(self, blob: Blob) -> bool:
        """True if what the storage says of the object shows that other bytes than these are stored."""
        return self.root.is_damaged_on_the_way(blob)

    def update(self, name: str, change: Callable[[bytes | None], bytes | None], *, timeout: float = 10.0) -> None:
        """Replace the object by what `change` makes of it, as `Bucket.update` does."""
        self.root.update(self.folder + name, change, timeout=timeout)

    def close(self) -> None:
        """Release the connections of the whole bucket; the next use opens them again."""
        self.root.close()

    def _ask(
        self,
        what: str,
        attempt: Callable[[float], T],
        *,
        size: int = 0,
        again: Callable[[], object] | None = None,
    ) -> T:
        named = what.replace(f"{self.url}/", f"{self.url}/{self.folder}", 1)
        return super()._ask(named, attempt, size=size, again=again)

    def _prepare(self, make_seconds: float = math.inf) -> None:
        self.root._prepare(make_seconds)  # noqa: SLF001 (the other half of the class)

    def _delete_batch(self, batch: list[tuple[str, str | None]]) -> list[str]:
        folder = self.folder
        whole = [(folder + name, version) for name, version in batch]
        return [name.removeprefix(folder) for name in self.root._delete_batch(whole)]  # noqa: SLF001

    def _read(self, name: str, start: int, length: int, version: str | None, timeout: float) -> Blob | None:
        return self.root._read(self.folder + name, start, length, version, timeout)  # noqa: SLF001

    def _stat(self, name: str, timeout: float) -> BlobInfo | None:
        found = self.root._stat(self.folder + name, timeout)  # noqa: SLF001
        return None if found is None else self._within(found)

    def _write(self, name: str, data: bytes, version: str | None, timeout: float) -> str | None:
        return self.root._write(self.folder + name, data, version, timeout)  # noqa: SLF001

    def _delete(self, name: str, version: str | None, timeout: float) -> bool:
        return self.root._delete(self.folder + name, version, timeout)  # noqa: SLF001

    def _page(
        self, prefix: str, token: str | None, timeout: float, *, deep: bool = True
    ) -> tuple[list[BlobInfo], list[str]]:
        infos, more = self.root._page(self.folder + prefix, token, timeout, deep=deep)  # noqa: SLF001
        return [self._within(info) for info in infos], more

    def _within(self, info: BlobInfo) -> BlobInfo:
        return BlobInfo(info.name.removeprefix(self.folder), info.size, info.created, info.version)
