"""What was registered with JAX before `watching` noted it. A part of the seam.

CPython counts in the bytecode of a function how often it ran, so JAX's function that registers passes shows whether it
was ever called. And JAX's own libraries register custom calls when they are imported.

Read for this: jax and jaxlib 0.10.2 and 0.12.0.1, `lax/linalg.py`; `xla_transform.py`.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from types import FunctionType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import CodeType

_OWN_BATCHED: Final = ("gpu_linalg", "gpu_solver", "gpu_sparse", "lapack")
"""The modules whose custom calls `jax._src.lax.linalg` registers when it is imported."""
_WARMUP: Final = object.__basicsize__ + ctypes.sizeof(ctypes.c_ssize_t) + 3 * ctypes.sizeof(ctypes.c_void_p) + 4
"""Where Python 3.11 counts in a code object how often it ran."""


@functools.cache
def own_batch_targets() -> frozenset[str]:
    """Return the custom calls of JAX's own libraries that every process registers as partitioned by their batch."""
    from jax._src.lax import linalg

    modules = [getattr(linalg, name, None) for name in _OWN_BATCHED]
    return frozenset(name for module in modules for name in getattr(module, "batch_partitionable_targets", list)())


def may_have_run(function: FunctionType) -> bool:
    """True if a function was called before, or if this interpreter cannot tell."""
    return not _can_tell() or _has_run(function)


def _has_run(function: FunctionType) -> bool:
    """True if a function was called before; anything but a Python function counts as called."""
    code = getattr(function, "__code__", None)
    # A copy has never run.
    return code is None or _counters(code) != _counters(code.replace())


def _counters(code: CodeType) -> bytes:
    if not hasattr(sys, "monitoring"):  # Python 3.11
        return ctypes.string_at(id(code) + _WARMUP, 2)
    return bytes(getattr(code, "_co_code_adaptive"))  # noqa: B009 (the type has no such attribute)


def _can_tell() -> bool:
    """True if this interpreter counts as expected; one without the specialising interpreter does not."""
    sample = FunctionType(_sample.__code__.replace(), globals())
    before = _has_run(sample)
    sample()
    return not before and _has_run(sample)


def _sample() -> int:
    return len(())
