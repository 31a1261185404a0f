"""Opening the index of a local store, repairing what killed processes left, and replacing a damaged index."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sqlite3
import time
from typing import TYPE_CHECKING, Final

from ejcache.errors import StoreBusyError, StoreError, StoreReadOnlyError, StoreUnavailableError
from ejcache.stores.local.index import EntryIndex, IndexOptions
from ejcache.stores.local.layout import INDEX, Layout, explain_failure, remove_trees
from ejcache.stores.local.sqlite_errors import SqliteFailure, classify, damage, normalise_decode_errors, translate
from ejcache.util.locks import Presence, dead_presences, exclusive, living, pause
from ejcache.util.log import log
from ejcache.util.safe_files import UnsafeFileError, read_regular

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["REBUILDS", "IndexConnection", "open_for_reading", "open_for_writing", "quarantine_index", "start_over"]

REBUILDS: Final = "local_rebuilds"
"""Counter: a damaged index was quarantined and a new one created."""

_HEADER: Final = b"SQLite format 3\0"
_WAL_VERSIONS: Final = b"\x02\x02"
"""Bytes 18 and 19: written and read through a write-ahead log. Any other value makes SQLite refuse to write, or read
without the log (https://sqlite.org/fileformat.html)."""


class IndexConnection:
    """The connection of this process to one generation, from opening to closing it.

    Attributes:
        generation: its directory.
        index: its index.
        alone: no other process had the store open for writing when this one opened it.
    """

    def __init__(self, generation: Path, index: EntryIndex, presence: Presence | None, *, alone: bool = False) -> None:
        self.generation = generation
        self.index = index
        self.alone = alone
        self._unclean = False
        self._presence = presence
        self._pid = os.getpid()
        self._path = str(generation / INDEX)
        self._seen = self._signature()

    @property
    def read_only(self) -> bool:
        """Whether this connection only reads, and leaves no trace."""
        return self._presence is None

    def stale(self) -> bool:
        """Whether the index is not the one that was opened any more: moved, deleted or, for a reader, changed."""
        return self._signature() != self._seen

    def mark_unclean(self) -> None:
        """Have the next process that opens the store sweep it: something may have been left behind."""
        self._unclean = True

    def finish_write(self) -> None:
        """Delete the files of rows that were deleted, and keep the write-ahead log short."""
        if not self.index.delete_pending():
            self._unclean = True
        self.index.checkpoint_if_large()

    def close(self, *, leave_log: bool = False) -> bool:
        """Release everything. What cannot be released is left to the kernel and to the next sweep.

        Args:
            leave_log: the process ends now, so a log that holds nothing but uses and counters may stay as it is. The
                last connection that closes moves the log into the database, and waits for the disk three times: that
                is longer than 100 hits take.

        Returns:
            Whether the log was left. SQLite's connection is still open then, for as long as the process lives or until
            `index.close()`.
        """
        if self.carried_over():
            self.abandon()
            return False
        with contextlib.suppress(sqlite3.Error, UnicodeError, StoreBusyError):
            self.index.deadline = 0.0
            if not self.read_only and not self.stale():
                self.index.write_uses()
        clean = self.index.delete_pending() and not self._unclean
        leaving = leave_log and clean and self._log_may_stay()
        if leaving:
            self._leak()
        else:
            with contextlib.suppress(sqlite3.Error):
                self.index.close()
        if self._presence is not None:
            self._presence.leave(clean=clean)
        return leaving

    def _log_may_stay(self) -> bool:
        """Whether the log is short and no entry is in it: a reader that cannot read the log misses no entry.

        If another process had the store open as well, there may be entries of that process in the log.
        """
        with contextlib.suppress(sqlite3.Error):
            return self.alone and not self.read_only and not self.stale() and self.index.has_short_log_of_notes()
        return False

    def carried_over(self) -> bool:
        """Whether this process is a fork of the one that opened the connection."""
        return self._pid != os.getpid()

    def abandon(self) -> None:
        """In a forked child: neither use nor close what belongs to the parent.

        SQLite forbids even closing a connection on the other side of a fork, and Python closes one that is collected.
        So one reference is leaked on purpose.
        """
        self._leak()
        if self._presence is not None:
            self._presence.forget()

    def _leak(self) -> None:
        """Keep Python from closing SQLite's connection when nothing refers to it any more."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.index.connection))

    def _signature(self) -> tuple[int, ...] | None:
        try:
            about = os.stat(self._path)  # noqa: PTH116 (on the path of every hit)
        except OSError:
            return None
        if self._presence is not None:
            return (about.st_ino, about.st_dev)
        # A reader that does not take part in the locking (immutable) notices a change by the file only.
        return (about.st_ino, about.st_dev, about.st_size, about.st_mtime_ns, _wal_bytes(self._path) > 0)


def open_for_writing(layout: Layout, *, options: IndexOptions, deadline: float) -> IndexConnection | None:
    """Open the store, and create or repair it if necessary; None if this user cannot write there.

    Args:
        layout: where.
        options: of the index.
        deadline: monotonic seconds.

    Raises:
        StoreBusyError: another process was opening it until `deadline`.
        NotAStoreError: there is something else, or a newer format.
        StoreUnavailableError: it can neither be created nor read, or must not be trusted.
    """
    try:
        layout.check()
        layout.prepare()
        with exclusive(layout.lock, deadline=deadline):
            # A process that deleted the directory meanwhile deleted the lock file too, and this lock locks nothing.
            layout.prepare()
            return _open_locked(layout, options, deadline)
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
        raise translate(exc, layout.root) from exc


def open_for_reading(layout: Layout) -> IndexConnection | None:
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
        raise explain_failure(layout.local, exc) from exc
    if not generations:
        return None
    generation = generations[0]
    path = generation / INDEX
    _check_files(layout, generation)
    # A log that is not empty belongs to a live or a killed writer, or holds uses and counters only. It can be read if
    # its memory can be shared; otherwise its content counts as absent.
    modes = ("ro", "immutable") if _wal_bytes(path) else ("immutable",)
    for mode in modes:
        try:
            with normalise_decode_errors():
                index = EntryIndex(generation, mode=mode)
        except sqlite3.OperationalError as exc:
            if mode == modes[-1] or classify(exc) is SqliteFailure.DAMAGED:
                raise
        else:
            return IndexConnection(generation, index, None)
    return None


def quarantine_index(layout: Layout, generation: Path, *, options: IndexOptions, deadline: float) -> None:
    """Quarantine a damaged generation and create a new one, unless another process has done so already."""
    with exclusive(layout.lock, deadline=deadline):
        dead = _retire(layout, generation)
        if dead is not None:
            _create_instead_of(layout, options, dead)
    _quarantine(layout, dead)


def start_over(
    layout: Layout, *, options: IndexOptions, counters: Mapping[str, float], pins: Sequence[str], deadline: float
) -> None:
    """Delete every generation, and create a new one with these counters and pins in the room that this makes."""
    with exclusive(layout.lock, deadline=deadline):
        remove_trees(filter(None, [_retire(layout, generation) for generation in layout.generations()]))
        _create(layout, options, counters=counters, pins=pins)


def _open_locked(layout: Layout, options: IndexOptions, deadline: float) -> IndexConnection:
    remove_trees(layout.leftovers())
    generations = layout.generations()
    for other in generations[1:]:
        _quarantine(layout, _retire(layout, other))
    presence = Presence(layout.present)
    try:
        for generation in generations[:1]:
            found = _attach_if_intact(layout, generation, presence, options, deadline)
            if found is not None:
                return IndexConnection(generation, found, presence, alone=presence.is_only_one())
            dead = _retire(layout, generation)
            _create_instead_of(layout, options, dead)
            _quarantine(layout, dead)
        generation = (layout.generations() or [_create_instead_of(layout, options, None)])[0]
        return IndexConnection(generation, _attach(generation, presence, options, deadline), presence)
    except BaseException:
        presence.leave(clean=True)
        raise


def _attach_if_intact(
    layout: Layout, generation: Path, presence: Presence, options: IndexOptions, deadline: float
) -> EntryIndex | None:
    """The index of `generation`, swept if a process died that had it open; None if it is damaged."""
    index = None
    try:
        with normalise_decode_errors():
            _check_files(layout, generation)
            _check_header(generation / INDEX)
            index = _attach(generation, presence, options, deadline)
            _sweep(layout, index)
        return index
    except sqlite3.Error as exc:
        if index is not None:
            index.close()
        kind = classify(exc)
        if kind is SqliteFailure.READ_ONLY:
            raise StoreReadOnlyError(f"the index of {layout.root} cannot be written by this user") from exc
        if kind in (SqliteFailure.BUSY, SqliteFailure.FULL, SqliteFailure.FAILED):
            raise translate(exc, layout.root) from exc
        if kind is SqliteFailure.MOVED:
            # Out of descriptors, or files of another user; not damage.
            raise StoreUnavailableError(f"the index of {layout.root} cannot be opened: {exc}") from exc
        log.warning("ejcache: the index of %s is damaged, and is quarantined: %s", layout.root, exc)
        return None


def _attach(generation: Path, presence: Presence, options: IndexOptions, deadline: float) -> EntryIndex:
    while True:
        try:
            return EntryIndex(generation, token=presence.token, options=options)
        except sqlite3.OperationalError as exc:
            if classify(exc) is not SqliteFailure.BUSY or not pause(deadline):
                raise


def _sweep(layout: Layout, index: EntryIndex) -> None:
    """Delete what processes left behind that died, if any did."""
    dead = dead_presences(layout.present)
    if not dead:
        return
    index.deadline = time.monotonic() + 1.0
    try:
        swept = index.values.delete_unfinished(living(layout.present)) + index.delete_orphans()
        index.checkpoint()
    except StoreBusyError:
        return  # the next process that opens the store finds the same presence files
    except sqlite3.Error as exc:
        if classify(exc) is not SqliteFailure.FULL:
            raise
        return
    for path in dead:
        path.unlink(missing_ok=True)
    if swept:
        log.info("ejcache: deleted %d files that killed processes had left in %s", swept, layout.root)


def _check_files(layout: Layout, generation: Path) -> None:
    why = layout.unexpected(generation)
    if why:
        raise damage(why)


def _check_header(path: Path) -> None:
    try:
        header = read_regular(path, max_size=20, length=20)
    except (FileNotFoundError, UnsafeFileError) as exc:
        raise damage(str(exc)) from exc
    if not header.startswith(_HEADER) or header[18:20] != _WAL_VERSIONS:
        raise damage("it does not begin as a database does")
    if not os.access(path, os.W_OK):
        raise StoreReadOnlyError(f"{path} cannot be written by this user")


def _create_instead_of(layout: Layout, options: IndexOptions, dead: Path | None) -> Path:
    """A new generation, with the counters and pins of a damaged one as far as they can be read."""
    counters: dict[str, float] = {}
    pins: list[str] = []
    if dead is not None:
        with contextlib.suppress(sqlite3.Error, UnicodeError):
            _check_files(layout, dead)
            old = EntryIndex(dead, mode="immutable")
            try:
                counters, pins = old.counters(), old.pins()
            finally:
                old.close()
        counters[REBUILDS] = counters.get(REBUILDS, 0) + 1
    return _create(layout, options, counters=counters, pins=pins)


def _create(layout: Layout, options: IndexOptions, *, counters: Mapping[str, float], pins: Sequence[str]) -> Path:
    """A new generation without entries."""
    from ejcache.stores.local.writer import create_index

    making = layout.fresh("new")
    making.mkdir(mode=0o700)
    (making / "tmp").mkdir(mode=0o700)
    try:
        create_index(making, counters=counters, pins=pins)
        options.observer("index-made")
        generation = layout.fresh("g")
        making.rename(generation)
    except sqlite3.Error as exc:
        remove_trees([making])
        raise translate(exc, layout.root) from exc
    except BaseException:
        remove_trees([making])
        raise
    return generation


def _retire(layout: Layout, generation: Path) -> Path | None:
    dead = layout.fresh("dead")
    try:
        generation.rename(dead)
    except FileNotFoundError:
        return None
    return dead


def _quarantine(layout: Layout, dead: Path | None) -> None:
    if dead is not None:
        layout.quarantine_index(dead)
        remove_trees([dead])


def _readable(layout: Layout) -> bool:
    return not layout.version.exists() or os.access(layout.local, os.R_OK | os.X_OK) or not layout.local.exists()


def _wal_bytes(path: str | Path) -> int:
    try:
        return os.stat(f"{path}-wal").st_size  # noqa: PTH116 (on the path of every hit of a reader)
    except OSError:
        return 0
