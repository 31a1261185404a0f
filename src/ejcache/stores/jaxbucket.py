"""A bucket that plain JAX wrote: the files of `jaxdir`, as objects.

One listing says everything: JAX rewrites an entry's `-atime` at each use, so that the object is as old as that use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ejcache.stores.base import EntryInfo
from ejcache.stores.jaxdir import ATIME, CACHE, key_of_file, read_compile_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ejcache.stores.shared_bucket import Bucket

__all__ = ["JaxBucket"]


class JaxBucket:
    """The entries of plain JAX in a bucket, under JAX's own keys.

    Args:
        bucket: where they are, beside what is ours; its owner closes it.
    """

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.url = bucket.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def entries(self) -> Iterator[EntryInfo]:
        """Every entry, in no particular order, with the recency that JAX keeps, or else the time it was written.

        Raises:
            StoreError: the bucket cannot be listed.
        """
        used: dict[str, float] = {}
        waiting: dict[str, tuple[int, float]] = {}
        # In the order of names, which most storages keep, an -atime comes just before its entry.
        for info in self.bucket.walk("", deep=False):
            key = key_of_file(info.name)
            if key is not None:
                if key in used:
                    yield EntryInfo(key, info.size, info.created, max(info.created, used.pop(key)))
                else:
                    waiting[key] = info.size, info.created
            elif info.name.endswith(ATIME):
                used[info.name.removesuffix(ATIME)] = info.created
        for key, (size, created) in waiting.items():
            yield EntryInfo(key, size, created, max(created, used.get(key, 0.0)))

    def size(self) -> int:
        """Bytes of all entries, by a listing."""
        return sum(entry.size for entry in self.entries())

    def is_empty(self) -> bool:
        """Whether there is no entry; raises as `entries` does."""
        return not any(key_of_file(info.name) is not None for info in self.bucket.walk("", deep=False))

    def compile_seconds(self, key: str) -> float | None:
        """How long the entry under `key` took to compile, as `JaxDirectory` has it; None without entry.

        Raises:
            EntryCorruptError: JAX could not read it either.
            StoreError: it cannot be read.
        """
        blob = self.bucket.read(f"{key}{CACHE}")
        return None if blob is None else read_compile_seconds(blob.data)

    def delete(self, key: str) -> bool:
        """Remove the entry; False if there was none. JAX's lock is a local file, which holds nobody off a bucket."""
        return key in list(self.delete_many([key]))

    def delete_many(self, keys: Iterable[str]) -> Iterator[str]:
        """Remove the entries under `keys`, and then what is kept of their use, in batches.

        Yields:
            The keys of the entries that were removed.
        """
        keys = list(keys)
        for name in self.bucket.delete_many([(f"{key}{CACHE}", None) for key in keys]):
            yield name.removesuffix(CACHE)
        # Last, because JAX 0.10 stops evicting for good when an entry has none, and minds none that is alone.
        for _ in self.bucket.delete_many([(f"{key}{ATIME}", None) for key in keys]):
            pass
