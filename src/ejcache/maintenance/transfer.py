"""Copies of entries: from one cache to another, and into and out of bundles.

Copying entries from one cache to another: those that are intact and not there yet.

An interrupted copy is simply repeated: entries that have arrived are not copied again.

A bundle: many entries in one file, for an image or for hosts without a network.

A bundle is a tar archive (version 2), so that `tar tvf` lists it:

    bundle := member("ejcache-bundle", "2" LF) entry* member("ejcache-bundle-end", count LF) two blocks of zeros
    entry  := member("entries/" key, entry)              see `ejcache.entry`; it holds its own checksum and its own key
    member := a regular file, with a pax header in front of it where the key is longer than 100 characters
    count  := decimal                                    entries

Nothing is extracted to a disk. A link, a device, a sparse file and a file of any other name are damage; directories
are passed over. A bundle that is cut off is valid up to its last complete entry, so that an interrupted export
continues there.

Version 1, which is only read (all integers big-endian):

    bundle := "EJB1" record* end
    record := key_length size key entry                  u32, not 0; u64; UTF-8
    end    := 0 count checksum                           u32; u64, records; sha256("EJB1" record*), 32 bytes

Version log: 1 (0.1.0.dev) the first. 2 (0.1.0) a tar archive.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import struct
import tarfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, Final

from ejcache import entry
from ejcache.entry import MAX_HEADER_SIZE, MAX_RAW_SIZE
from ejcache.errors import (
    MALFORMED,
    EntryCorruptError,
    EntryError,
    EntryVersionError,
    InvalidKeyError,
    StoreError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from ejcache.keys.key import is_side_key, parse_any_key
from ejcache.maintenance.journals import TemporaryTables, key_of_row, row_key
from ejcache.stores.base import EntryInfo
from ejcache.util.lifecycle import Closing
from ejcache.util.text import MAX_KEY_BYTES, check_key
from ejcache.util.threads import THREADS, in_parallel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


_PATIENCE: Final = 5
"""Entries in a row that fail before the others are not tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which entries to copy.

    Attributes:
        name_glob: a case-sensitive shell pattern over names; None for all names.
        newer_than: seconds since creation, at most.
        used_within: seconds since the last use, at most.
    """

    name_glob: str | None = None
    newer_than: float | None = None
    used_within: float | None = None

    def includes(self, info: EntryInfo, *, now: float) -> bool:
        """Whether to copy the entry. Texts, profiles and records come along only if everything is copied, because their
        keys do not say which entries they belong to.
        """
        if self == Selection():
            return True
        return (
            not is_side_key(info.key)
            and (self.name_glob is None or fnmatch.fnmatchcase(parse_any_key(info.key).name, self.name_glob))
            and (self.newer_than is None or now - info.created <= self.newer_than)
            and (self.used_within is None or now - info.last_used <= self.used_within)
        )


class CopyPlan(TemporaryTables):
    """The entries to copy, the least recently used first, of any number: iterate over it, as often as needed.

    A target that cannot hold all of them therefore keeps those used last.

    Args:
        listed: the listing of the source.
        have: the keys that the target has.
        selection: which entries to copy.
        now: seconds since the epoch.

    Attributes:
        count: objects to copy; `entries` of them are entries, and `size` is the bytes of all of them.
        already: selected entries that the target has.

    Raises:
        StoreError: there is no room for temporary files.
    """

    def __init__(self, listed: Iterable[EntryInfo], have: Iterable[str], *, selection: Selection, now: float) -> None:
        super().__init__(
            "CREATE TABLE have (key BLOB PRIMARY KEY) WITHOUT ROWID",
            "CREATE TABLE chosen (key BLOB, size INTEGER, created REAL, used REAL, PRIMARY KEY (used, key))",
        )
        chosen = (
            (row_key(info.key), info.size, info.created, info.last_used)
            for info in listed
            if selection.includes(info, now=now)
        )
        self.insert("INSERT OR IGNORE INTO chosen VALUES (?, ?, ?, ?)", chosen)
        self.insert("INSERT OR IGNORE INTO have VALUES (?)", ((row_key(key),) for key in have))
        keys = self.rows("SELECT key FROM chosen JOIN have USING (key)")
        self.already = sum(not is_side_key(key_of_row(key)) for (key,) in keys)
        self.count = self.entries = self.size = 0
        for info in self:
            self.count += 1
            self.entries += not is_side_key(info.key)
            self.size += info.size

    def __iter__(self) -> Iterator[EntryInfo]:
        missing = "SELECT key, size, created, used FROM chosen WHERE key NOT IN have ORDER BY used, key"
        for key, *fields in self.rows(missing):
            yield EntryInfo(key_of_row(key), *fields)


@dataclass(slots=True)
class Transferred:
    """The result of `transfer`. Texts, profiles and records are copied too, but only entries are counted.

    Attributes:
        copied: entries that were copied, and `size` the bytes of everything that was copied.
        already: entries that the target had.
        gone: entries that somebody deleted meanwhile.
        unknown_versions: intact entries of a format that this version does not read; they are not copied.
        damaged: keys of damaged entries, and their damage; they are not copied.
        failed: keys of entries that could not be read or written, and why.
        not_tried: entries that were not tried because too many before them had failed.
    """

    copied: int = 0
    size: int = 0
    already: int = 0
    gone: int = 0
    unknown_versions: int = 0
    damaged: list[tuple[str, str]] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    not_tried: int = 0

    @property
    def complete(self) -> bool:
        """Whether every selected entry that still exists has arrived."""
        return not (self.damaged or self.failed or self.not_tried)


EntryReader = tuple[str, Callable[[], bytes | None]]
"""A key, and a function that reads its entry; the function returns None if the entry is gone."""


def transfer(
    entries: Iterable[EntryReader],
    *,
    write: Callable[[str, bytes], bool],
    threads: int = THREADS,
    advance: Callable[[], None] = lambda: None,
) -> Transferred:
    """Read, verify and write each of `entries`. One that is damaged, or has a key that no store can hold, is reported,
    and the others are copied.

    Args:
        entries: what to copy.
        write: creates an entry, and returns False if there is one; several threads call it.
        threads: entries in memory at once.
        advance: called after each entry.

    Raises:
        StoreReadOnlyError: the target cannot be written to.
    """
    done = Transferred()
    failures = 0

    def copy(item: EntryReader) -> tuple[str, str, str | int]:
        return (item[0], "not_tried", "") if failures >= _PATIENCE else (item[0], *_copy(*item, write))

    for key, outcome, detail in in_parallel(copy, entries, threads=threads):
        failures = failures + 1 if outcome == "failed" else failures if outcome == "not_tried" else 0
        if outcome in ("damaged", "failed"):
            getattr(done, outcome).append((key, detail))
        else:
            setattr(done, outcome, getattr(done, outcome) + (not is_side_key(key)))
            done.size += int(detail or 0)
        advance()
    return done


def _copy(key: str, read: Callable[[], bytes | None], write: Callable[[str, bytes], bool]) -> tuple[str, str | int]:
    """The attribute of `Transferred` that counts the entry, and a detail: what went wrong, or the bytes copied."""
    try:
        check_key(key)
        data = read()
        if data is None:
            return "gone", ""
        entry.verify(data, key=key)
        return ("copied", len(data)) if write(key, data) else ("already", "")
    except EntryVersionError:
        return "unknown_versions", ""
    except (EntryError, InvalidKeyError) as exc:
        return "damaged", str(exc)
    except StoreReadOnlyError:
        raise
    except StoreError as exc:
        return "failed", str(exc)


MAGIC: Final = "ejcache-bundle"
_END: Final = "ejcache-bundle-end"
_ENTRIES: Final = "entries/"
_VERSION: Final = b"2\n"
_BLOCK: Final = 512
_ZEROS: Final = bytes(2 * _BLOCK)

_MAX_ENTRY: Final = MAX_RAW_SIZE + 2 * MAX_HEADER_SIZE
_MAX_HEADER: Final = 1 << 16
"""Bytes of what describes a member; a bundle of ours needs a few hundred."""
_PART: Final = 16 << 20

_OLD_MAGIC: Final = b"EJB1"
_OLD_PREFIX: Final = struct.Struct(">IQ")
_OLD_CHECKSUM_SIZE: Final = 32


BundleRecord = tuple[str, bytes]
"""The key and the bytes of one entry of a bundle, not yet verified."""


def encode_member(name: str, data: bytes) -> bytes:
    """A file of a bundle. Equal contents give equal bundles: there are no times, users and modes of a host."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    return b"".join((member.tobuf(tarfile.PAX_FORMAT), data, bytes(-len(data) % _BLOCK)))


