"""Sets the compile options of XLA that say where its own caches are. A part of the seam."""

from __future__ import annotations

import functools
from typing import Any, Final

from jax._src import compiler as jax_compiler
from jax._src.lib import xla_client

from ejcache.jax_integration.seam.parts import names_of

MAKES_OPTIONS: Final = "get_compile_options"
"""JAX's function that sets them, too."""

_XLA_CACHES: Final[dict[str, dict[str, Any]]] = {
    # JAX lets process 0 alone write, because the directory is shared; here each process has its own.
    "xla_gpu_per_fusion_autotune_cache_dir": {
        "xla_gpu_experimental_autotune_cache_mode": xla_client.AutotuneCacheMode.UPDATE
    },
    "xla_gpu_kernel_cache_file": {"xla_gpu_enable_llvm_module_compilation_parallelism": True},
}
"""XLA's options that say where its own caches are, and what JAX sets with each of them, in those versions that do."""


def set_xla_caches(options: Any, paths: dict[str, str]) -> None:
    """Have XLA use its own caches at these paths, and otherwise those that `XLA_FLAGS` names.

    JAX may have put them below the cache directory, which aborts the process if that is a URL.

    Args:
        options: of a compilation.
        paths: by the names of XLA's options.
    """
    debug = options.executable_build_options.debug_options
    for name, more in _XLA_CACHES.items():
        path = paths.get(name)
        if path or getattr(debug, name, ""):
            of_flags, known = _debug_options_of_flags(), _options_that_jax_sets()
            setattr(debug, name, path or of_flags[name])
            for option, value in more.items():
                if option in known:
                    setattr(debug, option, value if path else of_flags[option])


@functools.cache
def _debug_options_of_flags() -> dict[str, Any]:
    """Return the values of these options as `XLA_FLAGS` has them, which XLA reads once."""
    options = xla_client.CompileOptions()
    debug = options.executable_build_options.debug_options  # a part of `options`, and gone with it
    names = [each for name, more in _XLA_CACHES.items() for each in (name, *more)]
    return {name: getattr(debug, name) for name in names if hasattr(debug, name)}


@functools.cache
def _options_that_jax_sets() -> frozenset[str]:
    return frozenset(names_of(getattr(jax_compiler, MAKES_OPTIONS, None)))
