"""Many entries in one file, to be baked into an image or carried to where there is no network.

Grammar (version 1; all integers big-endian):

    bundle := magic record* end
    magic  := "EJB1"                                     the last character is the version
    record := key_length size key entry
    key_length := u32                                    bytes of `key`, not 0
    size   := u64                                        bytes of `entry`
    key    := UTF-8
    entry  := as `ejcache.entry` has it; it says itself whether it is intact, and whose it is
    end    := 0 count checksum
    0      := u32
    count  := u64                                        records
    checksum := sha256(magic record*), 32 bytes

A bundle that ends early is whole as far as it goes: that is how an export that was broken off is taken up again.

Version log: 1 (0.1.0) the first.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final, Self

from ejcache.entry import MAX_HEADER_SIZE, MAX_RAW_SIZE
from ejcache.errors import EntryCorruptError, EntryVersionError, StoreError, StoreUnavailableError
from ejcache.stores.base import MAX_KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

__all__ = [
    "MAGIC",
    "BundleWriter",
    "Record",
    "count_records",
    "decode_prefix",
    "encode_end",
    "encode_record",
    "read_bundle",
]

MAGIC: Final = b"EJB1"

_PREFIX: Final = struct.Struct(">IQ")
_CHECKSUM_SIZE: Final = 32
_MAX_ENTRY: Final = MAX_RAW_SIZE + 2 * MAX_HEADER_SIZE


@dataclass(frozen=True, slots=True)
class Record:
    """One entry of a bundle, not yet verified."""

    key: str
    data: bytes


def encode_record(key: str, data: bytes) -> bytes:
    """The record of one entry."""
    name = key.encode()
    return b"".join((_PREFIX.pack(len(name), len(data)), name, data))


def encode_end(count: int, checksum: bytes) -> bytes:
    """What a bundle of `count` records ends with; `checksum` is over all that goes before."""
    return _PREFIX.pack(0, count) + checksum


def decode_prefix(data: bytes) -> tuple[int, int]:
    """The key's length and the entry's size that a record begins with; (0, count) at the end.

    Raises:
        EntryCorruptError: it is cut off, or says what no bundle does.
    """
    if len(data) != _PREFIX.size:
        raise EntryCorruptError("the bundle is cut off")
    length, size = _PREFIX.unpack(data)
    if length > MAX_KEY_BYTES or (length and size > _MAX_ENTRY):
        raise EntryCorruptError(f"the bundle is damaged: a record says that its key has {length} bytes")
    return length, size


def read_bundle(file: BinaryIO) -> Iterator[Record]:
    """The records of a bundle, one in memory at a time.

    Raises:
        EntryVersionError: the bundle is of a version that this code does not read.
        EntryCorruptError: it is no bundle, or, after all records that are whole, it is cut off or damaged.
    """
    yield from _Reader(file).records()


def count_records(file: BinaryIO) -> int:
    """How many records the end of a bundle speaks of; 0 if it has none. The file is read from its beginning next."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - _PREFIX.size - _CHECKSUM_SIZE))
    try:
        length, count = decode_prefix(file.read(_PREFIX.size))
    except EntryCorruptError:
        return 0
    finally:
        file.seek(0)
    return 0 if length else count


class _Reader:
    """Reads records, and knows where the last whole one ended and what the checksum is up to there."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.hasher = hashlib.sha256()
        self.count = 0
        self.end = 0

    def records(self) -> Iterator[Record]:
        magic = self.file.read(len(MAGIC))
        if len(magic) != len(MAGIC) or magic[:3] != MAGIC[:3]:
            raise EntryCorruptError("this is no bundle")
        if magic != MAGIC:
            raise EntryVersionError(f"a bundle of version {magic[3:]!r}, which this version of ejcache does not read")
        self.hasher.update(magic)
        self.end = len(MAGIC)
        while True:
            prefix = self.file.read(_PREFIX.size)
            length, size = decode_prefix(prefix)
            if not length:
                self._check_end(size)
                return
            rest = self.file.read(length + size)
            if len(rest) != length + size:
                raise EntryCorruptError("the bundle is cut off")
            try:
                record = Record(rest[:length].decode(), rest[length:])
            except UnicodeDecodeError as exc:
                raise EntryCorruptError("the bundle is damaged: a key is no text") from exc
            self.hasher.update(prefix)
            self.hasher.update(rest)
            self.count += 1
            self.end += len(prefix) + len(rest)
            yield record

    def _check_end(self, count: int) -> None:
        checksum = self.file.read(_CHECKSUM_SIZE)
        if count != self.count or checksum != self.hasher.digest() or self.file.read(1):
            raise EntryCorruptError("the bundle is damaged: its end does not match what goes before")


class BundleWriter:
    """Writes a bundle beside its place, and moves it there when it is whole. Safe for threads.

    One that was broken off is taken up where it ended: `keys` are in it already.

    Args:
        path: of the bundle; a file that is there is replaced at the end.
        partial: where it is written meanwhile, on the same file system.

    Raises:
        StoreUnavailableError: the file cannot be written.
    """

    def __init__(self, path: Path, *, partial: Path) -> None:
        self.keys: set[str] = set()
        self._path = path
        self._partial = partial
        self._lock = threading.Lock()
        try:
            self._file = partial.open("r+b" if partial.exists() else "w+b")
        except OSError as exc:
            raise self._unwritable(exc) from exc
        self._hasher, self._count = self._take_up()

    def _take_up(self) -> tuple[hashlib._Hash, int]:
        reader = _Reader(self._file)
        try:
            for record in reader.records():
                self.keys.add(record.key)
        except EntryCorruptError:
            pass  # where it was broken off
        except EntryVersionError:
            self.keys.clear()
            reader = _Reader(self._file)
        self._file.seek(reader.end)
        self._file.truncate()
        if not reader.end:
            self._file.write(MAGIC)
            reader.hasher.update(MAGIC)
        return reader.hasher, reader.count

    def add(self, key: str, data: bytes) -> bool:
        """Append an entry; False if it is in the bundle already. Raises StoreUnavailableError if it cannot be."""
        record = encode_record(key, data)
        with self._lock:
            if key in self.keys:
                return False
            try:
                self._file.write(record)
                self._file.flush()  # or a kill would take up to a buffer of whole records with it
            except OSError as exc:
                raise self._unwritable(exc) from exc
            self._hasher.update(record)
            self._count += 1
            self.keys.add(key)
        return True

    def finish(self) -> None:
        """Write the end, and put the bundle in its place. Raises StoreUnavailableError if that fails."""
        try:
            self._file.write(encode_end(self._count, self._hasher.digest()))
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._partial.replace(self._path)
        except OSError as exc:
            raise self._unwritable(exc) from exc

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def _unwritable(self, exc: OSError) -> StoreError:
        return StoreUnavailableError(f"{self._path} cannot be written: {exc.strerror or exc}")
