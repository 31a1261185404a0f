"""What processes have told of themselves on shared storage is kept in few objects, so that a report reads few.

Each process leaves its lines in its journals, and a pod leaves thousands a day. A pass that folds journals writes
these into one more journal first, of nothing but records; and what it finds of a day before yesterday, into
larger ones. A pass that dies in between leaves lines twice; `read_starts` counts equal lines once.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Final

from ejcache.bucket.object_names import process_name
from ejcache.journal.line import MOST_RECORDED
from ejcache.journal.objects import JOURNALS, RECORDS, decode_record_lines, encode_journal
from ejcache.util.parallel import in_parallel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ejcache.bucket.base import BlobInfo, Bucket

_MANY: Final = 8
"""So many small objects of a day are merged."""
_SMALL_BYTES: Final = 32 << 10
_BYTES: Final = 768 << 10
"""Bytes of lines, before compression, from which on an object is written. With the lines of one more process, which are
a megabyte at most, it stays below the limit of its size."""


class RecordKeeper:
    """Writes the lines of many journals into few.

    Args:
        objects: of the cache.
        day: of the objects, as their names have it.
    """

    def __init__(self, objects: Bucket, *, day: str) -> None:
        self._objects = objects
        self._day = day
        self._lines: list[bytes] = []
        self._size = 0
        self._added: set[str] = set()

    def add(self, name: str, data: bytes) -> bool:
        """Add the lines of the journal `data`, unless that was done before; False if it is too large to be one of ours.

        Raises:
            StoreError: the storage failed; no line is lost.
        """
        lines = [] if name in self._added else decode_record_lines(data)
        size = sum(map(len, lines))
        if size > MOST_RECORDED:
            return False
        self._added.add(name)
        self._lines += lines
        self._size += size
        if self._size >= _BYTES:
            self.write()
        return True

    def write(self) -> None:
        """Write what was added, if anything was; raises StoreError if the storage fails."""
        if self._lines:
            name = f"{JOURNALS}{self._day}/{RECORDS}{process_name()}"
            self._objects.write(name, encode_journal({}, record=self._lines))
        self._lines, self._size = [], 0


def merge_start_records(objects: Bucket, infos: Sequence[BlobInfo], *, now: float) -> None:
    """Merge small objects of records of days before yesterday.

    Args:
        objects: of the cache.
        infos: all journals of nothing but records.
        now: seconds since the epoch, by the storage's clock.

    Raises:
        StoreError: the storage failed; no record is lost.
    """
    yesterday = time.strftime("%Y-%m-%d", time.gmtime(now - 86_400.0))
    small = sorted(info.name for info in infos if info.size < _SMALL_BYTES)
    for day, found in itertools.groupby(small, key=lambda name: name.split("/")[-2]):
        names = list(found)
        if day >= yesterday or len(names) < _MANY:
            continue
        keeper = RecordKeeper(objects, day=day)
        merged: dict[str, str | None] = {}
        for name, blob in zip(names, in_parallel(objects.read, names), strict=True):
            if blob is not None and keeper.add(name, blob.data):
                merged[name] = blob.version
        keeper.write()
        for _ in objects.delete_many(merged.items()):
            pass
