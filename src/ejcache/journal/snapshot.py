"""The snapshot: one object with what was folded of the journals of a shared cache, and the names of those.

    v1/journal/snapshot     an object as a journal is (`objects`), with a field more in its header: folded, the names,
                            without `v1/journal/`, of journals that are in it and may still be there

What a cache has counted is the sums of the snapshot and of all journals that it does not name. One write, on the
condition that nobody else has written it, takes in the uses and the sums of journals and names them; then they are
deleted. So each counts once, wherever a process dies. A snapshot of a later version is left as it is. A reset is a
journal of the negated sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ejcache.bucket.base import ABSENT
from ejcache.journal.objects import JOURNALS, MAX_SNAPSHOT_HEADER, decode_folded

if TYPE_CHECKING:
    from ejcache.bucket.base import Bucket

SNAPSHOT: Final = f"{JOURNALS}snapshot"
_START: Final = 1 << 16
"""Bytes of its beginning that hold the header, unless a pass has died before it deleted what it had folded."""


class Folded(NamedTuple):
    """The header of the snapshot, and the whole of a small one.

    Attributes:
        sums: of counters.
        names: of the journals that it has folded.
        version: of the object.
        is_later: it is of a later version than this code reads; then nothing else is known.
        header_size: bytes.
        whole: the object, if it is so small that it was read whole.
    """

    sums: dict[str, float]
    names: frozenset[str]
    version: str
    is_later: bool = False
    header_size: int = 0
    whole: bytes = b""

    @classmethod
    def read(cls, objects: Bucket) -> Folded:
        """Read it; raises StoreError if the storage fails. What is damaged has nothing."""
        blob = objects.read(SNAPSHOT, length=_START)
        if blob is not None and len(blob.data) < blob.size and b"\n" not in blob.data:
            blob = objects.read(SNAPSHOT, length=MAX_SNAPSHOT_HEADER)
        if blob is None:
            return cls({}, frozenset(), ABSENT)
        sums, names, is_later = decode_folded(blob.data)
        whole = blob.data if len(blob.data) == blob.size else b""
        return cls(sums, names, blob.version, is_later, blob.data.find(b"\n") + 1, whole)
