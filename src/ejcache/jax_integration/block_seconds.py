"""How long a program takes to compile as it is, and with each repeated block written once as a loop.

Both are compiled here, in turns, for one device, as JAX would compile them in this process and environment.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import numpy as np

from ejcache.jax_integration.lowering.block_copies import Apart
from ejcache.jax_integration.lowering.key import make_key
from ejcache.jax_integration.lowering.rolled_blocks import roll, with_elements
from ejcache.jax_integration.program import KeyRequest, LoweredProgram, Placement
from ejcache.jax_integration.publishing import notes
from ejcache.jax_integration.seam.lowered_programs import default_placement, parsed_module
from ejcache.jax_integration.seam.patch import compile_executable
from ejcache.settings.resolve import resolve
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROUNDS: Final = 3
_LONG: Final = 20.0
"""Seconds of a compilation that is not repeated."""
_COMPARED: Final = ("options", "overrides", "variables", "arguments", "devices", "platform_version", "jaxlib")
"""Details of a compilation that must be the same here."""


class BlockSeconds(NamedTuple):
    """Seconds of compiling a program.

    Attributes:
        written_out: as it is.
        looped: with loops.
        copies: of each block, how many copies became a loop.
    """

    written_out: float
    looped: float
    copies: tuple[int, ...]


def block_seconds(text: str, details: Mapping[str, str]) -> BlockSeconds:
    """Compile the program of this text both ways.

    Args:
        text: the module, with or without locations and the elements of large constants.
        details: of its compilation.

    Raises:
        Apart: its blocks cannot be loops, or this process would compile it in another way.
    """
    placement = default_placement()
    whole = with_elements(text)
    _check_same(whole, details, placement)
    with parsed_module(whole) as module:
        rolled = roll(module)
        looped = str(module)
    taken: dict[str, list[float]] = {whole: [], looped: []}
    for _ in range(_ROUNDS):
        for each, seconds in taken.items():
            seconds.append(_compile(each, placement))
        if max(map(max, taken.values())) > _LONG:
            break
    return BlockSeconds(min(taken[whole]), min(taken[looped]), rolled.copies)


def _check_same(text: str, details: Mapping[str, str], placement: Placement) -> None:
    with parsed_module(text) as module:
        devices = np.array(list(placement.devices), object)
        request = KeyRequest(module, devices, placement.options, placement.backend)
        here = {**make_key(request, resolve()).details, **notes(LoweredProgram(module, "", placement))}
    for name in _COMPARED:
        if details.get(name, "") != here.get(name, ""):
            raise Apart(
                f"it was compiled with {name} {details.get(name) or 'none'!r}, here it is {here.get(name) or 'none'!r}"
            )


def _compile(text: str, placement: Placement) -> float:
    with parsed_module(text) as module:
        began = time.perf_counter()
        compile_executable(LoweredProgram(module, "block", placement))
        return time.perf_counter() - began
