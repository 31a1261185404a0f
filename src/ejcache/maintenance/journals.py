"""The compaction of usage journals (`stores.shared.usage`).

    v1/used/snapshot        the last uses of all journals that were compacted so far
    v1/counters/=baseline   the sums of their counters

A maintenance pass adds the sums to the baseline, merges the uses into the snapshot, and deletes the journals, in this
order. The snapshot keeps the later of two times, so that merging a journal twice (two processes at once, or a crash
halfway) changes nothing; the baseline names the journals whose sums it has.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from ejcache.bucket.base import ABSENT
from ejcache.bucket.layout import COUNTERS
from ejcache.errors import EntryCorruptError, EntryVersionError, StoreBusyError, StoreError
from ejcache.stores.shared import journal_format
from ejcache.stores.shared.journal_format import decode_lines, decode_pieces, decode_sums, encode_ordered
from ejcache.stores.shared.usage import USED, Baseline, is_journal_name, quiet_counters
from ejcache.util.parallel import in_parallel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.bucket.base import Blob, BlobInfo, Bucket
    from ejcache.maintenance.tables import Listing

log = logging.getLogger("ejcache")

SNAPSHOT: Final = "v1/used/snapshot"

_THREADS: Final = 8
_SMALL_BYTES: Final = 1 << 20
"""Journals up to this size are read several at a time."""
_TRIES: Final = 5
_NEW_SECONDS: Final = 86_400.0
"""How long the use of an entry that is not listed is kept: the entry may be younger than the listing."""
_READING_SECONDS: Final = 120.0
"""How long one pass reads journals; the next pass reads the others."""
_MOST_FOLDED: Final = 20_000
"""Objects whose sums one pass adds to the baseline, which names them; the next pass adds the others."""


class Listed(NamedTuple):
    """The journals and counters that there are, and what was folded when they were listed.

    A baseline that was written after the listing may name objects that are not listed.
    """

    baseline: Baseline
    infos: list[BlobInfo]

    @classmethod
    def now(cls, objects: Bucket) -> Listed:
        """Read the baseline, and then list."""
        return cls(Baseline.read(objects), [*objects.walk(USED), *objects.walk(COUNTERS)])

    @property
    def journals(self) -> list[BlobInfo]:
        """The usage journals."""
        return [info for info in self.infos if is_journal_name(info.name)]


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result of `compact`.

    Attributes:
        journals: journals whose uses are in the snapshot now; they were deleted.
        damaged: journals of ours that are damaged; they were deleted, too.
        left: other journals: unreadable at the moment, of a later version, or not written by ejcache.
        written: the snapshot was written.
    """

    journals: int = 0
    damaged: int = 0
    left: int = 0
    written: bool = False


class _Journal(NamedTuple):
    version: str
    intact: bool
    sums: dict[str, float]


def compact(
    objects: Bucket,
    listing: Listing,
    *,
    listed: Listed | None = None,
    complete: bool = False,
    now: float | None = None,
    in_use_since: float = math.inf,
) -> Compaction:
    """Fold all journals, delete them, and note their uses in `listing`.

    The baseline and the snapshot are written on the condition that no other process has written them. If this process
    dies before it has deleted the journals, the next pass merges the same uses again, and no sums.

    Args:
        objects: where the journals are kept.
        listing: receives the uses.
        listed: the journals and counters; by default they are listed now.
        complete: `listing` holds all entries, so that old uses of other keys are dropped.
        now: seconds since the epoch; uses after `now`, from a wrong clock, count as `now`.
        in_use_since: what a journal names that the storage has had since then was in use when the journal was written,
            whatever time the writer's clock showed.

    Raises:
        StoreError: the storage failed; no use is lost.
        StoreBusyError: other processes kept writing the snapshot; the uses are in `listing` nevertheless.
    """
    now = time.time() if now is None else now
    kept_since = now - _NEW_SECONDS if complete else None
    for _ in range(_TRIES):
        baseline, infos = listed = listed or Listed.now(objects)
        version, writable = _note_snapshot(objects, listing, now)
        read = _note_journals(objects, listing, listed.journals, now, in_use_since)
        if not writable:
            return Compaction(left=len(listed.journals))
        counted = {name: (journal.version, journal.sums) for name, journal in read.items() if journal.sums}
        new = {name: found for name, found in counted.items() if name not in baseline.folded}
        new |= quiet_counters(objects, infos, baseline, now=now)
        new = dict(itertools.islice(new.items(), _MOST_FOLDED))
        snapshot = encode_ordered(partial(listing.uses, unless_gone_since=kept_since), compress=True)
        if (
            baseline.fold(objects, new, {info.name for info in infos})
            and objects.write(SNAPSHOT, snapshot, version=version) is not None
        ):
            folded = {info.name: info.version for info in infos if info.name in new or baseline.has(info)}
            done = {name: journal for name, journal in read.items() if not journal.sums or name in folded}
            _delete(objects, folded | {name: journal.version for name, journal in done.items()})
            journals = sum(journal.intact for journal in done.values())
            left = len(listed.journals) - len(done)
            return Compaction(journals, damaged=len(done) - journals, left=left, written=True)
        listed = None  # another process has folded some of these
    raise StoreBusyError("other processes kept compacting the usage journals")


