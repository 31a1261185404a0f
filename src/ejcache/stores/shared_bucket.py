"""What a shared store needs of its storage: named objects with versions, and conditions on them.

A backend says how one try is made (the methods with an underscore); deadlines, retries, and what a lost answer means
are the same for all, and here.
"""

from __future__ import annotations

import itertools
import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from ejcache.errors import StoreBusyError
from ejcache.stores.shared_retry import RetryPolicy, TransientError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["ABSENT", "Blob", "BlobInfo", "Bucket", "VersionGoneError"]

ABSENT: Final = "absent"
"""The version of an object that does not exist."""

_BATCH: Final = 100
_REREADS: Final = 3


class VersionGoneError(Exception):
    """The object is no longer of the version that was asked for; it never leaves the shared store."""


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes of an object, its version, and how many bytes it has in all."""

    data: bytes
    version: str
    size: int


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """An object without its bytes.

    Attributes:
        name: relative to the bucket's root.
        size: bytes.
        created: seconds since the epoch, by the storage's clock.
        version: changes with every write.
    """

    name: str
    size: int
    created: float
    version: str


class Bucket(ABC):
    """Named objects, shared by threads, processes and hosts. Absence is None or False, trouble is a `StoreError`.

    Args:
        url: of the root; names are relative to it.
        policy: how long an operation may take.
    """

    conditional: bool = True
    """The storage itself compares versions; without, `write` and `delete` compare a moment before they act."""
    part_size: int = 32 << 20
    """Bytes to read at once: a larger object takes a request, and a deadline, for each part."""
    least_part: int = 1 << 20
    """Over a slow link parts become smaller, down to this."""

    def __init__(self, url: str, *, policy: RetryPolicy | None = None) -> None:
        self.url = url.rstrip("/")
        self.policy = policy or RetryPolicy()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def read(self, name: str, *, length: int | None = None) -> Blob | None:
        """The object, or its first `length` bytes, or None; one request unless it is larger than `part_size`."""
        if length == 0:
            info = self.stat(name)
            return None if info is None else Blob(b"", info.version, info.size)
        for _ in range(_REREADS):
            try:
                return self._read_parts(name, length)
            except VersionGoneError:
                continue  # replaced between two parts
        raise StoreBusyError(f"{self.url}/{name} was replaced again and again while it was read")

    def _read_parts(self, name: str, length: int | None) -> Blob | None:
        largest = self.part_size

        def part(start: int, version: str | None) -> Blob | None:
            def attempt(timeout: float) -> Blob | None:
                nonlocal largest
                wanted = largest if length is None else min(largest, length - start)
                try:
                    return self._read(name, start, wanted, version, timeout)
                except TransientError as exc:
                    if exc.busy:
                        # Perhaps not the storage is slow but the link, and a smaller part arrives in time.
                        largest = max(self.least_part, largest // 4)
                    raise

            return self.policy.run(f"reading {self.url}/{name}", attempt)

        first = part(0, None)
        if first is None:
            return None
        end = first.size if length is None else min(first.size, length)
        if len(first.data) >= end:
            return first
        parts = [first.data]
        have = len(first.data)
        while have < end:
            more = part(have, first.version)
            if more is None or not more.data:
                raise VersionGoneError
            parts.append(more.data)
            have += len(more.data)
        return Blob(b"".join(parts), first.version, first.size)

    def stat(self, name: str) -> BlobInfo | None:
        """The object without its bytes, or None; one request."""
        return self.policy.run(f"looking for {self.url}/{name}", lambda timeout: self._stat(name, timeout))

    def create(self, name: str, data: bytes) -> bool:
        """Write the object if there is none; False if there is. Of several at once exactly one gets True."""
        return self.write(name, data, version=ABSENT) is not None

    def write(self, name: str, data: bytes, *, version: str | None = None) -> str | None:
        """Write the object, whether or not there is one; with `version`, only if it still is that.

        When the answer to one try was lost and the next one finds the condition broken, the object is asked whose it
        is: it may be ours.

        Returns:
            The new version, or None if the condition did not hold.
        """
        token = uuid.uuid4().hex
        ambiguous = False

        def attempt(timeout: float) -> str | None:
            nonlocal ambiguous
            try:
                written = self._write(name, data, version, token, timeout)
                if written is None and ambiguous:
                    return self._version_if_ours(name, token, timeout)
            except TransientError as exc:
                ambiguous = ambiguous or exc.ambiguous
                raise
            return written

        return self.policy.run(f"writing {self.url}/{name}", attempt, size=len(data))

    def delete(self, name: str, *, version: str | None = None) -> bool:
        """Remove the object; with `version`, only if it still is that. False if it was not there, or not that."""
        ambiguous = False

        def attempt(timeout: float) -> bool:
            nonlocal ambiguous
            try:
                # After a lost answer its absence is most likely our own doing.
                return self._delete(name, version, timeout) or (ambiguous and self._stat(name, timeout) is None)
            except TransientError as exc:
                ambiguous = ambiguous or exc.ambiguous
                raise

        return self.policy.run(f"deleting {self.url}/{name}", attempt)

    def delete_many(self, wanted: Iterable[tuple[str, str | None]]) -> Iterator[str]:
        """Remove many objects, each under its condition as `delete` does, in as few requests as the storage allows.

        Yields:
            The names of those that were removed; after a lost answer perhaps not all of them.
        """
        source = iter(wanted)
        while batch := list(itertools.islice(source, _BATCH)):
            yield from self._delete_batch(batch)

    def _delete_batch(self, batch: list[tuple[str, str | None]]) -> list[str]:
        return [name for name, version in batch if self.delete(name, version=version)]

    def walk(self, prefix: str, *, deep: bool = True) -> Iterator[BlobInfo]:
        """Every object whose name begins with `prefix`, in no particular order, page by page.

        Args:
            prefix: may end within a name.
            deep: also those with a slash after the prefix; without, a folder costs nothing, whatever is in it.
        """
        waiting: list[str | None] = [None]
        while waiting:
            page = partial(self._page, prefix, waiting.pop(), deep=deep)
            infos, more = self.policy.run(f"listing {self.url}/{prefix}", page)
            yield from infos
            waiting += more

    def close(self) -> None:  # noqa: B027  # not every storage has something to release
        """Release connections; the bucket opens them again when it is used again."""

    # One try each, of at most `timeout` seconds; `TransientError` asks for another.

    @abstractmethod
    def _read(self, name: str, start: int, length: int, version: str | None, timeout: float) -> Blob | None:
        """At most `length` bytes from `start` on; raises `VersionGoneError` if it is not `version` any more."""

    @abstractmethod
    def _stat(self, name: str, timeout: float) -> BlobInfo | None: ...

    @abstractmethod
    def _write(self, name: str, data: bytes, version: str | None, token: str, timeout: float) -> str | None:
        """The new version, or None if the condition did not hold; `token` is remembered with the object."""

    @abstractmethod
    def _version_if_ours(self, name: str, token: str, timeout: float) -> str | None:
        """The object's version if it was written with `token`, else None."""

    @abstractmethod
    def _delete(self, name: str, version: str | None, timeout: float) -> bool: ...

    @abstractmethod
    def _page(
        self, prefix: str, token: str | None, timeout: float, *, deep: bool = True
    ) -> tuple[list[BlobInfo], list[str]]:
        """What one try can list, the first of it without a token, and the tokens of what has to be listed then."""
