"""Recency on storage that keeps none: each process writes what it used, and upkeep folds that together.

    v1/used/<day>/<host>-<pid>-<uuid>-<n>      a journal: written once, by one process, never changed
    v1/used/snapshot                           everything that was folded so far

A bucket has no access time and takes about one write a second to an object. So a use costs nothing when it happens,
a process writes at most one small object a minute, and a process that is killed loses its last minute. Folding is
taking the later of two times, so that a journal that is folded twice, by two processes or after a crash, does no harm.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from ejcache.errors import EntryCorruptError, EntryVersionError, StoreBusyError, StoreError, StoreReadOnlyError
from ejcache.stores.objects import ABSENT
from ejcache.stores.shared_layout import process_name
from ejcache.upkeep.journal_format import decode, decode_lines, encode, encode_ordered
from ejcache.upkeep.parallel import in_parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ejcache.stores.objects import ConditionalObjects
    from ejcache.stores.shared_bucket import BlobInfo
    from ejcache.upkeep.listing import Listing

__all__ = ["SNAPSHOT", "USED", "Folded", "JournalWriter", "fold", "read_used"]

log = logging.getLogger("ejcache")

USED: Final = "v1/used/"
SNAPSHOT: Final = "v1/used/snapshot"

_MAX_PENDING: Final = 200_000
_THREADS: Final = 8
_TRIES: Final = 5
_NEW_SECONDS: Final = 86_400.0
"""A use of an entry that a listing does not have is kept for so long: the entry may be younger than the listing."""


class JournalWriter:
    """Writes what this process used, one object at a time. Safe for threads; a forked child writes its own.

    Args:
        objects: where journals are kept.
        drain: what was used since it was last called, and when; `SharedStore.drain_used` is such.
        now: seconds since the epoch.
    """

    def __init__(
        self,
        objects: ConditionalObjects,
        drain: Callable[[], dict[str, float]],
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._objects = objects
        self._drain = drain
        self._now = now
        self._refused = False
        self._after_fork()

    def _after_fork(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._name = process_name()
        self._written = 0
        self._pending: dict[str, float] = {}

    def write(self) -> bool:
        """Write what was used since the last time, if anything was; False if that failed and is tried again next time.

        To be called every minute and when the program ends. Never raises a `StoreError`.
        """
        if self._pid != os.getpid():
            self._after_fork()
        with self._lock:
            for key, used in self._drain().items():
                self._pending[key] = max(used, self._pending.get(key, 0.0))
            while len(self._pending) > _MAX_PENDING:
                del self._pending[next(iter(self._pending))]
            if not self._pending or self._refused:
                return True
            day = time.strftime("%Y-%m-%d", time.gmtime(self._now()))
            name = f"{USED}{day}/{self._name}-{self._written}"
            try:
                self._objects.write(name, encode(self._pending), version=ABSENT)
            except StoreReadOnlyError as exc:
                log.debug("what is used is not written down: %s", exc)
                self._refused = True
                return True
            except StoreError as exc:
                log.debug("a journal of uses was not written: %s", exc)
                return False
            self._written += 1
            self._pending = {}
            return True


@dataclass(frozen=True, slots=True)
class Folded:
    """What folding came to.

    Attributes:
        journals: how many were folded, and are gone.
        damaged: how many could not be read as what they are; they are gone, too.
        left: how many could not be read now, or are of a later version; they stay.
        written: whether the snapshot was written.
    """

    journals: int = 0
    damaged: int = 0
    left: int = 0
    written: bool = False


def fold(
    objects: ConditionalObjects,
    listing: Listing,
    *,
    infos: Iterable[BlobInfo] | None = None,
    complete: bool = False,
    now: float | None = None,
) -> Folded:
    """Fold all journals into the snapshot, and remove them; what they say is noted in `listing`, too.

    The snapshot is written first, under the condition that nobody else has written it, and the journals are removed
    after it: whoever dies in between leaves journals that are folded again.

    Args:
        objects: where they are kept.
        listing: where the uses are noted.
        infos: a listing of `USED`, if there is one already.
        complete: `listing` has all entries that there are; what is known of others is forgotten, unless it is new.
        now: seconds since the epoch; uses in the future, by a clock that is wrong, count as now.

    Raises:
        StoreError: the storage failed; nothing is lost.
        StoreBusyError: others kept folding.
    """
    now = time.time() if now is None else now
    kept_since = now - _NEW_SECONDS if complete else None
    for _ in range(_TRIES):
        version, readable = _note_snapshot(objects, listing, now)
        listed = _journals(objects, infos)
        whole = _note_journals(objects, listing, listed, now)
        if not readable:
            return Folded(left=len(listed))
        snapshot = encode_ordered(partial(listing.uses, unless_gone_since=kept_since), compress=True)
        if objects.write(SNAPSHOT, snapshot, version=version) is not None:
            for _name in objects.delete_many([(info.name, info.version) for info in listed if info.name in whole]):
                pass
            journals = sum(whole.values())
            return Folded(journals, damaged=len(whole) - journals, left=len(listed) - len(whole), written=True)
        infos = None  # somebody else has folded some of these
    raise StoreBusyError("others kept folding the journals of uses")


def read_used(objects: ConditionalObjects, listing: Listing, *, infos: Iterable[BlobInfo] | None = None) -> None:
    """Note in `listing` when each entry was last used, by the snapshot and all journals; nothing else is changed.

    Args:
        objects: where they are kept.
        listing: where the uses are noted.
        infos: a listing of `USED`, if there is one already.

    Raises:
        StoreError: the storage failed.
    """
    now = time.time()
    _note_snapshot(objects, listing, now)
    _note_journals(objects, listing, _journals(objects, infos), now)


def _journals(objects: ConditionalObjects, infos: Iterable[BlobInfo] | None) -> list[BlobInfo]:
    return [info for info in (objects.walk(USED) if infos is None else infos) if info.name != SNAPSHOT]


def _note_journals(objects: ConditionalObjects, listing: Listing, infos: list[BlobInfo], now: float) -> dict[str, bool]:
    """The names of the journals that could be read, and whether each was whole."""
    whole: dict[str, bool] = {}
    for name, used in _read_all(objects, infos):
        whole[name] = used is not None
        listing.note_uses((used or {}).items(), now=now)
    return whole


def _note_snapshot(objects: ConditionalObjects, listing: Listing, now: float) -> tuple[str, bool]:
    """The snapshot's version, and whether it may be overwritten."""
    blob = objects.read(SNAPSHOT)
    if blob is None:
        return ABSENT, True
    try:
        listing.note_uses(decode_lines(blob.data), now=now)
    except EntryVersionError:
        return blob.version, False
    except EntryCorruptError as exc:
        log.warning("ejcache: what was known of the last uses is damaged and begins anew: %s", exc)
    return blob.version, True


def _read_all(objects: ConditionalObjects, infos: list[BlobInfo]) -> Iterator[tuple[str, dict[str, float] | None]]:
    """Name and uses of each journal, None for a damaged one; those that cannot be read now are left out."""

    def read(info: BlobInfo) -> tuple[str, dict[str, float] | None] | None:
        with contextlib.suppress(StoreError, EntryVersionError):
            blob = objects.read(info.name)
            if blob is not None:
                try:
                    return info.name, decode(blob.data)
                except EntryCorruptError:
                    return info.name, None
        return None

    yield from filter(None, in_parallel(read, infos, threads=_THREADS if len(infos) >= _THREADS else 1))
