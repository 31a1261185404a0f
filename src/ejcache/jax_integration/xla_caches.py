"""Carries the files of XLA's own caches from a store into the private directory of a process, and back.

The directory (`xla_directories`) is filled before the first compilation, and new files in it are stored in the
background. If a process is killed, the next process of the same cache that compiles stores its files.

    v1/xla/<environment>/xla_gpu_per_fusion_autotune_cache_dir/[<device>/]<name>   one result of autotuning
    v1/xla/<environment>/xla_gpu_kernel_cache_file                                 all compiled kernels

XLA of jaxlib 0.11 writes a result as `<name>.pb` in a directory that is named after the device; older ones write
`<name>.textproto`, without such a directory.

Processes that share such a directory lose each other's kernels and delete each other's temporary files, and XLA then
fails the compilation. XLA also fails it because of a file that it cannot read. So each stored file is in an envelope
(`ejcache.entry`) and is checked before XLA sees it. The name of a result says what it answers, so a result is written
once; kernel files are merged.

XLA's kernel cache, which is one file for all kernels: what two processes wrote becomes one file with both.

    CompilationCacheProto: 1 entries (a map: 1 the kernel's name, 2 the entry), 2 compatibility_version
    CompilationCacheEntryProto: 1 fingerprint

XLA refuses a file in which two kernels have one fingerprint, and keeps one kernel for each name, so neither may occur
twice. Source: openxla/xla, xla/service/gpu/kernel_reuse_cache.proto and .cc.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import threading
import time
from typing import TYPE_CHECKING, Final

from ejcache import entry
from ejcache.bucket.files import FileBucket
from ejcache.bucket.folder import BucketFolder
from ejcache.cache.shared_policy_watch import noted_epoch
from ejcache.errors import EntryError, InvalidKeyError, StoreError, StoreNotAskedError
from ejcache.jax_integration.xla_directories import AUTOTUNE, KERNELS, PRESENT
from ejcache.keys.xla_messages import BYTES, join, split
from ejcache.stores.documents import Documents, check_path
from ejcache.stores.epochs import folder_of
from ejcache.stores.opening import open_bucket
from ejcache.util.files import directory_below, is_temporary, make_below, read_regular, remove_below, write_atomically
from ejcache.util.log import log
from ejcache.util.presence import is_token, living
from ejcache.util.scheduler import Scheduler
from ejcache.util.threads import in_parallel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ejcache.bucket.base import Bucket
    from ejcache.jax_integration.xla_directories import OwnDirectory, XlaCacheLocation
    from ejcache.keys.xla_messages import Field
    from ejcache.settings.table import Settings


_XLA_SECONDS: Final = 5.0
"""The first compilation waits for XLA's own caches, from storage that is down for at most this long."""
_EXIT_SECONDS: Final = 5.0
_LEFT_SECONDS: Final = 60.0
"""A directory without a living owner that is younger than this may belong to a process that is just starting."""


