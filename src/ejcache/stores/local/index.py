"""The index of a local store: an SQLite database of diskcache's, with our own transactions, deadlines and tables.

diskcache makes it and writes the entries, see `writer`; everything else is done here.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from ejcache._tuples import NamedTuple
from ejcache.errors import StoreBusyError
from ejcache.stores.local.layout import INDEX, WAL_BYTES
from ejcache.stores.local.sqlite_errors import SqliteFailure, classify, damage
from ejcache.stores.local.uses import PendingUses
from ejcache.stores.local.values import MODE_RAW, IndexRow, ValueFiles
from ejcache.util.locks import pause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = ["EntryIndex", "IndexOptions", "nothing_first"]

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
_PAGE: Final = (
    "SELECT key, size, store_time, access_time, access_count FROM Cache"
    " WHERE key > ? AND raw = 1 AND typeof(key) = 'text' ORDER BY key LIMIT ?"
)
_FIND_SMALL: Final = f"SELECT key, {_COLUMNS} FROM Cache WHERE raw = 1 AND mode = {MODE_RAW} AND key IN (?)".replace(  # noqa: S608
    "length(value)", "value"
)
_WHOLE_ROWS: Final = f"SELECT key, raw, {_COLUMNS} FROM Cache WHERE rowid > ? ORDER BY rowid LIMIT ?"  # noqa: S608
_COUNT: Final = """
    INSERT INTO EjcacheCounters VALUES (?) ON CONFLICT (name) DO UPDATE SET amount = amount + excluded.amount
