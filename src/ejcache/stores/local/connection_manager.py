"""The connection of a local store to its index: opened, replaced and reopened when that is necessary.

The index is opened under the lock of the store, and swept if a process died that had it open. `index_repair` makes an
index, and another one in place of a damaged one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import weakref
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.common_errors import StoreBusyError, StoreError, StoreReadOnlyError, StoreUnavailableError
from ejcache.stores.local.index import EntryIndex, IndexOptions, wal_bytes
from ejcache.stores.local.layout import INDEX, Layout, explain_failure, remove_trees
from ejcache.stores.local.sqlite import DamageError, classify, is_full, sqlite3, translate
from ejcache.util.files import read_regular
from ejcache.util.lifecycle import AtExit, ExitPhase, at_exit, track_forks
from ejcache.util.locks import Presence, ThreadLock, dead_presences, exclusive, pause
from ejcache.util.log import log, warn_once
from ejcache.util.scheduler import short_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    T = TypeVar("T")

_USES_PATIENCE: Final = 0.02
"""How long the write of uses waits for other processes."""
_HEADER: Final = b"SQLite format 3\0"

if TYPE_CHECKING:
    _Action = Callable[[EntryIndex], T]


class ConnectionManager:
    """The one connection of a store, for all its threads, and across forks and deleted directories.

    Attributes:
        root: the directory of the store.
        read_only: nothing can be written, because the caller wanted that or because this user may not.
        wants_read_only: the caller wanted that.
    """

    def __init__(self, layout: Layout, *, options: IndexOptions, read_only: bool, timeout: float) -> None:
        self.root = layout.root
        self.read_only = read_only
        self.wants_read_only = read_only
        self._layout = layout
        self._options = options
        self._timeout = timeout
        self._lock = ThreadLock(str(self.root))
        self._index: EntryIndex | None = None
        self._used: str | None = None
        self._suspect: str | None = None
        self._holders = 0
        self._uses_reserve = False
        self._locked_for_fork = False
        self._forked = False
        _all.add(self)
        track_forks(self)

    # -- operations ------------------------------------------------------------------------------------------------

    def run(
        self, action: _Action[T], *, make: bool = False, write: bool = False, patience: float | None = None
    ) -> T | None:
        """Call `action` with the current index and return its result; None if there is no store.

        While the index is busy, this waits. A connection to an index that was moved or deleted is replaced. A damaged
        index is quarantined if a new connection finds it damaged too.

        Args:
            action: called by one thread at a time, perhaps several times.
            make: create the store if it does not exist.
            write: `action` writes, so a connection that only reads because the disk is full is replaced.
            patience: seconds to wait for other processes, if not the store's timeout.

        Raises:
            StoreError: the storage failed, and another attempt would fail too.
        """
        deadline = time.monotonic() + (self._timeout if patience is None else patience)
        damaged = failed = 0
        while True:
            try:
                with self._lock.until(deadline):
                    index = self._current(make=make, write=write, deadline=deadline)
                    return None if index is None else self._once(index, action, deadline)
            except (sqlite3.Error, UnicodeError) as exc:
                kind = classify(exc)
                if kind == "busy":
                    if not pause(deadline):
                        raise StoreBusyError(f"another process kept the index of {self.root} busy too long") from exc
                    continue
                if kind == "full":
                    raise translate(exc, self.root) from exc
                self.close()
                if self.read_only and damaged:
                    warn_once(("unreadable", self.root), "ejcache: the index of %s cannot be read: %s", self.root, exc)
                    return None
                if self.read_only or (self._used is not None and _is_damaged(self._used, exc)):
                    damaged += 1
                    if damaged > 2:
                        raise translate(exc, self.root) from exc
                    if not self.read_only and self._is_damage_confirmed():
                        self.rebuild(str(exc))
                else:
                    failed += 1
                    if failed > 1 or kind == "read-only":
                        raise translate(exc, self.root) from exc
            except StoreError:
                raise
            except MemoryError as exc:  # what Python makes of SQLITE_NOMEM
                self.close()
                raise StoreError(f"{self.root}: no memory is left for the index") from exc
            except OSError as exc:
                failed += 1
                if failed > 1 or not self._is_replaced():
                    raise translate(exc, self.root) from exc

    def change(self, action: _Action[T], *, make: bool = False) -> T | None:
        """Return `run` for an action that writes; then the files of deleted rows are deleted.

        Raises:
            StoreReadOnlyError: the store is read-only.
        """

        def change(index: EntryIndex) -> T:
            if index.read_only:
                raise StoreReadOnlyError(f"{self.root} cannot be written by this user")
            done = action(index)
            index.finish_write()
            return done

        return self.run(change, make=make, write=True)

    def free(self, action: _Action[T]) -> T | None:
        """Return `change` for an action that deletes entries; on a full disk, in the room of the log and of the
        reserve.
        """

        def free(index: EntryIndex) -> T:
            done = action(index)
            if self._uses_reserve:
                with contextlib.suppress(sqlite3.OperationalError):
                    index.checkpoint()
            return done

        try:
            return self.change(free)
        except StoreError as exc:
            if not is_full(exc):
                raise
        with self._lock.until(time.monotonic() + self._timeout):
            self._make_room()
        return self.change(free)

    def start_over(self) -> None:
        """Delete all entries at once; the counters stay, if there is room for a new index.

        Processes that have the old index open hold its room until they look at the store again.

        Raises:
            StoreError: the storage failed; the entries may be gone all the same.
        """
        from ejcache.stores.local.index_repair import start_over  # by what clears a store
        from ejcache.stores.local.index_upkeep import counters

        kept = self.run(counters)
        if kept is None:
            return
        deadline = time.monotonic() + self._timeout
        try:
            with self._lock.until(deadline):
                self._make_room()
                with exclusive(Path(self._layout.lock), deadline=deadline):
                    start_over(self._layout, kept)
        except OSError as exc:
            raise translate(exc, self.root) from exc

    def note_use(self, key: str, when: float) -> None:
        """Have the time of a use written to the index, at once or a moment later together with that of others."""
        index = self._index
        if index is None or index.read_only:
            return
        delay = index.uses.note(key, when)
        if delay == 0.0 or (delay and not short_tasks.later(delay, partial(_write_uses, weakref.ref(self)))):
            self.write_uses()

    def write_uses(self) -> None:
        """Write the uses that were noted. Best effort: it neither repairs nor fails; the next write does it, too."""
        index = self._index
        if index is not None and index.uses:
            index.uses.trying()
            self.note(index, lambda index: index.write_uses(), patience=_USES_PATIENCE)

    def note(self, index: EntryIndex, action: _Action[object], *, patience: float) -> None:
        """Run `action` if `index` is still the current one, without repairs, for at most `patience` seconds."""
        with contextlib.suppress(StoreError, sqlite3.Error, UnicodeError, OSError, MemoryError):
            deadline = time.monotonic() + patience
            with self._lock.until(deadline):
                if index is self._index and not index.read_only:
                    self._once(index, action, deadline)

    @contextlib.contextmanager
    def held(self) -> Iterator[EntryIndex | None]:
        """Yield the current index, opened if necessary. At exit it is not closed before the `with` block ends."""
        self._holders += 1
        index = self._index
        try:
            # `change` looks again, under the lock. In a directory that was removed, the file of a value would make the
            # generation anew, without its index.
            if index is None or index.read_only or index.stale():
                index = self.run(lambda index: index, make=True, write=True)
            yield index
        except StoreError:
            raise
        except BaseException:
            if index is not None:
                index.unclean = True
            raise
        finally:
            self._holders -= 1
            if _exiting:
                self.close()

    def rebuild(self, why: str) -> None:
        """Quarantine the index as damaged and create a new one; do nothing in a store that is only read.

        Raises:
            StoreError: that failed.
        """
        from ejcache.stores.local.index_repair import replace  # by what is damaged

        deadline = time.monotonic() + self._timeout
        try:
            with self._lock.until(deadline):
                index = self._current(deadline=deadline)
                if index is None or index.read_only:
                    return
                log.warning("ejcache: the index of %s is damaged, and a new one is created: %s", self.root, why)
                self._release()
                with exclusive(Path(self._layout.lock), deadline=deadline):
                    replace(self._layout, Path(index.generation), self._options.max_size)
                self._current(make=True, deadline=deadline)
        except StoreError:
            raise
        except (sqlite3.Error, UnicodeError, OSError) as exc:
            raise translate(exc, self.root) from exc

    def close(self, *, at_exit: bool = False) -> None:
        """Close the connection; the next call opens another."""
        with self._lock.until(time.monotonic() + self._timeout):
            self._release(at_exit=at_exit)

    # -- the connection; called with the lock held -----------------------------------------------------------------

    def _once(self, index: EntryIndex, action: _Action[T], deadline: float) -> T:
        self._used = index.generation
        try:
            index.deadline = deadline
            return action(index)
        except StoreError:
            raise
        except BaseException:
            # After an interrupt, only a sweep finds what was left behind.
            index.unclean = True
            raise
        finally:
            if index.connection.in_transaction or (_exiting and not self._holders):
                self._release()

    def _current(self, *, make: bool = False, write: bool = False, deadline: float) -> EntryIndex | None:
        index = self._index
        if index is not None:
            if not index.stale() and not (write and index.read_only and not self.read_only):
                return index
            self._release()
        if self._forked:
            raise StoreUnavailableError(f"{self.root} was in use in the parent when this process was forked off")
        if self.wants_read_only:
            self._index = _open_for_reading(self._layout)
            return self._index
        if not make and not Path(self._layout.local).is_dir():
            self._layout.check()
            return None
        try:
            opened = _open_for_writing(self._layout, self._options, deadline)
            self.read_only = opened is None
            if opened is not None and not self._uses_reserve:
                self._layout.keep_reserve()
        except StoreError as exc:
            if write or not is_full(exc):
                raise
            # The disk is full: read the index as it is. A call that writes tries to open it again.
            opened = None
            with contextlib.suppress(sqlite3.Error, UnicodeError):  # it is damaged, and there is no room for another
                opened = _open_for_reading(self._layout)
            if opened is None:
                raise
        self._index = _open_for_reading(self._layout) if opened is None else opened
        return self._index

    def _is_damage_confirmed(self) -> bool:
        """True if an earlier connection has found this generation damaged too."""
        suspected, self._suspect = self._suspect, self._used
        return suspected == self._used

    def _is_replaced(self) -> bool:
        """True if the index was moved or deleted; then its connection is closed."""
        with self._lock.until(time.monotonic() + self._timeout):
            if self._index is None or not self._index.stale():
                return False
            self._release()
            return True

    def _make_room(self) -> None:
        # The last process that closes the index moves the log into it, and deletes the log.
        self._release()
        self._layout.drop_reserve()
        self._uses_reserve = True

    def _release(self, *, at_exit: bool = False) -> None:
        index, self._index = self._index, None
        if index is not None:
            index.close(at_exit=at_exit)
        if self._uses_reserve:
            self._uses_reserve = False
            self._layout.keep_reserve()

    def __del__(self) -> None:
        # No other thread refers to the store, so no lock is needed. The attribute is missing if the constructor raised.
        index = self.__dict__.get("_index")
        if index is not None:
            index.close()

    # -- forks -----------------------------------------------------------------------------------------------------

    # SQLite keeps per process which locks it holds. A child that has even an idle connection of its parent's believes
    # that it holds locks which are the parent's, and a busy one looks locked for ever
    # (https://sqlite.org/howtocorrupt.html, 2.6). So no connection is open while the process forks.

    def before_fork(self) -> None:
        if self._lock.owned():
            return  # a fork inside a call of this thread, which goes on with its connection
        try:
            self._lock.acquire(timeout=self._timeout)
        finally:
            self._locked_for_fork = self._locked_for_fork or self._lock.owned()
        if self._lock.owned():
            self._release()

    def after_fork_in_parent(self) -> None:
        # Not if another thread holds it, because it is forking too.
        if self._locked_for_fork and self._lock.owned():
            self._locked_for_fork = False
            self._lock.release()

    def after_fork_in_child(self) -> None:
        self._lock = ThreadLock(str(self.root))
        self._locked_for_fork = False
        self._holders = 0
        index, self._index = self._index, None
        if index is not None:
            index.abandon()
            self._forked = True


def _open_for_writing(layout: Layout, options: IndexOptions, deadline: float) -> EntryIndex | None:
    """Open the store, and create or repair it if necessary; None if this user cannot write there.

    Args:
        layout: of the store.
        options: of its index.
        deadline: monotonic seconds.

    Raises:
        StoreBusyError: another process was opening it until `deadline`.
        NotAStoreError: there is something else, or a newer format.
        StoreUnavailableError: it can neither be created nor read, or must not be trusted.
    """
    try:
        layout.check()
        layout.make_directories()
        with exclusive(Path(layout.lock), deadline=deadline):
            # A process that deleted the directory meanwhile deleted the lock file too, and this lock locks nothing.
            layout.make_directories()
            return _open_locked(layout, options, deadline)
    except (PermissionError, StoreReadOnlyError) as exc:
        if os.access(layout.root, os.R_OK | os.X_OK) and _is_readable(layout):
            return None
        raise explain_failure(layout.root, exc) from exc
    except StoreError:
        raise
    except OSError as exc:
        if exc.errno == errno.EROFS and layout.root.is_dir():
            return None
        if exc.errno in (errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL):
            raise explain_failure(layout.root, exc) from exc
        raise translate(exc, layout.root) from exc


def _open_for_reading(layout: Layout) -> EntryIndex | None:
    """Open the store without leaving a trace; None if there is none.

    Raises:
        NotAStoreError: there is something else, or a newer format.
        StoreUnavailableError: it cannot be read, or must not be trusted.
        sqlite3.Error: its index is damaged.
    """
    if not layout.check():
        return None
    try:
        generations = layout.generations()
    except OSError as exc:
        raise explain_failure(Path(layout.local), exc) from exc
    if not generations:
        return None
    layout.check_files(generations[0])
    # A log that is not empty belongs to a live or a killed writer, or holds uses and counters only. It can be read
    # if its memory can be shared; otherwise its content counts as absent.
    if wal_bytes(generations[0] / INDEX):
        try:
            return EntryIndex(generations[0], mode="ro")
        except sqlite3.OperationalError as exc:
            if classify(exc) == "suspect":
                raise
    return EntryIndex(generations[0])


def _open_locked(layout: Layout, options: IndexOptions, deadline: float) -> EntryIndex:
    remove_trees(layout.leftovers())
    generations = layout.generations()
    presence = Presence(Path(layout.present))
    try:
        if generations:
            index = _attach_if_intact(layout, generations[0], presence, options, deadline)
            if index is not None:
                return index
        from ejcache.stores.local.index_repair import create, replace  # once for each store, and by what is damaged

        if generations:
            replace(layout, generations[0], options.max_size)
        generation = (layout.generations() or [create(layout, {})])[0]
        return _attach(generation, presence, options, deadline)
    except BaseException:
        presence.leave(clean=True)
        raise


def _attach(generation: Path, presence: Presence, options: IndexOptions, deadline: float) -> EntryIndex:
    while True:
        try:
            return EntryIndex(generation, presence, options=options)
        except sqlite3.OperationalError as exc:
            if classify(exc) != "busy" or not pause(deadline):
                raise


def _attach_if_intact(
    layout: Layout, generation: Path, presence: Presence, options: IndexOptions, deadline: float
) -> EntryIndex | None:
    """Open the index of `generation`, and sweep it if a process died that had it open; None if it is damaged.

    Raises:
        StoreError: it cannot be opened now, but is intact: another process has it locked, the disk is full,
            or this user may not write to it.
    """
    root = layout.root
    index = None
    try:
        layout.check_files(generation)
        _check_header(generation / INDEX)
        index = _attach(generation, presence, options, deadline)
        if dead := dead_presences(Path(layout.present)):
            from ejcache.stores.local.index_upkeep import sweep  # where a process was killed

            sweep(index, layout, dead)
        return index
    except (sqlite3.Error, UnicodeError) as exc:
        if index is not None:
            index.connection.close()
        if not _is_damaged(str(generation), exc):
            raise translate(exc, root) from exc
        log.warning("ejcache: the index of %s is damaged, and is quarantined: %s", root, exc)
        return None


def _is_damaged(generation: str, exc: sqlite3.Error | UnicodeError) -> bool:
    """True if `exc`, raised by the index of `generation`, proves that it is damaged, or if SQLite's check does."""
    if isinstance(exc, DamageError):
        return True
    if classify(exc) != "suspect":
        return False
    try:
        from ejcache.stores.local.index_repair import is_copy_damaged  # by what is suspected
    except (ImportError, OSError):
        return False  # no file can be read, so nothing can be proven
    return is_copy_damaged(Path(generation, INDEX))


