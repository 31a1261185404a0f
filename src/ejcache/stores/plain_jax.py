"""Entries that plain JAX wrote, in a directory or a bucket: listed, checked and removed without JAX.

JAX keeps `<module>-<sha256>-cache`, and, where it has a size limit, `<module>-<sha256>-atime` (eight bytes, nanoseconds
since the epoch, little-endian) and a `.lockfile`. An entry is a zstd frame, or a zlib stream where zstandard was not
installed, over four bytes of compile time in seconds (big-endian) and the serialised executable.
Source: jax 0.10.2 and 0.12.0, `lru_cache.py`, `compilation_cache.py`.

Other files are never listed and never touched. Entries are never loaded by ejcache.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import zlib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.entry import MAX_RAW_SIZE, decompress_pieces, decompress_prefix
from ejcache.errors import EntryCorruptError, StoreBusyError, StoreUnavailableError
from ejcache.stores.base import EntryInfo
from ejcache.util.files import open_regular, read_regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ejcache.bucket.base import Bucket

_CACHE: Final = "-cache"
_ATIME: Final = "-atime"
_ENTRY: Final = re.compile(r"(?P<key>.+-[0-9a-f]{64})-cache")
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_TIME_BYTES: Final = 4
_PREFIX: Final = 1 << 18
"""Bytes of an entry that are read for its compile time: more than one block of either codec."""
_CHUNK: Final = 1 << 20


class JaxEntries(ABC):
    """The entries of plain JAX, wherever they are, under JAX's own keys.

    Attributes:
        url: where they are.
    """

    url: str
    part: int = 1 << 20
    """Bytes of an entry that is checked which are read at once."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @abstractmethod
    def entries(self) -> Iterator[EntryInfo]:
        """List every entry, in no particular order, with the last use that JAX noted, or else when it was written.

        Raises:
            StoreError: they cannot be listed.
        """

    @abstractmethod
    def delete(self, key: str) -> bool:
        """Remove the entry; False if there was none."""

    @abstractmethod
    def _pieces(self, key: str, size: int) -> Iterator[bytes]:
        """Return the entry under `key` in pieces of this size; nothing if there is none. Raises StoreError."""

    def size(self) -> int:
        """Return the bytes of all entries, by a listing."""
        return sum(entry.size for entry in self.entries())

    def is_empty(self) -> bool:
        """True if there is no entry; raises as `entries` does."""
        return next(self.entries(), None) is None

    def compile_seconds(self, key: str) -> float | None:
        """Read how long the entry took to compile, in the whole seconds that JAX keeps; None if there is no entry.

        Only the beginning of the entry is read and decompressed, whatever its size.

        Raises:
            EntryCorruptError: JAX could not read it either.
            StoreError: it cannot be read.
        """
        start = next(self._pieces(key, _PREFIX), None)
        if start is None:
            return None
        is_zstd = start.startswith(_ZSTD_MAGIC)
        raw = decompress_prefix(start, _TIME_BYTES + 1) if is_zstd else _inflate_prefix(start, _TIME_BYTES + 1)
        return _seconds(raw)

    def check_entry(self, key: str) -> bool:
        """Decompress the whole entry; False if there is none.

        A flipped byte may go unseen: JAX's frames carry no checksum.

        Raises:
            EntryCorruptError: JAX could not read it either.
            StoreError: it cannot be read.
        """
        pieces = self._pieces(key, self.part)
        first = next(pieces, None)
        if first is None:
            return False
        whole = itertools.chain([first], pieces)
        # In pieces: a file of holes has gigabytes and takes no disk.
        is_zstd = first.startswith(_ZSTD_MAGIC)
        size = sum(map(len, decompress_pieces(whole) if is_zstd else _inflate(whole)))
        if size <= _TIME_BYTES:
            raise EntryCorruptError(f"{size} bytes are too few for a compile time and an executable")
        return True


