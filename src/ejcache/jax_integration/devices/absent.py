"""Compiles and stores programs for devices that this process does not have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ejcache.cache.reasons import Miss
from ejcache.errors import EjcacheError
from ejcache.jax_integration.candidates import own_keys
from ejcache.jax_integration.no_compile_blocks import AlreadyStoredError, stores_only
from ejcache.jax_integration.seam.compiling import autotune_directory, with_overrides
from ejcache.jax_integration.seam.topologies import peak_memory
from ejcache.keys.key import CROSS
from ejcache.keys.variants import untuned_key
from ejcache.util.log import log

if TYPE_CHECKING:
    from ejcache.jax_integration.compilation import Compilation
    from ejcache.jax_integration.seam.patch import CacheAnswer, JaxCall

_GIB: Final = 1 << 30


class DoesNotFitError(EjcacheError):
    """The program needs more memory than a device of its target has."""

    is_for_program: Final = True


def check_memory(executable: Any) -> None:
    """Note what a program for absent devices needs, if it is compiled only to be stored.

    Raises:
        DoesNotFitError: it needs more than a device has. CUDA's compiler says nothing of that.
    """
    storing = stores_only()
    if storing is None:
        return

    storing.peak = peak_memory(executable)
    if 0 < storing.memory < storing.peak:
        raise DoesNotFitError(
            f"does not fit: {storing.peak / _GIB:.1f} of {storing.memory / _GIB:.1f} GiB on each device; not stored"
        )


def compile_for_others(compilation: Compilation, call: JaxCall, answer: CacheAnswer) -> Any:
    """Compile a program for devices that are not here.

    What XLA would have autotuned on the devices becomes the variant `cross`. If the cache has all measurements that XLA
    would make, the program stays the plain one.
    """
    if not untuned_key(compilation.key):
        return call.run(answer)
    measured = autotune_directory(call.options)
    if measured and any(path.is_file() for path in Path(measured).rglob("*")):
        options = with_overrides(call.options, {"xla_gpu_require_complete_aot_autotune_results": True})
        try:
            return call.run(answer, options=options)
        except Exception as exc:
            # If it is the program that does not compile, the compilation below says so.
            log.debug("ejcache: %s is not tuned: %s", compilation.name, exc)
    executable = call.run(answer)
    compilation.use_variant(CROSS)
    return executable


def look_for_others(compilation: Compilation) -> Miss:
    """Say whether there is an entry for the absent devices; nothing is read or loaded.

    Raises:
        AlreadyStoredError: there is one, and the caller wants no executable.
    """
    if not any(compilation.cache.contains(text, compilation.settings) for text in own_keys(compilation)):
        return Miss.FORCED if compilation.settings.recompile_force else Miss.ABSENT
    if stores_only():
        raise AlreadyStoredError(compilation.text)
    return Miss.NO_DEVICES
