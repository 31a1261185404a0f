"""Opening a local store's index, and making a new one where there is none that can be used."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import sqlite3
import stat
import time
from typing import TYPE_CHECKING, Final

from ejcache.errors import StoreBusyError, StoreError, StoreReadOnlyError, StoreUnavailableError
from ejcache.stores import local_faults
from ejcache.stores.local_index import EntryIndex
from ejcache.stores.local_layout import INDEX, Layout, explain_failure, remove_trees
from ejcache.stores.local_locks import Presence, departed, exclusive, living, pause
from ejcache.stores.local_trouble import Trouble, damage, kind_of, one_error_for_damage, translated

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["REBUILDS", "Session", "open_for_reading", "open_for_writing", "set_aside"]

log = logging.getLogger("ejcache")

REBUILDS: Final = "local_rebuilds"
"""Counter: a damaged index was set aside and a new one started."""

_HEADER: Final = b"SQLite format 3\0"
_WAL_VERSIONS: Final = b"\x02\x02"
"""Bytes 18 and 19: written and read through a write-ahead log. Any other value makes SQLite refuse to write, or read
without the log (https://sqlite.org/fileformat.html)."""


class Session:
    """One process's use of one generation, from opening it to closing it.

    Attributes:
        generation: its directory.
        index: its index.
        unclean: something may have been left behind that only a sweep finds.
    """

    def __init__(self, generation: Path, index: EntryIndex, presence: Presence | None) -> None:
        self.generation = generation
        self.index = index
        self.unclean = False
        self._presence = presence
        self._pid = os.getpid()
        self._path = str(generation / INDEX)
        self._seen = self._signature()

    @property
    def read_only(self) -> bool:
        """Whether this session leaves no trace."""
        return self._presence is None

    def stale(self) -> bool:
        """Whether the index is no longer what was opened: moved, deleted, or, for a reader, changed."""
        return self._signature() != self._seen

    def close(self) -> None:
        """Release everything. What cannot be released is left to the kernel and to the next sweep."""
        if self.carried_over():
            self.abandon()
            return
        with contextlib.suppress(sqlite3.Error, UnicodeError, StoreBusyError):
            self.index.deadline = 0.0
            if not self.read_only and not self.stale():
                self.index.note_uses()
        clean = self.index.bury() and not self.unclean
        with contextlib.suppress(sqlite3.Error):
            self.index.close()
        if self._presence is not None:
            self._presence.leave(clean=clean)

    def carried_over(self) -> bool:
        """Whether this process is a fork of the one that opened the session."""
        return self._pid != os.getpid()

    def abandon(self) -> None:
        """In a forked child: neither use nor close what is the parent's.

        SQLite asks not even to close a connection on the other side of a fork, and Python closes one that nobody
        refers to: one reference is lost on purpose.
        """
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.index.connection))
        if self._presence is not None:
            self._presence.forget()

    def _signature(self) -> tuple[int, ...] | None:
        try:
            about = os.stat(self._path)  # noqa: PTH116 (on the path of every hit)
        except OSError:
            return None
        if self._presence is not None:
            return (about.st_ino, about.st_dev)
        # A reader that is not part of the locking (immutable) sees a change by the file only.
        return (about.st_ino, about.st_dev, about.st_size, about.st_mtime_ns, _wal_bytes(self._path) > 0)


def open_for_writing(layout: Layout, *, max_size: int, deadline: float) -> Session | None:
    """Open the store, make it if need be, repair it if need be; None if this user cannot write there.

    Args:
        layout: where.
        max_size: what the session's index keeps.
        deadline: monotonic seconds.

    Raises:
        StoreBusyError: somebody else was opening it until `deadline`.
        NotAStoreError: something else is there.
        StoreUnavailableError: it can neither be made nor read.
    """
    try:
        layout.check()
        layout.prepare()
        with exclusive(layout.lock, deadline=deadline):
            # Whoever deleted the directory meanwhile deleted the lock with it, and this one locks nothing.
            layout.prepare()
            return _open_locked(layout, max_size, deadline)
    except (PermissionError, StoreReadOnlyError) as exc:
        if os.access(layout.root, os.R_OK | os.X_OK) and _readable(layout):
            return None
        raise explain_failure(layout.root, exc) from exc
    except StoreError:
        raise
    except OSError as exc:
        if exc.errno == errno.EROFS and layout.root.is_dir():
            return None
        if exc.errno in (errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL):
            raise explain_failure(layout.root, exc) from exc
        raise translated(exc, layout.root) from exc


def open_for_reading(layout: Layout) -> Session | None:
    """Open the store without leaving a trace; None if there is none.

    Raises:
        NotAStoreError: something else is there.
        StoreUnavailableError: it cannot be read.
        sqlite3.Error: its index is damaged.
    """
    if not layout.check():
        return None
    try:
        generations = layout.generations()
    except OSError as exc:
        raise explain_failure(layout.local, exc) from exc
    if not generations:
        return None
    generation = generations[0]
    path = generation / INDEX
    # A log that is not empty belongs to a live or a killed writer. It can be read if its memory can be shared;
    # if not, what is in it counts as absent.
    modes = ("ro", "immutable") if _wal_bytes(path) else ("immutable",)
    for mode in modes:
        try:
            with one_error_for_damage():
                index = EntryIndex(generation, mode=mode)
        except sqlite3.OperationalError as exc:
            if mode == modes[-1] or kind_of(exc) is Trouble.DAMAGED:
                raise
        else:
            return Session(generation, index, None)
    return None


