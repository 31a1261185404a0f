"""Keeps entries that hosts share: as objects of a bucket, or as files of a network file system.

`get` is one request. A `put` is one, or two if the answer to the first was lost. Neither lists anything. Eviction is a
task of maintenance, which one process runs for all. A bucket keeps no access times, so maintenance reads journals of
what each process used (`journal/`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ejcache import entry
from ejcache.bucket.object_names import ENTRIES, QUARANTINE, entry_name, key_of_name
from ejcache.errors import StoreReadOnlyError
from ejcache.journal.shared_journal import SharedJournal
from ejcache.stores.base import UNLIMITED, EntryInfo, Store
from ejcache.stores.worth import worth_of_bytes
from ejcache.util.store_keys import check_key, key_digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ejcache.bucket.base import Bucket
    from ejcache.journal.unsent import UnsentUses

_QUARANTINED_COPIES: Final = 8
_QUARANTINED_BYTES: Final = 64 << 20
_QUARANTINED: Final = re.compile(re.escape(QUARANTINE) + "[0-9a-f]{16}")


class SharedStore(Store):
    """Entries that hosts share. Safe for threads, processes and forks.

    Args:
        bucket: where the entries are; the store owns it.
        root: where the usage journals are, if that is not where the entries are.
        max_size: limit for the bytes of all entries. Maintenance keeps it; a `put` only refuses a larger entry.
        read_only: writes raise `StoreReadOnlyError`, and no use is noted.
        unsent: where a process leaves the uses and counters that it has not sent when it ends; None for nowhere.

    Attributes:
        root: of the whole cache, with its journals and its policy.
        journal: what this process used and counted; nothing if the store is read-only.
    """

    def __init__(
        self,
        bucket: Bucket,
        *,
        root: Bucket | None = None,
        max_size: int = UNLIMITED,
        read_only: bool = False,
        unsent: UnsentUses | None = None,
    ) -> None:
        self.bucket = bucket
        self.root = bucket if root is None else root
        self.url = self.root.url
        self.max_size = max_size
        self._read_only = read_only
        self.journal = SharedJournal(self.root, unsent=None if read_only else unsent)

    @property
    def read_only(self) -> bool:  # type: ignore[override]
        """True if writes raise `StoreReadOnlyError`: the caller wanted that, or the storage has refused a creation."""
        return self._read_only or self.bucket.refusal is not None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, max_size={self.max_size}, read_only={self.read_only})"

    def get(self, key: str) -> bytes | None:
        """Return the bytes under `key`, or None; one request."""
        return self.peek(key)

    def peek(self, key: str, *, length: int | None = None) -> bytes | None:
        """Return the bytes under `key`, or their first `length`, or None; one request."""
        blob = self.bucket.read(entry_name(check_key(key)), length=length)
        return None if blob is None else blob.data

    def prepare(self, *, wait: float = 0.0) -> None:
        """Begin to make the client that uploads entries; wait for it so many seconds."""
        self.bucket.prepare(wait=wait)

    def failed_tries(self) -> int:
        """Return the number of requests of this process that failed, got no answer, or were throttled."""
        return self.bucket.failed_tries

    def contains(self, key: str) -> bool:
        """True if `get` would find an entry; one request."""
        return self.bucket.stat(entry_name(check_key(key))) is not None

    def put(self, key: str, data: bytes) -> bool:
        """Create the entry; False if there is one already. One request, or two if an answer was lost.

        Raises:
            StoreTooSmallError: `data` is larger than `max_size`.
            StoreReadOnlyError: the store is read-only, or the credentials are.
            StoreBusyError, StoreUnavailableError: the storage failed until the deadline. The entry is absent, or, if
                only the last answer was lost, complete.
        """
        check_key(key)
        self._check_write(data)
        created = self.bucket.create(entry_name(key), data)
        if created:
            self._note_worth(key, data)
        return created

    def replace(self, key: str, data: bytes) -> None:
        """Put `data` under `key` whether or not there is an entry; raises as `put` does."""
        check_key(key)
        self._check_write(data)
        self.bucket.write(entry_name(key), data)
        self._note_worth(key, data)

    def delete(self, key: str) -> bool:
        """Remove the entry; False if there was none."""
        check_key(key)
        self._check_writable()
        return self.bucket.delete(entry_name(key))

    def entries(self) -> Iterator[EntryInfo]:
        """List every entry, page by page. `last_used` has the uses of this process only; maintenance knows all."""
        for info in self.bucket.walk(ENTRIES):
            key = key_of_name(info.name)
            if key is not None:
                used = self.journal.last_used.get(key, 0.0)
                yield EntryInfo(key, info.size, info.created, max(info.created, used))

    def size(self) -> int:
        """Return the bytes of all entries, by a listing."""
        return sum(info.size for info in self.bucket.walk(ENTRIES) if key_of_name(info.name) is not None)

    def quarantine(self, key: str, data: bytes, *, wrong: bool = False) -> bool:  # noqa: ARG002
        """Quarantine the entry if it still is exactly `data`: delete it, and keep copies of the last few; else False.

        Nothing is deleted if the bytes were damaged on their way here, as far as the storage tells that.
        """
        check_key(key)
        self._check_writable()
        name = entry_name(key)
        blob = self.bucket.read(name)
        if blob is None or blob.data != data or self.bucket.is_damaged_on_the_way(blob):
            return False
        if not self.bucket.delete(name, version=blob.version):
            return False
        if entry.begins_like_one(data):
            self._keep_copy(key, data)
        return True

    def _keep_copy(self, key: str, data: bytes) -> None:
        if len(data) > _QUARANTINED_BYTES // _QUARANTINED_COPIES:
            data = data[: _QUARANTINED_BYTES // _QUARANTINED_COPIES]
        digest = key_digest(key, 16)
        self.bucket.write(f"{QUARANTINE}{digest}", data)
        ours = (info for info in self.bucket.walk(QUARANTINE) if _QUARANTINED.fullmatch(info.name))
        kept = sorted(ours, key=lambda info: info.created)
        for info in kept[:-_QUARANTINED_COPIES]:
            self.bucket.delete(info.name)

    def note_used(self, key: str) -> None:
        """Note a use, for the next journal."""
        if not self.read_only:
            self.journal.note(key)

    def _note_worth(self, key: str, data: bytes) -> None:
        """Note what one use of an entry that was just stored is worth, for the next journal.

        A pass that evicts by that lists, and would need a request for the header of each entry.
        """
        self.journal.note(key, when=0.0, times=0, worth=worth_of_bytes(data))

    def add_counters(self, amounts: Mapping[str, float]) -> None:
        """Add to the counters, in memory; `Usage` writes them from time to time. Lost in a read-only store."""
        if not self.read_only:
            self.journal.add(amounts)

    def counters(self) -> dict[str, float]:
        """Return the counters of all processes, as far as they have written them."""
        return self.journal.total(write=not self.read_only)

    def reset_counters(self) -> None:
        """Start counting from zero."""
        self._check_writable()
        self.journal.reset()

    def close(self) -> None:
        """Write what was used and counted, and release the connections; the next use opens them again."""
        if not self.read_only:
            self.journal.write_or_hand_over()
        self.bucket.close()

    def _check_writable(self) -> None:
        if self.read_only:
            raise StoreReadOnlyError(str(self.bucket.refusal or f"{self.url} is open for reading only"))
