"""Keeps the order of a local store in diskcache: the bytes of all entries, and hints at what is evicted next.

The files are the store, and this is what can be made from them again. diskcache keeps it in SQLite, and is used by its
public methods alone. Whoever changes files does so under the lock of the store, and notes that in a file (`changes`),
from which diskcache gets many changes in one transaction.

It is made anew where it is no database, a damaged one, not of diskcache, older than the last change, or of another
directory; never because it is locked, or cannot be read or written now.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import sqlite3
import stat
import threading
import time
import weakref
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from diskcache import DEFAULT_SETTINGS, Cache, Disk, Timeout

from ejcache.errors import StoreBusyError, StoreError, StoreReadOnlyError, StoreUnavailableError
from ejcache.stores.local.changes import ChangeFile, DamageError
from ejcache.stores.local.failures import explain_error, file_size_limit
from ejcache.stores.local.layout import PAIRS, sweep
from ejcache.stores.local.transaction import AT_ONCE, LOOKS, USELESS, EvictionRules, Transaction
from ejcache.util.files import make_below, open_like_directory
from ejcache.util.lifecycle import AtExit, ExitPhase, is_ending, track_forks
from ejcache.util.locks import ThreadLock, exclusive, pause
from ejcache.util.log import log
from ejcache.util.scheduler import short_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    from ejcache.stores.local.transaction import Hint, Key, Known

    T = TypeVar("T")

_BATCHES: Final = 16
"""Of hints that are brought up to date, one after the other."""
_DATABASE: Final = "cache.db"
_SETTINGS: Final = {
    "eviction_policy": "none",
    "cull_limit": 0,
    "size_limit": 2**62,
    "disk_min_file_size": 2**30,
    "sqlite_mmap_size": 0,
    # No log that lasts, no memory that processes share, and no lock but inside of a transaction.
    "sqlite_journal_mode": "persist",
    # What the end of a machine damages is made again.
    "sqlite_synchronous": 0,
}
_KNOWN: Final = frozenset({*DEFAULT_SETTINGS, "count", "size", "hits", "misses"})
_SCHEMA: Final = frozenset({
    "Settings", "Cache", "sqlite_autoindex_Settings_1", "Cache_key_raw", "Cache_expire_time",
    *(f"Settings_{what}" for what in ("count_insert", "count_delete", "size_insert", "size_update", "size_delete")),
})  # fmt: skip
_SUPER_JOURNAL: Final = bytes.fromhex("d9d505f920a163d7")
"""The end of a rollback journal that names another file, which SQLite would delete. Ours never do."""
_FULL: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_TRUNCATE)
_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
_DAMAGE: Final = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
_FOREIGN: Final = (
    sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_SCHEMA,
    sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_FORMAT,
)  # fmt: skip
"""What SQLite says about tables, indexes or values that diskcache does not make."""


class _TextsOnly(Disk):  # type: ignore[misc]
    """Keys and values are text, bytes and numbers; diskcache would unpickle others."""

    def get(self, key: Any, raw: Any) -> Any:
        """Return a key as it was given."""
        if not raw or not isinstance(key, str | bytes):
            raise DamageError("a key that ejcache does not write")
        return key

    def fetch(self, mode: Any, filename: Any, value: Any, read: Any) -> Any:  # noqa: ARG002
        """Return a value that is in its row."""
        if mode not in (0, 1) or filename is not None:
            raise DamageError("a value that ejcache does not write")
        return value


class EvictionOrder:
    """The order of the store in one directory, for all threads of this process, and across forks.

    The main thread keeps its connection from one transaction to the next; every other thread closes its own, because
    no thread may close that of another. No transaction runs while the process forks.

    Args:
        rules: by what it evicts.
        timeout: seconds to wait for other processes.
    """

    def __init__(self, rules: EvictionRules, *, timeout: float) -> None:
        self.rules = rules
        self.layout = rules.layout
        self._timeout = timeout
        self._lock = ThreadLock(str(self.layout.root))
        self._file_lock = Path(self.layout.lock)
        self._cache: Cache | None = None
        self._known: Known | None = None
        self._id: tuple[int, int] | None = None
        self._is_inside = self._is_forked = self._is_held_for_fork = False
        self.is_counting = False
        _all.add(self)
        track_forks(self)

    # -- transactions ----------------------------------------------------------------------------------------------

    def change(self, action: Callable[[Transaction], T], *, patience: float | None = None) -> T:
        """Call `action` while nobody else changes the store, and return what it does.

        What it raises undoes nothing that it did to files: the next transaction looks at those that it noted last. An
        order that is damaged is made anew, and then `action` is called again.

        Args:
            action: called by one thread and one process at a time.
            patience: seconds to wait for others, if not the store's timeout.

        Raises:
            StoreBusyError: others kept the store busy until the deadline.
            StoreReadOnlyError: this user cannot write there.
            StoreError: the order could not be used.
            OSError: a file could not be changed, or the directory is gone.
        """
        if self._is_forked:
            raise StoreUnavailableError(f"{self.layout.root} was in use in the parent when this process was forked off")
        deadline = time.monotonic() + (self._timeout if patience is None else patience)
        for _ in range(3):
            # Not in a generator of our own: one that an exception has left holds the locks until it is collected.
            with self._lock.until(deadline), exclusive(self._file_lock, deadline=deadline, anew=True):
                try:
                    done, is_stale, is_complete = self._run(action, deadline)
                except (sqlite3.Error, Timeout, UnicodeError) as exc:
                    self._discard()
                    if not _is_damage(exc):
                        raise _translate(exc, self.layout.root) from exc
                    log.warning("ejcache: the order of %s is made anew from its files: %s", self.layout.root, exc)
                    self.layout.put_away(self.layout.orders())
                    self.layout.remove_dead()
                    continue
                except MemoryError as exc:  # what Python makes of SQLITE_NOMEM
                    self._discard()
                    raise StoreError(f"{self.layout.root}: no memory is left for the order") from exc
                except BaseException:
                    self._discard()
                    raise
            if not is_complete and not self.is_counting:
                self.is_counting = short_tasks.later(0.0, partial(_count, weakref.ref(self)))
            elif is_stale:
                short_tasks.later(0.0, partial(_bring_up_to_date, weakref.ref(self)))
            return done
        raise StoreUnavailableError(f"{self.layout.root}: its order is damaged again and again")

    def _run(self, action: Callable[[Transaction], T], deadline: float) -> tuple[T, bool, bool]:
        if self._is_inside:  # an exception has come from a signal handler in the middle of a transaction
            self._discard()
        cache = self._opened(deadline)
        self._is_inside = True
        with ChangeFile(self.layout.changes) as file:
            change = Transaction(self.rules, self._known, cache, file, partial(_begun, cache, deadline))
            self._known = change.known
            done = change.do(action)
            if change.is_long:
                try:
                    change.fold()
                except (sqlite3.Error, Timeout, OSError):  # of a change that is made: the next transaction tries again
                    change.is_void = True
        if change.is_void:
            self._known = None
        self._is_inside = False
        if threading.current_thread() is not threading.main_thread() or is_ending():
            cache.close()
        return done, change.is_stale, change.state.is_complete

    # -- the database; with the locks held -------------------------------------------------------------------------

    def _opened(self, deadline: float) -> Cache:
        if self._cache is not None:
            if self._id == _identity(f"{self._cache.directory}/{_DATABASE}"):
                return self._cache
            self._discard()
        _close_left()
        orders = self.layout.orders()
        sweep(self.layout)
        own = [path for path in orders if self.layout.is_own_order(path)][:1]
        self.layout.put_away(path for path in orders if path not in own)
        self.layout.remove_dead()
        if own:
            _probe(own[0], deadline)
        else:
            own = [self._make()]
        try:
            cache = Cache(own[0], timeout=0, disk=_TextsOnly, **_SETTINGS)
        except Timeout as exc:
            raise StoreBusyError(f"another process kept {own[0]} busy too long") from exc
        self._id = _identity(f"{own[0]}/{_DATABASE}")
        self._cache = cache
        return cache

    def _make(self) -> str:
        try:
            os.unlink(self.layout.changes)  # noqa: PTH108 (as the others: no path is made)
        except FileNotFoundError:
            pass
        except OSError:  # a directory that somebody has put there
            self.layout.put_away([self.layout.changes])
        place = self.layout.fresh_order()
        make_below(Path(place))
        try:
            os.close(open_like_directory(f"{place}/{_DATABASE}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
        except OSError:
            Path(place).rmdir()
            raise
        return place

    def forget(self) -> None:
        """Remove the order, inside of `alone`: the next transaction makes it anew."""
        self._discard()
        self.layout.put_away(self.layout.orders())

    def alone(self, action: Callable[[], T]) -> T:
        """Call `action` while all others are kept out, without a transaction, and return what it does.

        Raises:
            StoreBusyError: others kept the store busy until the deadline.
        """
        deadline = time.monotonic() + self._timeout
        with self._lock.until(deadline), exclusive(self._file_lock, deadline=deadline, anew=True):
            return action()

    def _discard(self) -> None:
        cache, self._cache, self._known, self._is_inside = self._cache, None, None, False
        if cache is not None:
            with contextlib.suppress(sqlite3.Error):
                cache.close()
            if threading.current_thread() is not threading.main_thread():
                _left_open.append(cache)

    def close(self) -> None:
        """Close the connection; the next transaction opens another."""
        with self._lock.until(time.monotonic() + self._timeout):
            self._discard()
            _close_left()

    def __del__(self) -> None:
        # No other thread refers to the order. The attribute is missing if the constructor raised.
        cache = self.__dict__.get("_cache")
        if cache is not None:
            _left_open.append(cache)
            _close_left()

    # -- forks -----------------------------------------------------------------------------------------------------

    # SQLite forbids that a child uses a connection of its parent, or closes it (https://sqlite.org/howtocorrupt.html,
    # 2.6). One that is idle holds no lock in the mode of journal that is used here.

    def before_fork(self) -> None:
        if self._lock.owned():
            return  # a fork inside a call of this thread, which goes on with its connection
        try:
            self._lock.acquire(timeout=self._timeout)
        finally:
            self._is_held_for_fork = self._is_held_for_fork or self._lock.owned()
        if self._lock.owned():
            self._discard()
            _close_left()

    def after_fork_in_parent(self) -> None:
        # Not if another thread holds it, because it is forking too.
        if self._is_held_for_fork and self._lock.owned():
            self._is_held_for_fork = False
            self._lock.release()

    def after_fork_in_child(self) -> None:
        self._lock = ThreadLock(str(self.layout.root))
        self._is_held_for_fork = False
        self._is_forked = self._is_forked or self._is_inside
        for cache in (self._cache, *_left_open):
            if cache is not None:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(cache))  # Python would close one that is collected
        _left_open.clear()
        self._cache, self._known, self._is_inside = None, None, False


_left_open: Final[list[Cache]] = []
"""What another thread has discarded: of the main thread's connection, which it alone can close."""


