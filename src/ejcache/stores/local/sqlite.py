"""SQLite for a local store: the classes of its errors that a store tells apart, and which of ours each becomes."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from ejcache.common_errors import StoreError, StoreReadOnlyError, StoreUnavailableError

if TYPE_CHECKING:
    import sqlite3 as sqlite3  # noqa: PLC0414 (for those who import it from here)
    from pathlib import Path
    from typing import Literal

    SqliteFailure = Literal["busy", "suspect", "moved", "read-only", "full", "failed"]
    """What a store does about an SQLite error:

    * busy: another process is using it; try again until the deadline;
    * suspect: the index may be damaged; SQLite checks a copy before that counts as true. It also says of a page that
      the disk does not give that the index is malformed (SQLITE_IOERR_CORRUPTFS becomes SQLITE_CORRUPT in its vdbe.c);
    * moved: the index was moved or removed while it was open; open the one that is there now;
    * read-only: this user cannot write it;
    * full: nothing can be written: the disk, the quota or the process's own limit is used up;
    * failed: the disk or the memory is failing, or the call was wrong; try once more, then raise.
    """
else:
    import _sqlite3 as sqlite3  # what `sqlite3` adds to it converts dates: two modules more in each start that hits


_FULL_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SUSPECT: Final = (
    sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_SCHEMA, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_INTERRUPT,
)  # fmt: skip
_FULL: Final = (
    sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_TRUNCATE,
    sqlite3.SQLITE_IOERR_SHMSIZE,
)  # fmt: skip
_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


class DamageError(sqlite3.DatabaseError):
    """The index is proven to be damaged; as the error that SQLite raises for one."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


def classify(exc: sqlite3.Error | UnicodeError) -> SqliteFailure:
    """Return the class of `exc`; https://sqlite.org/rescode.html.

    Python raises a UnicodeError when a damaged name is part of SQLite's message.
    """
    if isinstance(exc, UnicodeError):
        return "suspect"
    code: int | None = getattr(exc, "sqlite_errorcode", None)
    if code is None:
        return "failed"
    primary = code & 0xFF
    if primary in _SUSPECT or code == sqlite3.SQLITE_IOERR_SHORT_READ:
        return "suspect"
    if code == sqlite3.SQLITE_READONLY_DBMOVED or primary == sqlite3.SQLITE_CANTOPEN:
        return "moved"
    if code in _FULL:
        return "full"
    if primary in _BUSY:
        return "busy"
    return "read-only" if primary == sqlite3.SQLITE_READONLY else "failed"


def is_full(exc: BaseException | None) -> bool:
    """True if `exc` or one of its causes says that the disk or quota is full."""
    while exc is not None:
        if isinstance(exc, sqlite3.Error) and classify(exc) == "full":
            return True
        if isinstance(exc, OSError) and exc.errno in _FULL_ERRNOS:
            return True
        exc = exc.__cause__
    return False


def translate(exc: sqlite3.Error | UnicodeError | OSError, root: Path) -> StoreError:
    """Return the ejcache error for `exc`, which another attempt would not change."""
    if isinstance(exc, OSError):
        if exc.errno == errno.EROFS:
            return StoreReadOnlyError(f"{root} is on a file system that is mounted read-only")
        what = "no room is left for the entry" if exc.errno in _FULL_ERRNOS else "the storage failed"
        if exc.errno == errno.EFBIG:
            what = "a file cannot become that large"
        return StoreError(f"{root}: {what}: {exc.strerror or exc}{_limit(exc.errno == errno.EFBIG)}")
    kind = classify(exc)
    if kind == "read-only":
        return StoreReadOnlyError(f"the index of {root} cannot be written by this user: {exc}")
    if kind == "full":
        return StoreError(f"{root}: no room is left for the index: {exc}{_limit()}")
    if kind == "failed":
        return StoreError(f"{root}: the index could not be used: {exc}")
    return StoreUnavailableError(f"{root}: the index cannot be opened or repaired: {exc}")


def _limit(applies: bool = True) -> str:  # noqa: FBT001, FBT002
    """Say that this process may only write small files, if it may and that matters; SQLite does not tell why."""
    import resource  # by what fails only

    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if not applies or most == resource.RLIM_INFINITY:
        return ""
    return f" (this process may make files of {most} bytes at most, `ulimit -f`)"