def read_bundle(file: BinaryIO) -> Iterator[BundleRecord]:
    """The entries of a bundle of any version, one in memory at a time.

    Raises:
        EntryVersionError: the bundle is of a version that this code does not read.
        EntryCorruptError: this is not a bundle; or, after its complete entries, it is cut off or damaged.
    """
    is_old = file.read(3) == _OLD_MAGIC[:3]
    file.seek(0)
    yield from _old_records(file) if is_old else _Reader(file).records()


def _read(file: BinaryIO, size: int) -> bytes:
    """Exactly `size` bytes. Memory is taken as they arrive, not because a header promises them."""
    parts = []
    while size and (part := file.read(min(size, _PART))):
        parts.append(part)
        size -= len(part)
    if size:
        raise EntryCorruptError("the bundle is cut off")
    return b"".join(parts)


class _Headers:
    """The file as `tarfile` reads it, which takes the size of a header from that header."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek = file.seek
        self.tell = file.tell

    def read(self, size: int) -> bytes:
        if size > _MAX_HEADER:
            raise EntryCorruptError(f"the bundle is damaged: no header has {size} bytes")
        return self._file.read(size)


class _Reader:
    """Reads the entries of a tar archive, and keeps the position behind the last complete one."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.count = 0
        self.end = 0

    def records(self) -> Iterator[BundleRecord]:
        is_first = True
        for name, data in self._members():
            if is_first and name != MAGIC:
                break
            if is_first and data != _VERSION:
                version = data[:9].strip()
                raise EntryVersionError(f"a bundle of version {version!r}, which this version of ejcache does not read")
            if name == _END:
                if data != b"%d\n" % self.count:
                    raise EntryCorruptError("the bundle is damaged: its end does not match what goes before")
                return
            if not is_first:
                self.count += 1
                yield name.removeprefix(_ENTRIES), data
            is_first = False
            self.end = self.file.tell()
        raise EntryCorruptError("this is not a bundle" if is_first else "the bundle is cut off")

    def _members(self) -> Iterator[tuple[str, bytes]]:
        try:
            # Opening reads the first header.
            archive = tarfile.TarFile(fileobj=_Headers(self.file), mode="r")  # type: ignore[arg-type]
            while (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # it would hold all of them
                if member.isdir():
                    continue
                _check(member)
                self.file.seek(member.offset_data)
                data = _read(self.file, member.size)
                _read(self.file, -member.size % _BLOCK)
                yield member.name, data
        except (tarfile.TarError, *MALFORMED) as exc:
            what = "this is not a bundle" if not self.end else f"the bundle is cut off or damaged: {exc}"
            raise EntryCorruptError(what) from exc


def _check(member: tarfile.TarInfo) -> None:
    """Refuse what no bundle of ours has."""
    key = member.name.removeprefix(_ENTRIES)
    known = member.name in (MAGIC, _END) or (key != member.name and 0 < len(key.encode()) <= MAX_KEY_BYTES)
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse() or not known:
        raise EntryCorruptError(f"the bundle is damaged: {member.name[:200]!r} is not a file with an entry")
    if not 0 <= member.size <= (_MAX_ENTRY if key != member.name else _BLOCK):
        raise EntryCorruptError(f"the bundle is damaged: an entry of {member.size} bytes is not possible")


def _old_records(file: BinaryIO) -> Iterator[BundleRecord]:
    magic = _read(file, len(_OLD_MAGIC))
    if magic != _OLD_MAGIC:
        raise EntryVersionError(f"a bundle of version {magic[3:]!r}, which this version of ejcache does not read")
    hasher = hashlib.sha256(magic)
    count = 0
    while True:
        prefix = _read(file, _OLD_PREFIX.size)
        length, size = _OLD_PREFIX.unpack(prefix)
        if not length:
            if size != count or file.read(_OLD_CHECKSUM_SIZE + 1) != hasher.digest():
                raise EntryCorruptError("the bundle is damaged: its end does not match what goes before")
            return
        if length > MAX_KEY_BYTES or size > _MAX_ENTRY:
            raise EntryCorruptError(f"the bundle is damaged: a record of {length} + {size} bytes is not possible")
        rest = _read(file, length + size)
        hasher.update(prefix)
        hasher.update(rest)
        count += 1
        try:
            yield rest[:length].decode(), rest[length:]
        except UnicodeDecodeError as exc:
            raise EntryCorruptError("the bundle is damaged: a key is not text") from exc


class BundleWriter(Closing):
    """Writes a bundle into a partial file, and renames that when it is complete. Safe for threads.

    If there is a partial file already, writing continues behind its last complete entry; `keys` are in it.

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
            self._continue()
        except OSError as exc:
            raise self._unwritable(exc) from exc

    def _continue(self) -> None:
        reader = _Reader(self._file)
        try:
            self.keys.update(key for key, _ in reader.records())
        except EntryVersionError:
            reader.end = 0
        except EntryCorruptError:
            pass  # here the export was interrupted
        self._file.seek(reader.end)
        self._file.truncate()
        if not reader.end:
            self._file.write(encode_member(MAGIC, _VERSION))

    def add(self, key: str, data: bytes) -> bool:
        """Append an entry; False if it is in the bundle already. Raises StoreUnavailableError if writing fails."""
        member = encode_member(_ENTRIES + key, data)
        with self._lock:
            if key in self.keys:
                return False
            try:
                self._file.write(member)
                self._file.flush()  # otherwise a kill loses the entries in Python's buffer
            except OSError as exc:
                raise self._unwritable(exc) from exc
            self.keys.add(key)
        return True

    def finish(self) -> None:
        """Write the end, and rename the partial file. Raises StoreUnavailableError if that fails."""
        try:
            self._file.write(encode_member(_END, b"%d\n" % len(self.keys)) + _ZEROS)
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
