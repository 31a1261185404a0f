"""One layer of an autotune store: the records in one directory or bucket.

A layer never raises because of storage. A lookup that fails is a miss; the failure is counted and logged once. The
circuit breaker of the bucket decides how often storage that failed is asked again. A damaged record is a miss, too; a
layer that can be written moves it to its quarantine.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.log import warn_once
from ejcache.autotune.records.key import ROOT
from ejcache.autotune.records.record import MAX_RECORD_BYTES, decode_record, encode_record, merged
from ejcache.errors import (
    EntryError,
    EntryVersionError,
    InvalidKeyError,
    StoreError,
    StoreNotAskedError,
    StoreReadOnlyError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ejcache.autotune.records.key import RecordKey
    from ejcache.autotune.records.record import Record
    from ejcache.stores.documents import Documents

__all__ = ["QUARANTINE", "RecordLayer"]

QUARANTINE: Final = "autotune-quarantine/"


class RecordLayer:
    """The records in one directory or bucket.

    Attributes:
        name: `user`, `shared`, `seeds`, `package`, or `package` and the name of an entry point, for people.
        documents: the directory or bucket.
        seeds: its records count as shipped seeds, whatever their own source is.
        counters: how often a record was read, published, corrupt and so on.
    """

    def __init__(self, name: str, documents: Documents, *, seeds: bool = False) -> None:
        self.name = name
        self.documents = documents
        self.seeds = seeds
        self.counters: Counter[str] = Counter()
        self._unwritable = documents.read_only or seeds

    def __repr__(self) -> str:
        return f"RecordLayer({self.name!r}, {self.documents.url!r})"

    @property
    def writable(self) -> bool:
        """Whether records can be published here, as far as is known."""
        return not self._unwritable

    def read(self, key: RecordKey) -> Record | None:
        """The intact record of `key`, or None."""
        record: Record | None = self._guarded(lambda: self._read(key.path))
        return record

    def records(self, prefix: str = f"{ROOT}/") -> Iterator[tuple[str, Record]]:
        """(path, record) of each intact record whose path begins with `prefix`."""
        for path in self.paths(prefix):
            record = self._guarded(partial(self._read, path))
            if record is not None:
                yield path, record

    def paths(self, prefix: str = f"{ROOT}/") -> list[str]:
        """The paths of the records below `prefix`."""
        listed = self._guarded(lambda: [path for path in self.documents.list(prefix) if path.endswith(".json")])
        return listed or []

    def publish(self, record: Record) -> bool:
        """Write the record, merged with an existing one of its key; False if it could not be written."""
        if not self.writable:
            return False
        data = encode_record(record)

        def change(old: bytes | None) -> bytes | None:
            if old is None:
                return data
            try:
                held = decode_record(old, path=record.key.path)
            except EntryVersionError:
                return None
            except EntryError:
                return data
            combined = encode_record(merged(held, record))
            return None if combined == old else combined

        def write() -> bool:
            path = record.key.path
            if self.documents.create(path, data):
                return True
            held = self.documents.read(path, max_size=MAX_RECORD_BYTES)
            if held is not None and len(held) > MAX_RECORD_BYTES:
                # `update` would read all of it.
                self.documents.replace(path, data)
            else:
                self.documents.update(path, change)
            return True

        done = bool(self._guarded(write))
        self.counters["published" if done else "unpublished"] += 1
        return done

    def delete(self, path: str) -> bool:
        """Delete the record under `path`; False if there was none or it could not be deleted."""
        return bool(self._guarded(lambda: self.documents.delete(path)))

    def _read(self, path: str) -> Record | None:
        data = self.documents.read(path, max_size=MAX_RECORD_BYTES)
        if data is None:
            return None
        url = self.documents.url
        try:
            record = decode_record(data, path=path)
        except EntryVersionError as exc:
            self.counters["unknown"] += 1
            warn_once(f"{url} version", "%s/%s is not used: %s", url, path, exc)
        except EntryError as exc:
            self.counters["corrupt"] += 1
            done = "quarantined" if self._quarantine(path, data) else "ignored"
            warn_once(f"{url} corrupt", "%s/%s is damaged and %s: %s", url, path, done, exc)
        else:
            self.counters["read"] += 1
            return record
        return None

    def _quarantine(self, path: str, data: bytes) -> bool:
        if not self.writable or len(data) > MAX_RECORD_BYTES:
            return False
        try:
            self.documents.replace(QUARANTINE + path.rpartition("/")[2], data)
            return self.documents.discard(path, data)
        except (StoreError, InvalidKeyError):
            self.counters["errors"] += 1
        return False

    def _guarded(self, action: Callable[[], Any]) -> Any:
        """The result of `action`; None if the storage fails or its circuit breaker is open."""
        try:
            return action()
        except StoreNotAskedError:
            return None
        except (StoreError, InvalidKeyError) as exc:
            self.counters["errors"] += 1
            if isinstance(exc, StoreReadOnlyError):
                self._unwritable = True
            warn_once(f"{self.documents.url} failed", "the autotune layer %s failed: %s", self.name, exc)
        return None
