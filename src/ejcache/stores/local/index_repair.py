"""Opens the index of a local store: creates it, sweeps up after killed processes, and replaces it when it is damaged.

An index and its value files are one generation. A damaged generation is moved to quarantine. The new one takes over its
counters, as far as they can be read, and its value files, each of which has its key in it (`ejcache.entry`). Entries in
rows of the index are lost.

Damage is what proves damage: that SQLite calls a copy of the index malformed or no database, or that it is not there.
Whatever else goes wrong (a disk or a memory that fails, a limit of the process, a file that is none of ours) leaves
every file where it is, and is an error: the program goes on without this cache.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache import entry
from ejcache.common_errors import EntryError, StoreBusyError, StoreError, StoreReadOnlyError, StoreUnavailableError
from ejcache.stores.local.index import EntryIndex, IndexOptions, wal_bytes
from ejcache.stores.local.layout import INDEX, Layout, explain_failure, modification_time, remove_trees
from ejcache.stores.local.sqlite import DamageError, SqliteFailure, classify, is_full, is_malformed, sqlite3, translate
from ejcache.stores.local.values import MODE_BINARY, ValueFiles, digest_of
from ejcache.util.files import file_mode, make_below, open_regular, read_regular
from ejcache.util.locks import Presence, dead_presences, exclusive, living, pause
from ejcache.util.log import log

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ejcache.stores.local.layout import Layout


REBUILDS: Final = "local_rebuilds"
"""Counter: a damaged index was quarantined and a new one created."""

_HEADER: Final = b"SQLite format 3\0"
_START_OF_ENTRY: Final = 64 << 10
"""An entry whose header is longer is not found again."""
_COPIES: Final = 3
"""How often an index is copied that changes meanwhile."""
_FINDING_SECONDS: Final = 2.0
"""How long other processes wait while value files are read. What is not found by then is lost."""


class Generations:
    """Opens, creates, repairs and replaces the generations of one store, under its lock.

    Args:
        layout: where.
        options: of each index.
    """

    def __init__(self, layout: Layout, options: IndexOptions) -> None:
        self._layout = layout
        self._options = options

    def open_for_writing(self, deadline: float) -> EntryIndex | None:
        """Open the store, and create or repair it if necessary; None if this user cannot write there.

        Args:
            deadline: monotonic seconds.

        Raises:
            StoreBusyError: another process was opening it until `deadline`.
            NotAStoreError: there is something else, or a newer format.
            StoreUnavailableError: it can neither be created nor read, or must not be trusted.
        """
        layout = self._layout
        try:
            layout.check()
            layout.make_directories()
            with exclusive(layout.lock, deadline=deadline):
                # A process that deleted the directory meanwhile deleted the lock file too, and this lock locks nothing.
                layout.make_directories()
                return self._open_locked(deadline)
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

    def open_for_reading(self) -> EntryIndex | None:
        """Open the store without leaving a trace; None if there is none.

        Raises:
            NotAStoreError: there is something else, or a newer format.
            StoreUnavailableError: it cannot be read, or must not be trusted.
            sqlite3.Error: its index is damaged.
        """
        layout = self._layout
        if not layout.check():
            return None
        try:
            generations = layout.generations()
        except OSError as exc:
            raise explain_failure(layout.local, exc) from exc
        if not generations:
            return None
        self._check_files(generations[0])
        # A log that is not empty belongs to a live or a killed writer, or holds uses and counters only. It can be read
        # if its memory can be shared; otherwise its content counts as absent.
        if wal_bytes(generations[0] / INDEX):
            try:
                return EntryIndex(generations[0], mode="ro")
            except sqlite3.OperationalError as exc:
                if classify(exc) is SqliteFailure.SUSPECT:
                    raise
        return EntryIndex(generations[0])

    def replace(self, generation: Path, deadline: float) -> None:
        """Quarantine a damaged generation and create a new one, unless another process has done so already."""
        with exclusive(self._layout.lock, deadline=deadline):
            self._replace(generation)

    def start_over(self, counters: Mapping[str, float], deadline: float) -> None:
        """Delete every generation, and create a new one with these counters in the room that this makes.

        If there is no room for it all the same, the next write creates one, and the counters are lost.
        """
        with exclusive(self._layout.lock, deadline=deadline):
            remove_trees(filter(None, map(self._retire, self._layout.generations())))
            try:
                self._create(counters)
            except (StoreError, OSError) as exc:
                if not is_full(exc):
                    raise

    def _open_locked(self, deadline: float) -> EntryIndex:
        layout = self._layout
        remove_trees(layout.leftovers())
        generations = layout.generations()
        presence = Presence(layout.present)
        try:
            for generation in generations[:1]:
                index = self._attach_if_intact(generation, presence, deadline)
                if index is not None:
                    return index
                self._replace(generation)
            generation = (layout.generations() or [self._create({})])[0]
            return self._attach(generation, presence, deadline)
        except BaseException:
            presence.leave(clean=True)
            raise

    def _attach(self, generation: Path, presence: Presence, deadline: float) -> EntryIndex:
        while True:
            try:
                return EntryIndex(generation, presence, options=self._options)
            except sqlite3.OperationalError as exc:
                if classify(exc) is not SqliteFailure.BUSY or not pause(deadline):
                    raise

    def _attach_if_intact(self, generation: Path, presence: Presence, deadline: float) -> EntryIndex | None:
        """Open the index of `generation`, and sweep it if a process died that had it open; None if it is damaged.

        Raises:
            StoreError: it cannot be opened now, but is intact: another process has it locked, the disk is full,
                or this user may not write to it.
        """
        root = self._layout.root
        index = None
        try:
            self._check_files(generation)
            _check_header(generation / INDEX)
            index = self._attach(generation, presence, deadline)
            self._sweep(index)
            return index
        except (sqlite3.Error, UnicodeError) as exc:
            if index is not None:
                index.connection.close()
            if not self.is_damaged(generation, exc):
                raise translate(exc, root) from exc
            log.warning("ejcache: the index of %s is damaged, and is quarantined: %s", root, exc)
            return None

    def is_damaged(self, generation: Path, exc: sqlite3.Error | UnicodeError) -> bool:
        """True if `exc`, raised by the index of `generation`, proves that it is damaged, or if SQLite's check does."""
        if isinstance(exc, DamageError):
            return True
        return classify(exc) is SqliteFailure.SUSPECT and _is_copy_damaged(generation / INDEX)

    def _sweep(self, index: EntryIndex) -> None:
        """Delete what processes left behind that died, if any did."""
        dead = dead_presences(self._layout.present)
        if not dead:
            return
        index.deadline = time.monotonic() + 1.0
        try:
            swept = index.values.delete_unfinished(living(self._layout.present)) + index.delete_orphans()
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
            log.info("ejcache: deleted %d files that killed processes had left in %s", swept, self._layout.root)

    def _check_files(self, generation: Path) -> None:
        why = self._layout.unexpected(generation)
        if why:
            raise StoreUnavailableError(f"the index of {self._layout.root} is not opened: {why}")

    def _replace(self, generation: Path) -> None:
        """Create a generation in place of a damaged one, with what can be read of it; nothing if that one is gone.

        Raises:
            StoreError: it cannot be created; the damaged one is as it was.
        """
        if not generation.is_dir():
            return
        counters: dict[str, float] = {}
        with contextlib.suppress(sqlite3.Error, UnicodeError):
            self._check_files(generation)
            old = EntryIndex(generation)
            try:
                counters = old.counters()
            finally:
                old.connection.close()
        counters[REBUILDS] = counters.get(REBUILDS, 0) + 1
        self._create(counters, in_place_of=generation)

    def _create(self, counters: Mapping[str, float], *, in_place_of: Path | None = None) -> Path:
        """Make a new generation, with the entries of a damaged one that can be found there; return its directory.

        If this fails, nothing of the new one is left, and the damaged one is as it was.
        """
        from ejcache.stores.local.tables import create_index

        making, dead = self._layout.fresh("new"), None
        make_below(making / "tmp")
        try:
            create_index(making, counters=counters)
            # SQLite gives its logs the permissions of the database.
            (making / INDEX).chmod(file_mode(making))
            if in_place_of is not None:
                self._take_over(in_place_of, making)
            generation = self._layout.fresh("g")
            dead = None if in_place_of is None else self._retire(in_place_of)
            making.rename(generation)
        except BaseException as exc:
            if dead is not None and in_place_of is not None:
                dead.rename(in_place_of)
            remove_trees([making])
            if isinstance(exc, sqlite3.Error):
                raise translate(exc, self._layout.root) from exc
            raise
        if dead is not None:
            self._layout.quarantine_index(dead)
            remove_trees([dead])
        return generation

    def _take_over(self, dead: Path, making: Path) -> None:
        """Link the value files of a damaged generation into a new one, the latest first, until the limit is reached.

        Whether an entry is intact shows when it is read, as always.
        """
        if self._layout.unexpected(dead, index=False):
            return
        until = time.monotonic() + _FINDING_SECONDS
        rows: dict[str, tuple[object, ...]] = {}
        room = self._options.max_size
        files = [(dead / name, name) for name in ValueFiles(dead, "").committed()]
        for path, name in sorted(files, key=lambda file: -modification_time(file[0])):
            key = _key_of(path)
            if key is None or key in rows or digest_of(key) not in name or time.monotonic() > until:
                continue
            about = path.lstat()
            room -= about.st_size
            if self._options.max_size >= 0 > room:
                break
            make_below((making / name).parent)
            _give(path, making / name)
            when = min(about.st_mtime, time.time())
            rows[key] = (key, when, when, digest_of(key), about.st_size, MODE_BINARY, name)
        with contextlib.closing(sqlite3.connect(making / INDEX)) as connection, connection:
            connection.executemany(
                "INSERT INTO Cache (key, raw, store_time, access_time, access_count, tag, size, mode, filename)"
                " VALUES (?, 1, ?, ?, 0, ?, ?, ?, ?)",
                rows.values(),
            )
        if rows:
            log.warning("ejcache: %d entries of the damaged index were found in their files", len(rows))

    def _retire(self, generation: Path) -> Path | None:
        dead = self._layout.fresh("dead")
        try:
            generation.rename(dead)
        except FileNotFoundError:
            return None
        return dead


