"""The index of one generation of a local store: an SQLite database with diskcache's tables and two of ours.

One connection, from opening to closing it: rows, transactions with deadlines, uses that are written later, and files of
deleted rows; and what is read of a value, which is in its row or in a file. `connection_manager` opens it, `writer`
writes entries with it, `value_files` their files, and `index_upkeep` has what is asked of it besides.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import re
import stat
import time
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

from ejcache.common_errors import StoreBusyError
from ejcache.stores.local.layout import INDEX, MODE_BINARY, MODE_RAW, WAL_BYTES
from ejcache.stores.local.sqlite import DamageError, classify, sqlite3
from ejcache.util.locks import pause
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ejcache.util.locks import Presence


_REQUIRED: Final = (
    "Settings", "Cache", "Cache_key_raw", "EjcacheCounters",
    "Settings_count_insert", "Settings_count_delete",
    "Settings_size_insert", "Settings_size_update", "Settings_size_delete",
)  # fmt: skip
WHOLE: Final = "rowid, tag, size, mode, filename, value, store_time"
LENGTH: Final = WHOLE.replace("value", "length(value)")
"""The columns of an `IndexRow`, with its value or only the value's length."""
# What is put into these statements are the constants of this module. pathlib's methods cost as much as the calls that
# they make, and these are on the path of every hit.
# ruff: noqa: PTH118, S608
_COUNT: Final = """
    INSERT INTO EjcacheCounters VALUES (?) ON CONFLICT (name) DO UPDATE SET amount = amount + excluded.amount
"""
"""In place of (?) it has a row for each counter: Python runs other threads at each statement."""
_MARK_USES: Final = """
    WITH Used (key, at, times) AS (VALUES {rows})
    UPDATE Cache SET
        access_time = max(access_time, (SELECT at FROM Used WHERE Used.key = Cache.key)),
        access_count = access_count + (SELECT times FROM Used WHERE Used.key = Cache.key){turn}
    WHERE raw = 1 AND key IN (SELECT key FROM Used)
"""
_USES: Final = "(access_count + (SELECT times FROM Used WHERE Used.key = Cache.key))"
"""The uses of a row, in that statement."""
_AS_TEXT: Final = methodcaller("decode", "utf-8", "surrogateescape")
_ROWS_OF_USES: Final = 300
"""Rows of one statement, which may have 999 values."""
USES_SECONDS: Final = 1.0
"""How long a use may be known to this process only. A killed process loses it."""
_MOST_USES: Final = 1_000
_PRAGMAS: Final = (
    "PRAGMA mmap_size = 0; PRAGMA synchronous = NORMAL; PRAGMA trusted_schema = OFF;"
    f" PRAGMA journal_size_limit = {WAL_BYTES // 2}; PRAGMA wal_autocheckpoint = {WAL_BYTES // 2 // 4096}; "
)
_WATCH_STEPS: Final = 1_000_000
MOST_STEPS: Final = 200
"""A statement of more than this many million steps is in an endless loop in a damaged index."""
MAX_VALUE_BYTES: Final = 9 * 2**28
"""An entry of 2 GiB, the most that protobuf can hold, with its header and room to spare. A larger file is damage: a
sparse one costs nothing on disk and would fill the memory."""
FILENAME: Final = r"[0-9a-f]/([0-9a-f]{16})-[0-9a-f]{16}\.val"
# Not through a link, and without waiting at a pipe: a user who could once write to the directory may have put one
# there.
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class IndexOptions(NamedTuple):
    """How the index of a store is kept.

    Attributes:
        max_size: bytes of all entries, -1 for no limit.
        evict_before: the keys of entries that are of no use while the entry of a key exists; they are evicted first.
        worth: what a use of an entry is worth for each byte, by its beginning and its size, if what is worth least is
            evicted first; None if what was not used for longest is.
    """

    max_size: int = -1
    evict_before: Callable[[str], Iterable[str]] | None = None
    worth: Callable[[bytes, int], float] | None = None


def digest_of(key: str) -> str:
    """Digest a key for its row and file name, so that a damaged index is noticed when it confuses two keys."""
    return hashlib.blake2b(key.encode(), digest_size=8).hexdigest()


class IndexRow(NamedTuple):
    """What the index says of an entry. A damaged or hostile index may say anything, of any type."""

    rowid: Any
    tag: Any
    size: Any
    mode: Any
    filename: Any
    value: Any
    """The bytes themselves, or only their number if they were not asked for."""
    stored: Any

    def trustworthy(self, key: str) -> bool:
        """True if this is a row that ejcache wrote for `key`, and whose value is bytes."""
        if self.tag != digest_of(key) or type(self.size) is not int or type(self.stored) is not float:
            return False
        if self.mode == MODE_RAW:
            length = len(self.value) if isinstance(self.value, bytes) else self.value
            return self.filename is None and type(length) is int and length == self.size
        named = re.fullmatch(FILENAME, self.filename) if isinstance(self.filename, str) else None
        return self.mode == MODE_BINARY and named is not None and named[1] == self.tag and self.value is None


