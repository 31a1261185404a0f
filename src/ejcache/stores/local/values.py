"""What the index of a local store says of an entry, and its value: bytes in the row, or a file that is read.

`value_files` writes and lists the files: a hit does without.
"""

# pathlib's methods cost as much as the calls that they make, and these are on the path of every hit.
# ruff: noqa: PTH118

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from typing import TYPE_CHECKING, Any, Final

from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

MODE_RAW: Final = 1
"""diskcache's: the value is in the row."""
MODE_BINARY: Final = 2
"""diskcache's: the value is in a file. Its modes 3 and 4 are text and pickles, which are refused."""
MAX_VALUE_BYTES: Final = 9 * 2**28
"""An entry of 2 GiB, the most that protobuf can hold, with its header and room to spare. A larger file is damage: a
sparse one costs nothing on disk and would fill the memory."""

FILENAME: Final = r"[0-9a-f]/([0-9a-f]{16})-[0-9a-f]{16}\.val"
# Not through a link, and without waiting at a pipe: a user who could once write to the directory may have put one
# there.
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def digest_of(key: str) -> str:
    """Digest a key for its row and file name, so that a damaged index is noticed when it confuses two keys."""
    return hashlib.blake2b(key.encode(), digest_size=8).hexdigest()


class IndexRow(NamedTuple):
    """What the index says of an entry. A damaged or hostile index may say anything, of any type."""

    rowid: Any
    tag: Any
    size: Any
    mode: Any
    filename: Any
    value: Any
    """The bytes themselves, or only their number if they were not asked for."""
    stored: Any

    def trustworthy(self, key: str) -> bool:
        """True if this is a row that ejcache wrote for `key`, and whose value is bytes."""
        if self.tag != digest_of(key) or type(self.size) is not int or type(self.stored) is not float:
            return False
        if self.mode == MODE_RAW:
            length = len(self.value) if isinstance(self.value, bytes) else self.value
            return self.filename is None and type(length) is int and length == self.size
        named = re.fullmatch(FILENAME, self.filename) if isinstance(self.filename, str) else None
        return self.mode == MODE_BINARY and named is not None and named[1] == self.tag and self.value is None


class ValueFiles:
    """The value files of one generation.

    A file is written under `tmp/`, with the token of its writer, and gets its final name inside the transaction that
    makes its row. So, seen under the database's write lock, a file without a row belongs to no entry, and a file in
    `tmp/` belongs to its writer as long as that lives.

    Args:
        directory: the generation.
        token: of this process.

    Attributes:
        mode: the permissions of new files, once one was made.
    """

    def __init__(self, directory: Path, token: str) -> None:
        self.directory = str(directory)
        self.token = token
        self.mode: int | None = None

    def read(self, row: IndexRow, length: int | None = None) -> bytes | None:
        """Read the value of a trustworthy row, or its first `length` bytes; None if its file is not as the row says.

        Raises:
            FileNotFoundError: its file is gone.
            OSError: its file cannot be read.
        """
        if row.mode == MODE_RAW:
            value: bytes = row.value
            return value[:length]
        if row.size > MAX_VALUE_BYTES:
            return None
        try:
            fd = os.open(os.path.join(self.directory, row.filename), _READ)
        except OSError as exc:
            if exc.errno in (errno.ELOOP, errno.ENXIO):  # a link or a socket
                return None
            raise
        try:
            if not is_value(os.fstat(fd), row.size):  # a directory, too, of which Python makes no file object
                return None
            wanted: int = row.size if length is None else min(length, row.size)
            data = os.read(fd, wanted)
            while len(data) < wanted:  # one read(2) returns at most 2 GiB
                more = os.read(fd, wanted - len(data))
                if not more:
                    return None
                data += more
            return data
        finally:
            os.close(fd)

    def delete(self, filename: Any) -> bool:
        """Delete a file that no row names any more; False if that failed.

        A name that ejcache does not make is left alone: it may lead anywhere.
        """
        if not isinstance(filename, str) or re.fullmatch(FILENAME, filename) is None:
            return True
        try:
            os.unlink(os.path.join(self.directory, filename))  # noqa: PTH108
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


def is_value(about: os.stat_result, size: int) -> bool:
    """True if a file is one, of so many bytes."""
    return stat.S_ISREG(about.st_mode) and about.st_size == size
