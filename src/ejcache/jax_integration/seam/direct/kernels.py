"""The kernels that an executable calls by name, and what JAX does for them only while it lowers a program.

An executable that calls LAPACK crashes the process in which nothing has filled LAPACK's table of functions, which JAX
does when it lowers the first such call. A program that is never lowered has to do it itself.

Read for this: jax 0.10.2 and 0.12.0.1, `lax/linalg.py`; jaxlib `lapack.py`, `gpu_solver.py`, `gpu_triton.py`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from jaxlib import _hlo, lapack

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["called_kernels", "is_known_kernel", "prepare_kernels"]

_CALL: Final = re.compile(r'custom_call_target="([^"]*)"')
_LAPACK: Final = "lapack_"
_NOT_PRINTED: Final = (
    "include_layout_in_shapes",
    "print_backend_config",
    "print_control_dependencies",
    "print_ids",
    "print_large_constants",
    "print_metadata",
    "print_operand_names",
    "print_operand_shape",
    "print_percent",
    "print_program_shape",
    "print_result_shape",
)
"""Without these, the text of a program takes a fifth of the time."""
_OF_XLA: Final = frozenset(
    {
        "AllocateBuffer",
        "PartialReduce",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "Sharding",
        "TopK",
        "annotate_device_placement",
        "tpu_custom_call",
    }
)
"""Kernels that are part of XLA, or of the executable itself; those beginning with `__` are, too."""


def called_kernels(executable: Any) -> tuple[str, ...]:
    """The names of the kernels that an executable calls, each once."""
    options = _hlo.HloPrintOptions.short_parsable()
    for name in _NOT_PRINTED:
        setattr(options, name, False)
    texts = (module.to_string(options) for module in executable.hlo_modules())
    return tuple(sorted({name for text in texts for name in _CALL.findall(text)}))


def is_known_kernel(name: str) -> bool:
    """Whether a kernel can be called in a process that lowered nothing, after `prepare_kernels`."""
    return name in _OF_XLA or name.startswith(("__", _LAPACK))


def prepare_kernels(names: Iterable[str]) -> None:
    """Do for these kernels what JAX does while it lowers a call of one. Doing it again costs nothing."""
    if any(name.startswith(_LAPACK) for name in names):
        lapack._lapack.initialize()
