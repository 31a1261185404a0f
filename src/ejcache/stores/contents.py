"""Finds out what is at a location, before anything is opened."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ejcache.errors import NotAStoreError, StoreUnavailableError
from ejcache.stores.base import UNLIMITED
from ejcache.stores.epochs import present_place
from ejcache.stores.location import Location
from ejcache.stores.opening import open_bucket, open_store
from ejcache.stores.shared.store import SharedStore

if TYPE_CHECKING:
    from ejcache.bucket.base import Bucket
    from ejcache.settings.table import Settings
    from ejcache.stores.base import Store

_BESIDE_ENTRIES: Final = frozenset({"CACHEDIR.TAG", "autotune", "autotune-recorded", "state", "targets", "tiers"})
"""What may be in the directory of a cache in which no program has stored an entry."""
_OF_JAX: Final = r".+-[0-9a-f]{64}-(?:cache|atime)|\.lockfile"


def is_of_plain_jax(name: str) -> bool:
    """True if JAX's own cache has files of this name, which no code of ejcache reads, writes or removes."""
    return re.fullmatch(_OF_JAX, name) is not None


class CacheContents(NamedTuple):
    """What a look at a location has found there.

    Attributes:
        location: where.
        url: as messages show it.
        has_store: whether a store of ours is there.
        bucket: the objects there, if the location is shared storage.
    """

    location: Location
    url: str
    has_store: bool
    bucket: Bucket | None = None

    def open(self, *, max_size: int | None = UNLIMITED, read_only: bool = False) -> Store | None:
        """Return the store of ours, or None if there is none; raises as `open_store` does."""
        if not self.has_store:
            return None
        if self.bucket is None:
            return open_store(self.location, max_size=max_size, read_only=read_only)

        limit = UNLIMITED if max_size is None else max_size
        return SharedStore(present_place(self.bucket), root=self.bucket, max_size=limit, read_only=read_only)

    def close(self) -> None:
        """Release the connections that looking has made."""
        if self.bucket is not None:
            self.bucket.close()


def inspect_location(
    url: str | os.PathLike[str] | Location, *, settings: Settings | None = None, may_be_empty: bool = False
) -> CacheContents:
    """Find what is at `url`, before anything is opened: nothing is made. A bucket is asked for a page of two listings.

    Args:
        url: as `open_store` takes it.
        settings: give the credentials; by default those of the environment.
        may_be_empty: a location that is empty or does not exist has contents without a store.

    Raises:
        NotAStoreError: the location is empty, unless it may be, or something else uses it.
        StoreUnavailableError, StoreBusyError: the location cannot be looked at.
        UsageError: the URL cannot be understood.
    """
    location = Location.parse(url)
    if location.kind == "directory":
        return _inspect_directory(location, may_be_empty=may_be_empty)
    if location.kind == "memory":
        return CacheContents(location, location.url, has_store=True)
    bucket = open_bucket(location, settings=settings)
    bucket.entries_only = True
    bucket.breaker = None  # a command reports each object that fails, and goes on with the next one
    try:
        if next(bucket.walk("v1/"), None) is not None:
            return CacheContents(location, bucket.url, has_store=True, bucket=bucket)
        first = next(bucket.walk("", deep=False), None)
        is_empty = first is None or (is_of_plain_jax(first.name) and may_be_empty)
    except BaseException:
        bucket.close()
        raise
    bucket.close()
    if is_empty and may_be_empty:
        return CacheContents(location, bucket.url, has_store=False)
    what = "it is empty" if is_empty else "something else is stored there"
    raise NotAStoreError(f"there is no cache at {bucket.url}: {what}")


def _inspect_directory(location: Location, *, may_be_empty: bool) -> CacheContents:
    path = Path(location.path)
    try:
        is_empty = next(path.iterdir(), None) is None
        is_ours = all(each.name in _BESIDE_ENTRIES or is_of_plain_jax(each.name) for each in path.iterdir())
    except FileNotFoundError as exc:
        if may_be_empty:
            return CacheContents(location, location.url, has_store=False)
        raise NotAStoreError(f"there is no cache at {path}: the directory does not exist") from exc
    except NotADirectoryError as exc:
        raise NotAStoreError(f"there is no cache at {path}: it is not a directory") from exc
    except OSError as exc:
        raise StoreUnavailableError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    if os.path.isdir(path / "v1"):  # noqa: PTH112 (of one that is closed)
        return CacheContents(location, location.url, has_store=True)
    if is_ours and may_be_empty:
        return CacheContents(location, location.url, has_store=False)
    what = "no program has stored an entry there" if is_ours else "the directory holds something else"
    what = "the directory is empty" if is_empty else what
    raise NotAStoreError(f"there is no cache at {path}: {what}")
