"""The compaction of usage journals: a pass folds them into the snapshot of uses and the baseline of counters.

    v1/used/snapshot        the last uses of all journals that were compacted so far
    v1/counters/=baseline   the sums of their counters

A pass takes four steps. It writes the start records of the journals into one more journal (`kept_lines`). It
adds their sums to the baseline, which names the journals that were folded. It merges their uses into the snapshot. Then
it deletes the journals. If a pass dies halfway, the next one finds journals that the baseline names already: of these
the snapshot takes the times of the last uses again, which changes nothing, and not how many uses there were.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from ejcache.bucket.base import ABSENT
from ejcache.errors import EntryCorruptError, EntryVersionError, StoreError
from ejcache.journal.baseline import Baseline
from ejcache.journal.kept_lines import RecordKeeper
from ejcache.journal.line import EntryUse
from ejcache.journal.objects import (
    MAX_JOURNAL,
    MAX_SNAPSHOT,
    USED,
    decode_lines,
    decode_pieces,
    decode_sums,
    encode_ordered,
    is_journal,
    is_journal_name,
)
from ejcache.util.parallel import in_parallel
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ejcache.bucket.base import Blob, BlobInfo, Bucket

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
MOST_FOLDED: Final = 20_000
"""Journals that one pass folds, because the baseline names them; the next pass folds the others."""


class NotedUses(Protocol):
    """Where a fold notes the uses that it finds, however many they are (`maintenance.listed_entries`)."""

    def note_uses(self, used: Iterable[tuple[str, EntryUse]], *, now: float) -> None:
        """Note uses, which are joined with those noted before; a time after `now` counts as `now`."""

    def forget_uses(self) -> None:
        """Forget what was noted."""

    def uses(self, *, unless_gone_since: float | None = None) -> Iterator[tuple[str, EntryUse]]:
        """Yield keys and their uses, ordered by key; leave out keys that are gone and were last used before."""


class JournalListing(NamedTuple):
    """The journals that there are, and what was folded when they were listed.

    A baseline that was written after the listing may name objects that are not listed.
    """

    baseline: Baseline
    infos: list[BlobInfo]

    @classmethod
    def now(cls, objects: Bucket) -> JournalListing:
        """Read the baseline, and then list."""
        return cls(Baseline.read(objects), [*objects.walk(USED)])

    @property
    def journals(self) -> list[BlobInfo]:
        """The usage journals."""
        return [info for info in self.infos if is_journal_name(info.name)]

    def unfolded(self) -> set[str]:
        """Return the names of the journals that one pass folds."""
        names = (info.name for info in self.journals if info.name not in self.baseline.folded)
        return set(itertools.islice(names, MOST_FOLDED))


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

    The baseline and the snapshot are written on the condition that no other process has written them. A process that
    finds them changed again and again leaves the journals to the next pass. If this process dies before it has deleted
    the journals, the next pass merges the same last uses again, and no numbers and no sums.

    Args:
        objects: where the journals are kept.
        listing: receives the uses.
        listed: the journals and counters; by default they are listed now.
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
    for _ in range(_TRIES):
        baseline, infos = listed = listed or JournalListing.now(objects)
        listing.forget_uses()
        version, writable = _note_snapshot(objects, listing, now)
        counted, keeper = listed.unfolded(), records if writable else None
        read = _note_journals(objects, listing, listed.journals, now, in_use_since, counted, keeper)
        if keeper is None:
            return Compaction(left=len(listed.journals))
        keeper.write()
        intact = ((name, found) for name, found in read.items() if found.intact and name in counted)
        new = {name: (found.version, found.sums) for name, found in intact}
        snapshot = encode_ordered(partial(listing.uses, unless_gone_since=kept_since), compress=True)
        if (
            baseline.fold(objects, new, {info.name for info in infos})
            and objects.write(SNAPSHOT, snapshot, version=version) is not None
        ):
            folded = {info.name: info.version for info in infos if info.name in new or info.name in baseline.folded}
            done = {name: journal for name, journal in read.items() if not journal.intact or name in folded}
            _delete(objects, folded | {name: journal.version for name, journal in done.items()})
            journals = sum(journal.intact for journal in done.values())
            left = len(listed.journals) - len(done)
            return Compaction(journals, damaged=len(done) - journals, left=left, written=True)
        listed = None  # another process has folded some of these
    return Compaction(left=len(read))


def _delete(objects: Bucket, folded: dict[str, str]) -> None:
    try:
        for _ in objects.delete_many(folded.items()):
            pass
    except Exception as exc:  # what others wrote must not stop this job's eviction
        log.debug("ejcache: folded journals were not deleted; the next pass does that: %s", exc, exc_info=True)


def _note_snapshot(objects: Bucket, listing: NotedUses, now: float) -> tuple[str, bool]:
    """Return the snapshot's version, and whether it may be overwritten."""
    # In pieces: the snapshot of a large cache has many megabytes, and the job has other uses for its memory.
    pieces = objects.read_pieces(SNAPSHOT, size=_SMALL_BYTES)
    found: list[str] = []

    def data() -> Iterator[bytes]:
        for blob in pieces:
            found.append(blob.version)
            if blob.size > MAX_SNAPSHOT:
                raise EntryCorruptError(f"larger than {MAX_SNAPSHOT} bytes")
            yield blob.data

    try:
        listing.note_uses(decode_pieces(data(), limit=MAX_SNAPSHOT), now=now)
    except EntryVersionError:
        return found[0], False
    except EntryCorruptError as exc:
        if not found:
            return ABSENT, True
        log.warning("ejcache: %s is damaged, and a new one replaces it: %s", SNAPSHOT, exc)
    return found[0], True


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
