"""Tables in a temporary file of SQLite, for what may not fit into memory.

A bucket may hold more entries than fit into memory, and a maintenance pass runs beside a training program that needs
its memory. SQLite keeps a small table in memory and a large one in a temporary file without a name, which disappears
with the process, however the process ends.
"""

from __future__ import annotations

import contextlib
import sqlite3
import weakref
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

from ejcache.errors import StoreError
from ejcache.util.lifecycle import Closing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


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
        with _translate_errors():
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
        with _translate_errors():
            for statement in statements:
                self._connection.execute(statement).close()

    def insert(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Run `statement` for each of `rows`; if `rows` raises, none of them is inserted."""
        with _translate_errors():
            self._connection.execute("BEGIN")
            try:
                self._connection.executemany(statement, rows)
            except BaseException:
                if self._connection.in_transaction:  # a full disk has already ended the transaction
                    self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def rows(self, query: str, *parameters: object) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of `query`, one at a time; the tables must not change while they are read."""
        with _translate_errors():
            # `yield from` would close the cursor together with this generator, possibly after the connection was
            # closed, and SQLite reports that as an error.
            for row in self._connection.execute(query, parameters):  # noqa: UP028
                yield row

    def close(self) -> None:
        """Delete the tables; this also happens when the last reference disappears."""
        self._forget()


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as exc:
        raise StoreError(
            f"a table in a temporary file failed ({exc}); SQLITE_TMPDIR, or else TMPDIR, names the directory, which "
            "needs about 300 bytes for each entry"
        ) from exc
