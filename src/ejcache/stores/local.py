"""The embedded default: entries in a directory of a local file system, shared by the processes of one host.

The index is diskcache's (SQLite), the values are files beside it; `local_layout` draws the picture. What holds:

* `put` is one transaction: the row, the file's name and the evictions are all there or not at all;
* nothing is waited for longer than `timeout`, neither another process nor a damaged index;
* a damaged index is set aside and a new one is started; others that have the old one open notice and follow.

Values are trusted as far as the directory is: it is made for its owner only (mode 0700).
"""

from __future__ import annotations

import contextlib
import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ejcache.errors import StoreBusyError, StoreReadOnlyError, StoreTooSmallError, StoreUnavailableError
from ejcache.stores import local_audit
from ejcache.stores.base import UNLIMITED, EntryInfo, Store, check_key
from ejcache.stores.local_access import Access
from ejcache.stores.local_disk import digest_of
from ejcache.stores.local_layout import Layout
from ejcache.stores.local_session import REBUILDS
from ejcache.stores.local_trouble import translated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ejcache.stores.local_disk import Row
    from ejcache.stores.local_session import Session

__all__ = ["DAMAGED_ROWS", "REBUILDS", "LocalStore"]

TIMEOUT: Final = 5.0
"""Seconds to wait for other processes."""
DAMAGED_ROWS: Final = "local_damaged_rows"
"""Counter: rows of the index that were not as we write them, or whose file was not; removed when met."""

_TOUCH_SECONDS: Final = 0.02
"""A reader waits this long to note what it used; after that it is noted with the next write."""
_PAGE: Final = 1_000
_TRIES: Final = 5
_LOOKS: Final = 100
"""How often an entry may be replaced under a reader before that is a miss."""