"""
"""In place of (?) it has a row for each counter: Python runs other threads at each statement."""
_WATCH_STEPS: Final = 1_000_000
_MOST_STEPS: Final = 200
"""A statement of more than this many million steps is in an endless loop in a damaged index."""


def nothing_first(key: str) -> Iterable[str]:  # noqa: ARG001
    """No entry is of no use because of another one."""
    return ()


class IndexOptions(NamedTuple):
    """How the index of a store is kept.

    Attributes:
        max_size: bytes of all entries, -1 for no limit.
        evict_before: the keys of entries that are of no use while the entry of a key exists; they are evicted first.
        observer: called with the name of each step of a write, for tests that interrupt it there.
    """

    max_size: int = -1
    evict_before: Callable[[str], Iterable[str]] = nothing_first
    observer: Callable[[str], object] = bool


_DEFAULTS: Final = IndexOptions()


class _Connection(sqlite3.Connection):
    """Closes itself when a store is collected without `close`; Python 3.13 warns of open connections."""

    def __del__(self, never_made: type[Exception] = sqlite3.ProgrammingError) -> None:
        # At the end of an exit, the names of this module are gone. never_made: the database could not be opened.
        try:  # noqa: SIM105
            self.close()
        except never_made:
            pass


class EntryIndex:
    """One connection to the index of one generation, for one thread at a time.

    Args:
        directory: the generation.
        token: of this process, in the names of files that it writes.
        mode: "rw"; or "ro"; or "immutable", to read a database without taking part in its locking.
        options: see `IndexOptions`.

    Attributes:
        values: the value files.
        uses: when entries were used that this index does not know of yet.
        deadline: monotonic seconds until which writes wait for other writers.
        written: the row that was written last.
    """

    def __init__(
        self, directory: Path, *, token: str = "", mode: str = "rw", options: IndexOptions = _DEFAULTS
    ) -> None:
        self.directory = str(directory)
        self.options = options
        self.values = ValueFiles(directory, token, options.observer)
        self.uses = PendingUses()
        self.deadline = 0.0
        self.written: int | None = None
        self._pending_deletes: list[str] = []
        self._wal = directory / (INDEX + "-wal")
        self._only_notes = True
        self._data_version: Any = None
        how = "mode=ro&immutable=1" if mode == "immutable" else f"mode={mode}"
        # isolation_level None: transactions are begun and ended explicitly. timeout 0: `_transact` waits.
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

    def _set_up(self, *, read_only: bool) -> None:
        self.connection.text_factory = lambda text: text.decode(errors="surrogateescape")
        self._steps = _MOST_STEPS
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
            # If a table is missing, the error of this statement says so with SQLite's own code.
            self._sql("SELECT 1 FROM Cache, Settings, EjcacheCounters, EjcachePins LIMIT 1")
            raise damage(f"the index lacks {', '.join(sorted(_REQUIRED - names))}")
        self.total()
        self._data_version = self._sql("PRAGMA data_version").fetchone()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def _watch(self) -> int:
        self._steps -= 1
        return int(self._steps < 0)

    def _rows(self, statement: str, parameters: tuple[Any, ...] = (), *, steps: int = _MOST_STEPS) -> list[Any]:
        self._steps = steps
        rows: list[Any] = self._sql(statement, parameters).fetchall()
        return rows

    @contextlib.contextmanager
    def transact(self, filename: str | None = None, *, notes: bool = False) -> Iterator[Any]:
        """A transaction: a function that runs statements, and one that has a file deleted after the commit.

        Args:
            filename: the value file that the transaction commits; deleted if it fails.
            notes: it writes nothing but uses and counters.

        Raises:
            StoreBusyError: another process kept the index busy until the deadline.
        """
        self._only_notes = self._only_notes and notes
        sql = self._sql
        self._steps = _MOST_STEPS
        removed: list[str] = []
        self._begin()
        try:
            yield sql, removed.append
            self.options.observer("before-commit")
            sql("COMMIT")
        except BaseException:
            self.uses.rolled_back()
            # If this fails (closed or damaged connection), the next sweep deletes the files.
            with contextlib.suppress(sqlite3.Error):
                if self.connection.in_transaction:
                    sql("ROLLBACK")
                if filename is not None and not self._committed(filename):
                    self.values.discard(filename)
                    self.values.delete(filename)
            raise
        self.uses.committed()
        self._pending_deletes.extend(filter(None, removed))
        self.options.observer("committed")

    def _committed(self, filename: str) -> bool:
        """Whether the row that was written last is committed: Ctrl-C during a COMMIT is raised after it."""
        named = "SELECT 1 FROM Cache WHERE rowid = ? AND filename = ?"
        return self._sql(named, (self.written, filename)).fetchone() is not None

    def _begin(self) -> None:
        while True:
            try:
                self._sql("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as exc:
                if classify(exc) is not SqliteFailure.BUSY:
                    raise
                if not pause(self.deadline):
                    raise StoreBusyError(f"another process kept the index of {self.directory} busy too long") from exc

    def delete_pending(self) -> bool:
        """Delete the files of deleted rows; False if some could not be deleted."""
        good = True
        while self._pending_deletes:
            good = self.values.delete(self._pending_deletes[-1]) and good
            self._pending_deletes.pop()
        return good

    def checkpoint_if_large(self) -> None:
        """Move a write-ahead log that has grown long, because readers kept it from being reused, into the database."""
        with contextlib.suppress(OSError):
            if os.stat(self._wal).st_size <= WAL_BYTES:  # noqa: PTH116 (at every put)
                return
            self.checkpoint()

    def checkpoint(self) -> None:
        """Move the write-ahead log into the database, unless another process is using it for a tenth of a second."""
        self._sql("PRAGMA busy_timeout = 100")
        try:
            self._sql("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.OperationalError as exc:
            if classify(exc) is not SqliteFailure.BUSY:
                raise
        finally:
            self._sql("PRAGMA busy_timeout = 0")

    def has_short_log_of_notes(self) -> bool:
        """Whether the log is short, and nobody has written anything but uses and counters since this was opened."""
        if not self._only_notes or self._sql("PRAGMA data_version").fetchone() != self._data_version:
            return False
        try:
            return os.stat(self._wal).st_size <= WAL_BYTES // 2  # noqa: PTH116 (at every exit)
        except FileNotFoundError:
            return False

    @property
    def _sql(self) -> Callable[..., sqlite3.Cursor]:
        return self.connection.execute

    # -- rows ------------------------------------------------------------------------------------------------------

    def find(self, key: str, *, whole: bool) -> IndexRow | None:
        """The row of `key`, with its value or only the value's length."""
        rows = self._rows(_FIND_WHOLE if whole else _FIND_LENGTH, (key,))
        return IndexRow(*rows[0]) if rows else None

    def find_small(self, keys: Sequence[str]) -> dict[str, IndexRow]:
        """The rows of those of these keys, at most a few hundred, whose values are in the rows."""
        rows = self._rows(_FIND_SMALL.replace("?", ", ".join("?" * len(keys))), tuple(keys))
        return {key: IndexRow(*row) for key, *row in rows}

    def write_uses(self) -> None:
        """Write when entries were used; if that fails, the next write does it.

        Raises:
            StoreBusyError: another process kept the index busy until the deadline.
        """
        if self.uses:
            with self.transact(notes=True) as (sql, _):
                self.uses.mark(sql)

    def remove(self, row: IndexRow) -> bool:
        """Delete exactly this row and its file; False if it was deleted or replaced."""
        with self.transact() as (sql, cleanup):
            now = sql(_AT, (row.rowid,)).fetchone()
            # Compared here and not by SQLite, because a value of a damaged row may not be usable as a parameter.
            if now is None or IndexRow(*now)._replace(value=None) != row._replace(value=None):
                return False
            sql("DELETE FROM Cache WHERE rowid = ?", (row.rowid,))
            cleanup(row.filename)
            return True

    def page(self, after: str, number: int) -> list[tuple[Any, ...]]:
        """The next `number` rows in the order of keys: key, size, store_time, access_time, access_count."""
        return self._rows(_PAGE, (after, number))

    def whole_rows(self, after: int, number: int) -> list[tuple[Any, ...]]:
        """The next `number` rows in the order of rowids: key, raw, and an `IndexRow` with the length of its value."""
        return [(key, raw, IndexRow(*row)) for key, raw, *row in self._rows(_WHOLE_ROWS, (after, number))]

    def filenames(self) -> set[str]:
        """The value files that rows name."""
        return {name for (name,) in self._rows("SELECT filename FROM Cache WHERE filename IS NOT NULL")}

    def delete_orphans(self) -> int:
        """Delete the value files that no row names; returns how many that was.

        The candidates are collected without a lock, and confirmed under the write lock.
        """
        found = set(self.values.committed())
        if not found - self.filenames():
            return 0
        with self.transact():
            orphans = found - self.filenames()
            return sum(self.values.delete(name) for name in orphans)

    # -- sums and counters -----------------------------------------------------------------------------------------

    def total(self) -> int:
        """The bytes of all entries."""
        kept = self._rows("SELECT value FROM Settings WHERE key = 'size'")
        return kept[0][0] if kept and type(kept[0][0]) is int and kept[0][0] >= 0 else self._sum()

    def recount(self) -> int:
        """Correct the stored sum of sizes and number of rows; returns the sum. Inside a transaction."""
        total = self._sum()
        for key, value in (("size", total), ("count", self._sql("SELECT COUNT(*) FROM Cache").fetchone()[0])):
            self._sql("INSERT OR REPLACE INTO Settings VALUES (?, ?)", (key, value))
        return total

    def drift(self) -> int:
        """By how many bytes the stored sum of sizes differs from the sum over the rows."""
        return self.total() - self._sum()

    def _sum(self) -> int:
        return int(self._rows("SELECT COALESCE(SUM(size), 0) FROM Cache WHERE typeof(size) = 'integer'")[0][0])

    def add_counters(self, amounts: Mapping[str, float]) -> None:
        """Add to the counters."""
        with self.transact(notes=True) as (sql, _):
            self.uses.mark(sql)
            if amounts:
                rows = ", ".join(["(?, ?)"] * len(amounts))
                sql(_COUNT.replace("(?)", rows), [value for pair in amounts.items() for value in pair])

    def counters(self) -> dict[str, float]:
        """The counters."""
        rows = self._rows("SELECT name, amount FROM EjcacheCounters")
        return {name: amount for name, amount in rows if isinstance(name, str) and isinstance(amount, int | float)}

    def reset_counters(self) -> None:
        """Forget the counters."""
        with self.transact() as (sql, _):
            sql("DELETE FROM EjcacheCounters")

    def pin(self, key: str, *, pinned: bool) -> bool:
        """Keep `key` from being evicted, or stop doing so; False if nothing changed."""
        statement = (
            "INSERT OR IGNORE INTO EjcachePins VALUES (?)" if pinned else "DELETE FROM EjcachePins WHERE key = ?"
        )
        with self.transact() as (sql, _):
            return bool(sql(statement, (key,)).rowcount)

    def pins(self) -> list[str]:
        """The keys that are never evicted."""
        return [key for (key,) in self._rows("SELECT key FROM EjcachePins ORDER BY key") if isinstance(key, str)]

    def integrity_problems(self) -> list[str]:
        """What SQLite finds wrong with the file, in at most ten messages."""
        lines = [str(line) for (line,) in self._rows("PRAGMA integrity_check(10)", steps=11 * _MOST_STEPS)]
        return [] if lines == ["ok"] else lines
