"""Notes about a compilation besides its key, for `ejcache why`."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import jax
from jaxlib.mlir import ir

from ejcache.cache.program_log import LARGE_CONSTANT
from ejcache.jax_integration.lowering.modules import module_text
from ejcache.jax_integration.seam.trace_settings import changed_trace_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.jax_integration.program import LoweredProgram

__all__ = ["located_text", "notes"]

_ELIDED: Final = "__elided__"
_EFFORTS: Final = {"9": "O0", "19": "O1", "29": "O2", "39": "O3"}
"""XLA's numbers of the levels of effort."""
_OPTIONS: Final = (
    "exec_time_optimization_effort",
    "memory_fitting_effort",
    "memory_fitting_level",
    "num_partitions",
    "num_replicas",
    "optimization_level",
    "use_auto_spmd_partitioning",
    "use_shardy_partitioner",
    "use_spmd_partitioning",
)


def notes(program: LoweredProgram) -> dict[str, str]:
    """The version of JAX, and its settings and compile options that are not at their default, as texts."""
    settings = changed_trace_settings()
    build = program.target.options.executable_build_options
    options = {name: value for name in _OPTIONS if (value := _small(getattr(build, name, None)))}
    return {"jax": jax.__version__, "settings": _lines(settings), "options": _lines(options)}


def located_text(program: LoweredProgram) -> str:
    """The module as text with the source lines of its operations, and digests of the constants that it leaves out."""
    text = module_text(program.module, locations=True)
    if _ELIDED not in text:
        return text
    return "\n".join((text, *(f"{LARGE_CONSTANT}{digest}" for digest in _large_constants(program.module))))


def _large_constants(module: Any) -> Iterator[str]:
    found: list[str] = []

    def visit(operation: Any) -> Any:
        if operation.name == "stablehlo.constant":
            value = operation.attributes["value"]
            # As in the text: a splat is never left out, and neither are 64 elements.
            if isinstance(value, ir.DenseElementsAttr) and not value.is_splat and len(value) > 64:
                found.append(hashlib.blake2b(_content(value), digest_size=8).hexdigest())
        return ir.WalkResult.ADVANCE

    with module.context:
        module.operation.walk(visit)
    return iter(found)


def _content(value: Any) -> bytes:
    try:
        return memoryview(value).tobytes()
    except (RuntimeError, TypeError, BufferError):
        return str(value).encode()  # Python has no buffers of bfloat16 and of the smaller types


def _small(value: Any) -> str:
    """The text of an option; empty if it is at its default."""
    text = str(getattr(value, "name", value))
    text = _EFFORTS.get(text, text)
    return "" if text in {"None", "False", "0", "1", "0.0", "UNKNOWN"} else text


def _lines(values: dict[str, str]) -> str:
    return "\n".join(f"{name}={value}" for name, value in sorted(values.items()))
