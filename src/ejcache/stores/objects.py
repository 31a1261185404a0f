"""Named objects that are written under conditions: what leases, journals and upkeep need of shared storage.

A `Bucket` is such; `MemoryObjects` is one without a network, for `memory://` stores and for tests.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

from ejcache.stores.shared_bucket import ABSENT, Blob, BlobInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["ABSENT", "ConditionalObjects", "MemoryObjects"]


class ConditionalObjects(Protocol):
    """Objects with versions. Absence is None or False, trouble is a `StoreError`, every call has a deadline.

    Attributes:
        conditional: the storage itself compares versions; without, `write` compares a moment before it acts, and only
            creation and `delete` are decided for one caller.
    """

    conditional: bool

    def read(self, name: str, *, length: int | None = None) -> Blob | None:
        """The object, or its first `length` bytes, or None."""

    def write(self, name: str, data: bytes, *, version: str | None = None) -> str | None:
        """Write the object; with `version`, only if it still is that (`ABSENT`: there is none). The new version."""

    def delete(self, name: str, *, version: str | None = None) -> bool:
        """Remove the object; with `version`, only if it still is that."""

    def delete_many(self, wanted: Iterable[tuple[str, str | None]]) -> Iterator[str]:
        """Remove many objects, each under its condition; the names of those that were removed."""

    def walk(self, prefix: str) -> Iterator[BlobInfo]:
        """Every object whose name begins with `prefix`, in no particular order."""


class MemoryObjects:
    """Objects in this process's memory. Safe for threads; a forked child starts with a copy."""

    conditional: bool = True

    def __init__(self) -> None:
        self._held: dict[str, tuple[bytes, str, float]] = {}
        self._versions = itertools.count(1)

    def read(self, name: str, *, length: int | None = None) -> Blob | None:
        """The object, or its first `length` bytes, or None."""
        held = self._held.get(name)
        return None if held is None else Blob(held[0][:length], held[1], len(held[0]))

    def write(self, name: str, data: bytes, *, version: str | None = None) -> str | None:
        """Write the object; with `version`, only if it still is that. The new version, or None."""
        with _lock:
            if version is not None and version != self._version(name):
                return None
            written = str(next(self._versions))
            self._held[name] = bytes(data), written, time.time()
            return written

    def delete(self, name: str, *, version: str | None = None) -> bool:
        """Remove the object; with `version`, only if it still is that."""
        with _lock:
            if name not in self._held or (version is not None and version != self._version(name)):
                return False
            del self._held[name]
            return True

    def delete_many(self, wanted: Iterable[tuple[str, str | None]]) -> Iterator[str]:
        """Remove many objects, each under its condition; the names of those that were removed."""
        for name, version in wanted:
            if self.delete(name, version=version):
                yield name

    def walk(self, prefix: str) -> Iterator[BlobInfo]:
        """Every object whose name begins with `prefix`, as it was when the walk began."""
        for name, (data, version, created) in list(self._held.items()):
            if name.startswith(prefix):
                yield BlobInfo(name, len(data), created, version)

    def _version(self, name: str) -> str:
        held = self._held.get(name)
        return ABSENT if held is None else held[1]


# Held across a fork, so that a child never inherits it from a thread that it does not have.
_lock: Final = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