class LocalStore(Store):
    """Entries in a local directory, shared by threads and processes, and across forks.

    Opening makes the directory if need be, sweeps what killed processes have left, and repairs a damaged index. Where
    this user cannot write, the store is `read_only` and what is there can be read.

    Args:
        path: the directory; `~` is not expanded.
        max_size: bytes of all entries, -1 for no limit. Each process keeps its own limit when it puts.
        read_only: leave no trace; a directory that does not exist is an empty store and is not made.
        timeout: seconds that a call waits for other processes.

    Raises:
        NotAStoreError: the path is taken by something else, or by a newer format; nothing was touched.
        StoreUnavailableError: it can neither be made nor read.
        StoreBusyError: another process was opening it for all of `timeout`.
        StoreError: the storage failed, for one thing because the disk is full.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_size: int = UNLIMITED,
        read_only: bool = False,
        timeout: float = TIMEOUT,
    ) -> None:
        self.path = Path(os.path.abspath(path))  # noqa: PTH100 (Path.absolute keeps "..")
        self.url = str(self.path)
        self.max_size = max_size
        self._layout = Layout(self.path)
        self._access = Access(self._layout, max_size=max_size, read_only=read_only, timeout=timeout)
        self._access.run(lambda _: None, make=True)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, max_size={self.max_size}, read_only={self.read_only})"

    @property
    def read_only(self) -> bool:  # type: ignore[override]  # what the directory allows may change while it is open
        """Writes raise `StoreReadOnlyError`, because it was asked so or because this user cannot write there."""
        return self._access.read_only

    # -- reading ---------------------------------------------------------------------------------------------------

    def get(self, key: str) -> bytes | None:
        """The bytes under `key`, or None; the entry becomes the most recently used.

        A row that is damaged, or whose file is, is removed, counted, and None. That bytes of the right length are the
        right ones is for `ejcache.entry` to say.

        Raises:
            StoreError: the storage failed.
        """
        now = time.time()
        session, data = self._read(key, None)
        if session is not None and data is not None and not session.read_only:
            # The bytes are there; that the entry was used is not worth an error, a repair or a wait.
            self._access.note(session, lambda session: session.index.touch(key, now), patience=_TOUCH_SECONDS)
        return data

    def peek(self, key: str, *, length: int | None = None) -> bytes | None:
        """The bytes under `key`, or their first `length`, or None; recency is left alone."""
        return self._read(key, length)[1]

    def contains(self, key: str) -> bool:
        """Whether `get` would find an entry, by its row and the length of its file."""
        check_key(key)

        def look(session: Session) -> bool:
            row = session.index.find(key, whole=False)
            if row is None:
                return False
            if row.trustworthy(key) and session.index.values.present(row):
                return True
            self._drop(session, key=key, row=row)
            return False

        return self._access.run(look) or False

    def entries(self) -> Iterator[EntryInfo]:
        """Every entry, in the order of keys, read in pages; no lock is held between them."""
        after = ""
        while True:
            page = self._page(after)
            for key, size, stored, used in page:
                if type(size) is int and isinstance(stored, float) and isinstance(used, float):
                    yield EntryInfo(key, size, stored, max(stored, used))
            if len(page) < _PAGE:
                return
            after = page[-1][0]

    def _page(self, after: str) -> list[tuple[Any, ...]]:
        return self._access.run(lambda session: session.index.page(after, _PAGE)) or []

    def size(self) -> int:
        """Bytes of all entries; kept by the index, not counted anew."""
        return self._access.run(lambda session: session.index.total()) or 0

    def counters(self) -> dict[str, float]:
        """The counters kept with the store; they are lost with a damaged index."""
        return self._access.run(lambda session: session.index.counters()) or {}

    # -- writing ---------------------------------------------------------------------------------------------------

    def put(self, key: str, data: bytes) -> bool:
        """Create the entry and evict others until the limit holds; False if somebody else's entry stands.

        Raises:
            StoreTooSmallError: `data` is larger than `max_size`, or than what pinned entries leave of it; nothing was
                evicted.
            StoreReadOnlyError: the store is read-only.
            StoreBusyError: another process kept the index busy.
            StoreError: the storage failed; the entry is absent.
        """
        if self.contains(check_key(key)):
            self._check_writable()
            return False
        return self._write(key, data, replace=False)

    def replace(self, key: str, data: bytes) -> None:
        """Put `data` under `key` whether or not an entry stands; raises as `put` does, and then the old one stands."""
        self._write(check_key(key), data, replace=True)

    def delete(self, key: str) -> bool:
        """Remove the entry; False if there was none."""
        check_key(key)
        self._check_writable()

        def delete(session: Session) -> bool:
            row = session.index.find(key, whole=False)
            if row is None:
                return False
            good = row.trustworthy(key) and session.index.values.present(row)
            return session.index.remove(row) and good

        return self._access.change(delete) or False

    def quarantine(self, key: str, data: bytes) -> bool:
        """Take the entry out of use if it still is exactly `data`, and keep a copy if there is room for it."""
        check_key(key)
        self._check_writable()

        def take_out(session: Session) -> bool:
            row = session.index.find(key, whole=True)
            if row is None or not row.trustworthy(key):
                return False
            try:
                found = session.index.values.read(row)
            except OSError:
                return False
            return found == data and session.index.remove(row)

        taken = self._access.change(take_out) or False
        if taken:
            self._layout.keep_entry(digest_of(key), data, max_size=self.max_size)
        return taken

    def add_counters(self, amounts: Mapping[str, float]) -> None:
        """Add to the counters kept with the store, in one transaction; lost in a read-only store."""
        if amounts and not self.read_only:
            with contextlib.suppress(StoreReadOnlyError):
                self._access.change(lambda session: session.index.add_counters(amounts), make=True)

    def reset_counters(self) -> None:
        """Start counting from zero."""
        self._check_writable()
        self._access.change(lambda session: session.index.reset_counters())

    def pin(self, key: str) -> bool:
        """Never evict the entry under `key`, whether it stands now or is put later; False if it was pinned already."""
        check_key(key)
        self._check_writable()
        return self._access.change(lambda session: session.index.pin(key, pinned=True), make=True) or False

    def unpin(self, key: str) -> bool:
        """Let the entry under `key` be evicted again; False if it was not pinned."""
        check_key(key)
        self._check_writable()
        return self._access.change(lambda session: session.index.pin(key, pinned=False)) or False

    def pinned(self) -> list[str]:
        """The keys that are pinned."""
        return self._access.run(lambda session: session.index.pins()) or []

    def check(self, *, fix: bool = False) -> list[str]:
        """What is wrong with the store's own structures, one sentence each; entries' contents are not looked at.

        Args:
            fix: mend it: remove damaged rows and files without rows, correct sums, replace a damaged index. What is
                answered is what was found.

        Raises:
            StoreReadOnlyError: something is to be fixed in a store that is read-only.
        """
        if fix:
            self._check_writable()
        found = self._access.run(lambda session: local_audit.check(session, self._layout, fix=fix), patience=60.0)
        if found is None and self._layout.generations():
            return [local_audit.UNREADABLE]  # and nothing may be done about it, because this store only reads
        if fix and found and any(local_audit.is_fatal(problem) for problem in found):
            self._access.rebuild("its integrity check failed")
        return found or []

    def close(self) -> None:
        """Release what this process holds. The store may be used again: it reopens itself."""
        self._access.close()

    # -- inside: one operation -------------------------------------------------------------------------------------

    def _read(self, key: str, length: int | None) -> tuple[Session | None, bytes | None]:
        check_key(key)

        def find(session: Session) -> tuple[Session, Row] | None:
            row = session.index.find(key, whole=True)
            if row is not None and not row.trustworthy(key):
                self._drop(session, key=key, row=row)
                return None
            return None if row is None else (session, row)

        seen: Row | None = None
        for _ in range(_LOOKS):
            found = self._access.run(find)
            if found is None:
                break
            session, row = found
            try:
                data = session.index.values.read(row, length)
            except FileNotFoundError:
                # Evicted or replaced since it was looked up.
                data = None
            except OSError as exc:
                raise translated(exc, self.path) from exc
            if data is not None:
                return session, data
            if seen is not None and (seen.rowid, seen.filename) == (row.rowid, row.filename):
                # Its row still stands, so that the file is what was lost.
                self._access.note(session, partial(self._drop, key=key, row=row), patience=1.0)
                return None, None
            seen = row
        return None, None

    def _drop(self, session: Session, *, key: str, row: Row) -> None:
        """Remove a row that is damaged or has lost its file, and count it, as far as that is possible."""
        if session.read_only:
            return
        with contextlib.suppress(StoreBusyError):
            if session.index.remove(row):
                session.index.bury()
                session.index.add_counters({DAMAGED_ROWS: 1})
                self._access.warn(f"an entry of {self.url} is damaged and was removed: {key}")

    def _write(self, key: str, data: bytes, *, replace: bool) -> bool:
        self._check_writable()
        if not isinstance(data, bytes):
            raise TypeError(f"an entry is bytes, not {type(data).__name__}")
        if 0 <= self.max_size < len(data):
            raise StoreTooSmallError(
                f"an entry of {len(data)} bytes does not fit into {self.url}, whose limit is {self.max_size}"
            )
        for _ in range(_TRIES):
            with self._access.held() as session:
                if session is None or session.read_only:
                    raise StoreReadOnlyError(f"{self.url} cannot be written by this user")
                written = self._write_in(session, key, data, replace=replace)
                if written is not None:
                    return written
        raise StoreUnavailableError(f"{self.url} is being removed or replaced again and again")

    def _write_in(self, session: Session, key: str, data: bytes, *, replace: bool) -> bool | None:
        """Write in this session; None if it has come to its end meanwhile."""
        values = session.index.values
        try:
            # Not inside `change`: other threads may go on while a large value is written.
            staged = values.stage(key, data)
        except OSError as exc:
            if session.stale():
                return None
            raise translated(exc, self.path) from exc

        def write(now: Session) -> bool | None:
            return now.index.write(key, staged, replace=replace) if now is session else None

        try:
            return self._access.change(write, make=True)
        finally:
            values.discard(staged.filename)

    def _check_writable(self) -> None:
        if self.read_only:
            why = "is open for reading only" if self._access.asked_read_only else "cannot be written by this user"
            raise StoreReadOnlyError(f"{self.url} {why}")
