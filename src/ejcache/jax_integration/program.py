"""A program that JAX wants compiled, after nothing was found under its key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from ejcache.jax_integration.compilation import Placement


class LoweredProgram(NamedTuple):
    """The module that JAX wants compiled.

    Attributes:
        module: the MLIR module.
        name: its name, as JAX has it.
        placement: where it is to run.
    """

    module: Any
    name: str
    placement: Placement
