"""XLA's own caches in a store: from there into a private directory of one process, and back.

    v1/xla/<environment>/xla_gpu_per_fusion_autotune_cache_dir/<name>   one result of autotuning
    v1/xla/<environment>/xla_gpu_kernel_cache_file                      all compiled kernels

Processes that share such a directory lose each other's kernels, and delete each other's temporary files: XLA then fails
the compilation. XLA also fails it over a file that it cannot read, so that each is in an envelope (`ejcache.entry`) and
checked before XLA sees it. Results have names that say what they answer and are written once; kernels are merged.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from typing import TYPE_CHECKING, Final

from ejcache import entry
from ejcache.errors import EntryError, InvalidKeyError, StoreError
from ejcache.jaxside.xla_kernels import merge_kernels
from ejcache.stores.documents import check_path
from ejcache.upkeep.parallel import in_parallel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ejcache.stores.documents import DocumentStore

__all__ = ["AUTOTUNE", "KERNELS", "XlaFiles"]

log = logging.getLogger("ejcache")

AUTOTUNE: Final = "xla_gpu_per_fusion_autotune_cache_dir"
KERNELS: Final = "xla_gpu_kernel_cache_file"
"""Names of XLA's options, and of what lies at the paths that they get."""

_KIND: Final = "xla_cache"
_TEMPORARY: Final = "tmp"
"""XLA's directory for results that it is writing."""
_MAX_FILES: Final = 20_000
_MAX_BYTES: Final = 256 << 20
_SECONDS: Final = 20.0


class XlaFiles:
    """The files that one environment's compilers share. For one thread at a time.

    Args:
        documents: where they are.
        environment: names the compiler: its version, the devices, its flags.
    """

    def __init__(self, documents: DocumentStore, environment: str) -> None:
        self._documents = documents
        self._prefix = f"v1/xla/{environment}/"

    def pull(self, directory: Path, *, seconds: float = _SECONDS) -> int:
        """Fill a directory with what is stored, as far as that comes in time; how many files.

        Raises:
            StoreError: the storage failed; what had come by then is there.
        """
        deadline = time.monotonic() + seconds
        names = sorted(self._stored())[:_MAX_FILES]
        (directory / AUTOTUNE).mkdir(mode=0o700, parents=True, exist_ok=True)

        def fetch(name: str) -> bytes | None:
            return self._read(name) if time.monotonic() < deadline else None

        count = 0
        for name, data in zip(names, in_parallel(fetch, names, threads=self._threads), strict=True):
            if data is not None:
                _write(directory / name, data)
                count += 1
        return count

    def push(self, directory: Path, *, known: set[str], seconds: float = _SECONDS, parallel: bool = True) -> int:
        """Store what a directory has and the store has not; how many files.

        Args:
            directory: as `pull` filled it and XLA went on with it.
            known: names that need not be looked at, because they were pulled or pushed; those that are pushed are
                added, and the kernels under a name that says how their file looked.
            seconds: what is not stored by then stays for the next call.
            parallel: send several at once, which an interpreter that is ending no longer can.

        Raises:
            StoreError: the storage failed; what is left stays for the next call.
        """
        deadline = time.monotonic() + seconds

        def send(name: str) -> int:
            data = _content(directory / name) if time.monotonic() < deadline else None
            if data is None:
                return 0
            created = self._documents.create(self._prefix + name, self._wrapped(name, data))
            known.add(name)
            return int(created)

        count = sum(in_parallel(send, self._new(directory, known), threads=self._threads if parallel else 1))
        stamp = _stamp(directory / KERNELS)
        if stamp is not None and stamp not in known and time.monotonic() < deadline:
            data = _content(directory / KERNELS)
            if data is not None:
                count += self._merge_kernels(data)
            known.add(stamp)
        return count

    def has_new(self, directory: Path, known: set[str]) -> bool:
        """Whether `push` has left something."""
        stamp = _stamp(directory / KERNELS)
        return bool(self._new(directory, known)) or (stamp is not None and stamp not in known)

    def known(self, directory: Path) -> set[str]:
        """What `push` need not look at in a directory that was just filled."""
        stamp = _stamp(directory / KERNELS)
        return {*_results(directory), *([stamp] if stamp is not None else [])}

    def stored(self) -> set[str]:
        """The names of all results that are stored; raises StoreError as `pull` does."""
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
            changed = int(merged is not None and len(merged) <= _MAX_BYTES)
            return self._wrapped(KERNELS, merged) if merged is not None and changed else None

        self._documents.update(self._prefix + KERNELS, change)
        return changed

    def _wrapped(self, name: str, data: bytes) -> bytes:
        return entry.encode(entry.Header(key=name, kind=_KIND, name=name, created=time.time()), data)

    def _unwrapped(self, name: str, data: bytes) -> bytes | None:
        try:
            return entry.decode(data, key=name).raw
        except EntryError as exc:
            log.warning("ejcache: %s%s is damaged and is taken out: %s", self._prefix, name, exc)
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
    """Whether a name is one that XLA gives to a result, and that is safe to make a file of."""
    above, _, last = name.partition("/")
    if above != AUTOTUNE or not last or "/" in last or last == _TEMPORARY:
        return False
    try:
        check_path(name)
    except InvalidKeyError:
        return False
    return True


def _stamp(path: Path) -> str | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return f"{path.name}@{status.st_mtime_ns}-{status.st_size}"


def _content(path: Path) -> bytes | None:
    try:
        data = path.read_bytes()
    except OSError:
        # XLA replaces files while it works.
        return None
    return data if 0 < len(data) <= _MAX_BYTES else None


def _write(path: Path, data: bytes) -> None:
    temporary = path.parent / f".{path.name}.new"
    temporary.write_bytes(data)
    temporary.replace(path)
