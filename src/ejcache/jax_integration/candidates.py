"""Lists the keys that may have an executable of a program: its own, and what stands in for it.

The candidates are made only of what all ranks of a program know alike, so that a number names one of them
(`ranks/common_hit.py`).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from ejcache.jax_integration.no_compile_blocks import stores_only
from ejcache.jax_integration.pgle import fallbacks
from ejcache.keys.key import CROSS, PGLE
from ejcache.keys.variants import untuned_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.jax_integration.compilation import Compilation

OWN: Final = 0
"""The number of the candidate that is the program's own key. All others stand in for it."""


def own_keys(compilation: Compilation) -> tuple[str, ...]:
    """Return the keys under which an executable of the program itself may be stored, the best one first."""
    return tuple(filter(None, (compilation.text, untuned_key(compilation.key))))


def candidates(compilation: Compilation) -> Iterator[str]:
    """List the keys whose executables do what the program does, the best first: its own, then its substitutes.

    What stands in is looked up only when it is asked for, because that may cost a request.
    """
    return itertools.chain((compilation.text,), _what_stands_in(compilation))


def _what_stands_in(compilation: Compilation) -> Iterator[str]:
    if compilation.key.variant == PGLE:
        try:
            others = fallbacks(compilation)
        except Exception as exc:
            compilation.report_failure("look for another variant", exc)
            return
    else:
        others = (untuned_key(compilation.key),)
    for text in others:
        # `warm` stores a tuned executable where it has the devices, so an untuned one does not count as a hit for it.
        if text and not (f"-{CROSS}-" in text and stores_only()):
            yield text
