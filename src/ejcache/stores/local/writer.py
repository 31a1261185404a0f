"""One put: a value is written, its row is made, and others are evicted, in one transaction."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ejcache.errors import StoreReadOnlyError, StoreTooSmallError, StoreUnavailableError
from ejcache.stores.local.cost_order import age_after, age_of, convert, order_by_use, set_age
from ejcache.stores.local.index import delete_value
from ejcache.stores.local.index_upkeep import recount
from ejcache.stores.local.sqlite import sqlite3, translate
from ejcache.stores.local.tables import Rows
from ejcache.stores.local.value_files import commit, discard, write_pending

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ejcache.stores.local.connection_manager import ConnectionManager
    from ejcache.stores.local.index import EntryIndex
    from ejcache.stores.local.value_files import PendingValue

_CLOCK_SLACK: Final = 60.0
"""Seconds that a use may lie ahead of the clock before the clock is taken to have been wrong then."""
_TRIES: Final = 5
_CONVERTING: Final = 50
"""Puts between two looks for rows of processes that evict by last use."""


def write_entry(
    manager: ConnectionManager, key: str, data: bytes, worth: float | None = None, *, replace: bool
) -> bool:
    """Store `data` under `key`, and evict others until the limit holds; False if there is an entry and not `replace`.

    Args:
        manager: of the store.
        key: of the entry.
        data: the entry.
        worth: what one use of the entry saves; None to compute it. It counts only where eviction is by cost.
        replace: an entry that is there is replaced.

    Raises:
        StoreTooSmallError: the entry is larger than the limit; nothing was evicted.
        StoreReadOnlyError: this user cannot write there.
        StoreError: the storage failed; nothing was changed.
    """
    for _ in range(_TRIES):
        with manager.held() as index:
            if index is None or index.read_only:
                raise StoreReadOnlyError(f"{manager.root} cannot be written by this user")
            try:
                # Not inside `change`: other threads can use the store while a large value is written.
                value = write_pending(index, key, data)
            except OSError as exc:
                if index.stale():
                    continue  # the directory was moved or deleted
                raise translate(exc, manager.root) from exc
            each = None
            if index.options.worth is not None:
                each = index.options.worth(data, len(data)) if worth is None else worth / max(len(data), 1)
            written = None
            try:
                written = manager.change(partial(_write_row, index, value, replace, each), make=True)
            finally:
                if not written:
                    discard(index, value.filename)
            if written is not None:
                return written
    raise StoreUnavailableError(f"{manager.root} is being removed or replaced again and again")


def _write_row(
    index: EntryIndex,
    value: PendingValue,
    replace: bool,  # noqa: FBT001 (by `partial`)
    worth: float | None,
    current: EntryIndex,
) -> bool | None:
    """Make the row, give the file its final name, and evict, or change nothing; None if the index is not in use now."""
    if current is not index:
        return None
    try:
        with index.transact():
            age = 0.0 if worth is None else age_of(index.connection.execute)
            rows = Rows(index, None if worth is None else (worth, age + worth))
            if not (rows.set if replace else rows.add)(value.key, value, tag=value.tag):
                return False
            if value.filename is not None:
                commit(index, value.filename)
            if index.options.max_size >= 0:
                _evict(index, value, age)
    except BaseException:
        if value.filename is not None:
            _delete_file(index, value.key, value.filename)
        raise
    return True


def _delete_file(index: EntryIndex, key: str, filename: str) -> None:
    """Delete the file of a value whose row is not committed. After Ctrl-C during a COMMIT, it is."""
    named = "SELECT 1 FROM Cache WHERE key = ? AND raw = 1 AND filename = ?"
    # If this fails (closed or damaged connection), the next sweep deletes the file.
    with contextlib.suppress(sqlite3.Error):
        if index.connection.execute(named, (key, filename)).fetchone() is None:
            discard(index, filename)
            delete_value(index.generation, filename)


def _evict(index: EntryIndex, value: PendingValue, age: float) -> None:
    """Delete entries in the order of eviction until the limit holds, inside the transaction that stores `value`."""
    sql, limit = index.connection.execute, index.options.max_size
    index.mark_uses()
    excess = index.total() - limit
    if excess > value.size:
        # The sum was within the limit before, unless another process has a larger limit or the sum is damaged. A
        # damaged sum would evict everything.
        excess = recount(index) - limit
    order, condition = "access_time", ""
    if excess > 0 and index.options.worth is not None:
        if index.evictions % _CONVERTING == 0:
            convert(sql, index.generation, index.options.worth, age, besides=value.key)
        order, condition = "turn", "AND turn IS NOT NULL"
    elif excess > 0:
        if index.evictions == 0:
            order_by_use(sql)
        _correct_uses(index)
    index.evictions += excess > 0
    number, before = 1, age
    gone: dict[int, Any] = {}
    while excess > 0:
        number = min(4 * number, 256)
        rows = sql(
            f"SELECT rowid, size, filename, {order}, key FROM Cache WHERE key IS NOT ? {condition}"  # noqa: S608 (constants)
            f" ORDER BY {order}, rowid LIMIT ?",
            (value.key, number),
        ).fetchall()
        if not rows and condition:
            order, condition = "access_time", ""
            _correct_uses(index)
            continue
        if not rows:
            excess = recount(index) - limit
            if excess > 0:
                raise StoreTooSmallError(
                    f"an entry of {value.size} bytes is larger than the limit of {index.generation}"
                )
        for rowid, size, filename, turn in _with_useless_ones(index, value, rows):
            if rowid in gone:
                continue
            if condition and isinstance(turn, float):
                age = age_after(age, turn, part=size / max(limit, 1) if type(size) is int else 0.0)
            sql("DELETE FROM Cache WHERE rowid = ?", (rowid,))
            gone[rowid] = filename
            excess -= size if type(size) is int else 0
            if excess <= 0:
                break
    if age > before:
        set_age(sql, age)
    index.removed.extend(gone.values())


def _correct_uses(index: EntryIndex) -> None:
    """Correct uses from while the clock was ahead.

    They would stay the most recent until the clock gets there, and every new entry would be evicted first.
    """
    now = time.time()
    index.connection.execute("UPDATE Cache SET access_time = ? WHERE access_time > ?", (now, now + _CLOCK_SLACK))


def _with_useless_ones(
    index: EntryIndex, value: PendingValue, rows: Sequence[tuple[Any, ...]]
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows, and before each the rows that `evict_before` names."""
    useless = index.options.evict_before
    for *row, key in rows:
        for other in useless(key) if useless is not None and type(key) is str else ():
            yield from index.rows(
                "SELECT rowid, size, filename, NULL FROM Cache WHERE key IS NOT ? AND key = ? AND raw = 1",
                value.key,
                other,
            )
        yield tuple(row)
