"""The order of eviction by what an entry saves: GreedyDual-Size-Frequency, with a slow age and uses that count less.

    turn := age + worth * weight        worth: seconds of compiling ÷ bytes
    weight := 3 * uses / (uses + 2)     uses: the put and every hit; from 1 for a new entry to 3 for one in steady use
    age := age + (turn - age) * bytes / limit        of each entry that is evicted

The entry with the lowest turn goes first. The age rises, so that what is not used any more is overtaken by what comes
later, however much it was worth. In the published algorithm the age becomes the turn of what was evicted, and the
weight is the number of uses. Then one start of a program that is a little larger than the cache makes everything look
old, and after an upgrade of JAX the old entries, which have many uses, stay for long. Source: Cherkasova, "Improving
WWW proxies performance with Greedy-Dual-Size-Frequency caching policy", HP Labs 1998.

A store that is kept in this order has two more columns, and an index of turns in place of the one of last uses; the
first process makes them that wants them. The age is a row of the settings. Processes that evict by last use go on using
the same store: the first of them that evicts makes its index again, and from then on the store has both. A row that one
of them wrote has no turn, and gets one before the next eviction in this order.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from ejcache.stores.local.layout import MODE_RAW

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.stores.local.sqlite import sqlite3

    Sql = Callable[..., sqlite3.Cursor]
    """Runs a statement on the connection to an index."""

_AGE: Final = "ejcache_age"
_START: Final = 8192
"""Bytes of an entry that are read for its worth; a header hardly has more."""
_CONVERTED: Final = 1_000
"""Rows that get a turn in one put."""
_BY_COST: Final = (
    "ALTER TABLE Cache ADD COLUMN worth REAL",
    "ALTER TABLE Cache ADD COLUMN turn REAL",
    "CREATE INDEX Cache_turn ON Cache (turn)",
    "DROP INDEX IF EXISTS Cache_access_time",
)
_BY_USE: Final = "CREATE INDEX IF NOT EXISTS Cache_access_time ON Cache (access_time)"

_SET_AGE: Final = "INSERT INTO Settings VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
WEIGHT: Final = "3.0 * (1 + {hits}) / (3 + {hits})"
"""`weight` in SQL, by an expression for the number of hits."""


def weight(hits: int) -> float:
    """Weigh the uses of an entry that was found `hits` times after it was put: from 1 to 3."""
    return 3.0 * (1 + hits) / (3 + hits)


def age_after(age: float, turn: float, *, part: float) -> float:
    """Return the age after an entry of this turn was evicted, which took this part of the limit."""
    return age + max(turn - age, 0.0) * min(part, 1.0)


def has_turns(sql: Sql) -> bool:
    """True if the rows of the index have turns, or can have some."""
    return any(name == "turn" for _, name, *_ in sql("PRAGMA table_info(Cache)").fetchall())


def order_by_cost(sql: Sql) -> None:
    """Make the columns and the index of turns, inside a transaction, unless another process has made them."""
    if not has_turns(sql):
        for statement in _BY_COST:
            sql(statement)


def order_by_use(sql: Sql) -> None:
    """Make the index of last uses, inside a transaction, unless it is there: only in the order by cost it is not."""
    sql(_BY_USE)


def age_of(sql: Sql) -> float:
    """Read the age: how far the turns of new entries are ahead of the first ones'."""
    rows = sql("SELECT value FROM Settings WHERE key = ?", (_AGE,)).fetchall()
    return rows[0][0] if rows and isinstance(rows[0][0], float) else 0.0


def set_turn(sql: Sql, hits: str) -> str:
    """Return what a statement that counts uses sets besides: the turn of a row, by an expression for its hits."""
    return f", turn = {age_of(sql)!r} + worth * {WEIGHT.format(hits=hits)}"


def set_age(sql: Sql, age: float) -> None:
    """Note the age after entries were evicted, inside the transaction in which it was asked for."""
    sql(_SET_AGE, (_AGE, age))


def convert(sql: Sql, generation: str, worth: Callable[[bytes, int], float], age: float, *, besides: str) -> None:
    """Give a turn to rows that have none, but for the row of the key `besides`, inside a transaction."""
    select = (
        "SELECT rowid, size, mode, filename, substr(value, 1, ?), access_count FROM Cache WHERE turn IS NULL"
        " AND key IS NOT ? LIMIT ?"
    )
    for rowid, size, mode, filename, value, count in sql(select, (_START, besides, _CONVERTED)).fetchall():
        start = value if mode == MODE_RAW else _read_start(f"{generation}/{filename}")
        of = worth(start if isinstance(start, bytes) else b"", size if type(size) is int else 0)
        turn = age + of * weight(count if type(count) is int else 0)
        sql("UPDATE Cache SET worth = ?, turn = ? WHERE rowid = ?", (of, turn, rowid))


def _read_start(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123
        return file.read(_START) or b""
