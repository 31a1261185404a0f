"""One layer of an autotune store: records in a document store, harmless whatever becomes of them.

A layer that fails is left alone for a while, so that a bucket that cannot be reached costs one deadline and not one
for every operation of a model. Documents that are no intact records are misses; those that a writable layer holds are
moved out of the way.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.key import ROOT
from ejcache.autotune.records import decode_record, encode_record, merged
from ejcache.errors import EntryError, EntryVersionError, InvalidKeyError, StoreError, StoreReadOnlyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ejcache.autotune.key import RecordKey
    from ejcache.autotune.records import Record
    from ejcache.stores.documents import DocumentStore

__all__ = ["QUARANTINE", "Layer", "warn_once"]

QUARANTINE: Final = "autotune-quarantine/"

_PAUSE_SECONDS: Final = 30.0

logger = logging.getLogger("ejcache.autotune")
_warned: Final[set[str]] = set()
_warned_lock: Final = threading.Lock()


def warn_once(subject: str, message: str, *arguments: Any) -> None:
    """Log a warning the first time that anything is to be said of `subject`; after that, for debugging only."""
    with _warned_lock:
        first = subject not in _warned
        _warned.add(subject)
    logger.log(logging.WARNING if first else logging.DEBUG, message, *arguments)


class Layer:
    """The records in one place.

    Attributes:
        name: `user`, `shared`, `seeds`, …, for people.
        documents: where they are.
        seeds: its records rank as shipped seeds, whatever they say of themselves.
        counters: what was met here, by name.
    """

    def __init__(self, name: str, documents: DocumentStore, *, seeds: bool = False) -> None:
        self.name = name
        self.documents = documents
        self.seeds = seeds
        self.counters: Counter[str] = Counter()
        self._failed_until = {"reading": 0.0, "writing": 0.0}
        self._unwritable = documents.read_only or seeds

    def __repr__(self) -> str:
        return f"Layer({self.name!r}, {self.documents.url!r})"

    @property
    def writable(self) -> bool:
        """Whether a publication is worth trying."""
        return not self._unwritable

    def resume(self) -> None:
        """Try again at once what failed a moment ago."""
        self._failed_until = dict.fromkeys(self._failed_until, 0.0)

    def read(self, key: RecordKey) -> Record | None:
        """The intact record of `key`, or None."""
        record: Record | None = self._guarded("reading", lambda: self._read(key.path))
        return record

    def records(self, prefix: str = f"{ROOT}/") -> Iterator[tuple[str, Record]]:
        """(path, record) of every intact record whose path begins with `prefix`."""
        for path in self.paths(prefix):
            record = self._guarded("reading", partial(self._read, path))
            if record is not None:
                yield path, record

    def paths(self, prefix: str = f"{ROOT}/") -> list[str]:
        """The paths of the records below `prefix`."""
        listed = self._guarded(
            "reading", lambda: [path for path in self.documents.list(prefix) if path.endswith(".json")]
        )
        return listed or []

    def publish(self, record: Record) -> bool:
        """Write the record, merged with one that is there; False if the layer could not take it."""
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
            if not self.documents.create(record.key.path, data):
                self.documents.update(record.key.path, change)
            return True

        done = bool(self._guarded("writing", write))
        self.counters["published" if done else "unpublished"] += 1
        return done

    def delete(self, path: str) -> bool:
        """Remove the record under `path`; False if there was none, or it could not be removed."""
        return bool(self._guarded("writing", lambda: self.documents.delete(path)))

    def _read(self, path: str) -> Record | None:
        data = self.documents.read(path)
        if data is None:
            return None
        try:
            record = decode_record(data, path=path)
        except EntryVersionError as exc:
            self.counters["unknown"] += 1
            warn_once(f"{self.documents.url} version", "%s/%s is left alone: %s", self.documents.url, path, exc)
            return None
        except EntryError as exc:
            self.counters["corrupt"] += 1
            moved = self._quarantine(path, data)
            said = "moved to the quarantine" if moved else "ignored"
            warn_once(f"{self.documents.url} corrupt", "%s/%s is %s: %s", self.documents.url, path, said, exc)
            return None
        self.counters["read"] += 1
        return record

    def _quarantine(self, path: str, data: bytes) -> bool:
        if not self.writable:
            return False
        try:
            self.documents.replace(QUARANTINE + path.rpartition("/")[2], data)
            return self.documents.discard(path, data)
        except (StoreError, InvalidKeyError):
            self.counters["errors"] += 1
        return False

    def _guarded(self, kind: str, action: Callable[[], Any]) -> Any:
        """What `action` answers; None after counting and saying what went wrong, and for a while after that.

        A disk that is full can still be read: what fails to be written pauses writing only.
        """
        if time.monotonic() < self._failed_until[kind]:
            return None
        try:
            return action()
        except StoreReadOnlyError as exc:
            self._unwritable = True
            self.counters["errors"] += 1
            warn_once(f"{self.documents.url} read-only", "autotune results are not kept in %s: %s", self.name, exc)
        except (StoreError, InvalidKeyError) as exc:
            self.counters["errors"] += 1
            for paused in ("writing",) if kind == "writing" else ("reading", "writing"):
                self._failed_until[paused] = time.monotonic() + _PAUSE_SECONDS
            warn_once(f"{self.documents.url} failed", "the autotune layer %s is left alone for now: %s", self.name, exc)
        return None
