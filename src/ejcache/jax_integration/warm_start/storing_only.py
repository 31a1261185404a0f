"""What is compiled for devices that this process does not have is stored here, and loaded elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ejcache.cache.counters import Miss
from ejcache.errors import EjcacheError
from ejcache.jax_integration.warm_start.state import AlreadyStoredError, stores_only

if TYPE_CHECKING:
    from ejcache.jax_integration.compilation import Compilation

__all__ = ["DoesNotFitError", "check_memory", "look_for_others"]


_GIB: Final = 1 << 30


class DoesNotFitError(EjcacheError):
    """The program needs more memory than a device of its target has."""


def check_memory(executable: Any) -> None:
    """Note what a program for absent devices needs, if it is compiled only to be stored.

    Raises:
        DoesNotFitError: it needs more than a device has. CUDA's compiler says nothing of that.
    """
    storing = stores_only()
    if storing is None:
        return
    from ejcache.jax_integration.seam.topologies import peak_memory

    storing.peak = peak_memory(executable)
    if 0 < storing.memory < storing.peak:
        raise DoesNotFitError(
            f"does not fit: {storing.peak / _GIB:.1f} of {storing.memory / _GIB:.1f} GiB on each device; not stored"
        )


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
