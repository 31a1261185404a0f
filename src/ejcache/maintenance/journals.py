"""The compaction of usage journals, and the temporary tables in which a pass keeps what it has listed.

Temporary tables on disk, and the listing of a shared cache that is kept in them.

A bucket may hold more entries than fit into memory, and a maintenance pass runs beside a training program that needs
its memory. SQLite keeps a small table in memory and a large one in a temporary file without a name, which disappears
with the process, however the process ends.

The compaction of usage journals (`stores.shared.usage`).

    v1/used/snapshot        the last uses of all journals that were compacted so far
    v1/counters/=baseline   the sums of their counters

A maintenance pass writes the records of journals into one more (`start_records`), adds the sums to the baseline, which
names the journals that were folded, merges the uses into the snapshot, and deletes the journals, in this order. Of a
journal that the baseline names already, because a pass has died halfway, the snapshot takes the times of the last uses
again, which changes nothing, and not how many uses there were.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import sqlite3
import time
import weakref
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

from ejcache.bucket.base import ABSENT
from ejcache.errors import EntryCorruptError, EntryVersionError, StoreError
from ejcache.maintenance.start_records import RecordKeeper
from ejcache.maintenance.worth import FORGETTING_SECONDS
from ejcache.stores.base import EntryInfo, EntryUse
from ejcache.stores.local.cost_order import WEIGHT
from ejcache.stores.shared.usage import (
    MAX_JOURNAL,
    MAX_SNAPSHOT,
    USED,
    Baseline,
    decode_lines,
    decode_pieces,
    decode_sums,
    encode_ordered,
    is_journal,
    is_journal_name,
)
from ejcache.util.lifecycle import Closing
from ejcache.util.threads import in_parallel
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ejcache.bucket.base import Blob, BlobInfo, Bucket


_CACHE_KIB: Final = 1024
"""Memory for the pages of one database; SQLite writes the other pages to the temporary file."""
row_key: Final[Callable[[str], bytes]] = methodcaller("encode", "utf-8", "surrogateescape")
"""`key` as a row holds it: sorted as text is, and able to hold file names that are not valid text."""
key_of_row: Final[Callable[[bytes], str]] = methodcaller("decode", "utf-8", "surrogateescape")
"""The key from which `row_key` made what a row holds."""


class TemporaryTables(Closing):
    """Tables that only this object sees. One thread at a time may use them.

    Args:
        schema: the statements that create the tables.

    Every method raises `StoreError` if the disk has no room for temporary files.
    """

    def __init__(self, *schema: str) -> None:
        with _translated():
            # An empty name makes a temporary database, in a file that has no name either.
            connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        # Readers keep this object alive while they read. The finalizer closes the connection, because Python warns
        # of connections that nobody closed.
        self._forget = weakref.finalize(self, connection.close)
        # When the program ends, another thread (or, in a forked child, a thread of the parent) may be using the
        # connection; closing it then crashes or hangs. The file has no name, so that it disappears anyway.
        self._forget.atexit = False
        self._connection = connection
        # The tables need not survive the process, so that SQLite need not wait for the disk.
        self.run("PRAGMA synchronous = OFF", f"PRAGMA cache_size = -{_CACHE_KIB}", "PRAGMA temp_store = FILE", *schema)

    def run(self, *statements: str) -> None:
        """Run statements that return no rows."""
        with _translated():
            for statement in statements:
                self._connection.execute(statement).close()

    def insert(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Run `statement` for each of `rows`; if `rows` raises, none of them is inserted."""
        with _translated():
            self._connection.execute("BEGIN")
            try:
                self._connection.executemany(statement, rows)
            except BaseException:
                if self._connection.in_transaction:  # a full disk has already ended the transaction
                    self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def rows(self, query: str, *parameters: object) -> Iterator[tuple[Any, ...]]:
        """The rows of `query`, one at a time; the tables must not change while they are read."""
        with _translated():
            # `yield from` would close the cursor together with this generator, possibly after the connection was
            # closed, and SQLite reports that as an error.
            for row in self._connection.execute(query, parameters):  # noqa: UP028
                yield row

    def close(self) -> None:
        """Delete the tables; this also happens when the last reference disappears."""
        self._forget()


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as exc:
        raise StoreError(
            f"a table in a temporary file failed ({exc}); SQLITE_TMPDIR, or else TMPDIR, names the directory, which "
            "needs about 300 bytes for each entry"
        ) from exc


