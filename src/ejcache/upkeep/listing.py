"""What is in a shared store, and when it was last used: of any size, in little memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from ejcache.stores.base import EntryInfo
from ejcache.upkeep.table import TemporaryTables, key_of_row, row_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

__all__ = ["Listing"]

_SCHEMA: Final = (
    "CREATE TABLE entries (key BLOB PRIMARY KEY, size INTEGER, created REAL, version TEXT) WITHOUT ROWID",
    "CREATE TABLE uses (key BLOB PRIMARY KEY, used REAL) WITHOUT ROWID",
)
_ENTRIES: Final = """
    SELECT entries.key, size, created, max(created, ifnull(used, created))
    FROM entries LEFT JOIN uses ON uses.key = entries.key
"""
_USES: Final = "SELECT key, used FROM uses WHERE used > ? OR key IN (SELECT key FROM entries) ORDER BY key"


class Listing:
    """The entries that one listing found, and the uses that journals tell of. For one thread at a time.

    Methods raise `StoreError` where there is no room for temporary files.
    """

    def __init__(self) -> None:
        self._tables = TemporaryTables(*_SCHEMA)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def add(self, found: Iterable[tuple[str, int, float, str]]) -> None:
        """Entries: key, bytes, creation in seconds since the epoch, and version."""
        rows = ((row_key(key), size, created, version) for key, size, created, version in found)
        self._tables.insert("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)", rows)

    def note_uses(self, used: Iterable[tuple[str, float]], *, now: float) -> None:
        """Uses: key and seconds since the epoch. The latest of each key counts, and none is later than `now`.

        If `used` raises in the middle, none of them was noted.
        """
        rows = ((row_key(key), min(at, now)) for key, at in used)
        self._tables.insert(
            "INSERT INTO uses VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET used = max(used, excluded.used)", rows
        )

    def entries(self) -> Iterator[EntryInfo]:
        """Every entry, with its last use."""
        for key, size, created, used in self._tables.rows(_ENTRIES):
            yield EntryInfo(key_of_row(key), size, created, used)

    def find(self, key: str) -> tuple[int, str] | None:
        """The bytes and the version of the entry under `key`, or None if it was not listed."""
        found = self._tables.row("SELECT size, version FROM entries WHERE key = ?", row_key(key))
        return None if found is None else (found[0], found[1])

    def uses(self, *, unless_gone_since: float | None = None) -> Iterator[tuple[str, float]]:
        """Keys and last uses, in the order of the keys.

        Args:
            unless_gone_since: leave out what was last used before, in seconds since the epoch, and is not listed.
        """
        since = float("-inf") if unless_gone_since is None else unless_gone_since
        for key, used in self._tables.rows(_USES, since):
            yield key_of_row(key), used

    def count(self) -> tuple[int, int]:
        """How many entries there are, and their bytes."""
        number, size = self._tables.row("SELECT count(*), ifnull(sum(size), 0) FROM entries") or (0, 0)
        return number, size

    def close(self) -> None:
        """Forget all of it."""
        self._tables.close()
