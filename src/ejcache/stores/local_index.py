"""diskcache's index under our rules: bytes only, strict bounds, finite waits. The only module that imports diskcache.

What is diskcache's: the tables, their indexes, the triggers that keep the sum of sizes, and the transactions of `add`,
`set` and `delete`. What is ours is what they leave open: `BytesDisk` neither writes nor reads pickles; `_cull` evicts
until the sum is within the limit, and never the row just written; `_transact` waits for a finite time; attaching to an
index that exists writes nothing (diskcache rewrites every setting, and tries each time for a minute).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from diskcache import Cache, Disk

from ejcache.errors import StoreBusyError, StoreTooSmallError
from ejcache.keys.key import siblings_to_go_first
from ejcache.stores import local_faults
from ejcache.stores.local_disk import INLINE_BYTES, Row, Staged, Values, digest_of
from ejcache.stores.local_layout import INDEX, WAL_BYTES
from ejcache.stores.local_locks import pause
from ejcache.stores.local_trouble import Trouble, damage, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = ["EntryIndex"]

_SETTINGS: Final = {
    "eviction_policy": "least-recently-used",
    "cull_limit": 0,
    "size_limit": 2**62,
    "disk_min_file_size": INLINE_BYTES,
    # A mapped database turns a file that somebody truncates into SIGBUS, which kills the program.
    "sqlite_mmap_size": 0,
}
_OUR_SCHEMA: Final = (
    "CREATE TABLE EjcacheCounters (name TEXT PRIMARY KEY, amount) WITHOUT ROWID",
    "CREATE TABLE EjcachePins (key TEXT PRIMARY KEY) WITHOUT ROWID",
    # diskcache's own fires at every change of recency too.
    "DROP TRIGGER Settings_size_update",
    """CREATE TRIGGER Settings_size_update AFTER UPDATE OF size ON Cache FOR EACH ROW BEGIN
    UPDATE Settings SET value = value + NEW.size - OLD.size WHERE key = 'size'; END""",
    "DROP INDEX Cache_expire_time",
)
_REQUIRED: Final = frozenset(
    {
        "Settings", "Cache", "Cache_key_raw", "Cache_access_time", "EjcacheCounters", "EjcachePins",
        "Settings_count_insert", "Settings_count_delete",
        "Settings_size_insert", "Settings_size_update", "Settings_size_delete",
    }
)  # fmt: skip
_COLUMNS: Final = "rowid, tag, size, mode, filename, length(value), store_time"
_AT: Final = f"SELECT {_COLUMNS} FROM Cache WHERE rowid = ?"  # noqa: S608 (constants)
_FIND_LENGTH: Final = f"SELECT {_COLUMNS} FROM Cache WHERE key = ? AND raw = 1"  # noqa: S608
_FIND_WHOLE: Final = _FIND_LENGTH.replace("length(value)", "value")
_EVICTABLE: Final = "rowid != ? AND NOT EXISTS (SELECT 1 FROM EjcachePins WHERE EjcachePins.key = Cache.key)"
_WATCH_STEPS: Final = 1_000_000
_MOST_USED: Final = 1_000
_CLOCK_SLACK: Final = 60.0
"""Seconds that a use may lie ahead of the clock before the clock is taken to have been wrong then."""
_MOST_STEPS: Final = 200
"""A statement of more than this many million steps walks in circles in a damaged index."""


class BytesDisk(Disk):  # type: ignore[misc]  # diskcache has no types
    """Keys that are text and values that are `Staged` bytes, and nothing that would have to be unpickled."""

    values: Values

    def put(self, key: str) -> tuple[str, bool]:
        if type(key) is not str:
            raise TypeError(f"a key is text, not {type(key).__name__}")
        return key, True

    def get(self, key: Any, raw: Any) -> str:
        if type(key) is not str or not raw:
            raise sqlite3.DatabaseError("a key in the index is not text")
        return key

    def store(self, value: Staged, read: bool, key: Any = None) -> tuple[int, int, str | None, bytes | None]:  # noqa: ARG002, FBT001
        if type(value) is not Staged:
            raise TypeError(f"a value is bytes, staged, and not {type(value).__name__}")
        return value

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> bytes:  # noqa: ARG002, FBT001
        raise sqlite3.DatabaseError("values are read by EntryIndex.find and Values.read only")

    def remove(self, file_path: str) -> None:
        self.values.remove(file_path)


class _Connection(sqlite3.Connection):
    """Closes itself when a store is dropped without `close`, which Python 3.13 otherwise warns of."""

    def __del__(self) -> None:
        # One whose database could not be opened says that it was never made.
        with contextlib.suppress(sqlite3.ProgrammingError):
            self.close()


class EntryIndex(Cache):  # type: ignore[misc]  # diskcache has no types
    """One connection to the index of one generation. Its user calls it from one thread at a time.

    Attributes:
        deadline: monotonic seconds until which writes wait for other writers; set before each call.
        max_size: what `add` and `set` keep the sum of sizes within, -1 for no limit.
        doomed: value files whose rows are gone and which are still to be removed.
    """

    def __init__(self, directory: Path, *, token: str = "", mode: str = "rw", max_size: int = -1) -> None:
        # Not diskcache's: see the module.
        self._directory = str(directory)
        self._timeout = 0
        self._txn_id = None
        self.eviction_policy = _SETTINGS["eviction_policy"]
        self.statistics = 0
        self.values = Values(directory, token)
        self._disk = BytesDisk(self._directory, min_file_size=INLINE_BYTES)
        self._disk.values = self.values
        self.deadline = 0.0
        self.max_size = max_size
        self.doomed: list[str] = []
        self._used: dict[str, float] = {}
        self._wal = directory / (INDEX + "-wal")
        self._written: int | None = None
        how = "mode=ro&immutable=1" if mode == "immutable" else f"mode={mode}"
        # isolation_level None: transactions are begun and ended in so many words. timeout 0: `_transact` waits.
        self.connection = sqlite3.connect(
            f"file:{quote(str(directory / INDEX))}?{how}",
            uri=True,
            timeout=0,
            isolation_level=None,
            check_same_thread=False,
            factory=_Connection,
        )
        try:
            self._set_up(read_only=mode != "rw")
        except BaseException:
            self.connection.close()
            raise

    @staticmethod
    def create(directory: Path, *, counters: Mapping[str, float], pins: Sequence[str]) -> None:
        """Make an index without entries in `directory`, which nobody else knows of yet."""
        cache = Cache.__new__(Cache)
        try:
            # Called by name, because where there is no room for the new files it fails with a connection open.
            cache.__init__(str(directory), timeout=0, **_SETTINGS)
            with cache.transact():
                for statement in _OUR_SCHEMA:
                    cache._sql(statement)  # noqa: SLF001 (its base class)
                for counter in counters.items():
                    cache._sql("INSERT OR IGNORE INTO EjcacheCounters VALUES (?, ?)", counter)  # noqa: SLF001
                for pin in pins:
                    cache._sql("INSERT OR IGNORE INTO EjcachePins VALUES (?)", (pin,))  # noqa: SLF001
        finally:
            if hasattr(cache, "_local"):
                cache.close()

    def _set_up(self, *, read_only: bool) -> None:
        self.connection.text_factory = _decoded
        self._steps = 0
        self.connection.set_progress_handler(self._watch, _WATCH_STEPS)
        for pragma in (
            "mmap_size = 0",
            "synchronous = NORMAL",
            "trusted_schema = OFF",
            f"journal_size_limit = {WAL_BYTES // 2}",
            f"wal_autocheckpoint = {WAL_BYTES // 2 // 4096}",
            f"query_only = {int(read_only)}",
        ):
            self._sql(f"PRAGMA {pragma}")
        names = {name for (name,) in self._sql("SELECT name FROM sqlite_master").fetchall()}
        if not names >= _REQUIRED:
            # Its code is that of a missing table.
            self._sql("SELECT 1 FROM Cache, Settings, EjcacheCounters, EjcachePins LIMIT 1")
            raise damage(f"the index lacks {', '.join(sorted(_REQUIRED - names))}")
        self.total()

    @property
    def _con(self) -> sqlite3.Connection:
        # diskcache's is one per thread, and closes in a forked child what SQLite says not to close there.
        return self.connection

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def _watch(self) -> int:
        self._steps += 1
        return int(self._steps > _MOST_STEPS)

    @contextlib.contextmanager
    def _transact(self, retry: bool = False, filename: str | None = None) -> Iterator[Any]:  # noqa: ARG002, FBT001, FBT002
        sql = self._sql
        self._steps = 0
        removed: list[str] = []
        self._begin()
        try:
            yield sql, removed.append
            local_faults.reach("before-commit")
            sql("COMMIT")
        except BaseException:
            # What cannot be undone here, as the connection is closed or damaged, is the next sweep's.
            with contextlib.suppress(sqlite3.Error):
                if self.connection.in_transaction:
                    sql("ROLLBACK")
                if filename is not None and not self._committed(filename):
                    self.values.discard(filename)
                    self.values.remove(filename)
            raise
        self.doomed.extend(filter(None, removed))
        local_faults.reach("committed")

    def _committed(self, filename: str) -> bool:
        """Whether the row written last stands with this file: Ctrl-C during a COMMIT is raised after it."""
        named = "SELECT 1 FROM Cache WHERE rowid = ? AND filename = ?"
        return self._sql(named, (self._written, filename)).fetchone() is not None

    def _begin(self) -> None:
        while True:
            try:
                self._sql("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as exc:
                if kind_of(exc) is not Trouble.BUSY:
                    raise
                if not pause(self.deadline):
                    raise StoreBusyError(f"another process kept the index of {self._directory} busy too long") from exc

    def _row_insert(self, key: str, raw: int, now: float, columns: tuple[Any, ...]) -> None:
        self._place(columns)
        super()._row_insert(key, raw, now, columns)
        ((self._written,),) = self._sql("SELECT last_insert_rowid()").fetchall()

    def _row_update(self, rowid: int, now: float, columns: tuple[Any, ...]) -> None:
        self._place(columns)
        super()._row_update(rowid, now, columns)
        self._written = rowid

    def _place(self, columns: tuple[Any, ...]) -> None:
        filename = columns[4]
        if filename is not None:
            self.values.place(filename)

    def _cull(self, now: float, sql: Any, cleanup: Any, limit: int | None = None) -> None:  # noqa: ARG002
        local_faults.reach("row-written")
        if self.max_size < 0:
            return
        self._mark_used(sql)
        excess = self.total() - self.max_size
        ((written,),) = sql("SELECT size FROM Cache WHERE rowid = ?", (self._written,)).fetchall()
        if excess > written:
            # The sum was within this limit before, unless somebody else has a larger one, or the sum is damaged:
            # then believing it would evict everything.
            excess = self.recount() - self.max_size
        if excess > 0:
            # Used while the clock was wrong: they would stay the most recent until time catches up, and each new entry
            # be the one that goes.
            sql("UPDATE Cache SET access_time = ? WHERE access_time > ?", (now, now + _CLOCK_SLACK))
        number = 1
        gone: set[int] = set()
        while excess > 0:
            number = min(4 * number, 256)
            rows = sql(
                f"SELECT rowid, size, filename, key FROM Cache WHERE {_EVICTABLE}"  # noqa: S608 (constants)
                " ORDER BY access_time, rowid LIMIT ?",
                (self._written, number),
            ).fetchall()
            if not rows:
                excess = self.recount() - self.max_size
                if excess > 0:
                    raise StoreTooSmallError(
                        f"an entry of {written} bytes does not fit beside the pinned entries of {self._directory}"
                    )
            for rowid, size, filename in self._in_order_of_eviction(rows, sql):
                if rowid in gone:
                    continue
                sql("DELETE FROM Cache WHERE rowid = ?", (rowid,))
                cleanup(filename)
                gone.add(rowid)
                excess -= size if type(size) is int else 0
                if excess <= 0:
                    break

    def _in_order_of_eviction(self, rows: Sequence[tuple[Any, ...]], sql: Any) -> Iterator[tuple[Any, ...]]:
        """The rows, and before each the rows of entries that serve nobody while it is there."""
        for *row, key in rows:
            for sibling in siblings_to_go_first(key) if type(key) is str else ():
                yield from sql(
                    f"SELECT rowid, size, filename FROM Cache WHERE {_EVICTABLE} AND key = ? AND raw = 1",  # noqa: S608
                    (self._written, sibling),
                ).fetchall()
            yield tuple(row)

    def bury(self) -> bool:
        """Remove the files of rows that are gone; False if some could not be removed."""
        good = True
        while self.doomed:
            good = self.values.remove(self.doomed[-1]) and good
            self.doomed.pop()
        return good

    def fold(self) -> None:
        """Fold a write-ahead log that readers have kept from being reused into the database."""
        with contextlib.suppress(OSError):
            if os.stat(self._wal).st_size <= WAL_BYTES:  # noqa: PTH116 (at every put)
                return
            self.checkpoint()

    def checkpoint(self) -> None:
        """Fold the write-ahead log into the database, if nobody is in the way for a tenth of a second."""
        self._sql("PRAGMA busy_timeout = 100")
        try:
            self._sql("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.OperationalError as exc:
            if kind_of(exc) is not Trouble.BUSY:
                raise
        finally:
            self._sql("PRAGMA busy_timeout = 0")

    # -- rows ------------------------------------------------------------------------------------------------------

    def find(self, key: str, *, whole: bool) -> Row | None:
        """The row of `key`, with its value or only the value's length."""
        self._steps = 0
        row = self._sql(_FIND_WHOLE if whole else _FIND_LENGTH, (key,)).fetchone()
        return None if row is None else Row(*row)

    def write(self, key: str, staged: Staged, *, replace: bool) -> bool:
        """Make the row of `key`, place its file and evict; False if a row stands and is not to be replaced."""
        done: bool = (self.set if replace else self.add)(key, staged, tag=digest_of(key))
        return done

    def touch(self, key: str, when: float) -> None:
        """Make this key's row used at this time; if the index is busy until the deadline, with the next write."""
        self._used[key] = when
        while len(self._used) > _MOST_USED:
            del self._used[next(iter(self._used))]
        self.note_uses()

    def note_uses(self) -> None:
        """Write down the uses that could not be noted when they happened.

        Raises:
            StoreBusyError: another process kept the index busy until the deadline.
        """
        if self._used:
            with self._transact() as (sql, _):
                self._mark_used(sql)
            self._used.clear()

    def _mark_used(self, sql: Any) -> None:
        for key, when in self._used.items():
            sql("UPDATE Cache SET access_time = ? WHERE key = ? AND raw = 1 AND access_time < ?", (when, key, when))

    def remove(self, row: Row) -> bool:
        """Remove exactly this row and its file; False if it is gone or was replaced."""
        with self._transact() as (sql, cleanup):
            now = sql(_AT, (row.rowid,)).fetchone()
            # Compared here and not by SQLite: what a damaged row holds may be no parameter for a statement.
            if now is None or Row(*now)._replace(value=None) != row._replace(value=None):
                return False
            sql("DELETE FROM Cache WHERE rowid = ?", (row.rowid,))
            cleanup(row.filename)
            return True

    def page(self, after: str, number: int) -> list[tuple[Any, ...]]:
        """The next `number` rows in the order of keys: key, size, store_time, access_time."""
        self._steps = 0
        rows: list[tuple[Any, ...]] = self._sql(
            "SELECT key, size, store_time, access_time FROM Cache"
            " WHERE key > ? AND raw = 1 AND typeof(key) = 'text' ORDER BY key LIMIT ?",
            (after, number),
        ).fetchall()
        return rows

    def whole_rows(self, after: int, number: int) -> list[tuple[Any, ...]]:
        """The next `number` rows in the order of rowids: key, raw, and a `Row` with the length of its value."""
        self._steps = 0
        return [
            (key, raw, Row(*row))
            for key, raw, *row in self._sql(
                f"SELECT key, raw, {_COLUMNS} FROM Cache WHERE rowid > ? ORDER BY rowid LIMIT ?",  # noqa: S608
                (after, number),
            ).fetchall()
        ]

    def filenames(self) -> set[str]:
        """The value files that rows name."""
        self._steps = 0
        return {name for (name,) in self._sql("SELECT filename FROM Cache WHERE filename IS NOT NULL")}

    def sweep_placed(self) -> int:
        """Remove the value files that no row names; answer how many that was.

        Most are told without a lock, as far as that goes. What is left is told under the write lock, where a file
        without a row belongs to nobody.
        """
        found = set(self.values.placed())
        if not found - self.filenames():
            return 0
        with self._transact():
            orphans = found - self.filenames()
            return sum(self.values.remove(name) for name in orphans)

    # -- sums and counters -----------------------------------------------------------------------------------------

    def total(self) -> int:
        """The bytes of all entries."""
        row = self._sql("SELECT value FROM Settings WHERE key = 'size'").fetchone()
        if row is None or type(row[0]) is not int or row[0] < 0:
            return self._sum()
        total: int = row[0]
        return total

    def recount(self) -> int:
        """Set the sum of sizes and the number of rows to what they are; answer the sum. Inside a transaction."""
        total = self._sum()
        for key, value in (("size", total), ("count", self._sql("SELECT COUNT(*) FROM Cache").fetchone()[0])):
            self._sql("INSERT OR REPLACE INTO Settings VALUES (?, ?)", (key, value))
        return total

    def drift(self) -> int:
        """By how much the kept sum of sizes differs from what the rows say."""
        return self.total() - self._sum()

    def _sum(self) -> int:
        self._steps = 0
        return int(self._sql("SELECT COALESCE(SUM(size), 0) FROM Cache WHERE typeof(size) = 'integer'").fetchone()[0])

    def add_counters(self, amounts: Mapping[str, float]) -> None:
        """Add to the counters."""
        with self._transact() as (sql, _):
            for name, amount in amounts.items():
                sql(
                    "INSERT INTO EjcacheCounters VALUES (?, ?)"
                    " ON CONFLICT (name) DO UPDATE SET amount = amount + excluded.amount",
                    (name, amount),
                )

    def counters(self) -> dict[str, float]:
        """The counters."""
        self._steps = 0
        rows = self._sql("SELECT name, amount FROM EjcacheCounters").fetchall()
        return {name: amount for name, amount in rows if isinstance(name, str) and isinstance(amount, int | float)}

    def reset_counters(self) -> None:
        """Forget the counters."""
        with self._transact() as (sql, _):
            sql("DELETE FROM EjcacheCounters")

    def pin(self, key: str, *, pinned: bool) -> bool:
        """Keep `key` from being evicted, or no longer; False if that was so already."""
        statement = (
            "INSERT OR IGNORE INTO EjcachePins VALUES (?)" if pinned else "DELETE FROM EjcachePins WHERE key = ?"
        )
        with self._transact() as (sql, _):
            return bool(sql(statement, (key,)).rowcount)

    def pins(self) -> list[str]:
        """The keys that are kept from being evicted."""
        self._steps = 0
        rows = self._sql("SELECT key FROM EjcachePins ORDER BY key").fetchall()
        return [key for (key,) in rows if isinstance(key, str)]

    def integrity(self) -> list[str]:
        """What SQLite finds wrong with the file, as far as ten messages go."""
        self._steps = -10 * _MOST_STEPS
        lines = [str(line) for (line,) in self._sql("PRAGMA integrity_check(10)").fetchall()]
        return [] if lines == ["ok"] else lines


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")