_SCHEMA: Final = (
    "CREATE TABLE entries (key BLOB PRIMARY KEY, size INTEGER, created REAL, version TEXT) WITHOUT ROWID",
    "CREATE TABLE uses (key BLOB PRIMARY KEY, used REAL, times INTEGER, worth REAL) WITHOUT ROWID",
)
_ENTRIES: Final = f"""
    SELECT entries.key, size, created, max(created, ifnull(used, created)), version, ifnull(times, 0),
        worth * {WEIGHT.format(hits="times")} / max(size, 1)
            / (1 + max(? - max(created, used), 0) / {FORGETTING_SECONDS}),
        worth
    FROM entries LEFT JOIN uses ON uses.key = entries.key
"""  # noqa: S608 (constants)
_USES: Final = (
    "SELECT key, used, times, worth FROM uses WHERE used > ? OR key IN (SELECT key FROM entries) ORDER BY key"
)
_NOTE_USE: Final = """
    INSERT INTO uses VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET
        worth = CASE WHEN excluded.used < used THEN ifnull(worth, excluded.worth)
                     ELSE ifnull(excluded.worth, worth) END,
        used = max(used, excluded.used), times = times + excluded.times
"""


class Listing(TemporaryTables):
    """The entries that a bucket's listing found, and the uses that usage journals report."""

    def __init__(self) -> None:
        super().__init__(*_SCHEMA)

    def add(self, found: Iterable[EntryInfo]) -> None:
        """Add entries; `last_used` is ignored, because `note_uses` knows better."""
        rows = ((row_key(info.key), info.size, info.created, info.version) for info in found)
        self.insert("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)", rows)

    def note_uses(self, used: Iterable[tuple[str, EntryUse]], *, now: float) -> None:
        """Note uses of keys, which are joined with those noted before; a time after `now` counts as `now`.

        If `used` raises, none of its uses is noted.
        """
        self.insert(_NOTE_USE, ((row_key(key), min(use.when, now), use.times, use.worth) for key, use in used))

    def forget_uses(self) -> None:
        """Forget what `note_uses` has noted."""
        self.run("DELETE FROM uses")

    def entries(self, *, now: float) -> Iterator[EntryInfo]:
        """Every entry, with its last use, its uses, and its order by cost at this time (`FORGETTING_SECONDS`)."""
        for key, *fields in self.rows(_ENTRIES, now):
            yield EntryInfo(key_of_row(key), *fields)

    def uses(self, *, unless_gone_since: float | None = None) -> Iterator[tuple[str, EntryUse]]:
        """Keys and their uses, ordered by key.

        Args:
            unless_gone_since: seconds since the epoch; leave out keys that are not listed and were last used before.
        """
        since = float("-inf") if unless_gone_since is None else unless_gone_since
        for key, *use in self.rows(_USES, since):
            yield key_of_row(key), EntryUse(*use)


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
"""Journals that one pass folds, because the baseline names them; the next pass folds the others."""


class Listed(NamedTuple):
    """The journals that there are, and what was folded when they were listed.

    A baseline that was written after the listing may name objects that are not listed.
    """

    baseline: Baseline
    infos: list[BlobInfo]

    @classmethod
    def now(cls, objects: Bucket) -> Listed:
        """Read the baseline, and then list."""
        return cls(Baseline.read(objects), [*objects.walk(USED)])

    @property
    def journals(self) -> list[BlobInfo]:
        """The usage journals."""
        return [info for info in self.infos if is_journal_name(info.name)]

    def unfolded(self) -> set[str]:
        """The names of the journals that one pass folds."""
        names = (info.name for info in self.journals if info.name not in self.baseline.folded)
        return set(itertools.islice(names, _MOST_FOLDED))


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
        baseline, infos = listed = listed or Listed.now(objects)
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


def _note_snapshot(objects: Bucket, listing: Listing, now: float) -> tuple[str, bool]:
    """The snapshot's version, and whether it may be overwritten."""
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
    listing: Listing,
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
