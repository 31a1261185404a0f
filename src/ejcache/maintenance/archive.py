"""Writes and reads archives: the entries and the tuned records of a cache in one tar file.

The names are those of a cache in a directory that hosts share, so that `tar xf FILE -C DIRECTORY` makes one:

    archive := member* two blocks of zeros
    member  := a regular file called v1/entries/… (`bucket.object_names`: an entry, which holds its key and checksum)
               or autotune/… (a tuned record, which holds its checksum)

Equal contents give equal archives: there are no times, users and modes of a host.

Nothing is extracted to a disk. Directories and files of other names are passed over, as they are in a cache. A link, a
device, a sparse file and an impossible size are damage; what comes before the damage is read.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tarfile
import threading
from typing import TYPE_CHECKING, BinaryIO, Final

from ejcache.bucket.object_names import ENTRIES, is_plausible_entry, key_of_name, max_size
from ejcache.errors import MALFORMED, EntryCorruptError, StoreError, StoreUnavailableError
from ejcache.util.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RECORDS: Final = "autotune/"
_BLOCK: Final = 512
_ZEROS: Final = bytes(2 * _BLOCK)
_MAX_HEADER: Final = 1 << 16
"""Bytes of what describes a member; ours need a few hundred."""
_PART: Final = 16 << 20


def encode_member(name: str, data: bytes) -> bytes:
    """Return a file of an archive."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    return b"".join((member.tobuf(tarfile.PAX_FORMAT), data, bytes(-len(data) % _BLOCK)))


def read_archive(file: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of each entry and record, not yet verified, one in memory at a time.

    Raises:
        EntryCorruptError: this is not an archive; or, after what was yielded, it is cut off or damaged.
    """
    begun = False
    try:
        # Opening reads the first header.
        archive = tarfile.TarFile(fileobj=_Headers(file), mode="r")  # type: ignore[arg-type]
        begun = True
        while (member := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # it would hold all of them
            if member.isdir():
                continue
            name = member.name.removeprefix("./")
            if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse() or member.size < 0:
                raise EntryCorruptError(f"the archive is damaged: {name[:200]!r} is not a regular file")
            if _is_ours(name):
                file.seek(member.offset_data)
                data = _read(file, name, member.size)
                if len(file.read(-member.size % _BLOCK)) != -member.size % _BLOCK:
                    raise EntryCorruptError("the archive is cut off")
                yield name, data
        file.seek(archive.offset)
        if file.read(_BLOCK) != bytes(_BLOCK):
            raise EntryCorruptError("the archive is cut off or damaged")
    except (tarfile.TarError, *MALFORMED) as exc:
        what = "the archive is cut off or damaged" if begun else "this is not a tar archive"
        raise EntryCorruptError(what) from exc


def _is_ours(name: str) -> bool:
    if name.startswith(ENTRIES):
        return key_of_name(name) is not None
    return name.startswith(RECORDS) and name.endswith(".json")


def _read(file: BinaryIO, name: str, size: int) -> bytes:
    """Return exactly `size` bytes. Memory is taken as they arrive, not because a header promises them."""
    if size > max_size(name):
        raise EntryCorruptError(f"the archive is damaged: {name[:200]!r} cannot have {size} bytes")
    parts: list[bytes] = []
    left = size
    while left and (part := file.read(min(left, _PART))):
        if not parts and not is_plausible_entry(name, part, size):
            raise EntryCorruptError(f"the archive is damaged: {name[:200]!r} says that it has not {size} bytes")
        parts.append(part)
        left -= len(part)
    if left:
        raise EntryCorruptError("the archive is cut off")
    return b"".join(parts)


class _Headers:
    """The file as `tarfile` reads it, which takes the size of a header from that header."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek = file.seek
        self.tell = file.tell

    def read(self, size: int) -> bytes:
        if size > _MAX_HEADER:
            raise EntryCorruptError(f"the archive is damaged: no header has {size} bytes")
        return self._file.read(size)


class ArchiveWriter(Closing):
    """Writes an archive beside its place, and renames it when it is complete. Safe for threads.

    Args:
        path: of the archive; an existing file is replaced at the end.

    Raises:
        StoreUnavailableError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # `write_atomically` has all of its bytes in memory, and an archive may be larger than that.
        self._partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
        self._lock = threading.RLock()
        try:
            self._file = self._partial.open("xb")
        except OSError as exc:
            raise self._unwritable(exc) from exc

    def add(self, name: str, data: bytes) -> None:
        """Append an entry or a record. Raises StoreUnavailableError if writing fails."""
        member = encode_member(name, data)
        with self._lock:
            try:
                self._file.write(member)
            except OSError as exc:
                raise self._unwritable(exc) from exc

    def finish(self) -> None:
        """Write the end, and rename the file to its place. Raises StoreUnavailableError if that fails."""
        try:
            self._file.write(_ZEROS)
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._partial.replace(self._path)
        except OSError as exc:
            raise self._unwritable(exc) from exc

    def close(self) -> None:
        """Close the file, and delete it unless `finish` has renamed it."""
        with contextlib.suppress(OSError):  # a full disk does not take what is still to be written, either
            self._file.close()
        with contextlib.suppress(OSError):
            self._partial.unlink(missing_ok=True)

    def _unwritable(self, exc: OSError) -> StoreError:
        return StoreUnavailableError(f"{self._path} cannot be written: {exc.strerror or exc}")