class PendingUses:
    """The uses of one connection that are not in its index yet.

    `note` may be called by any thread. A use that one thread notes while another takes the same entry's is kept; how
    many there were is then perhaps wrong.
    """

    def __init__(self) -> None:
        self._uses: dict[str, tuple[float, int]] = {}  # the time of the last one, and how many
        self._tried_at = float("-inf")
        self._is_scheduled = False

    def __bool__(self) -> bool:
        return bool(self._uses)

    def note(self, key: str, when: float) -> float | None:
        """Note that `key` was used at `when`; in how many seconds to write, or None if that is arranged already."""
        self._uses[key] = when, self._uses.get(key, (when, 0))[1] + 1
        since = time.monotonic() - self._tried_at
        if since >= USES_SECONDS or len(self._uses) >= _MOST_USES:
            return 0.0
        if self._is_scheduled:
            return None
        self._is_scheduled = True
        return USES_SECONDS - since

    def trying(self) -> None:
        """Note that the uses are about to be written, whatever becomes of it."""
        self._tried_at = time.monotonic()
        self._is_scheduled = False

    def take(self) -> list[tuple[str, float, int]]:
        """Remove and return all uses: key, time of the last one, how many."""
        return [(key, *use) for key in list(self._uses) if (use := self._uses.pop(key, None))]

    def give_back(self, taken: Iterable[tuple[str, float, int]]) -> None:
        """Keep what `take` returned, for the next transaction; of more than 1,000, the latest."""
        for key, when, times in taken:
            at, more = self._uses.get(key, (when, 0))
            self._uses[key] = max(at, when), times + more
        while len(self._uses) > _MOST_USES:
            del self._uses[next(iter(self._uses))]


class _Connection(sqlite3.Connection):
    """Closes itself when a store is collected without `close`; Python 3.13 warns of open connections."""

    def __del__(self, never_made: type[Exception] = sqlite3.ProgrammingError) -> None:
        # At the end of an exit, the names of this module are gone. never_made: the database could not be opened.
        try:  # noqa: SIM105
            self.close()
        except never_made:
            pass