class JaxDirectory(JaxEntries):
    """The entries of plain JAX in a local directory.

    Nothing is kept open and nothing is remembered: other processes may come and go.

    Args:
        path: the directory; one that does not exist has no entries.
        patience: seconds to wait for JAX's lock; by default as long as JAX itself does.
    """

    def __init__(self, path: str | os.PathLike[str], *, patience: float = 10.0) -> None:
        self.path = Path(path)
        self._patience = patience
        self.url = str(self.path)

    def entries(self) -> Iterator[EntryInfo]:
        """List every regular file that is named as JAX names entries; links are not followed and not listed."""
        try:
            with os.scandir(self.path) as found:
                names = [(key, entry) for entry in found if (key := _key_of_file(entry.name)) is not None]
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as exc:
            raise StoreUnavailableError(f"{self.path} cannot be listed: {exc.strerror or exc}") from exc
        for key, entry in names:
            try:
                if not entry.is_file(follow_symlinks=False):
                    continue
                about = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # evicted since
            except OSError as exc:
                raise StoreUnavailableError(f"{entry.path} cannot be examined: {exc.strerror or exc}") from exc
            yield EntryInfo(key, about.st_size, about.st_mtime, max(about.st_mtime, self._noted_use(key)))

    def delete(self, key: str) -> bool:
        """Remove the entry, under JAX's lock where JAX uses one; False if there was none.

        Raises:
            StoreBusyError: a JAX process kept the lock.
            StoreUnavailableError: the file cannot be removed.
        """
        with self._lock():
            try:
                self._file(key).unlink()
            except FileNotFoundError:
                return False
            except OSError as exc:
                raise StoreUnavailableError(f"{self._file(key)} cannot be removed: {exc.strerror or exc}") from exc
            # In this order: JAX 0.10 stops evicting for good when an entry has no -atime. An -atime alone does no harm.
            with contextlib.suppress(OSError):
                self._atime(key).unlink()
        return True

    def _pieces(self, key: str, size: int) -> Iterator[bytes]:
        path = self._file(key)
        try:
            with open(open_regular(path), "rb", buffering=0) as file:  # noqa: PTH123
                if os.fstat(file.fileno()).st_size > MAX_RAW_SIZE:
                    raise OSError(errno.EFBIG, "it is larger than an executable can be")  # noqa: TRY301
                yield file.read(size)  # also of an empty file
                while piece := file.read(size):
                    yield piece
        except FileNotFoundError:
            return
        except OSError as exc:
            raise StoreUnavailableError(f"{path} cannot be read: {exc.strerror or exc}") from exc

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        lock = self.path / ".lockfile"
        if not lock.exists():
            yield
            return
        # JAX takes this lock with filelock. Only the same library is sure to choose the same kind of lock everywhere.
        import filelock

        with contextlib.ExitStack() as stack:
            try:
                os.close(open_regular(lock))  # raises for a link or a pipe
                stack.enter_context(filelock.FileLock(lock, timeout=self._patience, thread_local=False))
            except filelock.Timeout as exc:
                raise StoreBusyError(f"a JAX process keeps {lock} locked") from exc
            except OSError as exc:
                raise StoreUnavailableError(f"{lock} cannot be locked: {exc.strerror or exc}") from exc
            yield

    def _file(self, key: str) -> Path:
        return self.path / f"{key}{_CACHE}"

    def _atime(self, key: str) -> Path:
        return self.path / f"{key}{_ATIME}"

    def _noted_use(self, key: str) -> float:
        try:
            noted = read_regular(self._atime(key), max_size=8)
        except OSError:
            return 0.0
        return int.from_bytes(noted, "little") / 1e9 if len(noted) == 8 else 0.0


class JaxBucket(JaxEntries):
    """The entries of plain JAX in a bucket.

    Args:
        bucket: where they are, beside our own objects; its owner closes it.
    """

    part = 8 << 20

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.url = bucket.url

    def entries(self) -> Iterator[EntryInfo]:
        """List every entry, with one listing: JAX rewrites an entry's -atime at each use, so its age is that use's."""
        used: dict[str, float] = {}
        waiting: dict[str, tuple[int, float]] = {}
        # In the order of names, which most storages keep, an -atime comes just before its entry.
        for info in self.bucket.walk("", deep=False):
            key = _key_of_file(info.name)
            if key is not None:
                if key in used:
                    yield EntryInfo(key, info.size, info.created, max(info.created, used.pop(key)))
                else:
                    waiting[key] = info.size, info.created
            elif info.name.endswith(_ATIME):
                used[info.name.removesuffix(_ATIME)] = info.created
        for key, (size, created) in waiting.items():
            yield EntryInfo(key, size, created, max(created, used.get(key, 0.0)))

    def is_empty(self) -> bool:
        """True if there is no entry; asks for no more of the listing than it has to."""
        return not any(_key_of_file(info.name) is not None for info in self.bucket.walk("", deep=False))

    def delete(self, key: str) -> bool:
        """Remove the entry; False if there was none. JAX's lock is a local file, so a bucket's entries have none."""
        return key in list(self.delete_many([key]))

    def delete_many(self, keys: Iterable[str]) -> Iterator[str]:
        """Remove the entries under `keys` and then their -atime objects, in batches; yields the keys removed."""
        keys = list(keys)
        for name in self.bucket.delete_many([(f"{key}{_CACHE}", None) for key in keys]):
            yield name.removesuffix(_CACHE)
        # Last, because JAX 0.10 stops evicting for good when an entry has no -atime. An -atime alone does no harm.
        for _ in self.bucket.delete_many([(f"{key}{_ATIME}", None) for key in keys]):
            pass

    def _pieces(self, key: str, size: int) -> Iterator[bytes]:
        for blob in self.bucket.read_pieces(f"{key}{_CACHE}", size=size):
            if blob.size > MAX_RAW_SIZE:
                raise StoreUnavailableError(f"{self.url}/{key}{_CACHE} is larger than an executable can be")
            yield blob.data


def _key_of_file(name: str) -> str | None:
    match = _ENTRY.fullmatch(name)
    return match["key"] if match else None


def _seconds(raw: bytes) -> float:
    if len(raw) <= _TIME_BYTES:
        raise EntryCorruptError(f"{len(raw)} bytes are too few for a compile time and an executable")
    return float(int.from_bytes(raw[:_TIME_BYTES], "big"))


def _inflate_prefix(data: bytes, length: int) -> bytes:
    try:
        return zlib.decompressobj().decompress(data, length)
    except zlib.error as exc:
        raise EntryCorruptError("neither a zstd frame nor a zlib stream") from exc


def _inflate(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the content of a zlib stream, in pieces; a bomb costs time, at most that of `MAX_RAW_SIZE` bytes."""
    stream = zlib.decompressobj()
    size = 0
    try:
        for piece in pieces:
            data = piece
            while data and not stream.eof:
                part = stream.decompress(data, _CHUNK)
                data = stream.unconsumed_tail
                size += len(part)
                if size > MAX_RAW_SIZE:
                    raise EntryCorruptError("the zlib stream expands to more than an executable can have")
                yield part
            if stream.eof:
                return
    except zlib.error as exc:
        raise EntryCorruptError("neither a zstd frame nor a zlib stream") from exc
    raise EntryCorruptError("the zlib stream is cut off")
