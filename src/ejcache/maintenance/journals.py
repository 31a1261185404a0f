"""Usage journals: when entries of a shared cache were last used.

    v1/used/<day>/<process name>-<n>      a usage journal: one process writes it once, and nobody changes it
    v1/used/snapshot                      the uses of all journals that were compacted so far

A bucket records no access time, and accepts about one write a second to one object. So each process collects its uses
in memory and writes at most one small journal a minute; a process that is killed loses its last minute. A maintenance
pass compacts the journals into the snapshot. It keeps the later of two times, so that compacting a journal twice (two
processes at once, or a crash halfway) changes nothing.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from ejcache.bucket.base import ABSENT
from ejcache.bucket.layout import is_process_name, process_name
from ejcache.errors import EntryCorruptError, EntryVersionError, StoreBusyError, StoreError, StoreReadOnlyError
from ejcache.maintenance import journal_format
from ejcache.maintenance.journal_format import decode_lines, decode_pieces, encode, encode_ordered
from ejcache.util.lifecycle import track_forks
from ejcache.util.parallel import in_parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ejcache.bucket.base import Blob, BlobInfo, Bucket
    from ejcache.maintenance.tables import Listing

__all__ = ["SNAPSHOT", "USED", "Compaction", "JournalWriter", "compact", "read_uses"]

log = logging.getLogger("ejcache")

USED: Final = "v1/used/"
SNAPSHOT: Final = "v1/used/snapshot"

_THREADS: Final = 8
_SMALL_BYTES: Final = 1 << 20
"""Journals up to this size are read several at a time."""
_TRIES: Final = 5
_NEW_SECONDS: Final = 86_400.0
"""How long the use of an entry that is not listed is kept: the entry may be younger than the listing."""
_READING_SECONDS: Final = 120.0
"""How long one pass reads journals; the next pass reads the others."""


class JournalWriter:
    """Writes the usage journals of this process. Safe for threads; a forked child writes journals of its own.

    Args:
        objects: where the journals are kept.
        drain: returns the keys used since its last call, and when; `SharedStore.drain_used` does this.
        now: seconds since the epoch.
        max_pending: keys kept in memory while the storage cannot be written; beyond this the oldest are dropped.
    """

    def __init__(
        self,
        objects: Bucket,
        drain: Callable[[], dict[str, float]],
        *,
        now: Callable[[], float] = time.time,
        max_pending: int = 200_000,
    ) -> None:
        self._objects = objects
        self._drain = drain
        self._now = now
        self._max_pending = max_pending
        self._refused = False
        self.after_fork_in_child()
        track_forks(self)

    def after_fork_in_child(self) -> None:
        """Leave what was used to the parent, and write journals of another name."""
        self._lock = threading.Lock()
        self._name = process_name()
        self._written = 0
        self._pending: dict[str, float] = {}

    def write(self) -> bool:
        """Write one journal, if anything was used since the last one. Never raises a `StoreError`.

        Returns:
            False if the storage failed; the next call writes the same uses again.
        """
        with self._lock:
            for key, used in self._drain().items():
                self._pending[key] = max(used, self._pending.get(key, 0.0))
            while len(self._pending) > self._max_pending:
                del self._pending[next(iter(self._pending))]
            if not self._pending or self._refused:
                return True
            day = time.strftime("%Y-%m-%d", time.gmtime(self._now()))
            name = f"{USED}{day}/{self._name}-{self._written}"
            try:
                self._objects.write(name, encode(self._pending), version=ABSENT)
            except StoreReadOnlyError as exc:
                log.debug("this process may not write usage journals: %s", exc)
                self._refused = True
                return True
            except StoreError as exc:
                log.debug("a usage journal was not written: %s", exc)
                return False
            self._written += 1
            self._pending = {}
            return True

    def take_unwritten(self) -> dict[str, float]:
        """The uses that no journal has yet, to be left to another process; a write that is under way may repeat them.

        Takes no lock: storage that does not answer may keep a write waiting.
        """
        unwritten, self._pending = self._pending, {}
        return {} if self._refused else {**unwritten, **self._drain()}


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result of `compact`.

    Attributes:
        journals: journals whose uses are in the snapshot now; they were deleted.
        damaged: journals of ours that are damaged; they were deleted, too.
        left: other journals: unreadable at the moment, of a later version, or not written by ejcache.
        written: whether the snapshot was written.
    """

    journals: int = 0
    damaged: int = 0
    left: int = 0
    written: bool = False


