"""The value files of a generation: written, given their names, listed, and swept. `index` reads and deletes one.

A file is written under `tmp/`, with the token of its writer, and gets its final name inside the transaction that makes
its row. So, seen under the database's write lock, a file without a row belongs to no entry, and a file in `tmp/`
belongs to its writer as long as that lives.
"""

# pathlib's methods cost as much as the calls that they make, and some are made at each put.
# ruff: noqa: PTH104, PTH108, PTH118, PTH123, PTH208

from __future__ import annotations

import contextlib
import os
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.stores.local.index import FILENAME, digest_of, is_value
from ejcache.stores.local.layout import MODE_BINARY, MODE_RAW
from ejcache.util.files import file_mode, open_with_mode
from ejcache.util.new_files import make_below
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.stores.local.index import EntryIndex, IndexRow

INLINE_BYTES: Final = 16 * 2**10
"""A value smaller than this is kept in its row. Measured with values of 1 to 60 kB: a row is written in half the time
of a file and read in three quarters of it, up to about 15 kB on average too, log included. The most expensive part of a
file is its deletion: ext4 mounted with `discard` and without a journal waits for the device, at times for
milliseconds."""

_PENDING_NAME: Final = r"(\d+-[0-9a-f]{12})_[0-9a-f]{16}-[0-9a-f]{16}\.val"
_TMP: Final = "tmp"
_DIRECTORIES: Final = "0123456789abcdef"


class PendingValue(NamedTuple):
    """A value that is being stored, as columns of its row. Its file does not have its final name yet."""

    key: str
    tag: str
    size: int
    mode: int
    filename: str | None
    data: bytes | None


def write_pending(index: EntryIndex, key: str, data: bytes) -> PendingValue:
    """Write `data` where no process reads it.

    Raises:
        OSError: it could not be written; nothing is left of it.
    """
    digest = digest_of(key)
    if len(data) < INLINE_BYTES:
        return PendingValue(key, digest, len(data), MODE_RAW, None, data)
    filename = f"{digest[0]}/{digest}-{secrets.token_hex(8)}.val"
    path = _pending_path(index, filename)
    try:
        fd = _make(index, path)
    except FileNotFoundError:
        make_below(Path(path).parent)
        index.file_mode = None
        fd = _make(index, path)
    try:
        with open(fd, "wb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
    except BaseException:
        discard(index, filename)
        raise
    return PendingValue(key, digest, len(data), MODE_BINARY, filename, None)


def _make(index: EntryIndex, path: str) -> int:
    """Open a new file for those who may use the directory, by its permissions at the first put.

    To look at them at each put took 3 % of the put's instructions.
    """
    if index.file_mode is None:
        index.file_mode = file_mode(os.path.join(index.generation, _TMP))
    return open_with_mode(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, index.file_mode)


def commit(index: EntryIndex, filename: str) -> None:
    """Give a pending file its final name; inside the transaction that makes its row."""
    final = os.path.join(index.generation, filename)
    try:
        os.rename(_pending_path(index, filename), final)
    except FileNotFoundError:
        make_below(Path(final).parent)
        os.rename(_pending_path(index, filename), final)


def discard(index: EntryIndex, filename: str | None) -> None:
    """Delete a pending file that was not committed."""
    if filename is not None:
        with contextlib.suppress(OSError):
            os.unlink(_pending_path(index, filename))


def is_present(directory: str, row: IndexRow) -> bool:
    """True if the value of a trustworthy row is there in full length.

    Raises:
        OSError: its file cannot be looked at.
    """
    if row.mode == MODE_RAW:
        return True
    try:
        about = os.lstat(os.path.join(directory, row.filename))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return is_value(about, row.size)


def size_of(directory: str, filename: str) -> int | None:
    """Return the bytes of a value file; None if there is no such file."""
    try:
        return os.lstat(os.path.join(directory, filename)).st_size
    except OSError:
        return None


def committed(directory: str) -> Iterator[str]:
    """Yield the names of all value files, as rows name them."""
    for digit in _DIRECTORIES:
        for name in _names(os.path.join(directory, digit)):
            if re.fullmatch(FILENAME, f"{digit}/{name}"):
                yield f"{digit}/{name}"


def unfinished(directory: str, living: frozenset[str]) -> list[str]:
    """Return the files that dead processes were writing, `living` being the tokens of the others."""
    names = _names(os.path.join(directory, _TMP))
    return [name for name in names if (match := re.fullmatch(_PENDING_NAME, name)) and match[1] not in living]


def delete_unfinished(directory: str, living: frozenset[str]) -> int:
    """Delete what dead processes were writing; returns how many files that was."""
    deleted = 0
    for name in unfinished(directory, living):
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(directory, _TMP, name))
            deleted += 1
    return deleted


def _pending_path(index: EntryIndex, filename: str) -> str:
    return f"{index.generation}/{_TMP}/{index.token}_{filename.partition('/')[2]}"


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
