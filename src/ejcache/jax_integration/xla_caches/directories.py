"""XLA's own caches with any cache URL: where this process's XLA keeps them, and when they are exchanged with the store.

XLA does not understand URLs (given one it aborts the process), and processes that share a directory disturb each other.
So each process that compiles for a GPU has a private directory. It is filled before the first compilation, and new
files in it are stored in the background. If a process is killed, the next process of the same cache stores its files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from ejcache.cache.opening import find_xla_caches
from ejcache.errors import StoreError, UsageError
from ejcache.jax_integration.lowering.key import compiler_environment
from ejcache.jax_integration.xla_caches.files import AUTOTUNE, KERNELS, XlaFiles
from ejcache.settings.directories import make_private
from ejcache.util.lifecycle import ExitPhase, at_exit
from ejcache.util.locks import Presence, is_token, living
from ejcache.util.log import log
from ejcache.util.safe_files import UnsafeFileError, directory_below, remove_below
from ejcache.util.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ejcache.settings.resolve import Settings

__all__ = ["Mirror", "XlaCaches"]

_EXIT_SECONDS: Final = 5.0
_LEFT_SECONDS: Final = 60.0
"""A directory without a living owner that is younger than this may belong to a process that is just starting."""


class XlaCaches:
    """The private directories of this process, one for each cache and compiler.

    Args:
        settings: returns the current settings.
        report_failure: counts and logs an error.
    """

    def __init__(self, *, settings: Callable[[], Settings], report_failure: Callable[[str, Exception], None]) -> None:
        self._settings = settings
        self._report_failure = report_failure
        self._mirrors: dict[tuple[str, str], Mirror | None] = {}
        self._lock = threading.Lock()
        self._process = os.getpid()

    def paths(self, backend: Any) -> dict[str, str]:
        """The values of XLA's options for a compilation by `backend`, by name; empty for no cache."""
        settings = self._settings()
        names = _names(settings.xla_caches)
        if not names or settings.disabled_reason:
            return {}
        mirror = self._mirror(str(settings.cache_dir), backend, settings)
        return {} if mirror is None else {name: str(mirror.directory / name) for name in names}

    def collect(self) -> None:
        """XLA has compiled something: store new files in the background."""
        if self._process == os.getpid():
            for mirror in list(self._mirrors.values()):
                if mirror is not None:
                    mirror.collect()

    def close(self) -> None:
        """Store new files, within seconds, and remove the directories."""
        if self._process == os.getpid():
            with self._lock:
                mirrors = list(self._mirrors.values())
                self._mirrors.clear()
            for mirror in mirrors:
                if mirror is not None:
                    mirror.close()

    def _mirror(self, url: str, backend: Any, settings: Settings) -> Mirror | None:
        with self._lock:
            if self._process != os.getpid():
                # A forked child: the directories are its parent's.
                self._mirrors, self._process = {}, os.getpid()
            wanted = (url, compiler_environment(backend, settings))
            if wanted not in self._mirrors:
                self._mirrors[wanted] = self._made(*wanted, settings)
            return self._mirrors[wanted]

    def _made(self, url: str, environment: str, settings: Settings) -> Mirror | None:
        try:
            location = find_xla_caches(url, settings)
            if location is None:
                return None
            files = XlaFiles(location.documents, environment)
            mirror = Mirror(files, location.root, f"{location.below}/{environment}", read_only=settings.read_only)
        except (OSError, UsageError) as exc:
            self._report_failure("make a directory for XLA's own caches", exc)
            return None
        try:
            mirror.fill()
        except (OSError, StoreError) as exc:
            self._report_failure("fetch what XLA's own caches hold", exc)
        return mirror


class Mirror:
    """One private directory, filled from `files` and merged into them. Safe to use from several threads.

    Args:
        files: the stored files.
        root: a directory, which may be reached through links.
        below: the directory below `root` where this and other processes have theirs; no link there is followed.
        read_only: store nothing.
        exit_seconds: how long `close` may store.

    Raises:
        OSError: the directory cannot be made, or a link is where a directory is expected.
    """

    def __init__(
        self,
        files: XlaFiles,
        root: Path,
        below: str = "",
        *,
        read_only: bool = False,
        exit_seconds: float = _EXIT_SECONDS,
    ) -> None:
        self._files = files
        self._root = root
        self._below = below
        self._read_only = read_only
        self._exit_seconds = exit_seconds
        self._process = os.getpid()
        _refuse_links(root, f"{below}/present")
        self._present = root / below / "present"
        make_private(self._present)
        self._presence = Presence(self._present)
        self.directory = root / below / self._presence.token
        self.directory.mkdir(mode=0o700)
        self._known: set[str] = set()
        self._lock = threading.Lock()
        self._scheduler = Scheduler(threads=1, name="ejcache-xla")
        self._is_due = False
        _open.add(self)

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
        """Store new files, in another thread."""
        if not self._read_only and not self._is_due:
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
        if self._process != os.getpid():
            return
        _open.discard(self)
        try:
            self.store(seconds=self._exit_seconds, parallel=False)
        except StoreError as exc:
            log.debug("ejcache: results of XLA's are left in %s: %s", self.directory, exc)
        stored = self._read_only or not self._files.has_new(self.directory, self._known)
        if stored:
            shutil.rmtree(self.directory, ignore_errors=True)
        self._presence.leave(clean=stored)

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
        alive = living(self._present)
        with directory_below(self._root, self._below) as opened:
            for name in os.listdir(opened):  # noqa: PTH208  # a descriptor, not a path
                with contextlib.suppress(OSError):
                    status = os.stat(name, dir_fd=opened, follow_symlinks=False)
                    if (
                        not is_token(name)
                        or name in alive
                        or not stat.S_ISDIR(status.st_mode)
                        or time.time() - status.st_mtime < _LEFT_SECONDS
                    ):
                        continue
                    left, known = self._root / self._below / name, self._files.stored()
                    self._files.push(left, known=known, seconds=self._exit_seconds)
                    if not self._files.has_new(left, known):
                        shutil.rmtree(name, ignore_errors=True, dir_fd=opened)
                        remove_below(self._root, f"{self._below}/present/{name}".lstrip("/"))


def _refuse_links(root: Path, below: str) -> None:
    for path in (root / below, *(root / below).parents):
        if path == root:
            return
        if path.is_symlink():
            raise UnsafeFileError(errno.ELOOP, f"{path} is a symbolic link, so it is not used")


def _names(caches: str) -> list[str]:
    if caches == "all":
        return [AUTOTUNE, KERNELS]
    return [name for name in (AUTOTUNE, KERNELS) if name in caches]


_open: weakref.WeakSet[Mirror] = weakref.WeakSet()


def _close_all() -> None:
    for mirror in list(_open):
        mirror.close()


at_exit(ExitPhase.UPLOAD, _close_all)