class Mirror:
    """A private directory, filled from `files` and merged into them. Safe to use from several threads.

    Args:
        files: the stored files.
        own: the directory of this process; when it is closed, new files in it are stored.
        read_only: store nothing.
        exit_seconds: how long that may take.
    """

    def __init__(
        self,
        files: XlaFiles,
        own: OwnDirectory,
        *,
        read_only: bool = False,
        exit_seconds: float = _EXIT_SECONDS,
    ) -> None:
        self._files = files
        self._own = own
        self._read_only = read_only
        self._exit_seconds = exit_seconds
        self.directory = own.path
        self._known: set[str] = set()
        self._lock = threading.RLock()
        self._scheduler = Scheduler(threads=1, name="ejcache-xla")
        self._is_due = False
        own.finish = self._finish

    def fill(self) -> int:
        """Fetch the stored files, and store those that killed processes have left; how many files were fetched.

        Raises:
            StoreError: the storage failed; the directory can be used as it is.
        """
        with self._lock:
            self._store_left_directories()
            count = self._files.pull(self.directory)
            self._known = self._files.known(self.directory)
            return count

    def collect(self) -> None:
        """Store new files, in another thread; does nothing in a forked child."""
        if not self._read_only and not self._is_due and self._own.is_ours:
            self._is_due = True
            self._scheduler.submit(self._store_in_background)

    def store(self, *, seconds: float = 20.0, parallel: bool = True) -> int:
        """Store new files now; how many.

        Raises:
            StoreError: the storage failed; the remaining files stay for the next time.
        """
        if self._read_only:
            return 0
        with self._lock:
            return self._files.push(self.directory, known=self._known, seconds=seconds, parallel=parallel)

    def close(self) -> None:
        """Store new files and remove the directory. If that fails, the next process of this cache does it."""
        self._own.close()

    def _finish(self) -> bool:
        """Store new files; True if none is left."""
        try:
            self.store(seconds=self._exit_seconds, parallel=False)
        except StoreError as exc:
            log.debug("ejcache: results of XLA's are left in %s: %s", self.directory, exc)
        return self._read_only or not self._files.has_new(self.directory, self._known)

    def _store_in_background(self) -> None:
        self._is_due = False
        try:
            self.store()
        except StoreError as exc:
            log.debug("ejcache: XLA's own caches were not stored, and will be tried again: %s", exc)

    def _store_left_directories(self) -> None:
        """Store and remove what killed processes have left, within seconds.

        Only directories with names of our own form are touched, and no link.
        """
        if self._read_only:
            return
        root, below = self._own.root, self._own.below
        alive = living(root / below / PRESENT)
        with directory_below(root, below) as opened:
            for name in os.listdir(opened):  # noqa: PTH208  # a descriptor, not a path
                with contextlib.suppress(OSError):
                    status = os.stat(name, dir_fd=opened, follow_symlinks=False)
                    if (
                        not is_token(name)
                        or name in alive
                        or not stat.S_ISDIR(status.st_mode)
                        or abs(time.time() - status.st_mtime) < _LEFT_SECONDS  # a clock was ahead if it is later
                    ):
                        continue
                    left, known = root / below / name, self._files.stored()
                    self._files.push(left, known=known, seconds=self._exit_seconds)
                    if not self._files.has_new(left, known):
                        shutil.rmtree(name, ignore_errors=True, dir_fd=opened)
                        remove_below(root, f"{below}/{PRESENT}/{name}".lstrip("/"))


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
        """Copy the stored files into a directory, as far as they come in time and fit; return how many were copied.

        Raises:
            StoreError: the storage failed; the files that had arrived by then are there.
        """
        deadline = time.monotonic() + _SECONDS
        names = sorted(self._stored())[:_MAX_FILES]
        make_below(directory / AUTOTUNE)
        room = self._max_total

        def fetch(name: str) -> bytes | None:
            return self._read(name) if room > 0 and time.monotonic() < deadline else None

        count = 0
        for name, data in zip(names, in_parallel(fetch, names, threads=self._threads), strict=True):
            if data is not None and len(data) <= min(room, self._max_file):
                make_below((directory / name).parent)
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
            created = self._documents.create(self._prefix + name, self._wrap(name, data))
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
        """True if `push` has left something."""
        stamp = _stamp(directory / KERNELS)
        return bool(self._new(directory, known)) or (stamp is not None and stamp not in known)

    def known(self, directory: Path) -> set[str]:
        """List what `push` can skip in a directory that was just filled."""
        stamp = _stamp(directory / KERNELS)
        return {*_results(directory), *([stamp] if stamp is not None else [])}

    def stored(self) -> set[str]:
        """Return the names of all stored results. Raises StoreError as `pull` does."""
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
        return None if data is None else self._unwrap(name, data)

    def _merge_kernels(self, ours: bytes) -> int:
        changed = 0

        def change(stored: bytes | None) -> bytes | None:
            nonlocal changed
            merged = merge_kernels(self._unwrap(KERNELS, stored) if stored is not None else None, ours)
            changed = int(merged is not None and len(merged) <= self._max_file)
            return self._wrap(KERNELS, merged) if merged is not None and changed else None

        self._documents.update(self._prefix + KERNELS, change)
        return changed

    def _content(self, path: Path) -> bytes | None:
        try:
            data = read_regular(path, max_size=self._max_file)
        except OSError:
            # XLA replaces files while it works; and a directory that another process left may hold anything.
            return None
        return data if data and (path.suffix != ".pb" or _is_message(data)) else None

    def _wrap(self, name: str, data: bytes) -> bytes:
        return entry.encode(entry.Header(key=name, kind=_KIND, name=name, created=time.time()), data)

    def _unwrap(self, name: str, data: bytes) -> bytes | None:
        try:
            return entry.decode(data, key=name, kind=_KIND).raw
        except EntryError as exc:
            log.warning("ejcache: %s%s is damaged and is deleted: %s", self._prefix, name, exc)
            with contextlib.suppress(StoreError):
                self._documents.delete(self._prefix + name)
            return None


