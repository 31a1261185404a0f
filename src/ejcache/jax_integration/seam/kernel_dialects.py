"""Makes contexts with the dialects of MLIR that the kernels within a program are written in. A part of the seam.

Read for this: jax 0.4.38 to 0.12.0.1, `interpreters/mlir.py`; jaxlib's `mosaic` and `triton`.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from jaxlib.mlir import ir

from ejcache.jax_integration.seam.parts import Part

PART: Final = Part(
    "hits of a program with a kernel (Pallas, Triton) after its source moved",
    {"jax._src.interpreters.mlir": ("upstream_dialects",)},
)
_jax_mlir = PART.module("jax._src.interpreters.mlir")
_OF_KERNELS: Final = ("jaxlib.mosaic.python.tpu", "jaxlib.triton.dialect", "jaxlib.mosaic.python.mosaic_gpu")
"""Modules with a dialect each. A jaxlib that lacks one makes no kernels in it: the last came after JAX 0.4.38."""


def kernel_context() -> Any:
    """Return a new context in which kernels can be read; None if this JAX does not give one."""
    if not PART.fits:
        return None
    context = ir.Context()
    context.append_dialect_registry(_jax_mlir.upstream_dialects)
    context.load_all_available_dialects()
    for name in _OF_KERNELS:
        try:
            dialect = importlib.import_module(name)
        except ImportError:
            continue
        dialect.register_dialect(context)
    context.allow_unregistered_dialects = True
    return context