def _close_left() -> None:
    """Close what other threads have left open; does nothing in one of them."""
    if threading.current_thread() is threading.main_thread():
        while _left_open:
            with contextlib.suppress(sqlite3.Error):
                _left_open.pop().close()


def _identity(path: str) -> tuple[int, int] | None:
    try:
        about = os.stat(path)  # noqa: PTH116 (in each transaction)
    except OSError:
        return None
    return about.st_dev, about.st_ino


@contextlib.contextmanager
def _begun(cache: Cache, deadline: float) -> Iterator[None]:
    while True:
        has_begun = False
        try:
            with cache.transact():
                has_begun = True
                yield
            return
        except Timeout:  # which diskcache makes of every error
            if has_begun:
                raise
            _begin_and_end(f"{cache.directory}/{_DATABASE}", deadline)


def _probe(place: str, deadline: float) -> None:
    """Look at a database before diskcache opens it, which would wait for a minute, and would open anything.

    Raises:
        DamageError: it is not one that diskcache has made, or opening it would delete another file.
        StoreBusyError: it was locked until the deadline.
        sqlite3.Error: it cannot be used.
    """
    path = f"{place}/{_DATABASE}"
    for name, is_needed in ((path, True), (f"{path}-journal", False), (f"{path}-wal", False), (f"{path}-shm", False)):
        try:
            if not stat.S_ISREG(os.lstat(name).st_mode):
                raise DamageError(f"{name} is no file")
        except FileNotFoundError as exc:
            if is_needed:
                raise DamageError(f"{name} is gone") from exc
    with contextlib.suppress(FileNotFoundError), Path(f"{path}-journal").open("rb") as journal:
        journal.seek(0, os.SEEK_END)
        journal.seek(max(0, journal.tell() - len(_SUPER_JOURNAL)))
        if journal.read() == _SUPER_JOURNAL:
            raise DamageError("its journal names another file")
    _begin_and_end(path, deadline, is_looked_at=True)


