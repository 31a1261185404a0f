"""The entries that an eviction pass has listed in a shared cache, each with its uses, in temporary tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ejcache.journal.entry_use import EntryUse
from ejcache.maintenance.temporary_tables import TemporaryTables, key_of_row, row_key
from ejcache.stores.listing import EntryInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_SCHEMA: Final = (
    "CREATE TABLE entries (key BLOB PRIMARY KEY, size INTEGER, created REAL, version TEXT) WITHOUT ROWID",
    "CREATE TABLE uses (key BLOB PRIMARY KEY, used REAL, times INTEGER, worth REAL) WITHOUT ROWID",
)
_ENTRIES: Final = """
    SELECT entries.key, size, created, max(created, ifnull(used, created)), version, ifnull(times, 0), worth
    FROM entries LEFT JOIN uses ON uses.key = entries.key
"""
_USES: Final = (
    "SELECT key, used, times, worth FROM uses WHERE used > ? OR key IN (SELECT key FROM entries) ORDER BY key"
)
_NOTE_USE: Final = """
    INSERT INTO uses VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET
        worth = CASE WHEN excluded.used < used THEN ifnull(worth, excluded.worth)
                     ELSE ifnull(excluded.worth, worth) END,
        used = max(used, excluded.used), times = times + excluded.times
"""


class Listing(TemporaryTables):
    """The entries that a bucket's listing found, and the uses that usage journals report."""

    def __init__(self) -> None:
        super().__init__(*_SCHEMA)

    def add(self, found: Iterable[EntryInfo]) -> None:
        """Add entries; `last_used` is ignored, because `note_uses` knows better."""
        rows = ((row_key(info.key), info.size, info.created, info.version) for info in found)
        self.insert("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)", rows)

    def note_uses(self, used: Iterable[tuple[str, EntryUse]], *, now: float) -> None:
        """Note uses of keys, which are joined with those noted before; a time after `now` counts as `now`.

        If `used` raises, none of its uses is noted.
        """
        self.insert(_NOTE_USE, ((row_key(key), min(use.when, now), use.times, use.worth) for key, use in used))

    def forget_uses(self) -> None:
        """Forget what `note_uses` has noted."""
        self.run("DELETE FROM uses")

    def entries(self) -> Iterator[EntryInfo]:
        """Yield every entry, with its last use, its uses and its worth."""
        for key, *fields in self.rows(_ENTRIES):
            yield EntryInfo(key_of_row(key), *fields)

    def uses(self, *, unless_gone_since: float | None = None) -> Iterator[tuple[str, EntryUse]]:
        """Yield keys and their uses, ordered by key.

        Args:
            unless_gone_since: seconds since the epoch; leave out keys that are not listed and were last used before.
        """
        since = float("-inf") if unless_gone_since is None else unless_gone_since
        for key, *use in self.rows(_USES, since):
            yield key_of_row(key), EntryUse(*use)