def _delete(objects: Bucket, folded: dict[str, str]) -> None:
    try:
        for _ in objects.delete_many(folded.items()):
            pass
    except Exception as exc:  # what others wrote must not stop this job's eviction
        log.debug("ejcache: folded journals were not deleted; the next pass does that: %s", exc, exc_info=True)


def read_uses(
    objects: Bucket,
    listing: Listing,
    *,
    listed: Listed | None = None,
    now: float | None = None,
    in_use_since: float = math.inf,
) -> None:
    """Note the uses of the snapshot and of all journals in `listing`, and change nothing else.

    The arguments are those of `compact`. Raises StoreError if the storage fails.
    """
    now = time.time() if now is None else now
    _note_snapshot(objects, listing, now)
    _note_journals(objects, listing, (listed or Listed.now(objects)).journals, now, in_use_since)


def _note_snapshot(objects: Bucket, listing: Listing, now: float) -> tuple[str, bool]:
    """The snapshot's version, and whether it may be overwritten."""
    # In pieces: the snapshot of a large cache has many megabytes, and the job has other uses for its memory.
    pieces = objects.read_pieces(SNAPSHOT, size=_SMALL_BYTES)
    found: list[str] = []

    def data() -> Iterator[bytes]:
        for blob in pieces:
            found.append(blob.version)
            if blob.size > journal_format.MAX_SNAPSHOT:
                raise EntryCorruptError(f"larger than {journal_format.MAX_SNAPSHOT} bytes")
            yield blob.data

    try:
        listing.note_uses(decode_pieces(data(), limit=journal_format.MAX_SNAPSHOT), now=now)
    except EntryVersionError:
        return found[0], False
    except EntryCorruptError as exc:
        if not found:
            return ABSENT, True
        log.warning("ejcache: %s is damaged, and a new one replaces it: %s", SNAPSHOT, exc)
    return found[0], True


def _note_journals(
    objects: Bucket, listing: Listing, infos: list[BlobInfo], now: float, in_use_since: float
) -> dict[str, _Journal]:
    """Note the uses of each journal that can be read in time, and return these; the next pass reads the others."""
    read: dict[str, _Journal] = {}
    deadline = time.monotonic() + _READING_SECONDS
    least = {info.name: min(info.created, now) if info.created >= in_use_since else -math.inf for info in infos}
    for name, blob in _read_all(objects, infos, deadline):
        try:
            uses = decode_lines(blob.data, limit=journal_format.MAX_JOURNAL)
            listing.note_uses(((key, max(at, least[name])) for key, at in uses), now=now)
            read[name] = _Journal(blob.version, True, decode_sums(blob.data))
        except EntryVersionError:
            continue
        except EntryCorruptError:
            # Never delete a file that ejcache did not write, whatever its name.
            if journal_format.is_ours(blob.data):
                read[name] = _Journal(blob.version, False, {})
    return read


def _read_all(objects: Bucket, infos: list[BlobInfo], deadline: float) -> Iterator[tuple[str, Blob]]:
    """Name and bytes of each journal that can be read now and has a size that journals have."""

    def read(info: BlobInfo) -> tuple[str, Blob] | None:
        with contextlib.suppress(StoreError):
            if time.monotonic() < deadline:
                blob = objects.read(info.name, length=journal_format.MAX_JOURNAL + 1)
                return None if blob is None else (info.name, blob)
        return None

    small = [info for info in infos if info.size <= _SMALL_BYTES]
    large = (info for info in infos if _SMALL_BYTES < info.size <= journal_format.MAX_JOURNAL)
    yield from filter(None, in_parallel(read, small, threads=_THREADS if len(small) >= _THREADS else 1))
    yield from filter(None, map(read, large))
