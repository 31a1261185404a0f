"""Lets `jax.experimental.serialize_executable` serialise what was loaded from the cache. A part of the seam.

Read for this: jax 0.4.38, 0.6.2, 0.8.3, 0.10.2 and 0.12.0.1, `serialize_executable` of `jax.experimental`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ejcache.jax_integration.seam.parts import Part

if TYPE_CHECKING:
    from collections.abc import Callable

PART: Final = Part(
    "executables that run after they were loaded and serialised (jax.experimental.serialize_executable)",
    {
        "jax.experimental.serialize_executable": ("_JaxPjrtPickler",),
        "jax._src.lib.xla_client": ("LoadedExecutable",),
    },
)
_serialization = PART.module("jax.experimental.serialize_executable")
_xla_client = PART.module("jax._src.lib.xla_client")


def patch_pickler(stored_bytes: Callable[[Any], bytes | None]) -> None:
    """Have JAX pickle these bytes of an executable, where there are some.

    This stays when the cache is disabled, because executables that were loaded before do.

    Args:
        stored_bytes: returns the bytes that an executable was loaded from, or None.
    """
    if not PART.fits:
        return
    pickler = _serialization._JaxPjrtPickler
    original = getattr(pickler.persistent_id, "original", pickler.persistent_id)

    def persistent_id(self: Any, value: Any) -> Any:
        stored = stored_bytes(value) if isinstance(value, _xla_client.LoadedExecutable) else None
        return ("exec", stored) if stored is not None else original(self, value)

    vars(persistent_id)["original"] = original
    pickler.persistent_id = persistent_id