def _give(path: Path, place: Path) -> None:
    """Give a file a second name, so that nothing is lost if what comes next fails; else move it."""
    try:
        os.link(path, place)
    except OSError:  # a file system without links
        path.rename(place)


def _key_of(path: Path) -> str | None:
    """Read the key in the header of a value file of the length that the header says; None if it is no such file."""
    try:
        start = read_regular(path, max_size=_START_OF_ENTRY, length=_START_OF_ENTRY)
        if path.lstat().st_size == entry.expected_size(start):
            return entry.decode_header(start).key
    except (OSError, EntryError):
        pass
    return None


def _is_copy_damaged(path: Path) -> bool:
    """True if SQLite finds damage in a copy of the index at `path`; False if it finds none, or there is no whole copy.

    A disk that fails fails here, and not in SQLite.
    """
    import tempfile  # by what is damaged only

    with contextlib.suppress(OSError), tempfile.TemporaryDirectory(prefix="ejcache-") as place:
        if not _copy(path, Path(place)):
            return False
        index = None
        try:
            index = EntryIndex(Path(place), mode="ro")
            return bool(index.integrity_problems())
        except UnicodeError:
            return True  # it has a name that is no text
        except sqlite3.Error as exc:
            return is_malformed(exc)
        finally:
            if index is not None:
                index.connection.close()
    return False


def _copy(path: Path, place: Path) -> bool:
    """Copy an index and its log, which other processes may be writing; False if they do so all the time."""
    files = [path, path.with_name(f"{path.name}-wal")]
    for _ in range(_COPIES):
        before = list(map(_stamp, files))
        for file, stamp in zip(files, before, strict=True):
            if stamp is not None:
                with open(open_regular(file), "rb") as source, (place / file.name).open("wb") as target:  # noqa: PTH123
                    shutil.copyfileobj(source, target)
        if list(map(_stamp, files)) == before:
            return True
    return False


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        about = path.lstat()
    except FileNotFoundError:
        return None
    return (about.st_ino, about.st_size, about.st_mtime_ns)


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
    return not layout.version.exists() or os.access(layout.local, os.R_OK | os.X_OK) or not layout.local.exists()
