"""The values of a local store: bytes in rows and files, under names that say which key they belong to."""

# pathlib's methods cost as much as the calls that they make, and these are on the path of every hit.
# ruff: noqa: PTH102, PTH104, PTH116, PTH123, PTH208

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ejcache.stores import local_faults

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["INLINE_BYTES", "MODE_BINARY", "MODE_RAW", "Row", "Staged", "Values", "digest_of"]

MODE_RAW: Final = 1
"""diskcache's: the value is in the row."""
MODE_BINARY: Final = 2
"""diskcache's: the value is in a file. Its modes 3 and 4 are text and pickles, which are refused."""
INLINE_BYTES: Final = 16 * 2**10
"""A value smaller than this is kept in its row. Measured with values of 1 to 60 kB: a row is put in half the time of a
file and read in three quarters of it, up to about 15 kB on average too, log included. What a file costs most is its
removal: ext4 mounted with `discard` and without a journal waits for the device each time, for milliseconds at times."""

_FILENAME: Final = re.compile(r"[0-9a-f]/([0-9a-f]{16})-[0-9a-f]{16}\.val")
_TMP: Final = "tmp"


def digest_of(key: str) -> str:
    """What a row and a file name say of their key, so that a damaged index is caught when it confuses two."""
    return hashlib.blake2b(key.encode(), digest_size=8).hexdigest()


class Row(NamedTuple):
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
        """Whether this is a row that we wrote for `key`, and whose value is bytes."""
        if self.tag != digest_of(key) or type(self.size) is not int or type(self.stored) is not float:
            return False
        if self.mode == MODE_RAW:
            length = len(self.value) if isinstance(self.value, bytes) else self.value
            return self.filename is None and type(length) is int and length == self.size
        named = _FILENAME.fullmatch(self.filename) if isinstance(self.filename, str) else None
        return self.mode == MODE_BINARY and named is not None and named[1] == self.tag and self.value is None


class Staged(NamedTuple):
    """A value on its way: diskcache's columns for it, the file not yet under its final name."""

    size: int
    mode: int
    filename: str | None
    value: bytes | None


class Values:
    """The value files of one generation.

    A file is written under `tmp/`, with the token of its writer, and gets its final name inside the transaction that
    makes its row. So, seen under the database's write lock, a file without a row belongs to nobody, and one in `tmp/`
    belongs to its writer while that lives.
    """

    def __init__(self, directory: Path, token: str) -> None:
        self._directory = directory
        self._token = token

    def stage(self, key: str, data: bytes) -> Staged:
        """Write `data` where nobody reads it.

        Raises:
            OSError: it could not be written; nothing is left of it.
        """
        if len(data) < INLINE_BYTES:
            return Staged(len(data), MODE_RAW, None, data)
        digest = digest_of(key)
        filename = f"{digest[0]}/{digest}-{secrets.token_hex(8)}.val"
        path = self._tmp(filename)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            os.mkdir(path.parent, 0o700)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb", buffering=0) as file:
                view = memoryview(data)
                while view:
                    local_faults.reach("file-begun")
                    view = view[file.write(view) :]
        except BaseException:
            self.discard(filename)
            raise
        local_faults.reach("file-written")
        return Staged(len(data), MODE_BINARY, filename, None)

    def place(self, filename: str) -> None:
        """Give a staged file its final name; inside the transaction that makes its row."""
        final = self._directory / filename
        try:
            os.rename(self._tmp(filename), final)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                os.mkdir(final.parent, 0o700)
            os.rename(self._tmp(filename), final)
        local_faults.reach("file-placed")

    def discard(self, filename: str | None) -> None:
        """Remove a file that was staged and not placed."""
        if filename is not None:
            with contextlib.suppress(OSError):
                self._tmp(filename).unlink()

    def remove(self, filename: Any) -> bool:
        """Remove a file that no row names any more; False if that failed.

        A name that is not one of ours is left alone: it may lead anywhere.
        """
        if not isinstance(filename, str) or _FILENAME.fullmatch(filename) is None:
            return True
        try:
            (self._directory / filename).unlink(missing_ok=True)
        except OSError:
            return False
        return True

    def read(self, row: Row, length: int | None = None) -> bytes | None:
        """The value of a trustworthy row, or its first `length` bytes; None if its file is not of the right size.

        Raises:
            FileNotFoundError: its file is gone.
            OSError: its file cannot be read.
        """
        if row.mode == MODE_RAW:
            value: bytes = row.value
            return value[:length]
        with open(self._directory / row.filename, "rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size != row.size:
                return None
            wanted: int = row.size if length is None else min(length, row.size)
            data = file.read(wanted)
            while len(data) < wanted:  # one read(2) gives 2 GiB at most
                more = file.read(wanted - len(data))
                if not more:
                    return None
                data += more
            return data

    def present(self, row: Row) -> bool:
        """Whether the value of a trustworthy row is there in full length."""
        return bool(row.mode == MODE_RAW or self.size(row.filename) == row.size)

    def size(self, filename: str) -> int | None:
        """The bytes of a value file, or None."""
        try:
            return os.stat(self._directory / filename).st_size
        except OSError:
            return None

    def placed(self) -> Iterator[str]:
        """The names of all value files, as rows name them."""
        for digit in "0123456789abcdef":
            for name in _names(self._directory / digit):
                yield f"{digit}/{name}"

    def sweep_staged(self, living: frozenset[str]) -> int:
        """Remove what dead processes were writing; answer how many files that was."""
        swept = 0
        for name in _names(self._directory / _TMP):
            if name.rpartition("_")[0] not in living:
                with contextlib.suppress(OSError):
                    (self._directory / _TMP / name).unlink()
                    swept += 1
        return swept

    def staged(self, living: frozenset[str]) -> list[str]:
        """What dead processes were writing."""
        return [name for name in _names(self._directory / _TMP) if name.rpartition("_")[0] not in living]

    def _tmp(self, filename: str) -> Path:
        return self._directory / _TMP / f"{self._token}_{filename.partition('/')[2]}"


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