def _check_header(path: Path) -> None:
    """Look at what SQLite would make of the file, before it opens it: a database without tables of an empty file."""
    try:
        header = read_regular(path, max_size=len(_HEADER), length=len(_HEADER))
    except FileNotFoundError as exc:
        raise DamageError(str(exc)) from exc
    if header != _HEADER:
        raise DamageError("it does not begin as a database does")
    if not os.access(path, os.W_OK):
        raise StoreReadOnlyError(f"{path} cannot be written by this user")


def _is_readable(layout: Layout) -> bool:
    version, local = layout.root / "v1", Path(layout.local)
    return not version.exists() or os.access(local, os.R_OK | os.X_OK) or not local.exists()


def _write_uses(reference: weakref.ref[ConnectionManager]) -> None:
    manager = reference()
    if manager is not None:
        manager.write_uses()


_exiting = False


def _close_at_exit(manager: ConnectionManager) -> None:
    with contextlib.suppress(StoreError):
        manager.close(at_exit=True)


def _note_exit() -> None:
    # From now on, each operation opens the store and closes it again: nothing would close it later.
    global _exiting
    _exiting = True


_all: Final[AtExit[ConnectionManager]] = AtExit(ExitPhase.CLOSE, _close_at_exit)
at_exit(ExitPhase.CLOSE, _note_exit)  # before that, because it was registered after it
