"""A store that hosts share: entries as objects of a bucket, or as files of a network file system.

`get` is one request, a `put` one, or two if the answer to the first was lost; nothing on that path lists. Eviction is
not for a `put` here but for upkeep, which one process runs for all, and which reads `drain_used`'s journals instead of
an access time that a bucket does not have.
"""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Final

from ejcache.errors import StoreReadOnlyError, StoreTooSmallError
from ejcache.stores.base import UNLIMITED, EntryInfo, Store, check_key
from ejcache.stores.shared_counters import SharedCounters
from ejcache.stores.shared_layout import (
    ENTRIES,
    PINS,
    QUARANTINE,
    entry_name,
    escape_key,
    key_of_name,
    unescape_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ejcache.stores.shared_bucket import Bucket

__all__ = ["SharedStore"]

_QUARANTINED_COPIES: Final = 8
_QUARANTINED_BYTES: Final = 64 << 20


class SharedStore(Store):
    """Entries that hosts share. Safe for threads, processes and forks.

    Args:
        bucket: where the entries are; the store owns it.
        max_size: the limit that upkeep keeps; of `put` it only refuses what is larger than all of it.
        read_only: writes raise `StoreReadOnlyError`, and `get` is not remembered.
        counter_interval: seconds between two writes of this process's counters at least; 0 writes each at once.
    """

    def __init__(
        self,
        bucket: Bucket,
        *,
        max_size: int = UNLIMITED,
        read_only: bool = False,
        counter_interval: float = 1.0,
    ) -> None:
        self.bucket = bucket
        self.url = bucket.url
        self.max_size = max_size
        self.read_only = read_only
        self._counters = SharedCounters(bucket, interval=counter_interval)
        # Only single operations on these two, which the interpreter makes atomic: a lock would have to survive forks.
        self._used: dict[str, float] = {}
        self._drained: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, max_size={self.max_size}, read_only={self.read_only})"

    def get(self, key: str) -> bytes | None:
        """The bytes under `key`, or None; one request. The use is remembered for `drain_used`."""
        blob = self.bucket.read(entry_name(check_key(key)))
        if blob is None:
            return None
        if not self.read_only:
            self._used[key] = time.time()
        return blob.data

    def peek(self, key: str, *, length: int | None = None) -> bytes | None:
        """The bytes under `key`, or their first `length`, or None; recency is left alone."""
        blob = self.bucket.read(entry_name(check_key(key)), length=length)
        return None if blob is None else blob.data

    def contains(self, key: str) -> bool:
        """Whether `get` would find an entry; one request."""
        return self.bucket.stat(entry_name(check_key(key))) is not None

    def put(self, key: str, data: bytes) -> bool:
        """Create the entry; False if somebody else's stands. One request, or two if an answer was lost.

        Raises:
            StoreTooSmallError: `data` is larger than `max_size`.
            StoreReadOnlyError: the store is read-only, or the credentials are.
            StoreBusyError, StoreUnavailableError: the storage failed until the deadline. The entry is absent, or, if
                the last answer was lost, whole.
        """
        check_key(key)
        self._check_write(data)
        return self.bucket.create(entry_name(key), data)

    def replace(self, key: str, data: bytes) -> None:
        """Put `data` under `key` whether or not an entry stands; raises as `put` does."""
        check_key(key)
        self._check_write(data)
        self.bucket.write(entry_name(key), data)

    def delete(self, key: str) -> bool:
        """Remove the entry; False if there was none."""
        check_key(key)
        self._check_writable()
        return self.bucket.delete(entry_name(key))

    def entries(self) -> Iterator[EntryInfo]:
        """Every entry, page by page. `last_used` knows of this process's uses; upkeep knows of the others'."""
        for info in self.bucket.walk(ENTRIES):
            key = key_of_name(info.name)
            if key is not None:
                used = max(self._used.get(key, 0.0), self._drained.get(key, 0.0))
                yield EntryInfo(key, info.size, info.created, max(info.created, used))

    def size(self) -> int:
        """Bytes of all entries, by a listing."""
        return sum(info.size for info in self.bucket.walk(ENTRIES) if key_of_name(info.name) is not None)

    def quarantine(self, key: str, data: bytes) -> bool:
        """Take the entry out of use if it still is exactly `data`; a few of the last are kept for inspection."""
        check_key(key)
        self._check_writable()
        name = entry_name(key)
        blob = self.bucket.read(name)
        if blob is None or blob.data != data or not self.bucket.delete(name, version=blob.version):
            return False
        self._keep_copy(key, data)
        return True

    def _keep_copy(self, key: str, data: bytes) -> None:
        if len(data) > _QUARANTINED_BYTES // _QUARANTINED_COPIES:
            data = data[: _QUARANTINED_BYTES // _QUARANTINED_COPIES]
        digest = hashlib.sha256(key.encode()).hexdigest()[:16]
        self.bucket.write(f"{QUARANTINE}{digest}", data)
        kept = sorted(self.bucket.walk(QUARANTINE), key=lambda info: info.created)
        for info in kept[:-_QUARANTINED_COPIES]:
            self.bucket.delete(info.name)

    def note_used(self, key: str) -> None:
        """Remember a use that this store did not see, because a nearer one had the entry; as `get` does its own."""
        if not self.read_only:
            self._used[key] = time.time()

    def drain_used(self) -> dict[str, float]:
        """The keys that were used since the last call, and when, in seconds since the epoch: for a journal."""
        drained: dict[str, float] = {}
        while True:
            try:
                key, used = self._used.popitem()
            except KeyError:
                break
            drained[key] = used
        self._drained.update(drained)
        return drained

    def pin(self, key: str) -> bool:
        """Let no upkeep evict the entry under `key`, whether it stands now or comes later; False if it was pinned."""
        self._check_writable()
        return self.bucket.create(PINS + escape_key(check_key(key)), b"")

    def unpin(self, key: str) -> bool:
        """Let the entry under `key` be evicted again; False if it was not pinned."""
        self._check_writable()
        return self.bucket.delete(PINS + escape_key(check_key(key)))

    def pinned(self) -> list[str]:
        """The keys that are pinned, by a listing."""
        keys = (unescape_key(info.name.removeprefix(PINS)) for info in self.bucket.walk(PINS))
        return [key for key in keys if key is not None]

    def add_counters(self, amounts: Mapping[str, float]) -> None:
        """Add to the counters; kept in memory and written from time to time. Lost in a read-only store."""
        if not self.read_only:
            self._counters.add(amounts)

    def counters(self) -> dict[str, float]:
        """The counters of all processes, as far as they have written them."""
        return self._counters.total(flush=not self.read_only)

    def reset_counters(self) -> None:
        """Start counting from zero."""
        self._check_writable()
        self._counters.reset()

    def close(self) -> None:
        """Write the counters and release the connections; the store opens them again when it is used again."""
        if not self.read_only:
            self._counters.flush()
        self.bucket.close()

    def _check_writable(self) -> None:
        if self.read_only:
            raise StoreReadOnlyError(f"{self.url} is open for reading only")

    def _check_write(self, data: bytes) -> None:
        self._check_writable()
        if 0 <= self.max_size < len(data):
            raise StoreTooSmallError(
                f"an entry of {len(data)} bytes does not fit into {self.url}, whose limit is {self.max_size}"
            )
