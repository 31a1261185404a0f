"""What an executable says of itself: the types of its arguments and results, and the kernels that it calls by name.

An executable that calls LAPACK crashes the process in which nothing has filled LAPACK's table of functions, which JAX
does when it lowers the first such call. A program that is never lowered has to do it itself.

Read for this: jax 0.10.2 and 0.12.0.1, `lax/linalg.py`; jaxlib `lapack.py`, `gpu_solver.py`, `gpu_triton.py`; XLA,
`hlo_module.cc`, `shape_util.cc`, for the first line of the text of a program.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, Final

from jax._src import tree_util as jax_trees
from jax._src.lib import xla_client
from jaxlib import _hlo, lapack

from ejcache.jax_integration.seam.direct.fastpath import leaf_aval

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["difference_to_executable", "prepare_kernels", "program_text", "unknown_kernel"]

_CALL: Final = re.compile(r'custom_call_target="([^"]*)"')
_LAPACK: Final = "lapack_"
_TYPES: Final = "entry_computation_layout={("
_TYPE: Final = re.compile(r"([a-z]\w*)\[([\d,]*)\]")
_NEXT: Final = re.compile(r"}, [a-z_]+=")
"""Where the next field of a program's first line begins."""
_OF_XLA: Final = (
    *("AllocateBuffer", "PartialReduce", "SPMDFullToShardShape", "SPMDShardToFullShape", "Sharding", "TopK"),
    *("annotate_device_placement", "tpu_custom_call"),
)
"""Kernels that are part of XLA, or of the executable itself; those beginning with `__` are, too."""


def program_text(executable: Any) -> str:
    """The text of an executable, without what is not asked of it here."""
    options = _hlo.HloPrintOptions.short_parsable()
    for name in dir(options):  # with everything, the text takes five times as long
        if name.startswith(("print_", "include_")) and name != "print_extra_attributes":
            setattr(options, name, False)
    return "\n".join(module.to_string(options) for module in executable.hlo_modules())


def unknown_kernel(text: str) -> str | None:
    """A kernel that a process that has lowered nothing cannot call, even after `prepare_kernels`; None without one."""
    names = (name for name in _CALL.findall(text) if name not in _OF_XLA)
    return next((name for name in names if not name.startswith(("__", _LAPACK))), None)


def prepare_kernels(text: str) -> None:
    """Do for the kernels of a program what JAX does while it lowers a call of one. Doing it again costs nothing."""
    if any(name.startswith(_LAPACK) for name in _CALL.findall(text)):
        lapack._lapack.initialize()


def difference_to_executable(executable: Any, text: str, parts: Any, leaves: Iterable[Any]) -> str | None:
    """In words, how what a record says differs from the executable that it names; None if it does not.

    XLA believes what it is given: with other shapes it would read foreign memory, or take donated arguments in vain.

    Raises whatever XLA raises where it has no description of its program.

    Args:
        executable: as XLA loaded it.
        text: of its program.
        parts: of the record.
        leaves: of the call.
    """
    _, has_types, types = text.partition("\n")[0].partition(_TYPES)
    arguments, has_results, results = types.partition(")->")
    if not has_types or not has_results:
        return "no types that its text has"
    arrays = jax_trees.dispatch_registry.flatten(list(leaves))[0]
    if len(arrays) != len(parts.kept_var_bitvec):
        return f"{len(parts.kept_var_bitvec)} arguments, and the call has {len(arrays)}"
    taken = [leaf_aval(array) for array, kept in zip(arrays, parts.kept_var_bitvec, strict=True) if kept]
    if _types_on_device(taken, parts.in_shardings) != _TYPE.findall(arguments):
        return "the types of its arguments"
    if _types_on_device(parts.out_avals, parts.out_shardings) != _TYPE.findall(_NEXT.split(results)[0]):
        return "the types of its results"
    memory = [kind for kinds in executable.get_output_memory_kinds() for kind in kinds]
    said = [sharding.memory_kind for sharding in parts.out_shardings]
    if len(memory) != len(said) or any(one not in {None, other} for one, other in zip(said, memory, strict=True)):
        return "the memories of its results"
    return None


def _types_on_device(avals: Sequence[Any], shardings: Sequence[Any]) -> list[tuple[str, str]]:
    """The type and shape of the part of each array that one device has, as XLA writes them."""
    return [
        (_xla_type(aval.dtype), ",".join(map(str, sharding.shard_shape(aval.shape))))
        for aval, sharding in zip(avals, shardings, strict=True)
    ]


@functools.cache
def _xla_type(dtype: Any) -> str:
    return str(xla_client.Shape.array_shape(dtype, ())).partition("[")[0]
