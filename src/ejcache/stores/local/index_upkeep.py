"""What is asked of an index besides looking an entry up and writing one.

Its rows listed and removed, its files swept, its counters and sums, and whether SQLite finds it whole. A hit does
without.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ejcache.common_errors import StoreBusyError
from ejcache.stores.local.cost_order import has_turns
from ejcache.stores.local.index import LENGTH, MOST_STEPS, WHOLE, IndexRow, delete_value
from ejcache.stores.local.sqlite import classify, sqlite3
from ejcache.stores.local.value_files import committed, delete_unfinished
from ejcache.util.locks import living
from ejcache.util.log import log

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ejcache.stores.local.index import EntryIndex
    from ejcache.stores.local.layout import Layout

# What is put into these statements are constants.
# ruff: noqa: S608
_UNREAD: Final = r"failed to get page|error code ?=? ?(?!11\b)\d"
"""A line of SQLite's check about a page that could not be read: its code is another one than SQLITE_CORRUPT."""
_USED: Final = (
    f"SELECT key, raw, expire_time, access_time, access_count, {WHOLE} FROM Cache",
    "INSERT INTO Cache (key, raw, size) VALUES ('', 1, 0)",
    "UPDATE Cache SET size = 0",
    "DELETE FROM Cache",
    "INSERT INTO Settings (key, value) VALUES ('', 0)",
    "INSERT INTO EjcacheCounters (name, amount) VALUES ('', 0)",
)
"""Statements that SQLite can prepare, with the triggers that they fire, if the tables are those that ejcache makes."""


def remove(index: EntryIndex, row: IndexRow) -> bool:
    """Delete exactly this row and its file; False if it was deleted or replaced."""
    with index.transact() as sql:
        now = sql(f"SELECT {LENGTH} FROM Cache WHERE rowid = ?", (row.rowid,)).fetchone()
        # Compared here and not by SQLite, because a value of a damaged row may not be usable as a parameter.
        if now is None or (*now[:5], now[6]) != (*row[:5], row.stored):
            return False
        sql("DELETE FROM Cache WHERE rowid = ?", (row.rowid,))
        index.removed.append(row.filename)
        return True


def page(index: EntryIndex, after: str, number: int) -> list[tuple[Any, ...]]:
    """Return the next `number` rows in the order of keys; `store.entries` names the columns."""
    turn = "turn, worth * size" if has_turns(index.connection.execute) else "NULL, NULL"
    return index.rows(
        f"SELECT key, size, store_time, access_time, access_count, {turn} FROM Cache"
        " WHERE key > ? AND raw = 1 AND typeof(key) = 'text' ORDER BY key LIMIT ?",
        after,
        number,
    )


def whole_rows(index: EntryIndex, after: int, number: int, *, values: bool = False) -> list[tuple[Any, ...]]:
    """Read the next `number` rows by rowid: key, raw, and an `IndexRow` with its value, or with its length only."""
    select = f"SELECT key, raw, {WHOLE if values else LENGTH} FROM Cache WHERE rowid > ? ORDER BY rowid LIMIT ?"
    return [(key, raw, IndexRow(*row)) for key, raw, *row in index.rows(select, after, number)]


def filenames(index: EntryIndex) -> set[str]:
    """Return the value files that rows name."""
    return {name for (name,) in index.rows("SELECT filename FROM Cache WHERE filename IS NOT NULL")}


def delete_orphans(index: EntryIndex) -> int:
    """Delete the value files that no row names; returns how many that was.

    The candidates are collected without a lock, and confirmed under the write lock.
    """
    found = set(committed(index.generation))
    if not found - filenames(index):
        return 0
    with index.transact():
        return sum(delete_value(index.generation, name) for name in found - filenames(index))


def sweep(index: EntryIndex, layout: Layout, dead: Iterable[Path]) -> None:
    """Delete what processes left behind that died; `dead` are their presence files."""
    index.deadline = time.monotonic() + 1.0
    try:
        swept = delete_unfinished(index.generation, living(Path(layout.present))) + delete_orphans(index)
        index.checkpoint()
    except StoreBusyError:
        return  # the next process that opens the store finds the same presence files
    except sqlite3.Error as exc:
        if classify(exc) != "full":
            raise
        return
    for path in dead:
        path.unlink(missing_ok=True)
    if swept:
        log.info("ejcache: deleted %d files that killed processes had left in %s", swept, layout.root)


def recount(index: EntryIndex) -> int:
    """Correct the stored sum of sizes and number of rows; returns the sum. Inside a transaction."""
    total = index.sum_of_sizes()
    sql = index.connection.execute
    for key, value in (("size", total), ("count", sql("SELECT COUNT(*) FROM Cache").fetchone()[0])):
        sql("INSERT OR REPLACE INTO Settings VALUES (?, ?)", (key, value))
    return total


def counters(index: EntryIndex) -> dict[str, float]:
    """Return the counters."""
    rows = index.rows("SELECT name, amount FROM EjcacheCounters")
    return {name: amount for name, amount in rows if isinstance(name, str) and isinstance(amount, int | float)}


def reset_counters(index: EntryIndex) -> None:
    """Forget the counters."""
    with index.transact() as sql:
        sql("DELETE FROM EjcacheCounters")


def integrity_problems(index: EntryIndex) -> list[str]:
    """Have SQLite check the file and the tables, and return what proves damage, at most ten messages.

    Raises:
        sqlite3.Error: it could not be read, which proves nothing.
    """
    lines = [str(line) for (line,) in index.rows("PRAGMA integrity_check(10)", steps=11 * MOST_STEPS)]
    if any(re.search(_UNREAD, line) for line in lines):
        # A page that the disk did not give counts as damage there, and so does what only that page leads to.
        raise sqlite3.OperationalError("; ".join(lines))
    if lines != ["ok"]:
        return lines
    try:
        for statement in _USED:
            index.connection.execute(f"EXPLAIN {statement}").fetchall()
    except sqlite3.OperationalError as exc:
        if exc.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        return [f"its tables are not those that ejcache makes: {exc}"]
    return []
