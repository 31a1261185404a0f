"""How a local store gets at its index: one session at a time, opened, repaired, given up and reopened as need be."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sqlite3
import time
import weakref
from typing import TYPE_CHECKING, TypeVar

from ejcache.errors import StoreBusyError, StoreError, StoreReadOnlyError, StoreUnavailableError
from ejcache.stores.local_locks import ThreadLock, pause
from ejcache.stores.local_session import Session, open_for_reading, open_for_writing, set_aside
from ejcache.stores.local_trouble import Trouble, is_full, kind_of, one_error_for_damage, translated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ejcache.stores.local_layout import Layout

__all__ = ["Access"]

log = logging.getLogger("ejcache")
T = TypeVar("T")


class Access:
    """The one session of a store, for its threads, and across forks and deleted directories.

    Attributes:
        read_only: nothing can be written, because it was asked so or because this user cannot.
        asked_read_only: it was asked so.
    """

    def __init__(self, layout: Layout, *, max_size: int, read_only: bool, timeout: float) -> None:
        self.read_only = read_only
        self.asked_read_only = read_only
        self._layout = layout
        self._max_size = max_size
        self._timeout = timeout
        self._lock = ThreadLock(self._root)
        self._session: Session | None = None
        self._generation: Path | None = None
        self._suspect: Path | None = None
        self._holders = 0
        self._frozen = False
        self._carried_over = False
        self._warned = False
        _all.add(self)

    def run(
        self,
        action: Callable[[Session], T],
        *,
        make: bool = False,
        write: bool = False,
        patience: float | None = None,
    ) -> T | None:
        """What `action` answers in the current session, or None if there is no store.

        Trouble that is not the caller's is dealt with here: busy is waited for, a session that has come to its end is
        replaced, a damaged index is set aside if a fresh connection finds it damaged too.

        Args:
            action: called by one thread at a time, perhaps several times.
            make: make the store if it is not there.
            write: a session that can only read, for want of room, will not do.
            patience: seconds to wait for others, if not the store's own.

        Raises:
            StoreError: the trouble is not going away.
        """
        deadline = time.monotonic() + (self._timeout if patience is None else patience)
        damaged = failed = 0
        while True:
            try:
                with self._exclusive(deadline):
                    session = self._current(make=make, write=write, deadline=deadline)
                    return None if session is None else self._once(session, action, deadline)
            except sqlite3.Error as exc:
                kind = kind_of(exc)
                if kind is Trouble.BUSY:
                    if not pause(deadline):
                        raise StoreBusyError(f"another process kept the index of {self._root} busy too long") from exc
                    continue
                if kind is Trouble.FULL:
                    raise translated(exc, self._layout.root) from exc
                self.close()
                if self.read_only and damaged:
                    self.warn(f"the index of {self._root}, which is read-only, cannot be read: {exc}")
                    return None
                if self.read_only or kind is Trouble.DAMAGED:
                    damaged += 1
                    if damaged > 2:
                        raise translated(exc, self._layout.root) from exc
                    if not self.read_only and self._confirmed():
                        self.rebuild(str(exc))
                else:
                    failed += 1
                    if failed > 1 or kind is Trouble.READ_ONLY:
                        raise translated(exc, self._layout.root) from exc
            except StoreError:
                raise
            except OSError as exc:
                failed += 1
                if failed > 1 or not self._ended():
                    raise translated(exc, self._layout.root) from exc

    def change(self, action: Callable[[Session], T], *, make: bool = False) -> T | None:
        """As `run`, for an action that writes; then the files whose rows are gone are removed.

        Raises:
            StoreReadOnlyError: the store is read-only.
        """

        def change(session: Session) -> T:
            if session.read_only:
                raise StoreReadOnlyError(f"{self._root} cannot be written by this user")
            done = action(session)
            session.unclean = not session.index.bury() or session.unclean
            session.index.fold()
            return done

        return self.run(change, make=make, write=True)

    def note(self, session: Session, action: Callable[[Session], object], *, patience: float) -> None:
        """Run `action` if `session` is still the current one, and if it takes no repair and no wait."""
        with contextlib.suppress(StoreError, sqlite3.Error, UnicodeError, OSError):
            deadline = time.monotonic() + patience
            with self._exclusive(deadline):
                if session is self._session and not session.read_only:
                    self._once(session, action, deadline)

    @contextlib.contextmanager
    def held(self) -> Iterator[Session | None]:
        """The current session, made if need be, which is not closed at exit before this ends."""
        self._holders += 1
        session = None
        try:
            session = self.run(lambda session: session, make=True, write=True)
            yield session
        except StoreError:
            raise
        except BaseException:
            if session is not None:
                session.unclean = True
            raise
        finally:
            self._holders -= 1
            if _exiting:
                self.close()

    def rebuild(self, why: str) -> None:
        """Set the index aside as damaged and start a new one.

        Raises:
            StoreError: that failed.
        """
        deadline = time.monotonic() + self._timeout
        try:
            with self._exclusive(deadline):
                session = self._current(deadline=deadline)
                if session is None or session.read_only:
                    return
                log.warning("the index of %s is damaged and a new one is started: %s", self._root, why)
                self._release()
                set_aside(self._layout, session.generation, deadline=deadline)
                self._current(make=True, deadline=deadline)
        except StoreError:
            raise
        except (sqlite3.Error, OSError) as exc:
            raise translated(exc, self._layout.root) from exc

    def close(self) -> None:
        """Close the session; the next call opens another."""
        with self._exclusive(time.monotonic() + self._timeout):
            self._release()

    def warn(self, message: str) -> None:
        """Say it, loudly the first time only."""
        log.log(logging.DEBUG if self._warned else logging.WARNING, "%s", message)
        self._warned = True

    @property
    def _root(self) -> str:
        return str(self._layout.root)

    def _once(self, session: Session, action: Callable[[Session], T], deadline: float) -> T:
        self._generation = session.generation
        try:
            session.index.deadline = deadline
            with one_error_for_damage():
                return action(session)
        except StoreError:
            raise
        except BaseException:
            # Wherever an interrupt struck, the next sweep finds what it left.
            session.unclean = True
            raise
        finally:
            if session.index.connection.in_transaction or (_exiting and not self._holders):
                self._release()

    def _current(self, *, make: bool = False, write: bool = False, deadline: float) -> Session | None:
        session = self._session
        if session is not None:
            if session.carried_over():
                self._session = None
                self._disown(session)
            elif not session.stale() and not (write and session.read_only and not self.read_only):
                return session
            else:
                self._release()
        if self._carried_over:
            raise StoreUnavailableError(f"{self._root} was in use while this process was forked off, and is not here")
        if self.asked_read_only:
            self._session = open_for_reading(self._layout)
            return self._session
        if not make and not self._layout.local.is_dir():
            self._layout.check()
            return None
        try:
            opened = open_for_writing(self._layout, max_size=self._max_size, deadline=deadline)
            self.read_only = opened is None
        except StoreError as exc:
            if write or not is_full(exc):
                raise
            # What is there can be read, and whoever writes tries anew.
            opened = open_for_reading(self._layout)
            if opened is None:
                raise
        self._session = open_for_reading(self._layout) if opened is None else opened
        return self._session

    def _confirmed(self) -> bool:
        """Whether another session has found this generation damaged too."""
        suspected, self._suspect = self._suspect, self._generation
        return suspected == self._generation

    def _ended(self) -> bool:
        with self._exclusive(time.monotonic() + self._timeout):
            if self._session is None or not self._session.stale():
                return False
            self._release()
            return True

    def _release(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _exclusive(self, deadline: float) -> ThreadLock:
        return self._lock.until(deadline)

    def __del__(self) -> None:
        # Nobody calls any more, so no lock is needed; the attribute is missing if the constructor raised.
        session = self.__dict__.get("_session")
        if session is not None:
            session.close()

    def _before_fork(self) -> None:
        if self._lock.owned():
            return  # a fork inside a call of this very thread, which goes on with its session
        try:
            self._lock.acquire(timeout=self._timeout)
        finally:
            self._frozen = self._frozen or self._lock.owned()
        if self._lock.owned():
            self._release()

    def _after_fork(self) -> None:
        # Not if it is another thread's, which forks just now too.
        if self._frozen and self._lock.owned():
            self._frozen = False
            self._lock.release()

    def _after_fork_in_child(self) -> None:
        self._lock = ThreadLock(self._root)
        self._frozen = False
        self._holders = 0
        session, self._session = self._session, None
        if session is not None:
            self._disown(session)

    def _disown(self, session: Session) -> None:
        session.abandon()
        self._carried_over = True


_all: weakref.WeakSet[Access] = weakref.WeakSet()
_exiting = False


# A connection must not be carried over a fork: SQLite keeps per process which locks it holds, so a child that has even
# an idle one believes that it holds locks which are its parent's, and a busy one looks locked for ever
# (https://sqlite.org/howtocorrupt.html, 2.6). So none is open while the process forks; the next call opens one.


def _before_fork() -> None:
    for access in list(_all):
        access._before_fork()  # noqa: SLF001 (this module's own)


def _after_fork() -> None:
    for access in list(_all):
        access._after_fork()  # noqa: SLF001 (this module's own)


def _after_fork_in_child() -> None:
    for access in list(_all):
        access._after_fork_in_child()  # noqa: SLF001 (this module's own)


@atexit.register
def _close_at_exit() -> None:
    # Those who are called at exit after this, to write their counters, open the store for one operation at a time.
    global _exiting
    _exiting = True
    for access in list(_all):
        with contextlib.suppress(StoreError):
            access.close()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
