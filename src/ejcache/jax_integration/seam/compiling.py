"""Does what a compilation needs of JAX, and a hit does not: texts and bytes of programs, options, asking for keys.

The options are XLA's for devices that this host does not have. It is a part of the seam.

Read for this: jax 0.4.38, 0.6.2, 0.8.3, 0.10.2 and 0.12.0.1, `compiler.py`, `compilation_cache.py`, `monitoring.py`,
`interpreters/pxla.py`.
"""

from __future__ import annotations

import copy
import logging
from typing import Any, Final

import jax
from jaxlib.mlir import ir

from ejcache.jax_integration.seam.parts import Part

PART: Final = Part("comparison of programs whose bytes differ (check_contents)", {"jax._src.lib.xla_client": ("_xla",)})
_CACHE: Final = "jax._src.compilation_cache"
_hlo = PART.module("jaxlib._hlo")
_xla_client = PART.module("jax._src.lib.xla_client")


def signature(module: Any) -> str:
    """Return the types of the program's arguments and results; empty if it has no main function."""
    for operation in module.body.operations:
        attributes = operation.operation.attributes
        if "function_type" in attributes and ir.StringAttr(attributes["sym_name"]).value == "main":
            return str(ir.TypeAttr(attributes["function_type"]).value)
    return ""


def module_text(module: Any, *, locations: bool = False) -> str:
    """Return the module as text for people: constants above 64 elements elided, debug locations on request."""
    with module.context:
        return str(module.operation.get_asm(enable_debug_info=locations, large_elements_limit=64))


def serialize_executable(executable: Any) -> bytes:
    """Return the bytes that `load_executable` takes."""
    own = getattr(executable, "serialize", None)
    return bytes(own() if own is not None else executable.client.serialize_executable(executable))


def optimised_program(executable: Any) -> str:
    """Return the HLO that XLA made of a program, without what does not run: names of files and lines."""
    named = getattr(_hlo, "HloPrintOptions", None) or getattr(_xla_client._xla, "HloPrintOptions", None)
    if named is None:
        raise RuntimeError("this jaxlib prints no HLO")
    options = named.canonical()
    options.print_metadata = False
    options.print_large_constants = True
    return "\n".join(module.to_string(options) for module in executable.hlo_modules())


def verification_error(key: str, stored: bytes, fresh: bytes) -> Exception:
    """Return JAX's own error for an entry that differs from a fresh compilation."""
    said = (
        f"Persistent compilation cache inconsistency for key {key}. The executable in the cache differs from what a "
        "fresh compilation gives; its entry is quarantined."
    )
    own = getattr(PART.module(_CACHE), "CacheVerificationError", None)
    error: Exception = RuntimeError(said) if own is None else own(said, key, stored, fresh)  # JAX before 0.10 has none
    vars(error)["is_for_program"] = True
    return error


def log_write(module_name: str, key: str) -> None:
    """Log and send what JAX does for an entry that it writes."""
    asked = jax.config.jax_explain_cache_misses
    level = logging.WARNING if asked else logging.DEBUG
    logging.getLogger(_CACHE).log(level, "Writing %s to persistent compilation cache with key %r", module_name, key)
    jax.monitoring.record_event("/jax/compilation_cache/cache_misses")


def ask_for_keys(lowered: Any) -> None:
    """Have JAX begin to compile a `jax.stages.Lowered`, whether or not it was compiled; the hook for keys raises."""
    lowering = copy.copy(lowered._lowering)
    # JAX remembers executables by this name, too.
    lowering._executable, lowering._name = None, f"the key of {lowering._name}"
    lowering.compile()


def with_overrides(options: Any, overrides: dict[str, bool]) -> Any:
    """Return a copy of compile options in which XLA's options of these names have these values; no key is made of
    it.
    """
    copied = copy.deepcopy(options)
    copied.env_option_overrides = [*copied.env_option_overrides, *overrides.items()]
    return copied


def autotune_directory(options: Any) -> str:
    """Return the directory of XLA's autotuning results that compile options name; empty if none."""
    return str(getattr(options.executable_build_options.debug_options, "xla_gpu_per_fusion_autotune_cache_dir", ""))
