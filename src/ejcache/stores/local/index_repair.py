"""The making of an index: a new one, one in place of all, and one in place of a damaged one.

An index and its value files are one generation. A damaged generation is moved to quarantine. The new one takes over its
counters, as far as they can be read, and its value files, each of which has its key in it (`ejcache.entry`). Entries in
rows of the index are lost.

Damage is what proves damage: that SQLite calls a copy of the index malformed or no database, or that it is not there.
Whatever else goes wrong (a disk or a memory that fails, a limit of the process, a file that is none of ours) leaves
every file where it is, and is an error: the program goes on without this cache.

Whoever calls these functions holds the lock of the store; to look at a copy needs none.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache import entry_encoding
from ejcache.common_errors import EntryError, StoreError
from ejcache.stores.local.index import EntryIndex, digest_of
from ejcache.stores.local.index_upkeep import counters, integrity_problems
from ejcache.stores.local.layout import INDEX, MODE_BINARY, Layout, modification_time, remove_trees
from ejcache.stores.local.quarantine import quarantine_index
from ejcache.stores.local.sqlite import is_full, sqlite3, translate
from ejcache.stores.local.value_files import committed
from ejcache.util.files import file_mode, open_regular, read_regular
from ejcache.util.log import log
from ejcache.util.new_files import make_below

if TYPE_CHECKING:
    from collections.abc import Mapping


REBUILDS: Final = "local_rebuilds"
"""Counter: a damaged index was quarantined and a new one created."""

_START_OF_ENTRY: Final = 64 << 10
"""An entry whose header is longer is not found again."""
_COPIES: Final = 3
"""How often an index is copied that changes meanwhile."""
_FINDING_SECONDS: Final = 2.0
"""How long other processes wait while value files are read. What is not found by then is lost."""


def replace(layout: Layout, generation: Path, max_size: int) -> None:
    """Create a generation in place of a damaged one, with what can be read of it; nothing if that one is gone.

    Args:
        layout: of the store.
        generation: the damaged one, which is quarantined.
        max_size: bytes of all entries.

    Raises:
        StoreError: it cannot be created; the damaged one is as it was.
    """
    if not generation.is_dir():
        return
    kept: dict[str, float] = {}
    with contextlib.suppress(sqlite3.Error, UnicodeError):
        layout.check_files(generation)
        old = EntryIndex(generation)
        try:
            kept = counters(old)
        finally:
            old.connection.close()
    kept[REBUILDS] = kept.get(REBUILDS, 0) + 1
    create(layout, kept, in_place_of=generation, max_size=max_size)


def start_over(layout: Layout, kept: Mapping[str, float]) -> None:
    """Delete every generation, and create a new one with these counters in the room that this makes.

    If there is no room for it all the same, the next write creates one, and the counters are lost.
    """
    remove_trees(filter(None, (_retire(layout, generation) for generation in layout.generations())))
    try:
        create(layout, kept)
    except (StoreError, OSError) as exc:
        if not is_full(exc):
            raise


def create(layout: Layout, kept: Mapping[str, float], *, in_place_of: Path | None = None, max_size: int = -1) -> Path:
    """Make a new generation, with the entries of a damaged one that can be found there; return its directory.

    If this fails, nothing of the new one is left, and the damaged one is as it was.

    Args:
        layout: of the store.
        kept: its counters.
        in_place_of: the damaged one.
        max_size: bytes of all entries.
    """
    from ejcache.stores.local.tables import create_index  # to look for damage takes no diskcache

    making, dead = layout.fresh("new"), None
    make_below(making / "tmp")
    try:
        create_index(making, counters=kept)
        # SQLite gives its logs the permissions of the database.
        (making / INDEX).chmod(file_mode(making))
        if in_place_of is not None:
            _take_over(layout, in_place_of, making, max_size)
        generation = layout.fresh("g")
        dead = None if in_place_of is None else _retire(layout, in_place_of)
        making.rename(generation)
    except BaseException as exc:
        if dead is not None and in_place_of is not None:
            dead.rename(in_place_of)
        remove_trees([making])
        if isinstance(exc, sqlite3.Error):
            raise translate(exc, layout.root) from exc
        raise
    if dead is not None:
        quarantine_index(layout, dead)
        remove_trees([dead])
    return generation


def _take_over(layout: Layout, dead: Path, making: Path, max_size: int) -> None:
    """Link the value files of a damaged generation into a new one, the latest first, until the limit is reached.

    Whether an entry is intact shows when it is read, as always.
    """
    if layout.unexpected(dead, index=False):
        return
    until = time.monotonic() + _FINDING_SECONDS
    rows: dict[str, tuple[object, ...]] = {}
    room = max_size
    files = [(dead / name, name) for name in committed(str(dead))]
    for path, name in sorted(files, key=lambda file: -modification_time(file[0])):
        key = _key_of(path)
        if key is None or key in rows or digest_of(key) not in name or time.monotonic() > until:
            continue
        about = path.lstat()
        room -= about.st_size
        if max_size >= 0 > room:
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


def _retire(layout: Layout, generation: Path) -> Path | None:
    dead = layout.fresh("dead")
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
        if path.lstat().st_size == entry_encoding.expected_size(start):
            return entry_encoding.decode_header(start).key
    except (OSError, EntryError):
        pass
    return None


def is_copy_damaged(path: Path) -> bool:
    """True if SQLite finds damage in a copy of the index at `path`; False if it finds none, or there is no whole copy.

    A disk that fails fails here, and not in SQLite.
    """
    with contextlib.suppress(OSError), tempfile.TemporaryDirectory(prefix="ejcache-") as place:
        if not _copy(path, Path(place)):
            return False
        index = None
        try:
            index = EntryIndex(Path(place), mode="ro")
            return bool(integrity_problems(index))
        except UnicodeError:
            return True  # it has a name that is no text
        except sqlite3.Error as exc:
            return _is_malformed(exc)
        finally:
            if index is not None:
                index.connection.close()
    return False


def _is_malformed(exc: sqlite3.Error) -> bool:
    """True if SQLite calls the database malformed, or none."""
    code: int | None = getattr(exc, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


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
