"""Finds the bytes of an executable that was loaded from an entry, when the program serialises it.

XLA:CPU (jaxlib 0.10 and 0.12) serialises an executable that it has loaded, instead of compiled, to bytes that fail when
the program runs. So when the program serialises an executable that came from a hit
(`jax.experimental.serialize_executable`), it gets the bytes of the entry, which is read again. `Compiler.note_origin`
remembers which entry that is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ejcache.entry import Entry
from ejcache.jax_integration.seam import patch as seam
from ejcache.util.log import log

if TYPE_CHECKING:
    from ejcache.jax_integration.compilation import Origins


def forget_origin(origins: Origins, executable: Any) -> None:
    """Forget an older executable, now gone, that had the identity of one that was just compiled."""
    origins.pop(seam.executable_identity(executable), None)


def stored_bytes(origins: Origins, executable: Any) -> bytes | None:
    """Return the bytes that an executable was loaded from; None if it was not loaded, or if its entry is gone."""
    origin = origins.get(seam.executable_identity(executable))
    if origin is None:
        return None
    cache, settings, key = origin
    found = cache.read(key, settings)
    if not isinstance(found, Entry):
        log.warning(
            "ejcache: the entry %s, from which an executable was loaded, is gone. XLA serialises what it loaded "
            "to bytes that may not run: compile it anew with EASYDEL_RECOMPILE_FORCE=1 before you serialise it",
            key,
        )
        return None
    return found.raw
