"""Temporary tables on disk, and the listing of a shared cache that is kept in them.

A bucket may hold more entries than fit into memory, and a maintenance pass runs beside a training program that needs
its memory. SQLite keeps a small table in memory and a large one in a temporary file without a name, which disappears
with the process, however the process ends.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import weakref
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

from ejcache.errors import StoreError
from ejcache.stores.base import EntryInfo
from ejcache.util.lifecycle import Closing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_CACHE_KIB: Final = 1024
"""Memory for the pages of one database; SQLite writes the other pages to the temporary file."""
_BATCH: Final = 500


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
        """The rows of `query`, a few at a time; the tables that it reads must not change meanwhile."""
        return itertools.chain.from_iterable(self._batches(query, parameters))

    def _batches(self, query: str, parameters: tuple[object, ...]) -> Iterator[list[tuple[Any, ...]]]:
        with _translated():
            cursor = self._connection.execute(query, parameters)
            while batch := cursor.fetchmany(_BATCH):
                yield batch

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
    "CREATE TABLE uses (key BLOB PRIMARY KEY, used REAL) WITHOUT ROWID",
)
_ENTRIES: Final = """
    SELECT entries.key, size, created, max(created, ifnull(used, created)), version
    FROM entries LEFT JOIN uses ON uses.key = entries.key
"""
_USES: Final = "SELECT key, used FROM uses WHERE used > ? OR key IN (SELECT key FROM entries) ORDER BY key"
_NOTE_USE: Final = "INSERT INTO uses VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET used = max(used, excluded.used)"


class Listing(TemporaryTables):
    """The entries that a bucket's listing found, and the last uses that usage journals report."""

    def __init__(self) -> None:
        super().__init__(*_SCHEMA)

    def add(self, found: Iterable[EntryInfo]) -> None:
        """Add entries; `last_used` is ignored, because `note_uses` knows better."""
        rows = ((row_key(info.key), info.size, info.created, info.version) for info in found)
        self.insert("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)", rows)

    def note_uses(self, used: Iterable[tuple[str, float]], *, now: float) -> None:
        """Note when keys were used, in seconds since the epoch; a time after `now` counts as `now`.

        The latest use of each key counts. If `used` raises, none of its uses is noted.
        """
        self.insert(_NOTE_USE, ((row_key(key), min(at, now)) for key, at in used))

    def entries(self) -> Iterator[EntryInfo]:
        """Every entry, with its last use."""
        for key, *fields in self.rows(_ENTRIES):
            yield EntryInfo(key_of_row(key), *fields)

    def uses(self, *, unless_gone_since: float | None = None) -> Iterator[tuple[str, float]]:
        """Keys and last uses, ordered by key.

        Args:
            unless_gone_since: seconds since the epoch; leave out keys that are not listed and were last used before.
        """
        since = float("-inf") if unless_gone_since is None else unless_gone_since
        for key, used in self.rows(_USES, since):
            yield key_of_row(key), used
