"""A bundle: many entries in one file, for an image or for hosts without a network.

Grammar (version 1; all integers big-endian):

    bundle := magic record* end
    magic  := "EJB1"                                     the last character is the version
    record := key_length size key entry
    key_length := u32                                    bytes of `key`, not 0
    size   := u64                                        bytes of `entry`
    key    := UTF-8
    entry  := see `ejcache.entry`; it holds its own checksum and its own key
    end    := 0 count checksum
    0      := u32
    count  := u64                                        records
    checksum := sha256(magic record*), 32 bytes

A truncated bundle is valid up to its last complete record, so that an interrupted export can be resumed.

Version log: 1 (0.1.0) the first.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final

from ejcache.entry import MAX_HEADER_SIZE, MAX_RAW_SIZE
from ejcache.errors import EntryCorruptError, EntryVersionError, StoreError, StoreUnavailableError
from ejcache.util.key_text import MAX_KEY_BYTES
from ejcache.util.lifecycle import Closing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "MAGIC",
    "BundleRecord",
    "BundleWriter",
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
_PART: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class BundleRecord:
    """One entry of a bundle, not yet verified."""

    key: str
    data: bytes


def encode_record(key: str, data: bytes) -> bytes:
    """The record of one entry."""
    name = key.encode()
    return b"".join((_PREFIX.pack(len(name), len(data)), name, data))


def encode_end(count: int, checksum: bytes) -> bytes:
    """The end of a bundle of `count` records; `checksum` covers everything before it."""
    return _PREFIX.pack(0, count) + checksum


def decode_prefix(data: bytes) -> tuple[int, int]:
    """The key's length and the entry's size at the beginning of a record; (0, count) at the end of the bundle.

    Raises:
        EntryCorruptError: the bundle is cut off, or no record can have these sizes.
    """
    if len(data) != _PREFIX.size:
        raise EntryCorruptError("the bundle is cut off")
    length, size = _PREFIX.unpack(data)
    if length > MAX_KEY_BYTES or (length and size > _MAX_ENTRY):
        raise EntryCorruptError(f"the bundle is damaged: a record of {length} + {size} bytes is not possible")
    return length, size


def read_bundle(file: BinaryIO) -> Iterator[BundleRecord]:
    """The records of a bundle, one in memory at a time.

    Raises:
        EntryVersionError: the bundle is of a version that this code does not read.
        EntryCorruptError: this is not a bundle; or, after its complete records, it is cut off or damaged.
    """
    yield from _Reader(file).records()


def count_records(file: BinaryIO) -> int:
    """The number of records that the bundle's end states; 0 if it has no end. Rewinds the file."""
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
    """Reads records, and keeps the position and the checksum at the end of the last complete one."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.hasher = hashlib.sha256()
        self.count = 0
        self.end = 0

    def records(self) -> Iterator[BundleRecord]:
        magic = self.file.read(len(MAGIC))
        if len(magic) != len(MAGIC) or magic[:3] != MAGIC[:3]:
            raise EntryCorruptError("this is not a bundle")
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
            rest = self._read(length + size)
            try:
                record = BundleRecord(rest[:length].decode(), rest[length:])
            except UnicodeDecodeError as exc:
                raise EntryCorruptError("the bundle is damaged: a key is not text") from exc
            self.hasher.update(prefix)
            self.hasher.update(rest)
            self.count += 1
            self.end += len(prefix) + len(rest)
            yield record

    def _read(self, size: int) -> bytes:
        """Exactly `size` bytes. Memory is taken as they arrive, not because a record promises them."""
        parts = []
        while size and (part := self.file.read(min(size, _PART))):
            parts.append(part)
            size -= len(part)
        if size:
            raise EntryCorruptError("the bundle is cut off")
        return b"".join(parts)

    def _check_end(self, count: int) -> None:
        checksum = self.file.read(_CHECKSUM_SIZE)
        if count != self.count or checksum != self.hasher.digest() or self.file.read(1):
            raise EntryCorruptError("the bundle is damaged: its end does not match what goes before")


class BundleWriter(Closing):
    """Writes a bundle into a partial file, and renames that when it is complete. Safe for threads.

    If there is a partial file already, writing resumes after its last complete record; `keys` are in it.

    Args:
        path: of the bundle; an existing file is replaced at the end.
        partial: of the partial file, on the same file system.

    Raises:
        StoreUnavailableError: the file cannot be written.
    """

    def __init__(self, path: Path, *, partial: Path) -> None:
        # All keys are held, because a key may come twice at any distance: some 200 bytes for each entry.
        self.keys: set[str] = set()
        self._path = path
        self._partial = partial
        self._lock = threading.Lock()
        try:
            self._file = partial.open("r+b" if partial.exists() else "w+b")
        except OSError as exc:
            raise self._unwritable(exc) from exc
        self._hasher, self._count = self._resume()

    def _resume(self) -> tuple[hashlib._Hash, int]:
        reader = _Reader(self._file)
        try:
            for record in reader.records():
                self.keys.add(record.key)
        except EntryCorruptError:
            pass  # here the export was interrupted
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
        """Append an entry; False if it is in the bundle already. Raises StoreUnavailableError if writing fails."""
        record = encode_record(key, data)
        with self._lock:
            if key in self.keys:
                return False
            try:
                self._file.write(record)
                self._file.flush()  # otherwise a kill loses the records in Python's buffer
            except OSError as exc:
                raise self._unwritable(exc) from exc
            self._hasher.update(record)
            self._count += 1
            self.keys.add(key)
        return True

    def finish(self) -> None:
        """Write the end, and rename the partial file. Raises StoreUnavailableError if that fails."""
        try:
            self._file.write(encode_end(self._count, self._hasher.digest()))
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._partial.replace(self._path)
        except OSError as exc:
            raise self._unwritable(exc) from exc

    def close(self) -> None:
        """Close the partial file, which stays unless `finish` has renamed it."""
        self._file.close()

    def _unwritable(self, exc: OSError) -> StoreError:
        return StoreUnavailableError(f"{self._path} cannot be written: {exc.strerror or exc}")
