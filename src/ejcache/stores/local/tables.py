"""The tables of an index and the rows of its entries, by diskcache. The only module that imports it.

diskcache's constructor makes the tables, their indexes and the triggers that keep the sum of sizes, in a directory that
no other process knows of yet. Its `add` and `set` write rows. A process that only reads does without diskcache:
importing it takes as long as thirty hits.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from diskcache import Cache, Disk

from ejcache.stores.local.value_files import INLINE_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ejcache.stores.local.index import EntryIndex
    from ejcache.stores.local.value_files import PendingValue

_SETTINGS: Final = {
    "eviction_policy": "least-recently-used",
    # diskcache would evict at most so many rows after a write, the one just written among them. `writer` does it.
    "cull_limit": 0,
    "size_limit": 2**62,
    "disk_min_file_size": INLINE_BYTES,
    # With a mapped database, a file that another program truncates causes SIGBUS, which kills this one.
    "sqlite_mmap_size": 0,
}
_OUR_SCHEMA: Final = (
    "CREATE TABLE EjcacheCounters (name TEXT PRIMARY KEY, amount) WITHOUT ROWID",
    # diskcache's trigger also fires at every change of recency, and expiry times are not used.
    "DROP TRIGGER Settings_size_update",
    """CREATE TRIGGER Settings_size_update AFTER UPDATE OF size ON Cache FOR EACH ROW BEGIN
    UPDATE Settings SET value = value + NEW.size - OLD.size WHERE key = 'size'; END""",
    "DROP INDEX Cache_expire_time",
)

_INSERT_IN_PLACE: Final = """
    INSERT INTO Cache (
        key, raw, store_time, expire_time, access_time, access_count, tag, size, mode, filename, value, worth, turn
    ) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


class _BytesDisk(Disk):  # type: ignore[misc]  # diskcache has no types
    """Stores keys that are text and values that are prepared bytes. diskcache's own would write pickles of others."""

    def put(self, key: str) -> tuple[str, bool]:
        return key, True

    def store(self, value: PendingValue, read: bool, key: Any = None) -> tuple[int, int, str | None, bytes | None]:  # noqa: ARG002, FBT001
        return value.size, value.mode, value.filename, value.data


class Rows(Cache):  # type: ignore[misc]  # diskcache has no types
    """diskcache's `add` and `set` inside a transaction of an `EntryIndex`. Overridden are, and why:

    * the constructor: diskcache rewrites every setting when it attaches to an index, trying for a minute each time;
    * `_sql`: diskcache has one connection for each thread, and closes in a forked child what SQLite says not to close
      there. The index has one, and `connection_manager` closes it before a fork;
    * `_transact`: diskcache waits without a limit or not at all, and deletes files before an outer transaction has
      committed. The index waits until a deadline, and deletes them after the commit;
    * `_row_insert` and `_row_update` of a store in the order by cost: a row has two columns more. To change a row that
      was just made moves it in the index of turns, which takes longer than to make it.

    Args:
        index: of the store.
        place: worth and turn of the row, in a store in the order by cost (`cost_order`).
    """

    _disk = _BytesDisk("", min_file_size=INLINE_BYTES)
    cull_limit = _SETTINGS["cull_limit"]
    _sql: Any = None

    def __init__(self, index: EntryIndex, place: tuple[float, float] | None = None) -> None:
        self._place = place
        self._sql = index.connection.execute
        self._transaction = contextlib.nullcontext((self._sql, index.removed.append))

    def _transact(self, retry: bool = False, filename: str | None = None) -> Any:  # noqa: ARG002, FBT001, FBT002
        return self._transaction

    def _row_insert(self, key: str, raw: bool, now: float, columns: tuple[Any, ...]) -> None:  # noqa: FBT001
        if self._place is None:
            super()._row_insert(key, raw, now, columns)
        else:
            self._sql(_INSERT_IN_PLACE, (key, raw, now, columns[0], now, 0, *columns[1:], *self._place))

    def _row_update(self, rowid: int, now: float, columns: tuple[Any, ...]) -> None:
        super()._row_update(rowid, now, columns)
        if self._place is not None:
            self._sql("UPDATE Cache SET worth = ?, turn = ? WHERE rowid = ?", (*self._place, rowid))


def create_index(directory: Path, *, counters: Mapping[str, float]) -> None:
    """Create an index without entries in `directory`, which no other process knows of yet.

    Raises:
        sqlite3.Error: it could not be created; no connection to it is left open.
    """
    cache = Cache.__new__(Cache)
    try:
        # Not `Cache(…)`: if the disk is full this raises with a connection open, which must be closed.
        cache.__init__(str(directory), timeout=0, **_SETTINGS)
        with cache.transact():
            for statement in _OUR_SCHEMA:
                cache._sql(statement)  # noqa: SLF001
            for counter in counters.items():
                cache._sql("INSERT OR IGNORE INTO EjcacheCounters VALUES (?, ?)", counter)  # noqa: SLF001
    finally:
        if hasattr(cache, "_local"):
            cache.close()
