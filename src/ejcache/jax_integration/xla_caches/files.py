"""XLA's own caches in a store: from there into a private directory of one process, and back.

    v1/xla/<environment>/xla_gpu_per_fusion_autotune_cache_dir/<name>   one result of autotuning
    v1/xla/<environment>/xla_gpu_kernel_cache_file                      all compiled kernels

Processes that share such a directory lose each other's kernels and delete each other's temporary files, and XLA then
fails the compilation. XLA also fails it because of a file that it cannot read. So each stored file is in an envelope
(`ejcache.entry`) and is checked before XLA sees it. The name of a result says what it answers, so a result is written
once; kernel files are merged.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from typing import TYPE_CHECKING, Final

from ejcache import entry
from ejcache.errors import EntryError, InvalidKeyError, StoreError
from ejcache.jax_integration.xla_caches.kernels import merge_kernels
from ejcache.stores.documents import check_path
from ejcache.util.files import is_temporary, write_atomically
from ejcache.util.log import log
from ejcache.util.parallel import in_parallel
from ejcache.util.safe_files import read_regular

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ejcache.stores.documents import Documents

__all__ = ["AUTOTUNE", "KERNELS", "XlaFiles"]

AUTOTUNE: Final = "xla_gpu_per_fusion_autotune_cache_dir"
KERNELS: Final = "xla_gpu_kernel_cache_file"
"""Names of XLA's options, and of the directory and the file that they get."""

_KIND: Final = "xla_cache"
_TEMPORARY: Final = "tmp"
"""XLA's directory for results that it is still writing."""
_MAX_FILES: Final = 20_000
_MAX_FILE: Final = 256 << 20
_MAX_TOTAL: Final = 2 << 30
_SECONDS: Final = 20.0


class XlaFiles:
    """The files that one environment's compilers share. For one thread at a time.

    Args:
        documents: where they are.
        environment: names the compiler: its version, the devices, its flags.
        max_file: bytes of a file; larger ones are neither stored nor fetched.
        max_total: bytes of all files that are fetched.
    """

    def __init__(
        self, documents: Documents, environment: str, *, max_file: int = _MAX_FILE, max_total: int = _MAX_TOTAL
    ) -> None:
        self._max_file = max_file
        self._max_total = max_total
        self._documents = documents
        self._prefix = f"v1/xla/{environment}/"

    def pull(self, directory: Path) -> int:
        """Fill a directory with the stored files, as far as they come in time and are not too large; how many.

        Raises:
            StoreError: the storage failed; the files that had arrived by then are there.
        """
        deadline = time.monotonic() + _SECONDS
        names = sorted(self._stored())[:_MAX_FILES]
        (directory / AUTOTUNE).mkdir(mode=0o700, parents=True, exist_ok=True)
        room = self._max_total

        def fetch(name: str) -> bytes | None:
            return self._read(name) if room > 0 and time.monotonic() < deadline else None

        count = 0
        for name, data in zip(names, in_parallel(fetch, names, threads=self._threads), strict=True):
            if data is not None and len(data) <= min(room, self._max_file):
                write_atomically(directory / name, data)
                room -= len(data)
                count += 1
        return count

    def push(self, directory: Path, *, known: set[str], seconds: float = _SECONDS, parallel: bool = True) -> int:
        """Store the files that a directory has and the store does not; how many.

        Args:
            directory: as `pull` filled it and XLA went on with it.
            known: names that are skipped because they were pulled or pushed. Those that are pushed now are added, and
                the kernel file with its size and time.
            seconds: files that are not stored by then stay for the next call.
            parallel: send several at once, which is not possible during exit.

        Raises:
            StoreError: the storage failed; the remaining files stay for the next call.
        """
        deadline = time.monotonic() + seconds

        def send(name: str) -> int:
            data = self._content(directory / name) if time.monotonic() < deadline else None
            if data is None:
                return 0
            created = self._documents.create(self._prefix + name, self._wrapped(name, data))
            known.add(name)
            return int(created)

        count = sum(in_parallel(send, self._new(directory, known), threads=self._threads if parallel else 1))
        stamp = _stamp(directory / KERNELS)
        if stamp is not None and stamp not in known and time.monotonic() < deadline:
            data = self._content(directory / KERNELS)
            if data is not None:
                count += self._merge_kernels(data)
            known.add(stamp)
        return count

    def has_new(self, directory: Path, known: set[str]) -> bool:
        """Whether `push` has left something."""
        stamp = _stamp(directory / KERNELS)
        return bool(self._new(directory, known)) or (stamp is not None and stamp not in known)

    def known(self, directory: Path) -> set[str]:
        """What `push` can skip in a directory that was just filled."""
        stamp = _stamp(directory / KERNELS)
        return {*_results(directory), *([stamp] if stamp is not None else [])}

    def stored(self) -> set[str]:
        """The names of all stored results. Raises StoreError as `pull` does."""
        return {name for name in self._stored() if name != KERNELS}

    # -- inside ----------------------------------------------------------------------------------------------------

    def _new(self, directory: Path, known: set[str]) -> list[str]:
        return [name for name in _results(directory) if name not in known][: max(0, _MAX_FILES - len(known))]

    @property
    def _threads(self) -> int:
        return 16 if self._documents.remote else 1

    def _stored(self) -> Iterator[str]:
        for path in self._documents.list(self._prefix):
            name = path.removeprefix(self._prefix)
            if name == KERNELS or _is_result(name):
                yield name

    def _read(self, name: str) -> bytes | None:
        data = self._documents.read(self._prefix + name)
        return None if data is None else self._unwrapped(name, data)

    def _merge_kernels(self, ours: bytes) -> int:
        changed = 0

        def change(stored: bytes | None) -> bytes | None:
            nonlocal changed
            merged = merge_kernels(self._unwrapped(KERNELS, stored) if stored is not None else None, ours)
            changed = int(merged is not None and len(merged) <= self._max_file)
            return self._wrapped(KERNELS, merged) if merged is not None and changed else None

        self._documents.update(self._prefix + KERNELS, change)
        return changed

    def _content(self, path: Path) -> bytes | None:
        try:
            data = read_regular(path, max_size=self._max_file)
        except OSError:
            # XLA replaces files while it works; and a directory that another process left may hold anything.
            return None
        return data or None

    def _wrapped(self, name: str, data: bytes) -> bytes:
        return entry.encode(entry.Header(key=name, kind=_KIND, name=name, created=time.time()), data)

    def _unwrapped(self, name: str, data: bytes) -> bytes | None:
        try:
            return entry.decode(data, key=name, kind=_KIND).raw
        except EntryError as exc:
            log.warning("ejcache: %s%s is damaged and is deleted: %s", self._prefix, name, exc)
            with contextlib.suppress(StoreError):
                self._documents.delete(self._prefix + name)
            return None


def _results(directory: Path) -> Iterator[str]:
    with contextlib.suppress(FileNotFoundError), os.scandir(directory / AUTOTUNE) as found:
        for item in found:
            name = f"{AUTOTUNE}/{item.name}"
            if item.is_file(follow_symlinks=False) and _is_result(name):
                yield name


def _is_result(name: str) -> bool:
    """Whether XLA gives such a name to a result, and a file of that name can be made safely."""
    above, _, last = name.partition("/")
    if above != AUTOTUNE or not last or "/" in last or last == _TEMPORARY or is_temporary(last):
        return False
    try:
        check_path(name)
    except InvalidKeyError:
        return False
    return True


def _stamp(path: Path) -> str | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return f"{path.name}@{status.st_mtime_ns}-{status.st_size}"