def _is_message(data: bytes) -> bool:
    """True if these are the bytes of a protobuf message; of a file that is still written, its beginning is none."""
    try:
        split(data)
    except ValueError:
        return False
    return True


def _results(directory: Path, below: str = AUTOTUNE) -> Iterator[str]:
    """Yield the names of the results in a directory and in those of devices in it; links are not followed."""
    with contextlib.suppress(FileNotFoundError), os.scandir(directory / below) as found:
        for item in found:
            name = f"{below}/{item.name}"
            if item.is_file(follow_symlinks=False) and _is_result(name):
                yield name
            elif below == AUTOTUNE and item.name != _TEMPORARY and item.is_dir(follow_symlinks=False):
                yield from _results(directory, name)


def _is_result(name: str) -> bool:
    """True if XLA gives such a name to a result, and a file of that name can be made safely."""
    above, *parts = name.split("/")
    if above != AUTOTUNE or len(parts) not in {1, 2} or any(part in {"", _TEMPORARY} for part in parts):
        return False
    if is_temporary(parts[-1]):
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


def merge_kernels(stored: bytes | None, ours: bytes) -> bytes | None:
    """Return the file with the kernels of both, or None if there is nothing to add to what is stored.

    Of two kernels with the same name or fingerprint, the stored one stays. A stored file that cannot be read, or that
    has another version of the format, is replaced. If our own file cannot be read, there is nothing to add.
    """
    new = _read(ours)
    if new is None:
        return None
    old = _read(stored) if stored is not None else None
    if old is None or old[1] != new[1]:
        return ours
    kernels, others = old
    names = {name for name, _ in kernels}
    fingerprints = {fingerprint for _, fingerprint in kernels}
    added = []
    for (name, fingerprint), field in new[0].items():
        if name not in names and fingerprint not in fingerprints:
            added.append(field)
            names.add(name)
            fingerprints.add(fingerprint)
    return join([*kernels.values(), *added, *others]) if added else None


def _read(data: bytes) -> tuple[dict[tuple[bytes, bytes], Field], list[Field]] | None:
    """Return the kernels by name and fingerprint, and the other fields; None if this is not such a file."""
    kernels: dict[tuple[bytes, bytes], Field] = {}
    others = []
    try:
        for field in split(data):
            if field.number != 1:
                others.append(field)
                continue
            pair = {part.number: part.value for part in split(field.value) if part.kind == BYTES}
            entry = {part.number: part.value for part in split(pair.get(2, b"")) if part.kind == BYTES}
            kernels[pair.get(1, b""), entry.get(1, b"")] = field
    except ValueError:
        return None
    return kernels, others


def open_xla_documents(place: XlaCacheLocation, settings: Settings) -> Documents:
    """Open what all processes share of XLA's own caches.

    Raises:
        UsageError: the cache is at a URL that names no store.
        StoreNotAskedError: nobody could read yet where the cache is.
    """
    bucket: Bucket
    if place.shared:
        epoch = place.epoch
        if epoch is None and place.note is not None:
            epoch = noted_epoch(place.note)  # the program's first lookup has asked meanwhile
        if epoch is None:
            raise StoreNotAskedError(f"the policy of {place.location} could not be read yet")
        root = open_bucket(place.location, settings=settings, deadline=_XLA_SECONDS)
        bucket = BucketFolder(root, folder_of(epoch)) if epoch else root
    else:
        bucket = FileBucket(place.location.path, local=True, documents=True)
    return Documents(bucket, read_only=settings.read_only)