class EntryIndex:
    """One connection to the index of one generation, for one thread at a time.

    Args:
        generation: its directory.
        presence: of this process in the store; None to read only, and leave no trace.
        options: see `IndexOptions`.
        mode: of SQLite's connection if it only reads: "ro", or "immutable" to read without taking part in the locking.

    Attributes:
        generation: its directory.
        token: of this process, in the names of value files that it has not given their final name.
        file_mode: the permissions of new value files, once one was made.
        uses: when entries were used that this index does not know of yet.
        removed: the files of rows that the open transaction has deleted; `finish_write` deletes them.
        deadline: monotonic seconds until which writes wait for other writers.
        evictions: how many puts of this connection have evicted something.
        unclean: something may have been left behind, so the next process that opens the store sweeps it.
    """

    def __init__(
        self,
        generation: Path,
        presence: Presence | None = None,
        *,
        options: IndexOptions = IndexOptions(),  # noqa: B008 (a constant)
        mode: str = "immutable",
    ) -> None:
        self.generation = str(generation)
        self.read_only = presence is None
        self.options = options
        self.token = "" if presence is None else presence.token
        self.file_mode: int | None = None
        self.uses = PendingUses()
        self.deadline = 0.0
        self.unclean = False
        self.evictions = 0
        self._presence = presence
        self._marked: Sequence[tuple[str, float, int]] = ()  # of the transaction that is open, as is `removed`
        self.removed: list[Any] = []
        self._pending_deletes: list[Any] = []
        self._only_notes = True
        path = generation / INDEX
        self._path = str(path)
        how = {"ro": "mode=ro", "immutable": "mode=ro&immutable=1"}[mode] if self.read_only else "mode=rw"
        # isolation_level None: transactions are begun and ended explicitly. timeout 0: `transact` waits.
        self.connection = sqlite3.connect(
            f"{path.as_uri()}?{how}",
            uri=True,
            timeout=0,
            isolation_level=None,
            check_same_thread=False,
            factory=_Connection,
        )
        self._sql = self.connection.execute
        try:
            self._set_up()
        except BaseException:
            self.connection.close()
            raise
        self._seen = self._signature()

    def _set_up(self) -> None:
        self.connection.text_factory = _AS_TEXT
        self._steps = MOST_STEPS
        self.connection.set_progress_handler(self._watch, _WATCH_STEPS)
        # It is in WAL mode, unless a tool has changed that.
        last = "PRAGMA query_only = 1" if self.read_only else "PRAGMA journal_mode = WAL"
        self.connection.executescript(_PRAGMAS + last)  # one call: the connection keeps an object of each statement
        names = {name for (name,) in self._sql("SELECT name FROM sqlite_master").fetchall()}
        if not names.issuperset(_REQUIRED):
            raise DamageError(f"the index lacks {', '.join(sorted({*_REQUIRED} - names))}")
        self.total()
        if self.options.worth is not None and not self.read_only and "Cache_turn" not in names:
            from ejcache.stores.local.cost_order import order_by_cost  # most stores keep the order of uses

            self._sql("BEGIN IMMEDIATE")  # who opens the index tries again if another process is writing
            order_by_cost(self._sql)
            self._sql("COMMIT")

    def _watch(self) -> int:
        self._steps -= 1
        return int(self._steps < 0)

    def rows(self, statement: str, *parameters: object, steps: int = MOST_STEPS) -> list[Any]:
        """Return the rows of a query, which is stopped after `steps` million steps."""
        self._steps = steps
        rows: list[Any] = self._sql(statement, parameters).fetchall()
        return rows

    # -- the connection --------------------------------------------------------------------------------------------

    def stale(self) -> bool:
        """True if the index is not the one that was opened any more: moved, deleted or, for a reader, changed."""
        if self.read_only:
            return self._signature() != self._seen
        try:
            about = os.stat(self._path)  # noqa: PTH116 (on the path of every hit)
        except OSError:
            return True
        return (about.st_ino, about.st_dev) != self._seen

    def _signature(self) -> tuple[int, ...] | None:
        try:
            about = os.stat(self._path)  # noqa: PTH116 (pathlib's takes twice as long)
        except OSError:
            return None
        if not self.read_only:
            return (about.st_ino, about.st_dev)
        # A reader that does not take part in the locking (immutable) notices a change by the file only.
        return (about.st_ino, about.st_dev, about.st_size, about.st_mtime_ns, wal_bytes(self._path) > 0)

    def close(self, *, at_exit: bool = False) -> None:
        """Release everything. What cannot be released is left to the kernel and to the next sweep.

        Args:
            at_exit: the process ends now, so a log to which this connection has added nothing but uses and counters may
                stay as it is. The last connection that closes moves the log into the database, and waits for the disk
                three times: that is longer than 100 hits take.
        """
        with contextlib.suppress(sqlite3.Error, UnicodeError, StoreBusyError, MemoryError):
            self.deadline = 0.0
            if not self.read_only and not self.stale():
                self.write_uses()
                if not self._only_notes:
                    # A reader that cannot read the log misses no entry, whichever connection closes last.
                    self.checkpoint()
        clean = self.delete_pending() and not self.unclean
        if at_exit and clean and self._only_notes:
            self._leak()
        else:
            with contextlib.suppress(sqlite3.Error):
                self.connection.close()
        if self._presence is not None:
            self._presence.leave(clean=clean)

    def abandon(self) -> None:
        """Leave alone, in a forked child, what belongs to the parent.

        SQLite forbids even closing a connection on the other side of a fork, and Python closes one that is collected.
        """
        self._leak()
        if self._presence is not None:
            self._presence.forget()

    def _leak(self) -> None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.connection))

    def checkpoint(self) -> None:
        """Move the write-ahead log into the database, unless another process is using it for a tenth of a second."""
        self._sql("PRAGMA busy_timeout = 100")
        try:
            self._sql("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.OperationalError as exc:
            if classify(exc) != "busy":
                raise
        finally:
            self._sql("PRAGMA busy_timeout = 0")

    # -- transactions ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def transact(self, *, notes: bool = False) -> Iterator[Callable[..., Any]]:
        """Run a block as one transaction: yields the function that runs its statements.

        Args:
            notes: it writes nothing but uses and counters.

        Raises:
            StoreBusyError: another process kept the index busy until the deadline.
        """
        self._only_notes = self._only_notes and notes
        self._steps = MOST_STEPS
        self._begin()
        self._marked, self.removed = (), []
        try:
            yield self._sql
            self._sql("COMMIT")
        except BaseException:
            self.uses.give_back(self._marked)
            with contextlib.suppress(sqlite3.Error):  # a closed or damaged connection
                if self.connection.in_transaction:
                    self._sql("ROLLBACK")
            raise
        self._pending_deletes.extend(filter(None, self.removed))
        self._marked = ()

    def _begin(self) -> None:
        while True:
            try:
                self._sql("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as exc:
                if classify(exc) != "busy":
                    raise
                if not pause(self.deadline):
                    raise StoreBusyError(f"another process kept the index of {self.generation} busy too long") from exc

    def delete_pending(self) -> bool:
        """Delete the files of deleted rows; False if some could not be deleted."""
        good = True
        while self._pending_deletes:
            good = delete_value(self.generation, self._pending_deletes[-1]) and good
            self._pending_deletes.pop()
        return good

    def finish_write(self) -> None:
        """Delete the files of rows that were deleted, and keep short a log that readers kept from being reused."""
        if not self.delete_pending():
            self.unclean = True
        if wal_bytes(self._path) > WAL_BYTES:
            self.checkpoint()

    # -- rows ------------------------------------------------------------------------------------------------------

    def find(self, key: str, *, whole: bool) -> IndexRow | None:
        """Return the row of `key`, with its value or only the value's length."""
        self._steps = MOST_STEPS
        row = self._sql(f"SELECT {WHOLE if whole else LENGTH} FROM Cache WHERE key = ? AND raw = 1", (key,)).fetchone()
        return None if row is None else IndexRow(*row)

    # -- sums, uses and counters -----------------------------------------------------------------------------------

    def total(self) -> int:
        """Return the bytes of all entries."""
        kept = self.rows("SELECT value FROM Settings WHERE key = 'size'")
        return kept[0][0] if kept and type(kept[0][0]) is int and kept[0][0] >= 0 else self.sum_of_sizes()

    def sum_of_sizes(self) -> int:
        """Return the bytes of all entries, by their rows."""
        return int(self.rows("SELECT COALESCE(SUM(size), 0) FROM Cache WHERE typeof(size) = 'integer'")[0][0])

    def mark_uses(self) -> None:
        """Write when entries were used, inside a transaction; if that fails, the next one does it."""
        self._marked, turn = self.uses.take(), ""
        if self.options.worth is not None:
            from ejcache.stores.local.cost_order import set_turn

            turn = set_turn(self._sql, _USES)
        for start in range(0, len(self._marked), _ROWS_OF_USES):
            some = self._marked[start : start + _ROWS_OF_USES]
            rows = ", ".join(["(?, ?, ?)"] * len(some))
            self._sql(_MARK_USES.format(rows=rows, turn=turn), [value for row in some for value in row])

    def write_uses(self) -> None:
        """Write when entries were used; raises StoreBusyError if another process kept the index busy."""
        if self.uses:
            with self.transact(notes=True):
                self.mark_uses()

    def add_counters(self, amounts: Mapping[str, float]) -> None:
        """Add to the counters."""
        with self.transact(notes=True) as sql:
            self.mark_uses()
            if amounts:
                rows = ", ".join(["(?, ?)"] * len(amounts))
                sql(_COUNT.replace("(?)", rows), [value for pair in amounts.items() for value in pair])


def wal_bytes(path: str | Path) -> int:
    """Return the bytes of the write-ahead log of the database at `path`."""
    try:
        return os.stat(f"{path}-wal").st_size  # noqa: PTH116 (on the path of every hit of a reader)
    except OSError:
        return 0


def read_value(directory: str, row: IndexRow, length: int | None = None) -> bytes | None:
    """Read the value of a trustworthy row, or its first `length` bytes; None if its file is not as the row says.

    Raises:
        FileNotFoundError: its file is gone.
        OSError: its file cannot be read.
    """
    if row.mode == MODE_RAW:
        value: bytes = row.value
        return value[:length]
    if row.size > MAX_VALUE_BYTES:
        return None
    try:
        fd = os.open(os.path.join(directory, row.filename), _READ)
    except OSError as exc:
        if exc.errno in (errno.ELOOP, errno.ENXIO):  # a link or a socket
            return None
        raise
    try:
        if not is_value(os.fstat(fd), row.size):  # a directory, too, of which Python makes no file object
            return None
        wanted: int = row.size if length is None else min(length, row.size)
        data = os.read(fd, wanted)
        while len(data) < wanted:  # one read(2) returns at most 2 GiB
            more = os.read(fd, wanted - len(data))
            if not more:
                return None
            data += more
        return data
    finally:
        os.close(fd)


def delete_value(directory: str, filename: Any) -> bool:
    """Delete a file that no row names any more; False if that failed.

    A name that ejcache does not make is left alone: it may lead anywhere.
    """
    if not isinstance(filename, str) or re.fullmatch(FILENAME, filename) is None:
        return True
    try:
        os.unlink(os.path.join(directory, filename))  # noqa: PTH108
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def is_value(about: os.stat_result, size: int) -> bool:
    """True if a file is one, of so many bytes."""
    return stat.S_ISREG(about.st_mode) and about.st_size == size