def _begin_and_end(path: str, deadline: float, *, is_looked_at: bool = False) -> None:
    while True:
        with contextlib.closing(sqlite3.connect(f"{Path(path).as_uri()}?mode=rw", uri=True, timeout=0)) as connection:
            connection.isolation_level = None
            try:
                connection.execute("BEGIN IMMEDIATE")
                if is_looked_at:
                    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
                    if names and names != _SCHEMA:
                        raise DamageError("its tables are not those that diskcache makes")
                    keys = {key for (key,) in connection.execute("SELECT key FROM Settings")} if names else set()
                    if not keys <= _KNOWN:
                        raise DamageError("its settings are not those that diskcache makes")
                connection.execute("ROLLBACK")
            except sqlite3.OperationalError as exc:
                if not _is_busy(exc):
                    raise
            else:
                return
        if not pause(deadline):
            raise StoreBusyError(f"another process kept the order in {Path(path).parent} busy too long")


def _is_busy(exc: sqlite3.Error) -> bool:
    return (getattr(exc, "sqlite_errorcode", None) or 0) & 0xFF in _BUSY


def _is_damage(exc: Exception) -> bool:
    """True if only a new order helps: it is no database, a damaged one, or not of diskcache."""
    if not isinstance(exc, sqlite3.Error):
        return isinstance(exc, UnicodeError)
    code = getattr(exc, "sqlite_errorcode", None)
    if code is None:  # Python cannot read a text
        return isinstance(exc, sqlite3.OperationalError)
    return code & 0xFF in (*_DAMAGE, *_FOREIGN)


