"""A local directory that plain JAX wrote: what is in it, how old it is, and whether it can be read.

JAX keeps `<module>-<sha256>-cache`, and, where it has a size limit, `<module>-<sha256>-atime` (eight bytes, nanoseconds
since the epoch, little-endian) and a `.lockfile`. An entry is a zstd frame, or a zlib stream where zstandard was not
installed, over four bytes of compile time in seconds (big-endian) and the serialised executable.
Source: jax 0.10.2 and 0.12.0, `lru_cache.py`, `compilation_cache.py`.

Other files in the directory are never listed and never touched.
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from ejcache.entry import MAX_RAW_SIZE, decompress
from ejcache.errors import EntryCorruptError, StoreBusyError, StoreUnavailableError
from ejcache.stores.base import EntryInfo

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ATIME", "CACHE", "JaxDirectory", "JaxEntries", "key_of_file", "read_compile_seconds"]

CACHE: Final = "-cache"
ATIME: Final = "-atime"

_ENTRY: Final = re.compile(r"(?P<key>.+-[0-9a-f]{64})-cache")
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_TIME_BYTES: Final = 4
_LOCK_SECONDS: Final = 10.0
"""As long as JAX itself waits for its lock."""


class JaxEntries(Protocol):
    """The entries of plain JAX, wherever they are.

    Attributes:
        url: where.
    """

    url: str

    def entries(self) -> Iterator[EntryInfo]:
        """Every entry, in no particular order."""

    def size(self) -> int:
        """Bytes of all entries."""

    def compile_seconds(self, key: str) -> float | None:
        """How long the entry took to compile, None without entry; raises EntryCorruptError as JAX could not read it."""

    def delete(self, key: str) -> bool:
        """Remove the entry; False if there was none."""


def key_of_file(name: str) -> str | None:
    """The key of the entry that is kept under `name`; None for any other file."""
    match = _ENTRY.fullmatch(name)
    return match["key"] if match else None


def read_compile_seconds(data: bytes) -> float:
    """How long an entry took to compile, in the whole seconds that JAX keeps.

    Its payload is decompressed, so one that is cut off, or is no entry, is found out. A flipped byte may not be: JAX's
    frames carry no checksum.

    Raises:
        EntryCorruptError: JAX could not read it either.
    """
    raw = decompress(data) if data.startswith(_ZSTD_MAGIC) else _inflate(data)
    if len(raw) <= _TIME_BYTES:
        raise EntryCorruptError(f"{len(raw)} bytes are no compile time and executable")
    return float(int.from_bytes(raw[:_TIME_BYTES], "big"))


class JaxDirectory:
    """The entries of plain JAX in a local directory, under JAX's own keys.

    Nothing is kept open and nothing is cached: other processes may come and go.

    Args:
        path: the directory; one that does not exist has no entries.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.url = str(self.path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def entries(self) -> Iterator[EntryInfo]:
        """Every entry, in no particular order, with the recency that JAX keeps, or else the time it was written.

        Raises:
            StoreUnavailableError: the directory cannot be listed.
        """
        try:
            with os.scandir(self.path) as found:
                names = [(key, entry) for entry in found if (key := key_of_file(entry.name)) is not None]
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as exc:
            raise StoreUnavailableError(f"{self.path} cannot be listed: {exc.strerror or exc}") from exc
        for key, entry in names:
            try:
                about = entry.stat()
            except FileNotFoundError:
                continue  # evicted since
            except OSError as exc:
                raise StoreUnavailableError(f"{entry.path} cannot be looked at: {exc.strerror or exc}") from exc
            yield EntryInfo(key, about.st_size, about.st_mtime, max(about.st_mtime, self._noted_use(key)))

    def size(self) -> int:
        """Bytes of all entries; raises as `entries` does."""
        return sum(entry.size for entry in self.entries())

    def is_empty(self) -> bool:
        """Whether there is no entry; raises as `entries` does."""
        return next(self.entries(), None) is None

    def compile_seconds(self, key: str) -> float | None:
        """How long the entry under `key` took to compile, by `read_compile_seconds`; None without entry.

        Raises:
            EntryCorruptError: JAX could not read it either.
            StoreUnavailableError: the file cannot be read.
        """
        try:
            data = self._file(key).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise StoreUnavailableError(f"{self._file(key)} cannot be read: {exc.strerror or exc}") from exc
        return read_compile_seconds(data)

    def delete(self, key: str) -> bool:
        """Remove the entry, under JAX's lock where JAX uses one; False if there was none.

        Raises:
            StoreBusyError: a JAX process kept the lock for ten seconds.
            StoreUnavailableError: the file cannot be removed.
        """
        with self._locked():
            try:
                self._file(key).unlink()
            except FileNotFoundError:
                return False
            except OSError as exc:
                raise StoreUnavailableError(f"{self._file(key)} cannot be removed: {exc.strerror or exc}") from exc
            # In this order: JAX 0.10 stops evicting for good when an entry has no -atime, and minds no -atime alone.
            with contextlib.suppress(OSError):
                self._atime(key).unlink()
        return True

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        lock = self.path / ".lockfile"
        if not lock.exists():
            yield
            return
        import filelock

        try:
            with filelock.FileLock(lock, timeout=_LOCK_SECONDS):
                yield
        except filelock.Timeout as exc:
            raise StoreBusyError(f"a JAX process keeps {lock} locked") from exc
        except PermissionError as exc:
            raise StoreUnavailableError(f"{lock} cannot be locked: {exc.strerror or exc}") from exc

    def _file(self, key: str) -> Path:
        return self.path / f"{key}{CACHE}"

    def _atime(self, key: str) -> Path:
        return self.path / f"{key}{ATIME}"

    def _noted_use(self, key: str) -> float:
        try:
            noted = self._atime(key).read_bytes()
        except OSError:
            return 0.0
        return int.from_bytes(noted, "little") / 1e9 if len(noted) == 8 else 0.0


def _inflate(data: bytes) -> bytes:
    stream = zlib.decompressobj()
    try:
        raw = stream.decompress(data, MAX_RAW_SIZE)
    except zlib.error as exc:
        raise EntryCorruptError("neither a zstd frame nor a zlib stream") from exc
    if not stream.eof:
        raise EntryCorruptError("the zlib stream is cut off")
    return raw
