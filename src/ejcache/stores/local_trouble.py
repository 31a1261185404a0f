"""What an SQLite error means to a store, and which of our errors it becomes."""

from __future__ import annotations

import contextlib
import errno
import sqlite3
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from ejcache.errors import StoreError, StoreReadOnlyError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Trouble", "damage", "is_full", "kind_of", "one_error_for_damage", "translated"]

_FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Trouble(Enum):
    """What to do about it."""

    BUSY = auto()
    """Another process is at it: try again until the deadline."""
    DAMAGED = auto()
    """The index is damaged, if a fresh connection says so too."""
    MOVED = auto()
    """The index was moved or removed while it was open: open what is there now."""
    READ_ONLY = auto()
    """This user cannot write it."""
    FULL = auto()
    """Nothing can be written: the disk, the quota or the process's own limit is used up."""
    FAILED = auto()
    """The disk is failing, or the call was wrong: try once more, then give up."""


_DAMAGED: Final = frozenset(
    {
        sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_SCHEMA, sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_INTERRUPT,
    }
)  # fmt: skip
_DAMAGED_READS: Final = frozenset(
    {sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_CORRUPTFS}
)
_FULL: Final = frozenset(
    {
        sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_TRUNCATE,
        sqlite3.SQLITE_IOERR_SHMSIZE,
    }
)  # fmt: skip
_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})


def damage(message: str) -> sqlite3.DatabaseError:
    """An error as SQLite raises it for a damaged index."""
    exc = sqlite3.DatabaseError(message)
    exc.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return exc


@contextlib.contextmanager
def one_error_for_damage() -> Iterator[None]:
    """Make an SQLite error of what Python raises when a damaged name is part of SQLite's message."""
    try:
        yield
    except UnicodeError as exc:
        raise damage(f"a name in the index is damaged: {exc}") from exc


def kind_of(exc: sqlite3.Error) -> Trouble:
    """What `exc` means; https://sqlite.org/rescode.html."""
    code: int | None = getattr(exc, "sqlite_errorcode", None)
    if code is None:
        return Trouble.FAILED
    primary = code & 0xFF
    if code in _DAMAGED_READS or primary in _DAMAGED:
        return Trouble.DAMAGED
    if code == sqlite3.SQLITE_READONLY_DBMOVED or primary == sqlite3.SQLITE_CANTOPEN:
        return Trouble.MOVED
    if code in _FULL:
        return Trouble.FULL
    if primary in _BUSY:
        return Trouble.BUSY
    return Trouble.READ_ONLY if primary == sqlite3.SQLITE_READONLY else Trouble.FAILED


def is_full(exc: BaseException | None) -> bool:
    """Whether `exc`, or what it comes from, says that nothing can be written for want of room."""
    while exc is not None:
        if isinstance(exc, sqlite3.Error) and kind_of(exc) is Trouble.FULL:
            return True
        if isinstance(exc, OSError) and exc.errno in _FULL_ERRNOS:
            return True
        exc = exc.__cause__
    return False


def translated(exc: sqlite3.Error | OSError, root: Path) -> StoreError:
    """Our error for `exc`, which is not going away."""
    if isinstance(exc, OSError):
        if exc.errno == errno.EROFS:
            return StoreReadOnlyError(f"{root} is on a file system that is mounted read-only")
        what = "no room is left for the entry" if exc.errno in _FULL_ERRNOS else "the storage failed"
        return StoreError(f"{root}: {what}: {exc.strerror or exc}")
    kind = kind_of(exc)
    if kind is Trouble.READ_ONLY:
        return StoreReadOnlyError(f"the index of {root} cannot be written by this user: {exc}")
    if kind is Trouble.FULL:
        return StoreError(f"{root}: no room is left for the index: {exc}")
    if kind is Trouble.FAILED:
        return StoreError(f"{root}: the index could not be used: {exc}")
    return StoreUnavailableError(f"{root}: the index cannot be opened or repaired: {exc}")
