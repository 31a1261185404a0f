"""The embedded default: entries in a directory of a local file system, shared by the processes of one host.

The index is diskcache's (SQLite); values are files beside it, see `layout`. Guarantees:

* `put` is one transaction: the row, the file's name and the evictions all happen, or none of them does;
* no call waits longer than `timeout`, neither for another process nor for a damaged index;
* a damaged index is quarantined and a new one is created; processes that have the old one open notice it and follow.

Entries are code, so a directory that another user owns or can write to is refused (`util.files`).
"""

from __future__ import annotations

import contextlib
import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.common_errors import StoreBusyError, StoreReadOnlyError
from ejcache.stores.base import UNLIMITED, Store
from ejcache.stores.local.connection_manager import ConnectionManager
from ejcache.stores.local.index import IndexOptions, digest_of, read_value
from ejcache.stores.local.layout import Layout
from ejcache.stores.local.sqlite import translate
from ejcache.util.log import warn_once
from ejcache.util.store_keys import check_key, is_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ejcache.stores.listing import EntryInfo
    from ejcache.stores.local.index import EntryIndex, IndexRow

TIMEOUT: Final = 5.0
"""Seconds to wait for other processes."""
DAMAGED_ROWS: Final = "local_damaged_rows"
"""Counter: rows that ejcache did not write, or whose file is not what the row says; deleted when found."""

_PAGE: Final = 1_000
_BATCH: Final = 500
"""SQLite takes at least 999 parameters."""
_LOOKS: Final = 100
"""How often an entry may be replaced while it is read before that counts as a miss."""