def set_aside(layout: Layout, generation: Path, *, deadline: float) -> None:
    """Give up a damaged generation, and start a new one, unless somebody else has done so already."""
    with exclusive(layout.lock, deadline=deadline):
        dead = _give_up(layout, generation)
        if dead is not None:
            _made(layout, instead_of=dead)
    _bury(layout, dead)


def _open_locked(layout: Layout, max_size: int, deadline: float) -> Session:
    remove_trees(layout.leftovers())
    generations = layout.generations()
    for other in generations[1:]:
        _bury(layout, _give_up(layout, other))
    presence = Presence(layout.present)
    try:
        for generation in generations[:1]:
            found = _attached(layout, generation, presence, max_size, deadline)
            if found is not None:
                return Session(generation, found, presence)
            dead = _give_up(layout, generation)
            _made(layout, instead_of=dead)
            _bury(layout, dead)
        generation = (layout.generations() or [_made(layout)])[0]
        return Session(generation, _attach(generation, presence, max_size, deadline), presence)
    except BaseException:
        presence.leave(clean=True)
        raise


def _attached(
    layout: Layout, generation: Path, presence: Presence, max_size: int, deadline: float
) -> EntryIndex | None:
    """The index of `generation`, swept if a process that had it open died; None if it is damaged."""
    index = None
    try:
        with one_error_for_damage():
            _check_header(generation / INDEX)
            index = _attach(generation, presence, max_size, deadline)
            _sweep(layout, index)
        return index
    except sqlite3.Error as exc:
        if index is not None:
            index.close()
        kind = kind_of(exc)
        if kind is Trouble.READ_ONLY:
            raise StoreReadOnlyError(f"the index of {layout.root} cannot be written by this user") from exc
        if kind in (Trouble.BUSY, Trouble.FULL, Trouble.FAILED):
            raise translated(exc, layout.root) from exc
        if kind is Trouble.MOVED and _companions_good(generation):
            # Out of descriptors, or files of another user: no damage.
            raise StoreUnavailableError(f"the index of {layout.root} cannot be opened: {exc}") from exc
        log.warning("the index of %s is damaged and is set aside: %s", layout.root, exc)
        return None


def _attach(generation: Path, presence: Presence, max_size: int, deadline: float) -> EntryIndex:
    while True:
        try:
            return EntryIndex(generation, token=presence.token, max_size=max_size)
        except sqlite3.OperationalError as exc:
            if kind_of(exc) is not Trouble.BUSY or not pause(deadline):
                raise


def _sweep(layout: Layout, index: EntryIndex) -> None:
    """Remove what processes have left that died, if any did."""
    dead = departed(layout.present)
    if not dead:
        return
    index.deadline = time.monotonic() + 1.0
    try:
        swept = index.values.sweep_staged(living(layout.present)) + index.sweep_placed()
        index.checkpoint()
    except StoreBusyError:
        return  # whoever opens the store next finds the same dead
    except sqlite3.Error as exc:
        if kind_of(exc) is not Trouble.FULL:
            raise
        return
    for path in dead:
        path.unlink(missing_ok=True)
    if swept:
        log.info("removed %d files that killed processes had left in %s", swept, layout.root)


def _check_header(path: Path) -> None:
    try:
        about = path.stat()
        good = stat.S_ISREG(about.st_mode)
        if good:
            with path.open("rb") as file:
                header = file.read(20)
            good = header.startswith(_HEADER) and header[18:20] == _WAL_VERSIONS
    except FileNotFoundError:
        good = False
    if not good:
        raise damage("it does not begin as a database does")
    if not os.access(path, os.W_OK):
        raise StoreReadOnlyError(f"{path} cannot be written by this user")


def _companions_good(generation: Path) -> bool:
    companions = [generation / (INDEX + suffix) for suffix in ("-wal", "-shm")]
    return all(path.is_file() for path in companions if path.exists())


def _made(layout: Layout, *, instead_of: Path | None = None) -> Path:
    """A new generation; what can be read of the counters and pins of one that was given up goes on in it."""
    counters: dict[str, float] = {}
    pins: list[str] = []
    if instead_of is not None:
        with contextlib.suppress(sqlite3.Error, UnicodeError):
            old = EntryIndex(instead_of, mode="immutable")
            try:
                counters, pins = old.counters(), old.pins()
            finally:
                old.close()
        counters[REBUILDS] = counters.get(REBUILDS, 0) + 1
    making = layout.fresh("new")
    making.mkdir(mode=0o700)
    (making / "tmp").mkdir(mode=0o700)
    try:
        EntryIndex.create(making, counters=counters, pins=pins)
        local_faults.reach("index-made")
        generation = layout.fresh("g")
        making.rename(generation)
    except sqlite3.Error as exc:
        remove_trees([making])
        raise translated(exc, layout.root) from exc
    except BaseException:
        remove_trees([making])
        raise
    return generation


def _give_up(layout: Layout, generation: Path) -> Path | None:
    dead = layout.fresh("dead")
    try:
        generation.rename(dead)
    except FileNotFoundError:
        return None
    return dead


def _bury(layout: Layout, dead: Path | None) -> None:
    if dead is not None:
        layout.keep_index(dead)
        remove_trees([dead])


def _readable(layout: Layout) -> bool:
    return not layout.version.exists() or os.access(layout.local, os.R_OK | os.X_OK) or not layout.local.exists()


def _wal_bytes(path: str | Path) -> int:
    try:
        return os.stat(f"{path}-wal").st_size  # noqa: PTH116 (on the path of every hit of a reader)
    except OSError:
        return 0