def _translate(exc: Exception, root: Path) -> StoreError:
    if isinstance(exc, OSError):
        return explain_error(exc, root)
    code = getattr(exc, "sqlite_errorcode", None) or 0
    if isinstance(exc, Timeout) or code & 0xFF in _BUSY:
        return StoreBusyError(f"another process kept the order of {root} busy too long")
    if code & 0xFF == sqlite3.SQLITE_READONLY:
        return StoreReadOnlyError(f"the order of {root} cannot be written by this user: {exc}")
    if code in _FULL:
        return StoreError(f"{root}: no room is left for the order: {exc}{file_size_limit()}")
    return StoreError(f"{root}: the order could not be used: {exc}")


def is_full(exc: BaseException | None) -> bool:
    """True if `exc` or one of its causes says that the disk or the quota is full, so that an eviction makes room."""
    while exc is not None:
        if isinstance(exc, OSError) and exc.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        code = getattr(exc, "sqlite_errorcode", None) if isinstance(exc, sqlite3.Error) else None
        if code in _FULL and not file_size_limit():
            return True
        exc = exc.__cause__
    return False


def _count(reference: weakref.ref[EvictionOrder]) -> None:
    order = reference()
    if order is None:
        return
    order.is_counting = False
    # One process counts at a time. If it dies, the next put of another begins where it ended.
    counting = exclusive(Path(order.layout.counting), deadline=time.monotonic(), lasting=False)
    with contextlib.suppress(StoreError, FileNotFoundError), counting:
        state = order.change(lambda change: change.state if change.state.is_complete else change.count_share())
        log.info(
            "ejcache: counting the entries of %s: %d of %d parts are done",
            order.layout.root,
            state.sized + state.hinted,
            2 * len(PAIRS),
        )


def _bring_up_to_date(reference: weakref.ref[EvictionOrder]) -> None:
    """Give entries that were used since their new places, in batches, so that no put has to."""
    order = reference()
    for _ in range(_BATCHES):
        if order is None:
            return
        with contextlib.suppress(StoreError, FileNotFoundError):
            hints = order.change(lambda change: list(itertools.islice(change.hints(), AT_ONCE)))
            looked = [(hint, key, order.layout.look_at(hint[2])) for hint, key in hints]
            used = [
                (hint, key, about)
                for hint, key, about in looked
                if about is not None and hint[1] not in (USELESS, about.st_mtime_ns)
            ]

            def move(change: Transaction, some: list[tuple[Hint, Key, os.stat_result]]) -> None:
                for hint, key, about in some:
                    change.wait(change.use_since(hint[2], key, about))

            for start in range(0, len(used), LOOKS):
                order.change(partial(move, some=used[start : start + LOOKS]))
            if len(used) >= LOOKS:
                continue
        return


def _close(order: EvictionOrder) -> None:
    with contextlib.suppress(StoreError):
        order.close()


_all: Final[AtExit[EvictionOrder]] = AtExit(ExitPhase.CLOSE, _close)