class LocalStore(Store):
    """Entries in a local directory, shared by threads and processes, and across forks.

    Opening creates the directory if necessary, deletes what killed processes left, and repairs a damaged index. Where
    this user may not write, the store is `read_only` and its entries can be read.

    Args:
        path: the directory; `~` is not expanded.
        max_size: bytes of all entries, -1 for no limit, None for the limit that is written down in the store. Each
            process keeps its own limit when it writes.
        read_only: leave no trace; a directory that does not exist is an empty store and is not created.
        timeout: seconds that a call waits for other processes.
        trusted: use the directory even if other users could have put code there.
        evict_before: the keys of entries that are of no use while the entry of a key exists; they are evicted first.
        worth: what a use of an entry is worth for each byte, by its beginning and its size, if nobody has said it and
            what is worth least is to be evicted first; None if what was not used for longest is.

    Raises:
        NotAStoreError: there is something else, or a newer format; nothing was changed.
        UntrustedDirectoryError: another user owns the directory of the store, or can write to it.
        StoreUnavailableError: it can neither be created nor read.
        StoreBusyError: another process was opening it for all of `timeout`.
        StoreError: the storage failed, for example because the disk is full.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_size: int | None = UNLIMITED,
        read_only: bool = False,
        timeout: float = TIMEOUT,
        trusted: bool = False,
        evict_before: Callable[[str], Iterable[str]] | None = None,
        worth: Callable[[bytes, int], float] | None = None,
    ) -> None:
        self.path = Path(os.path.abspath(path))  # noqa: PTH100 (Path.absolute keeps "..")
        self.url = str(self.path)
        self._layout = Layout(self.path, trusted=trusted)
        self.max_size = self._layout.limit() if max_size is None else max_size
        options = IndexOptions(self.max_size, evict_before, worth)
        self._manager = ConnectionManager(self._layout, options=options, read_only=read_only, timeout=timeout)
        self._manager.run(lambda _: None, make=True)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, max_size={self.max_size}, read_only={self.read_only})"

    @property
    def read_only(self) -> bool:  # type: ignore[override]  # what the directory allows may change while it is open
        """True if writes raise `StoreReadOnlyError`: the caller wanted that, or this user may not write there."""
        return self._manager.read_only

    # -- reading ---------------------------------------------------------------------------------------------------

    def get(self, key: str) -> bytes | None:
        """Return the bytes under `key`, or None.

        A damaged row, or a row whose file is damaged, is deleted, counted, and None. Whether bytes of the right length
        are the right ones is checked by `ejcache.entry`.

        Raises:
            StoreError: the storage failed.
        """
        return self._read(key, None)

    def note_used(self, key: str, worth: float | None = None) -> None:  # noqa: ARG002 (it was put with one)
        """Note a use of an entry that was read a moment ago; it keeps the worth that it was put with."""
        self._manager.note_use(key, time.time())

    def get_small(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Get those of these entries that are in rows of the index, by one look into it."""
        from ejcache.stores.local.small_values import find_small  # preload alone looks up several

        found: dict[str, bytes] = {}
        for start in range(0, len(keys), _BATCH):
            batch = [check_key(key) for key in keys[start : start + _BATCH]]
            looked = self._manager.run(partial(find_small, keys=batch))
            if looked is None:
                break
            # `get` deletes and counts a damaged row.
            found.update((key, row.value) for key, row in looked.items() if row.trustworthy(key))
        return found

    def peek(self, key: str, *, length: int | None = None) -> bytes | None:
        """Return the bytes under `key`, or their first `length`, or None."""
        return self._read(key, length)

    def contains(self, key: str) -> bool:
        """True if `get` would find an entry, by its row and the length of its file."""
        from ejcache.stores.local.value_files import is_present  # a hit reads

        check_key(key)

        def look(index: EntryIndex) -> bool:
            row = index.find(key, whole=False)
            if row is None:
                return False
            if row.trustworthy(key) and is_present(index.generation, row):
                return True
            self._drop(index, key=key, row=row)
            return False

        return self._manager.run(look) or False

    def entries(self) -> Iterator[EntryInfo]:
        """List every entry by key, read in pages; no lock is held between them. Damaged rows are left out."""
        from ejcache.stores.listing import EntryInfo  # a hit lists nothing
        from ejcache.stores.local.index_upkeep import page

        after = ""
        self._manager.write_uses()
        while True:
            rows = self._manager.run(partial(page, after=after, number=_PAGE)) or []
            for key, size, stored, used, count, turn, saves in rows:
                if type(size) is int and isinstance(stored, float) and isinstance(used, float) and is_key(key):
                    hits = count if type(count) is int and count >= 0 else None
                    order = turn if isinstance(turn, float) else None
                    worth = saves if isinstance(saves, float) else None
                    yield EntryInfo(key, size, stored, max(stored, used), hits=hits, order=order, worth=worth)
            if len(rows) < _PAGE:
                return
            after = rows[-1][0]

    def size(self) -> int:
        """Return the bytes of all entries, from the sum that the index keeps."""
        return self._manager.run(lambda index: index.total()) or 0

    def counters(self) -> dict[str, float]:
        """Return the counters kept with the store. A damaged index may lose them."""
        from ejcache.stores.local.index_upkeep import counters  # a hit adds to them

        return self._manager.run(counters) or {}

    # -- writing ---------------------------------------------------------------------------------------------------

    def put(self, key: str, data: bytes, *, worth: float | None = None) -> bool:
        """Create the entry and evict others until the limit holds; False if there is one already.

        Raises:
            StoreTooSmallError: `data` is larger than `max_size`; nothing was evicted.
            StoreReadOnlyError: the store is read-only.
            StoreBusyError: another process kept the index busy.
            StoreError: the storage failed; the entry is absent.
        """
        if self._write(check_key(key), data, worth, replace=False):
            return True
        # There is a row. `contains` deletes it if it is damaged.
        return not self.contains(key) and self._write(key, data, worth, replace=False)

    def replace(self, key: str, data: bytes, *, worth: float | None = None) -> None:
        """Store `data` under `key`, in place of any entry there; raises as `put` does, and changes nothing then."""
        self._write(check_key(key), data, worth, replace=True)

    def delete(self, key: str) -> bool:
        """Remove the entry; False if there was none."""
        from ejcache.stores.local.index_upkeep import remove  # by what deletes
        from ejcache.stores.local.value_files import is_present

        check_key(key)
        self._check_writable()

        def delete(index: EntryIndex) -> bool:
            row = index.find(key, whole=False)
            if row is None:
                return False
            good = row.trustworthy(key) and is_present(index.generation, row)
            return remove(index, row) and good

        return self._manager.free(delete) or False

    def clear(self) -> None:
        """Remove every entry at once. Works on a full disk."""
        self._check_writable()
        self._manager.start_over()

    def quarantine(self, key: str, data: bytes, *, wrong: bool = False) -> bool:
        """Take the entry out of use if it still is exactly `data`, and keep a copy if there is room for it."""
        from ejcache.stores.local.index_upkeep import remove  # by what is damaged
        from ejcache.stores.local.quarantine import quarantine_entry

        check_key(key)
        self._check_writable()

        def take_out(index: EntryIndex) -> bool:
            row = index.find(key, whole=True)
            if row is None or not row.trustworthy(key):
                return False
            try:
                found = read_value(index.generation, row)
            except OSError:
                return False
            return found == data and remove(index, row)

        taken = self._manager.change(take_out) or False
        if taken:
            quarantine_entry(self._layout, digest_of(key), data, max_size=self.max_size, wrong=wrong)
        return taken

    def restore(self, key_of: Callable[[bytes], str | None]) -> int:
        """Put back what is intact in quarantine, and in an index that is not in use, as far as there is room."""
        from ejcache.stores.local.restoring import restore

        self._check_writable()
        return restore(self, self._layout, key_of)

    def add_counters(self, amounts: Mapping[str, float]) -> None:
        """Add to the counters kept with the store, in one transaction.

        They are lost in a read-only store, and in one whose directory was removed: counters alone do not make it again.
        """
        if amounts and not self.read_only:
            with contextlib.suppress(StoreReadOnlyError):
                self._manager.change(lambda index: index.add_counters(amounts))

    def reset_counters(self) -> None:
        """Start counting from zero."""
        from ejcache.stores.local.index_upkeep import reset_counters  # a hit adds to them

        self._check_writable()
        self._manager.change(reset_counters)

    def check(self, *, fix: bool = False) -> list[str]:
        """Return the problems of the store's structures, one sentence each; the content of entries is not examined.

        Args:
            fix: delete damaged rows and files without rows, correct sums, and replace a damaged index. The problems
                that were found are returned.

        Raises:
            StoreReadOnlyError: something is to be fixed in a store that is read-only.
        """
        from ejcache.stores.local.index_audit import UNREADABLE, check_index, is_fatal

        if fix:
            self._check_writable()
        found = self._manager.run(partial(check_index, layout=self._layout, fix=fix), patience=60.0)
        if found is None and self._layout.generations():
            return [UNREADABLE]
        if fix and found and any(is_fatal(problem) for problem in found):
            self._manager.rebuild("its integrity check failed")
        return found or []

    def close(self) -> None:
        """Close the connection. The store can still be used: it opens another one."""
        self._manager.close()

    # -- inside: one operation -------------------------------------------------------------------------------------

    def _read(self, key: str, length: int | None) -> bytes | None:
        """Read a value or its beginning; None if there is none. A row whose file is missing or damaged is dropped."""
        check_key(key)
        seen: IndexRow | None = None
        for _ in range(_LOOKS):
            found = self._manager.run(partial(self._find, key=key))
            if found is None:
                break
            index, row = found
            try:
                data = read_value(index.generation, row, length)
            except FileNotFoundError:
                # Evicted or replaced since the row was read.
                data = None
            except OSError as exc:
                raise translate(exc, self.path) from exc
            if data is not None:
                return data
            if seen is not None and (seen.rowid, seen.filename) == (row.rowid, row.filename):
                # The row is still there, so the file is missing or damaged.
                self._manager.note(index, partial(self._drop, key=key, row=row), patience=1.0)
                break
            seen = row
        return None

    def _find(self, index: EntryIndex, *, key: str) -> tuple[EntryIndex, IndexRow] | None:
        row = index.find(key, whole=True)
        if row is None:
            return None
        if not row.trustworthy(key):
            self._drop(index, key=key, row=row)
            return None
        return index, row

    def _drop(self, index: EntryIndex, *, key: str, row: IndexRow) -> None:
        """Delete a row that is damaged or whose file is, and count it, if that is possible."""
        if index.read_only:
            return
        from ejcache.stores.local.index_upkeep import remove  # by what is damaged

        with contextlib.suppress(StoreBusyError):
            if remove(index, row):
                index.delete_pending()
                index.add_counters({DAMAGED_ROWS: 1})
                warn_once(("damaged row", self.url), "ejcache: a damaged entry of %s was deleted: %s", self.url, key)

    def _write(self, key: str, data: bytes, worth: float | None, *, replace: bool) -> bool:
        self._check_write(data)
        # Imported by what writes: most starts of a program only read.
        from ejcache.stores.local.writer import write_entry

        return write_entry(self._manager, key, data, worth, replace=replace)

    def _check_writable(self) -> None:
        if self.read_only:
            why = "is open for reading only" if self._manager.wants_read_only else "cannot be written by this user"
            raise StoreReadOnlyError(f"{self.url} {why}")
