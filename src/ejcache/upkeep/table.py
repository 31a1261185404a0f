"""Rows that are sorted and looked up on disk, for as long as somebody works on them.

A listing of a bucket has as many rows as the bucket has entries, and upkeep runs beside a program that needs its
memory. SQLite keeps a small table in memory and a large one in a temporary file that is gone when the process is,
however it ends.
"""

from __future__ import annotations

import contextlib
import sqlite3
import weakref
from typing import TYPE_CHECKING, Any, Final, Self

from ejcache.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

__all__ = ["TemporaryTables", "key_of_row", "row_key"]

_CACHE_KIB: Final = 1024
"""What of all tables together is kept in memory; the rest is in the temporary file."""


def row_key(key: str) -> bytes:
    """`key` as a row holds it: in the order of text, and file names that are no text as well."""
    return key.encode("utf-8", "surrogateescape")


def key_of_row(held: bytes) -> str:
    """The key that `row_key` made `held` of."""
    return held.decode("utf-8", "surrogateescape")


class TemporaryTables:
    """Tables that nobody else sees. For one thread at a time.

    Args:
        schema: statements that make them.

    Every method raises `StoreError` where there is no room for temporary files.
    """

    def __init__(self, *schema: str) -> None:
        with _translated():
            # An empty name: a temporary database, in a file that has no name either.
            connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        # Readers keep these tables alive as long as they read; Python warns of a connection that nobody closes.
        self._forget = weakref.finalize(self, connection.close)
        # Another thread may be at work on it when the program ends, or the thread of a parent was: then closing it
        # crashes, or never returns. The file has no name, so that it is gone with the process.
        self._forget.atexit = False
        self._connection = connection
        # Nothing here outlives the process, so that nothing has to be safe from its death.
        self.run("PRAGMA synchronous = OFF", f"PRAGMA cache_size = -{_CACHE_KIB}", "PRAGMA temp_store = FILE", *schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def run(self, *statements: str) -> None:
        """Run statements that give no rows."""
        with _translated():
            for statement in statements:
                self._connection.execute(statement).close()

    def insert(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Run `statement` for each of `rows`: for all, or for none if `rows` raises in the middle."""
        with _translated():
            self._connection.execute("BEGIN")
            try:
                self._connection.executemany(statement, rows)
            except BaseException:
                if self._connection.in_transaction:  # a full disk has ended it already
                    self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def rows(self, query: str, *parameters: object) -> Iterator[tuple[Any, ...]]:
        """What `query` gives, a row at a time; the tables must not change meanwhile."""
        with _translated():
            # `yield from` would close the cursor with this generator: by then the tables may be, which SQLite has
            # complaints about.
            for row in self._connection.execute(query, parameters):  # noqa: UP028
                yield row

    def row(self, query: str, *parameters: object) -> tuple[Any, ...] | None:
        """The first row that `query` gives, or None."""
        return next(self.rows(query, *parameters), None)

    def close(self) -> None:
        """Forget all of it, as happens with the last reference."""
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
