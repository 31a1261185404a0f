"""The values of a local store: bytes in rows and files, under names that say which key they belong to."""

# pathlib's methods cost as much as the calls that they make, and these are on the path of every hit.
# ruff: noqa: PTH104, PTH118, PTH123, PTH208

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ejcache.util.files import file_mode, make_below, open_with_mode
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

MODE_RAW: Final = 1
"""diskcache's: the value is in the row."""
MODE_BINARY: Final = 2
"""diskcache's: the value is in a file. Its modes 3 and 4 are text and pickles, which are refused."""
INLINE_BYTES: Final = 16 * 2**10
"""A value smaller than this is kept in its row. Measured with values of 1 to 60 kB: a row is written in half the time
of a file and read in three quarters of it, up to about 15 kB on average too, log included. The most expensive part of a
file is its deletion: ext4 mounted with `discard` and without a journal waits for the device, at times for
milliseconds."""
MAX_VALUE_BYTES: Final = 9 * 2**28
"""An entry of 2 GiB, the most that protobuf can hold, with its header and room to spare. A larger file is damage: a
sparse one costs nothing on disk and would fill the memory."""

_FILENAME: Final = r"[0-9a-f]/([0-9a-f]{16})-[0-9a-f]{16}\.val"
_PENDING_NAME: Final = r"(\d+-[0-9a-f]{12})_[0-9a-f]{16}-[0-9a-f]{16}\.val"
_TMP: Final = "tmp"
_DIRECTORIES: Final = "0123456789abcdef"
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
        named = re.fullmatch(_FILENAME, self.filename) if isinstance(self.filename, str) else None
        return self.mode == MODE_BINARY and named is not None and named[1] == self.tag and self.value is None


class PendingValue(NamedTuple):
    """A value that is being stored, as columns of its row. Its file does not have its final name yet."""

    key: str
    tag: str
    size: int
    mode: int
    filename: str | None
    data: bytes | None


class ValueFiles:
    """The value files of one generation.

    A file is written under `tmp/`, with the token of its writer, and gets its final name inside the transaction that
    makes its row. So, seen under the database's write lock, a file without a row belongs to no entry, and a file in
    `tmp/` belongs to its writer as long as that lives.

    Args:
        directory: the generation.
        token: of this process.
    """

    def __init__(self, directory: Path, token: str) -> None:
        self._directory = str(directory)
        self._token = token
        self._mode: int | None = None

    def write_pending(self, key: str, data: bytes) -> PendingValue:
        """Write `data` where no process reads it.

        Raises:
            OSError: it could not be written; nothing is left of it.
        """
        digest = digest_of(key)
        if len(data) < INLINE_BYTES:
            return PendingValue(key, digest, len(data), MODE_RAW, None, data)
        filename = f"{digest[0]}/{digest}-{secrets.token_hex(8)}.val"
        path = self._pending_path(filename)
        try:
            fd = self._make(path)
        except FileNotFoundError:
            make_below(Path(path).parent)
            self._mode = None
            fd = self._make(path)
        try:
            with open(fd, "wb", buffering=0) as file:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
        except BaseException:
            self.discard(filename)
            raise
        return PendingValue(key, digest, len(data), MODE_BINARY, filename, None)

    def _make(self, path: str) -> int:
        """Open a new file for those who may use the directory, by its permissions at the first put.

        To look at them at each put took 3 % of the put's instructions.
        """
        if self._mode is None:
            self._mode = file_mode(os.path.join(self._directory, _TMP))
        return open_with_mode(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._mode)

    def commit(self, filename: str) -> None:
        """Give a pending file its final name; inside the transaction that makes its row."""
        final = os.path.join(self._directory, filename)
        try:
            os.rename(self._pending_path(filename), final)
        except FileNotFoundError:
            make_below(Path(final).parent)
            os.rename(self._pending_path(filename), final)

    def discard(self, filename: str | None) -> None:
        """Delete a pending file that was not committed."""
        if filename is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._pending_path(filename))  # noqa: PTH108

    def delete(self, filename: Any) -> bool:
        """Delete a file that no row names any more; False if that failed.

        A name that ejcache does not make is left alone: it may lead anywhere.
        """
        if not isinstance(filename, str) or re.fullmatch(_FILENAME, filename) is None:
            return True
        try:
            os.unlink(os.path.join(self._directory, filename))  # noqa: PTH108
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

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
            fd = os.open(os.path.join(self._directory, row.filename), _READ)
        except OSError as exc:
            if exc.errno in (errno.ELOOP, errno.ENXIO):  # a link or a socket
                return None
            raise
        try:
            if not _is_value(os.fstat(fd), row.size):  # a directory, too, of which Python makes no file object
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

    def present(self, row: IndexRow) -> bool:
        """True if the value of a trustworthy row is there in full length.

        Raises:
            OSError: its file cannot be looked at.
        """
        if row.mode == MODE_RAW:
            return True
        try:
            about = os.lstat(os.path.join(self._directory, row.filename))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return _is_value(about, row.size)

    def size(self, filename: str) -> int | None:
        """Return the bytes of a value file; None if there is no such file."""
        try:
            return os.lstat(os.path.join(self._directory, filename)).st_size
        except OSError:
            return None

    def committed(self) -> Iterator[str]:
        """Yield the names of all value files, as rows name them."""
        for digit in _DIRECTORIES:
            for name in _names(os.path.join(self._directory, digit)):
                if re.fullmatch(_FILENAME, f"{digit}/{name}"):
                    yield f"{digit}/{name}"

    def unfinished(self, living: frozenset[str]) -> list[str]:
        """Return the files that dead processes were writing, `living` being the tokens of the others."""
        names = _names(os.path.join(self._directory, _TMP))
        return [name for name in names if (match := re.fullmatch(_PENDING_NAME, name)) and match[1] not in living]

    def delete_unfinished(self, living: frozenset[str]) -> int:
        """Delete what dead processes were writing; returns how many files that was."""
        deleted = 0
        for name in self.unfinished(living):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self._directory, _TMP, name))  # noqa: PTH108
                deleted += 1
        return deleted

    def _pending_path(self, filename: str) -> str:
        return f"{self._directory}/{_TMP}/{self._token}_{filename.partition('/')[2]}"


def _is_value(about: os.stat_result, size: int) -> bool:
    return stat.S_ISREG(about.st_mode) and about.st_size == size


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
