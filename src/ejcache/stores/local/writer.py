"""Entries written to the index of a local store, by diskcache. The only module that imports diskcache.

diskcache makes the tables, their indexes and the triggers that keep the sum of sizes, and writes rows by `add` and
`set`. A process that only reads does without it: importing it takes as long as thirty hits. Replaced are, and why:

* `Disk`: diskcache reads and writes pickles. `_BytesDisk` stores text keys and bytes, and reads no value at all;
  `ValueFiles` does.
* `Cache.__init__`: diskcache rewrites every setting when it attaches to an index, trying for a minute each time.
* `_con`: diskcache has one connection per thread, and closes in a forked child what SQLite says not to close there.
* `_transact`: diskcache waits without a limit. That of `EntryIndex` waits until a deadline, and undoes the value file
  of a transaction that failed.
* `_row_insert`, `_row_update`: they commit the value file inside the transaction.
* `_cull`: diskcache evicts at most ten rows per write, perhaps the one just written. This one evicts others until the
  sum is within the limit.
* one trigger and one index of the schema: the trigger also fires at every change of recency; expiry times are not used.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, Final

from diskcache import Cache, Disk

from ejcache.errors import StoreTooSmallError
from ejcache.stores.local.values import INLINE_BYTES, PendingValue, digest_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from ejcache.stores.local.index import EntryIndex

__all__ = ["create_index", "write_row"]

_SETTINGS: Final = {
    "eviction_policy": "least-recently-used",
    "cull_limit": 0,
    "size_limit": 2**62,
    "disk_min_file_size": INLINE_BYTES,
    # With a mapped database, a file that another program truncates causes SIGBUS, which kills this one.
    "sqlite_mmap_size": 0,
}
_OUR_SCHEMA: Final = (
    "CREATE TABLE EjcacheCounters (name TEXT PRIMARY KEY, amount) WITHOUT ROWID",
    "CREATE TABLE EjcachePins (key TEXT PRIMARY KEY) WITHOUT ROWID",
    "DROP TRIGGER Settings_size_update",
    """CREATE TRIGGER Settings_size_update AFTER UPDATE OF size ON Cache FOR EACH ROW BEGIN
    UPDATE Settings SET value = value + NEW.size - OLD.size WHERE key = 'size'; END""",
    "DROP INDEX Cache_expire_time",
)
_EVICTABLE: Final = "rowid != ? AND NOT EXISTS (SELECT 1 FROM EjcachePins WHERE EjcachePins.key = Cache.key)"
_CLOCK_SLACK: Final = 60.0
"""Seconds that a use may lie ahead of the clock before the clock is taken to have been wrong then."""


def create_index(directory: Path, *, counters: Mapping[str, float], pins: Sequence[str]) -> None:
    """Create an index without entries in `directory`, which no other process knows of yet."""
    cache = Cache.__new__(Cache)
    try:
        # Not `Cache(…)`: if the disk is full this raises with a connection open, which must be closed.
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


def write_row(index: EntryIndex, key: str, pending: PendingValue, *, replace: bool) -> bool:
    """Write the row of `key`, commit its file and evict; False if there is a row and `replace` is not set."""
    writer = _RowWriter(index)
    done: bool = (writer.set if replace else writer.add)(key, pending, tag=digest_of(key))
    return done


class _BytesDisk(Disk):  # type: ignore[misc]  # diskcache has no types
    """Stores keys that are text and values that are bytes (`PendingValue`); nothing that would have to be unpickled."""

    def put(self, key: str) -> tuple[str, bool]:
        if type(key) is not str:
            raise TypeError(f"a key is text, not {type(key).__name__}")
        return key, True

    def get(self, key: Any, raw: Any) -> str:
        if type(key) is not str or not raw:
            raise sqlite3.DatabaseError("a key in the index is not text")
        return key

    def store(self, value: PendingValue, read: bool, key: Any = None) -> tuple[int, int, str | None, bytes | None]:  # noqa: ARG002, FBT001
        if type(value) is not PendingValue:
            raise TypeError(f"a value is a PendingValue, not {type(value).__name__}")
        return value

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> bytes:  # noqa: ARG002, FBT001
        raise sqlite3.DatabaseError("values are read by EntryIndex.find and ValueFiles.read only")

    def remove(self, file_path: str) -> None:
        raise sqlite3.DatabaseError(f"{file_path} is deleted by EntryIndex.delete_pending only")


class _RowWriter(Cache):  # type: ignore[misc]  # diskcache has no types
    """Writes one row of an index. The index does not refer to it, so that neither keeps the other alive.

    Args:
        index: what is written to.
    """

    _disk = _BytesDisk("", min_file_size=INLINE_BYTES)
    _timeout = 0
    _txn_id = None
    eviction_policy = _SETTINGS["eviction_policy"]
    statistics = 0

    def __init__(self, index: EntryIndex) -> None:
        self._index = index

    @property
    def _con(self) -> sqlite3.Connection:
        return self._index.connection

    def _transact(
        self,
        retry: bool = False,  # noqa: ARG002, FBT001, FBT002 (diskcache's)
        filename: str | None = None,
    ) -> AbstractContextManager[Any]:
        return self._index.transact(filename)

    def _row_insert(self, key: str, raw: int, now: float, columns: tuple[Any, ...]) -> None:
        self._commit_value(columns)
        super()._row_insert(key, raw, now, columns)
        ((self._index.written,),) = self._sql("SELECT last_insert_rowid()").fetchall()

    def _row_update(self, rowid: int, now: float, columns: tuple[Any, ...]) -> None:
        self._commit_value(columns)
        super()._row_update(rowid, now, columns)
        self._index.written = rowid

    def _commit_value(self, columns: tuple[Any, ...]) -> None:
        filename = columns[4]
        if filename is not None:
            self._index.values.commit(filename)

    def _cull(self, now: float, sql: Any, cleanup: Any, _limit: int | None = None) -> None:
        index, limit = self._index, self._index.options.max_size
        index.options.observer("row-written")
        if limit < 0:
            return
        index.uses.mark(sql)
        excess = index.total() - limit
        ((written,),) = sql("SELECT size FROM Cache WHERE rowid = ?", (index.written,)).fetchall()
        if excess > written:
            # The sum was within the limit before, unless another process has a larger limit or the sum is damaged.
            # A damaged sum would evict everything.
            excess = index.recount() - limit
        if excess > 0:
            # Used while the clock was ahead. They would stay the most recent until the clock gets there, and every new
            # entry would be evicted first.
            sql("UPDATE Cache SET access_time = ? WHERE access_time > ?", (now, now + _CLOCK_SLACK))
        number = 1
        gone: set[int] = set()
        while excess > 0:
            number = min(4 * number, 256)
            rows = sql(
                f"SELECT rowid, size, filename, key FROM Cache WHERE {_EVICTABLE}"  # noqa: S608 (constants)
                " ORDER BY access_time, rowid LIMIT ?",
                (index.written, number),
            ).fetchall()
            if not rows:
                excess = index.recount() - limit
                if excess > 0:
                    raise StoreTooSmallError(
                        f"an entry of {written} bytes does not fit beside the pinned entries of {index.directory}"
                    )
            for rowid, size, filename in self._eviction_order(rows, sql):
                if rowid in gone:
                    continue
                sql("DELETE FROM Cache WHERE rowid = ?", (rowid,))
                cleanup(filename)
                gone.add(rowid)
                excess -= size if type(size) is int else 0
                if excess <= 0:
                    break

    def _eviction_order(self, rows: Sequence[tuple[Any, ...]], sql: Any) -> Iterator[tuple[Any, ...]]:
        """The rows, and before each the rows that `evict_before` names."""
        for *row, key in rows:
            for sibling in self._index.options.evict_before(key) if type(key) is str else ():
                yield from sql(
                    f"SELECT rowid, size, filename FROM Cache WHERE {_EVICTABLE} AND key = ? AND raw = 1",  # noqa: S608
                    (self._index.written, sibling),
                ).fetchall()
            yield tuple(row)
