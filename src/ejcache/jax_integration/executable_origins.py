"""Where loaded executables came from.

XLA:CPU (jaxlib 0.10 and 0.12) serialises an executable that it has loaded, instead of compiled, to bytes that fail when
the program runs. So when the program serialises an executable that came from a hit
(`jax.experimental.serialize_executable`), it gets the bytes of the entry, which is read again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from ejcache.jax_integration.seam import patch as seam
from ejcache.util.log import log

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ejcache.cache.policy import CachePolicy
    from ejcache.jax_integration.compilation_state import Compilation
    from ejcache.settings.table import Settings


_MAX_EXECUTABLES: Final = 10_000


class ExecutableOrigins:
    """The entries of the executables that were loaded last. Safe to use from several threads."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Hashable, tuple[CachePolicy, Settings, str]] = OrderedDict()
        self._lock = threading.RLock()

    def loaded(self, executable: Any, compilation: Compilation, key: str) -> None:
        """Remember that an executable was loaded from the entry under `key`."""
        identity = seam.executable_identity(executable)
        with self._lock:
            self._entries[identity] = (compilation.cache, compilation.settings, key)
            if len(self._entries) > _MAX_EXECUTABLES:
                self._entries.popitem(last=False)

    def compiled(self, executable: Any) -> None:
        """Forget an older executable, now gone, that had the identity of one that was just compiled."""
        with self._lock:
            self._entries.pop(seam.executable_identity(executable), None)

    def stored_bytes(self, executable: Any) -> bytes | None:
        """Return the bytes that an executable was loaded from; None if it was not loaded, or if its entry is gone."""
        origin = self._entries.get(seam.executable_identity(executable))
        if origin is None:
            return None
        cache, settings, key = origin
        found = cache.read(key, settings).entry
        if found is None:
            log.warning(
                "ejcache: the entry %s, from which an executable was loaded, is gone. XLA serialises what it loaded "
                "to bytes that may not run: compile it anew with EASYDEL_RECOMPILE_FORCE=1 before you serialise it",
                key,
            )
            return None
        return found.raw
