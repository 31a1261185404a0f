"""Folds the journals of a shared cache: uses and sums into its snapshot, the lines of processes into few journals.

It first writes the lines of processes that are in the journals into one more journal, of nothing but records; and what
it finds of a day before yesterday, into larger ones, so that a report of a pod's thousands a day reads few objects. A
pass that dies in between leaves lines twice; `read_starts` counts equal lines once. Then one write of
the snapshot, on the condition that nobody else has written it, takes in their uses and sums, and names them. Then they
are deleted. If a pass dies in between, the next one finds journals that the snapshot names, and deletes them.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ejcache.bucket.base import ABSENT
from ejcache.errors import EntryCorruptError, EntryVersionError, StoreError
from ejcache.journal.format import (
    JOURNALS,
    MAX_JOURNAL,
    MAX_SNAPSHOT,
    RECORDS,
    SNAPSHOT,
    Folded,
    decode_lines,
    decode_pieces,
    decode_record_lines,
    decode_sums,
    encode_journal,
    encode_ordered,
    is_journal,
    is_journal_name,
)
from ejcache.journal.line import MOST_RECORDED, EntryUse
from ejcache.util.threads import in_parallel
from ejcache.util.writer import process_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ejcache.bucket.base import Blob, BlobInfo, Bucket


log = logging.getLogger("ejcache")

_THREADS: Final = 8
_SMALL_BYTES: Final = 1 << 20
"""Journals up to this size are read several at a time."""
_TRIES: Final = 5
_NEW_SECONDS: Final = 86_400.0
"""How long the use of an entry that is not listed is kept: the entry may be younger than the listing."""
_READING_SECONDS: Final = 120.0
"""How long one pass reads journals; the next pass reads the others."""
MOST_FOLDED: Final = 20_000
"""Journals that one pass folds, because the snapshot names them; the next pass folds the others."""


class NotedUses(Protocol):
    """Where a fold notes the uses that it finds, however many they are (`maintenance.listed_entries`)."""

    def note_uses(self, used: Iterable[tuple[str, EntryUse]], *, now: float) -> None:
        """Note uses, which are joined with those noted before; a time after `now` counts as `now`."""

    def forget_uses(self) -> None:
        """Forget what was noted."""

    def uses(self, *, unless_gone_since: float | None = None) -> Iterator[tuple[str, EntryUse]]:
        """Yield keys and their uses, ordered by key; leave out keys that are gone and were last used before."""


class JournalListing(NamedTuple):
    """The journals that there are, and what was folded before they were listed."""

    folded: Folded
    infos: list[BlobInfo]

    @classmethod
    def now(cls, objects: Bucket) -> JournalListing:
        """Read the header of the snapshot, and then list."""
        return cls(Folded.read(objects), [*objects.walk(JOURNALS)])

    @property
    def journals(self) -> list[BlobInfo]:
        """The journals, those that are folded included."""
        return [info for info in self.infos if is_journal_name(info.name)]

    def unfolded(self) -> list[BlobInfo]:
        """Return the journals that are not folded yet."""
        return [info for info in self.journals if info.name not in self.folded.names]


class _ChangedError(Exception):
    """Another process has written the snapshot since its header was read."""


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
    listing: NotedUses,
    *,
    listed: JournalListing | None = None,
    complete: bool = False,
    dry_run: bool = False,
    now: float | None = None,
    in_use_since: float = math.inf,
) -> Compaction:
    """Fold all journals, delete them, and note their uses in `listing`.

    A process that finds the snapshot changed again and again leaves the journals to the next pass.

    Args:
        objects: where the journals are kept.
        listing: receives the uses.
        listed: the journals and what is folded; by default they are listed now.
        complete: `listing` holds all entries, so that old uses of other keys are dropped.
        dry_run: note the uses, and change nothing else.
        now: seconds since the epoch; uses after `now`, from a wrong clock, count as `now`.
        in_use_since: what a journal names that the storage has had since then was in use when the journal was written,
            whatever time the writer's clock showed.

    Raises:
        StoreError: the storage failed; no use is lost.
    """
    now = time.time() if now is None else now
    kept_since = now - _NEW_SECONDS if complete else None
    records = None if dry_run else RecordKeeper(objects, day=time.strftime("%Y-%m-%d", time.gmtime(now)))
    read: dict[str, _Journal] = {}
    for _ in range(_TRIES):
        folded, infos = listed = listed or JournalListing.now(objects)
        listing.forget_uses()
        try:
            _note_snapshot(objects, listing, folded, now)
        except _ChangedError:
            listed = None
            continue
        unfolded, keeper = listed.unfolded(), None if folded.is_later else records
        counted = {info.name for info in unfolded[:MOST_FOLDED]}
        read = _note_journals(objects, listing, unfolded, now, in_use_since, counted, keeper)
        if keeper is None:
            return Compaction(left=len(listed.journals))
        keeper.write()
        new = {name: found for name, found in read.items() if found.intact and name in counted}
        there = {info.name for info in infos}
        snapshot = encode_ordered(
            partial(listing.uses, unless_gone_since=kept_since),
            sums=_added(folded.sums, *(found.sums for found in new.values())),
            compress=True,
            folded={*new, *(folded.names & there)},
        )
        if objects.write(SNAPSHOT, snapshot, version=folded.version) is not None:
            return _clear_away(objects, listed, {*new, *folded.names}, read)
        listed = None  # another process has folded some of these
    return Compaction(left=len(read))


def _clear_away(objects: Bucket, listed: JournalListing, folded: set[str], read: Mapping[str, _Journal]) -> Compaction:
    """Delete the journals that the snapshot has now, and the damaged ones."""
    ours = listed.journals  # the snapshot may name anything, if others wrote it
    done = {info.name: info.version for info in ours if info.name in folded}
    damaged = {name: found.version for name, found in read.items() if not found.intact}
    _delete(objects, done | damaged)
    return Compaction(len(done), damaged=len(damaged), left=len(ours) - len(done) - len(damaged), written=True)


def _added(*sums: Mapping[str, float]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for each in sums:
        total.update(each)
    return dict(total)


def _delete(objects: Bucket, folded: dict[str, str]) -> None:
    try:
        for _ in objects.delete_many(folded.items()):
            pass
    except Exception as exc:  # what others wrote must not stop this job's eviction
        log.debug("ejcache: folded journals were not deleted; the next pass does that: %s", exc, exc_info=True)


def _note_snapshot(objects: Bucket, listing: NotedUses, folded: Folded, now: float) -> None:
    """Note the uses of the snapshot, unless it is of a later version; raises _ChangedError if it is another one now."""
    if folded.is_later or folded.version == ABSENT:
        return
    if folded.whole:
        _note(listing, [folded.whole], now)
        return
    # In pieces: the snapshot of a large cache has many megabytes, and the job has other uses for its memory.
    pieces = objects.read_pieces(SNAPSHOT, size=max(_SMALL_BYTES, folded.header_size))
    is_there = False

    def data() -> Iterator[bytes]:
        nonlocal is_there
        for blob in pieces:
            is_there = True
            if blob.version != folded.version:
                raise _ChangedError
            if blob.size > MAX_SNAPSHOT:
                raise EntryCorruptError(f"larger than {MAX_SNAPSHOT} bytes")
            yield blob.data

    _note(listing, data(), now)
    if not is_there:
        raise _ChangedError


def _note(listing: NotedUses, pieces: Iterable[bytes], now: float) -> None:
    try:
        listing.note_uses(decode_pieces(pieces, limit=MAX_SNAPSHOT), now=now)
    except EntryCorruptError as exc:
        log.warning("ejcache: %s is damaged, and a new one replaces it: %s", SNAPSHOT, exc)


def _note_journals(
    objects: Bucket,
    listing: NotedUses,
    infos: list[BlobInfo],
    now: float,
    in_use_since: float,
    counted: set[str],
    keeper: RecordKeeper | None,
) -> dict[str, _Journal]:
    """Note the uses of each journal that can be read in time, and return these; the next pass reads the others.

    How many uses there were is noted of the journals in `counted`, which this pass folds, and `keeper` gets their
    records.
    """
    read: dict[str, _Journal] = {}
    deadline = time.monotonic() + _READING_SECONDS
    least = {info.name: min(info.created, now) if info.created >= in_use_since else -math.inf for info in infos}
    for name, blob in _read_all(objects, infos, deadline):
        try:
            uses = decode_lines(blob.data, limit=MAX_JOURNAL)
            taken = (
                (key, EntryUse(max(use.when, least[name]), use.times if name in counted else 0, use.worth))
                for key, use in uses
            )
            listing.note_uses(taken, now=now)
            if keeper is not None and name in counted:
                keeper.add(name, blob.data)
            read[name] = _Journal(blob.version, True, decode_sums(blob.data))
        except EntryVersionError:
            continue
        except EntryCorruptError:
            # Never delete a file that ejcache did not write, whatever its name.
            if is_journal(blob.data):
                read[name] = _Journal(blob.version, False, {})
    return read


def _read_all(objects: Bucket, infos: list[BlobInfo], deadline: float) -> Iterator[tuple[str, Blob]]:
    """Name and bytes of each journal that can be read now and has a size that journals have."""

    def read(info: BlobInfo) -> tuple[str, Blob] | None:
        with contextlib.suppress(StoreError):
            if time.monotonic() < deadline:
                blob = objects.read(info.name, length=MAX_JOURNAL + 1)
                return None if blob is None else (info.name, blob)
        return None

    small = [info for info in infos if info.size <= _SMALL_BYTES]
    large = (info for info in infos if _SMALL_BYTES < info.size <= MAX_JOURNAL)
    yield from filter(None, in_parallel(read, small, threads=_THREADS if len(small) >= _THREADS else 1))
    yield from filter(None, map(read, large))


_MANY: Final = 8
"""So many small objects of a day are merged."""
_SMALL_RECORD: Final = 32 << 10
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
    small = sorted(info.name for info in infos if info.size < _SMALL_RECORD)
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
