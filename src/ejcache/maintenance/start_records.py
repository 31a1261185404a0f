"""Start records of shared storage are merged by day, so that a report reads few objects.

Each process leaves one object, and a pod leaves thousands a day. A maintenance pass writes the lines of a past day
into larger objects, and deletes those of the processes after that. A pass that dies between the two leaves lines
twice; `read_starts` counts equal lines once.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Final

from ejcache.bucket.base import STARTS, is_process_name, process_name
from ejcache.stores.shared.starts import MERGED, decode_object, encode_object
from ejcache.util.threads import in_parallel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ejcache.bucket.base import BlobInfo, Bucket

_MANY: Final = 8
"""So many objects of a day are merged."""
_BYTES: Final = 768 << 10
"""Bytes of lines, before compression, from which on a merged object is written. With the lines of one more process,
which are a megabyte at most, it stays below the limit of its size."""
_MOST_BYTES: Final = 1 << 20
"""An object with more lines was not written by ejcache, and is left as it is."""


def merge_start_records(objects: Bucket, infos: Sequence[BlobInfo], *, now: float) -> None:
    """Merge the start records of days before yesterday, which no process still writes.

    Args:
        objects: of the cache.
        infos: all objects below `v1/starts/`.
        now: seconds since the epoch, by the storage's clock.

    Raises:
        StoreError: the storage failed; no record is lost.
    """
    yesterday = time.strftime("%Y-%m-%d", time.gmtime(now - 86_400.0))
    single = [info.name for info in infos if _is_of_one_process(info.name)]
    for day, found in itertools.groupby(sorted(single), key=lambda name: name.split("/")[-2]):
        names = list(found)
        if day < yesterday and len(names) >= _MANY:
            _merge(objects, day, names)


def _is_of_one_process(name: str) -> bool:
    last = name.rpartition("/")[2]
    return is_process_name(last) and not last.startswith(MERGED)


def _merge(objects: Bucket, day: str, names: Sequence[str]) -> None:
    lines: list[bytes] = []
    merged: dict[str, str | None] = {}
    size = 0
    for name, blob in zip(names, in_parallel(objects.read, names), strict=True):
        added = [] if blob is None else list(decode_object(blob.data))
        more = sum(map(len, added))
        if blob is not None and more <= _MOST_BYTES:
            lines += added
            size += more
            merged[name] = blob.version
        if merged and (name == names[-1] or size >= _BYTES):
            if lines:  # a damaged object has none
                objects.write(f"{STARTS}{day}/{MERGED}{process_name()}", encode_object(lines))
            for _ in objects.delete_many(merged.items()):
                pass
            lines, merged, size = [], {}, 0
