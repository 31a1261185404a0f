"""Says in the options of compilations where XLA's own caches are, and fills these when something compiles.

A hit reads nothing of what is stored, and that may be thousands of files. So only their directory is made with its path
(`xla_directories`), and it is filled before the first compilation (`xla_caches`).
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from ejcache.errors import StoreError, UsageError
from ejcache.jax_integration.lowering.key import compiler_environment
from ejcache.jax_integration.xla_directories import AUTOTUNE, KERNELS, OwnDirectory, find_xla_caches

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.jax_integration.xla_caches import Mirror
    from ejcache.jax_integration.xla_directories import XlaCacheLocation
    from ejcache.settings.table import Settings


class XlaCaches:
    """The private directories of this process, one for each cache and compiler.

    Args:
        settings: returns the current settings.
        report_failure: counts and logs an error.
    """

    def __init__(self, *, settings: Callable[[], Settings], report_failure: Callable[[str, Exception], None]) -> None:
        self._settings = settings
        self._report_failure = report_failure
        self._found: dict[tuple[str, str], _Cache | None] = {}
        self._lock = threading.RLock()
        self._process = os.getpid()

    def paths(self, backend: Any) -> dict[str, str]:
        """Return the values of XLA's options for a program of `backend`, by name; empty for no cache."""
        settings = self._settings()
        names = _names(settings.xla_caches)
        if not names or settings.disabled_reason:
            return {}
        found = self._cache(str(settings.dir), backend, settings)
        return {} if found is None else {name: str(found.own.path / name) for name in names}

    def fill(self, backend: Any) -> None:
        """Fetch what is stored, once, into what `paths` has named."""
        settings = self._settings()
        with self._lock:
            found = self._found.get((str(settings.dir), compiler_environment(backend, settings)))
            if found is None or found.mirror is not None or self._process != os.getpid():
                return
            try:
                found.make_mirror(settings).fill()
            except (OSError, UsageError, StoreError) as exc:
                self._report_failure("fetch what XLA's own caches hold", exc)

    def collect(self) -> None:
        """Store new files that XLA has compiled, in the background."""
        for found in list(self._found.values()):
            if found is not None and found.mirror is not None:
                found.mirror.collect()

    def _cache(self, url: str, backend: Any, settings: Settings) -> _Cache | None:
        with self._lock:
            if self._process != os.getpid():
                # A forked child: the directories are its parent's.
                self._found, self._process = {}, os.getpid()
            wanted = (url, compiler_environment(backend, settings))
            if wanted not in self._found:
                made = self._made(*wanted, settings)
                self._found.setdefault(wanted, made)  # a signal handler may have compiled meanwhile
            return self._found[wanted]

    def _made(self, url: str, environment: str, settings: Settings) -> _Cache | None:
        try:
            location = find_xla_caches(url, settings)
            return None if location is None else _Cache(location, environment)
        except (OSError, UsageError) as exc:
            self._report_failure("make a directory for XLA's own caches", exc)
            return None


class _Cache:
    """The directory for one cache and compiler; `mirror` is what fills it, once something is compiled."""

    def __init__(self, location: XlaCacheLocation, environment: str) -> None:
        self._location = location
        self._environment = environment
        self.own = OwnDirectory(location.root, f"{location.below}/{environment}")
        self.mirror: Mirror | None = None

    def make_mirror(self, settings: Settings) -> Mirror:
        from ejcache.jax_integration.xla_caches import (  # the door to XLA's caches
            Mirror,
            XlaFiles,
            open_xla_documents,
        )

        files = XlaFiles(open_xla_documents(self._location, settings), self._environment)
        self.mirror = Mirror(files, self.own, read_only=settings.read_only)
        return self.mirror


def _names(caches: str) -> list[str]:
    if caches == "all":
        return [AUTOTUNE, KERNELS]
    return [name for name in (AUTOTUNE, KERNELS) if name in caches]