def compact(
    objects: Bucket,
    listing: Listing,
    *,
    infos: Iterable[BlobInfo] | None = None,
    complete: bool = False,
    now: float | None = None,
    in_use_since: float = math.inf,
) -> Compaction:
    """Merge all journals into the snapshot, delete them, and note their uses in `listing`.

    The snapshot is written first, on the condition that no other process has written it, and the journals are deleted
    afterwards. If this process dies in between, the next pass merges the same journals again.

    Args:
        objects: where the journals are kept.
        listing: receives the uses.
        infos: a listing of `USED`; by default it is listed now.
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
        version, writable = _note_snapshot(objects, listing, now)
        listed = _journals(objects, infos)
        intact = _note_journals(objects, listing, listed, now, in_use_since)
        if not writable:
            return Compaction(left=len(listed))
        snapshot = encode_ordered(partial(listing.uses, unless_gone_since=kept_since), compress=True)
        if objects.write(SNAPSHOT, snapshot, version=version) is not None:
            for _name in objects.delete_many((info.name, info.version) for info in listed if info.name in intact):
                pass
            journals = sum(intact.values())
            return Compaction(journals, damaged=len(intact) - journals, left=len(listed) - len(intact), written=True)
        infos = None  # another process has compacted some of these
    raise StoreBusyError("other processes kept compacting the usage journals")


def read_uses(
    objects: Bucket,
    listing: Listing,
    *,
    infos: Iterable[BlobInfo] | None = None,
    now: float | None = None,
    in_use_since: float = math.inf,
) -> None:
    """Note the uses of the snapshot and of all journals in `listing`, and change nothing else.

    Args:
        objects: where the journals are kept.
        listing: receives the uses.
        infos: a listing of `USED`; by default it is listed now.
        now: as for `compact`.
        in_use_since: as for `compact`.

    Raises:
        StoreError: the storage failed.
    """
    now = time.time() if now is None else now
    _note_snapshot(objects, listing, now)
    _note_journals(objects, listing, _journals(objects, infos), now, in_use_since)


def _journals(objects: Bucket, infos: Iterable[BlobInfo] | None) -> list[BlobInfo]:
    return [info for info in (objects.walk(USED) if infos is None else infos) if _is_journal_name(info.name)]


def _is_journal_name(name: str) -> bool:
    _day, _, rest = name.removeprefix(USED).partition("/")
    process, _, number = rest.rpartition("-")
    return number.isdecimal() and is_process_name(process)


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
) -> dict[str, bool]:
    """Note the uses of each journal that can be read in time; the others are left for the next pass.

    Returns:
        The names of the journals of ours that were read, and whether each was intact.
    """
    intact: dict[str, bool] = {}
    deadline = time.monotonic() + _READING_SECONDS
    least = {info.name: min(info.created, now) if info.created >= in_use_since else -math.inf for info in infos}
    for name, blob in _read_all(objects, infos, deadline):
        try:
            uses = decode_lines(blob.data, limit=journal_format.MAX_JOURNAL)
            listing.note_uses(((key, max(at, least[name])) for key, at in uses), now=now)
            intact[name] = True
        except EntryVersionError:
            continue
        except EntryCorruptError:
            # Never delete a file that ejcache did not write, whatever its name.
            if journal_format.is_ours(blob.data):
                intact[name] = False
    return intact


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
