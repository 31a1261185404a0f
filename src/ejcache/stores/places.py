"""What is at a URL before anything is opened, so that looking at a cache never makes one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ejcache.errors import NotAStoreError, StoreUnavailableError
from ejcache.stores.jaxdir import JaxDirectory
from ejcache.stores.opening import check_url, is_shared, local_path, open_bucket_at, open_store

if TYPE_CHECKING:
    from ejcache.settings import Settings
    from ejcache.stores.base import Store
    from ejcache.stores.jaxdir import JaxEntries
    from ejcache.stores.shared_bucket import Bucket

__all__ = ["Place", "find_place"]


@dataclass(frozen=True, slots=True)
class Place:
    """A place that holds entries.

    Attributes:
        url: where it is.
        has_store: whether a store of ours is there.
        jax: the entries of plain JAX, if it has any there.
        bucket: the objects there, where that is what was looked at.
    """

    url: str
    has_store: bool
    jax: JaxEntries | None
    bucket: Bucket | None = None

    def open(self, *, max_size: int = -1, read_only: bool = False) -> Store | None:
        """The store of ours, or None if there is none; raises as `open_store` does."""
        if not self.has_store:
            return None
        if self.bucket is None:
            return open_store(self.url, max_size=max_size, read_only=read_only)
        from ejcache.stores.shared import SharedStore

        return SharedStore(self.bucket, max_size=max_size, read_only=read_only)

    def close(self) -> None:
        """Release the connections that looking has made."""
        if self.bucket is not None:
            self.bucket.close()


def find_place(url: str, *, settings: Settings | None = None) -> Place:
    """What is at `url`; nothing is made and nothing is changed. A bucket is asked for the first page of two listings.

    Args:
        url: as `open_store` takes it.
        settings: who says which credentials are used; by default the environment.

    Raises:
        NotAStoreError: nothing is there, or something that is no cache.
        StoreUnavailableError, StoreBusyError: it cannot be looked at.
        UsageError: it is no URL of a cache.
    """
    text = check_url(url)
    directory = local_path(text)
    if directory is not None:
        return _look_into(Path(directory))
    if not is_shared(text):
        return Place(url, has_store=True, jax=None)
    from ejcache.stores.jaxbucket import JaxBucket

    bucket = open_bucket_at(text, settings=settings)
    try:
        jax = JaxBucket(bucket)
        place = Place(
            bucket.url,
            has_store=next(bucket.walk("v1/"), None) is not None,
            jax=None if jax.is_empty() else jax,
            bucket=bucket,
        )
        found = place.has_store or place.jax is not None or next(bucket.walk(""), None) is not None
    except BaseException:
        bucket.close()
        raise
    if not place.has_store and place.jax is None:
        bucket.close()
        what = "what is there is something else" if found else "nothing is there"
        raise NotAStoreError(f"there is no cache at {bucket.url}: {what}")
    return place


def _look_into(path: Path) -> Place:
    try:
        is_empty = next(path.iterdir(), None) is None
    except FileNotFoundError as exc:
        raise NotAStoreError(f"there is no cache at {path}: the directory does not exist") from exc
    except NotADirectoryError as exc:
        raise NotAStoreError(f"there is no cache at {path}: it is not a directory") from exc
    except OSError as exc:
        raise StoreUnavailableError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    jax = JaxDirectory(path)
    place = Place(str(path), has_store=(path / "v1").is_dir(), jax=None if jax.is_empty() else jax)
    if not place.has_store and place.jax is None:
        what = "the directory is empty" if is_empty else "what is in the directory is something else"
        raise NotAStoreError(f"there is no cache at {path}: {what}")
    return place
