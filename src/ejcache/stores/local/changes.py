"""Notes in a file each change of a local store before it is made, until the database of the store (`order`) has it.

    changes := base LF line*
    base    := the number of the last change that the order had, as 20 digits
    line    := crc " " body LF       crc: of the body, as 10 digits
    body    := [number, age, {name: [before, after, seen, turn], …}], as JSON

The numbers of the lines follow the base, one after the other. `before` and `after` are the bytes of the entry's file,
null where there is none; `seen` is the time of the file, and `turn` its place among the others, both in ns. The age is
that of `transaction`.

So a put writes one line here, and nothing to SQLite, which gets many of them at once. Whoever reads a line that it did
not write looks at the files of the last one, whose writer may have died before it had made the change.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import stat
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from ejcache.util.files import open_like_directory

if TYPE_CHECKING:
    from collections.abc import Mapping

_BASE_BYTES: Final = 21
_CRC_BYTES: Final = 11
_MOST_BYTES: Final = 1 << 28
"""A larger file was not written by this."""
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class DamageError(sqlite3.DatabaseError):
    """The order, or what is to be added to it, is damaged, or was not made by this."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


class Change(NamedTuple):
    """One file that is made, replaced or removed: its bytes before and after, its time, and its turn."""

    before: int | None
    after: int | None
    seen: int
    turn: int


def encode_base(number: int) -> bytes:
    """Return the beginning of a file of changes that follow the one of this number."""
    return b"%020d\n" % number


def encode(number: int, age: float, changes: Mapping[str, Change]) -> bytes:
    """Return the line of the change of this number."""
    body = json.dumps([number, age, changes], separators=(",", ":")).encode()
    return b"%010d %s\n" % (zlib.crc32(body), body)


def decode_base(data: bytes) -> int:
    """Return the number that a file of changes begins with; raises `DamageError`."""
    if len(data) < _BASE_BYTES or not data[: _BASE_BYTES - 1].isdigit() or data[_BASE_BYTES - 1 : _BASE_BYTES] != b"\n":
        raise DamageError("its changes have no beginning")
    return int(data[:_BASE_BYTES])


def number_of(line: bytes) -> int:
    """Return the number of a line; raises `DamageError`."""
    try:
        return int(json.loads(line[_CRC_BYTES:])[0])
    except (ValueError, TypeError, LookupError) as exc:
        raise DamageError(f"its changes cannot be read: {exc}") from exc


def decode(lines: bytes, *, after: int) -> list[tuple[float, dict[str, Change]]]:
    """Return the ages and changes in lines that follow the one of the number `after`; raises `DamageError`."""
    found: list[tuple[float, dict[str, Change]]] = []
    try:
        for line in lines.splitlines(keepends=True):
            body = line[_CRC_BYTES:-1]
            if not line.endswith(b"\n") or int(line[:_CRC_BYTES]) != zlib.crc32(body):
                raise DamageError("its changes are damaged")
            number, age, changes = json.loads(body)
            if number != after + len(found) + 1:
                raise DamageError("a change is missing")
            found.append((age, {name: Change(*change) for name, change in changes.items()}))
    except (ValueError, TypeError, AttributeError) as exc:
        raise DamageError(f"its changes cannot be read: {exc}") from exc
    return found


class ChangeFile:
    """The open file of changes, for as long as the lock of the store is held.

    Attributes:
        data: what is in it.
    """

    def __init__(self, path: str) -> None:
        try:
            self._fd = open_like_directory(path, _FLAGS)
        except OSError as exc:
            if exc.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise
            raise DamageError(f"{path} is no file") from exc
        about = os.fstat(self._fd)
        if not stat.S_ISREG(about.st_mode) or about.st_size > _MOST_BYTES:
            os.close(self._fd)
            raise DamageError(f"{path} is no file of changes")
        self.data = b""
        self._size = about.st_size

    def append(self, line: bytes) -> None:
        """Add a line.

        Raises:
            OSError: that is not possible, and nothing was added.
        """
        place = len(self.data)
        done = os.pwrite(self._fd, line, place)
        if done != len(line):
            os.ftruncate(self._fd, place)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.data += line

    def begin(self, number: int) -> None:
        """Forget the lines, which the order has now.

        A process that dies before they are cut off leaves lines that do not follow the base.

        Raises:
            OSError: that is not possible; the lines may still be there, which does no harm.
        """
        base = encode_base(number)
        if os.pwrite(self._fd, base, 0) != len(base):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(self._fd, len(base))
        self.data = base

    def __enter__(self) -> Self:
        self.data = os.pread(self._fd, self._size, 0)
        return self

    def __exit__(self, *about: object) -> None:
        os.close(self._fd)
