"""XLA's own caches with any cache URL: where this process's XLA keeps them, and when they are exchanged with the store.

XLA knows no URLs (given one it aborts the process), and processes that share a directory disturb each other. So each
process that compiles for a GPU has a private one, which is filled before its first compilation, and from which what is
new is stored behind the program. A process that is killed leaves its directory to the next one of its cache.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from ejcache.compilation_opening import xla_places
from ejcache.errors import StoreError, UsageError
from ejcache.jaxside.keying import compiler_environment
from ejcache.jaxside.xla_files import AUTOTUNE, KERNELS, XlaFiles
from ejcache.settings import make_private
from ejcache.stores.local_locks import Presence, living

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ejcache.settings import Settings

__all__ = ["Mirror", "XlaCaches"]

log = logging.getLogger("ejcache")

_PLATFORMS: Final = frozenset({"cuda", "gpu", "rocm", "sycl"})
"""Where XLA has these caches."""
_EXIT_SECONDS: Final = 5.0
_ADOPT_SECONDS: Final = 60.0
"""A directory without a living owner that is younger than this may be one whose owner is just starting."""


class XlaCaches:
    """The private directories of this process, one for each cache and compiler; one object for each `Compiler`.

    Args:
        settings: the settings now.
        trouble: counts and tells an error.
    """

    def __init__(self, *, settings: Callable[[], Settings], trouble: Callable[[str, Exception], None]) -> None:
        self._settings = settings
        self._trouble = trouble
        self._mirrors: dict[tuple[str, str], Mirror | None] = {}
        self._lock = threading.Lock()
        self._process = os.getpid()

    def paths(self, backend: Any) -> dict[str, str]:
        """The values of XLA's options for a compilation by `backend`, by name; empty for no cache."""
        settings = self._settings()
        names = _names(settings.xla_caches)
        if not names or settings.disabled_reason or backend is None or str(backend.platform) not in _PLATFORMS:
            return {}
        mirror = self._mirror(str(settings.cache_dir), backend, settings)
        return {} if mirror is None else {name: str(mirror.directory / name) for name in names}

    def collect(self) -> None:
        """XLA has compiled something: store what is new, behind the program."""
        if self._process == os.getpid():
            for mirror in list(self._mirrors.values()):
                if mirror is not None:
                    mirror.collect()

    def close(self) -> None:
        """Store what is new, within seconds, and remove the directories."""
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
            places = xla_places(url, settings)
            if places is None:
                return None
            files = XlaFiles(places.documents, environment)
            mirror = Mirror(files, places.processes / environment, read_only=settings.read_only)
        except (OSError, UsageError) as exc:
            self._trouble("make a directory for XLA's own caches", exc)
            return None
        try:
            mirror.fill()
        except (OSError, StoreError) as exc:
            self._trouble("fetch what XLA's own caches hold", exc)
        return mirror


class Mirror:
    """One private directory, filled from `files` and merged into them. Safe for threads.

    Args:
        files: what is stored.
        root: where this and other processes have theirs.
        read_only: store nothing.

    Raises:
        OSError: the directory cannot be made.
    """

    def __init__(self, files: XlaFiles, root: Path, *, read_only: bool = False) -> None:
        self._files = files
        self._root = root
        self._read_only = read_only
        self._process = os.getpid()
        presences = root / "present"
        make_private(presences)
        self._presence = Presence(presences)
        self.directory = root / self._presence.token
        self.directory.mkdir(mode=0o700)
        self._known: set[str] = set()
        self._lock = threading.Lock()
        self._due = threading.Event()
        self._worker: threading.Thread | None = None
        _open.add(self)

    def fill(self) -> int:
        """Take over what is stored, and what killed processes have left; how many files were stored.

        Raises:
            StoreError: the storage failed; the directory can be used as it is.
        """
        with self._lock:
            self._adopt()
            count = self._files.pull(self.directory)
            self._known = self._files.known(self.directory)
            return count

    def collect(self) -> None:
        """Store what is new, in another thread."""
        if self._read_only:
            return
        self._due.set()
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name="ejcache-xla", daemon=True)
            self._worker.start()

    def store(self, *, seconds: float = 20.0, parallel: bool = True) -> int:
        """Store what is new, now; how many files.

        Raises:
            StoreError: the storage failed; what is left stays for the next time.
        """
        if self._read_only:
            return 0
        with self._lock:
            return self._files.push(self.directory, known=self._known, seconds=seconds, parallel=parallel)

    def close(self) -> None:
        """Store what is new and remove the directory; if that fails, whoever comes next does it."""
        if self._process != os.getpid():
            return
        _open.discard(self)
        try:
            self.store(seconds=_EXIT_SECONDS, parallel=False)
        except StoreError as exc:
            log.debug("ejcache: results of XLA's are left in %s: %s", self.directory, exc)
        stored = self._read_only or not self._files.has_new(self.directory, self._known)
        if stored:
            shutil.rmtree(self.directory, ignore_errors=True)
        self._presence.leave(clean=stored)

    def _work(self) -> None:
        while True:
            self._due.wait()
            self._due.clear()
            try:
                self.store()
            except (StoreError, RuntimeError) as exc:  # RuntimeError: the interpreter is ending; `close` stores
                log.debug("ejcache: XLA's own caches were not stored, and will be tried again: %s", exc)

    def _adopt(self) -> None:
        """Store and remove what killed processes have left; nobody waits for it long."""
        if self._read_only:
            return
        present = self._root / "present"
        alive = living(present)
        for left in self._root.iterdir():
            with contextlib.suppress(OSError):
                if left == present or left.name in alive or time.time() - left.stat().st_mtime < _ADOPT_SECONDS:
                    continue
                known = self._files.stored()
                self._files.push(left, known=known, seconds=_EXIT_SECONDS)
                if not self._files.has_new(left, known):
                    shutil.rmtree(left, ignore_errors=True)
                    (present / left.name).unlink(missing_ok=True)


def _names(caches: str) -> list[str]:
    if caches == "all":
        return [AUTOTUNE, KERNELS]
    return [name for name in (AUTOTUNE, KERNELS) if name in caches]


_open: weakref.WeakSet[Mirror] = weakref.WeakSet()


@atexit.register
def _close_at_exit() -> None:
    for mirror in list(_open):
        mirror.close()
