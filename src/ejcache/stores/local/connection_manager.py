"""The connection of a local store to its index: opened, repaired, replaced and reopened when that is necessary."""

from __future__ import annotations

import contextlib
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Final

from ejcache.common_errors import StoreBusyError, StoreError, StoreReadOnlyError, StoreUnavailableError
from ejcache.stores.local.index_repair import Generations
from ejcache.stores.local.sqlite import SqliteFailure, classify, is_full, sqlite3, translate
from ejcache.util.lifecycle import AtExit, ExitPhase, at_exit, track_forks
from ejcache.util.locks import ThreadLock, pause
from ejcache.util.log import log, warn_once
from ejcache.util.scheduler import short_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import TypeVar

    from ejcache.stores.local.index import EntryIndex, IndexOptions
    from ejcache.stores.local.layout import Layout

    T = TypeVar("T")

_USES_PATIENCE: Final = 0.02
"""How long the write of uses waits for other processes."""

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
        self._generations = Generations(layout, options)
        self._timeout = timeout
        self._lock = ThreadLock(str(self.root))
        self._index: EntryIndex | None = None
        self._used: Path | None = None
        self._suspect: Path | None = None
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
                if kind is SqliteFailure.BUSY:
                    if not pause(deadline):
                        raise StoreBusyError(f"another process kept the index of {self.root} busy too long") from exc
                    continue
                if kind is SqliteFailure.FULL:
                    raise translate(exc, self.root) from exc
                self.close()
                if self.read_only and damaged:
                    warn_once(("unreadable", self.root), "ejcache: the index of %s cannot be read: %s", self.root, exc)
                    return None
                if self.read_only or (self._used is not None and self._generations.is_damaged(self._used, exc)):
                    damaged += 1
                    if damaged > 2:
                        raise translate(exc, self.root) from exc
                    if not self.read_only and self._is_damage_confirmed():
                        self.rebuild(str(exc))
                else:
                    failed += 1
                    if failed > 1 or kind is SqliteFailure.READ_ONLY:
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
        kept = self.run(lambda index: index.counters())
        if kept is None:
            return
        deadline = time.monotonic() + self._timeout
        try:
            with self._lock.until(deadline):
                self._make_room()
                self._generations.start_over(kept, deadline)
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
        index = None
        try:
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
        deadline = time.monotonic() + self._timeout
        try:
            with self._lock.until(deadline):
                index = self._current(deadline=deadline)
                if index is None or index.read_only:
                    return
                log.warning("ejcache: the index of %s is damaged, and a new one is created: %s", self.root, why)
                self._release()
                self._generations.replace(index.generation, deadline)
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
            self._index = self._generations.open_for_reading()
            return self._index
        if not make and not self._layout.local.is_dir():
            self._layout.check()
            return None
        try:
            opened = self._generations.open_for_writing(deadline)
            self.read_only = opened is None
            if opened is not None and not self._uses_reserve:
                self._layout.keep_reserve()
        except StoreError as exc:
            if write or not is_full(exc):
                raise
            # The disk is full: read the index as it is. A call that writes tries to open it again.
            opened = None
            with contextlib.suppress(sqlite3.Error, UnicodeError):  # it is damaged, and there is no room for another
                opened = self._generations.open_for_reading()
            if opened is None:
                raise
        self._index = self._generations.open_for_reading() if opened is None else opened
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
