"""What is compiled for devices that this process does not have is stored here, and loaded elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ejcache.cache.counters import Miss
from ejcache.jax_integration.warm_start.state import AlreadyStoredError, stores_only

if TYPE_CHECKING:
    from ejcache.jax_integration.compilation import Compilation

__all__ = ["look_for_others"]


def look_for_others(compilation: Compilation) -> Miss:
    """Whether there is an entry for the absent devices; nothing is read or loaded.

    Raises:
        AlreadyStoredError: there is one, and the caller wants no executable.
    """
    if not compilation.cache.contains(compilation.text, compilation.settings):
        return Miss.FORCED if compilation.settings.recompile_force else Miss.ABSENT
    if stores_only():
        raise AlreadyStoredError(compilation.text)
    return Miss.NO_DEVICES
