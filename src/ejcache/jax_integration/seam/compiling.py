"""What a compilation needs of JAX's internals, from its start to what is stored of it: a part of the seam.

A hit needs nothing of it. `patch.mismatches` says whether this JAX has what is used here.

Read for this: jax 0.10.2 and 0.12.0.1, `compiler.py`, `compilation_cache.py`, `monitoring.py`.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

from jax._src import compilation_cache as jax_cache
from jax._src import compiler as jax_compiler
from jax._src import monitoring as jax_monitoring
from jax._src.lib.mlir import ir
from jaxlib import _hlo

from ejcache.jax_integration.own_failures import note_compilation
from ejcache.jax_integration.seam.patch import original

if TYPE_CHECKING:
    from ejcache.jax_integration.program import LoweredProgram


def callbacks_are_cacheable() -> bool:
    """True if this JAX restores host callbacks with an executable (0.11 and later do)."""
    return "host_callbacks" in inspect.signature(original("_cache_read")).parameters


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


def compile_executable(program: LoweredProgram) -> Any:
    """Compile as JAX does."""
    placement = program.placement
    return note_compilation(
        partial(
            jax_compiler.backend_compile_and_load,
            placement.backend,
            program.module,
            placement.devices,
            placement.options,
            placement.callbacks,
        )
    )


def serialize_executable(executable: Any) -> bytes:
    """Return the bytes that `load_executable` takes."""
    return bytes(executable.serialize())


def optimised_program(executable: Any) -> str:
    """Return the HLO that XLA made of a program, without what does not run: names of files and lines."""
    options = _hlo.HloPrintOptions.canonical()
    options.print_metadata = False
    options.print_large_constants = True
    return "\n".join(module.to_string(options) for module in executable.hlo_modules())


def verification_error(key: str, stored: bytes, fresh: bytes) -> Exception:
    """Return JAX's own error for an entry that differs from a fresh compilation."""
    error: Exception = jax_cache.CacheVerificationError(
        f"Persistent compilation cache inconsistency for key {key}. The executable in the cache differs from what a "
        "fresh compilation gives; its entry is quarantined.",
        key,
        stored,
        fresh,
    )
    vars(error)["is_for_program"] = True
    return error


def record_event(name: str) -> None:
    """Record a monitoring event of JAX's, for those who listen."""
    jax_monitoring.record_event(name)


def record_hit(module_name: str, key: str, compile_seconds: float, retrieval_seconds: float) -> None:
    """Log and send what JAX does for a hit, for one that came after JAX had counted a miss."""
    jax_compiler.log_persistent_cache_hit(module_name, key)
    jax_monitoring.record_event("/jax/compilation_cache/cache_hits")
    jax_monitoring.record_event_duration_secs(
        "/jax/compilation_cache/compile_time_saved_sec", compile_seconds - retrieval_seconds
    )
    jax_monitoring.record_event_duration_secs("/jax/compilation_cache/cache_retrieval_time_sec", retrieval_seconds)
