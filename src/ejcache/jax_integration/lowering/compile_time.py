"""What a program's size says about the time that it takes to compile.

A request to a bucket takes longer than to compile a program of one operation, and other hosts do not publish such a
program. Of 369 programs of eight libraries, 296 had a canonical form below 512 bytes; all compiled in less than 0.08 s
on a busy CPU. Above that, size says less: 2,000 bytes that draw random numbers may take a tenth of a second, or one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ejcache.keys.key import PLAIN
from ejcache.settings.floors import Floors

if TYPE_CHECKING:
    from ejcache.jax_integration.compilation import Compilation
    from ejcache.keys.key import CacheKey

_TINY: Final = 512
"""Bytes of a program's canonical form below which it has one operation, or a few simple ones."""
_SMALL: Final = 6000
"""Bytes below which it compiles in well under a second."""
_LEAST_FLOOR: Final = Floors().publish
"""Seconds. With a lower floor for what other hosts get, small programs are published too."""
_EVIDENCE: Final = 3
"""How many tiny programs must have compiled here: an accelerator may need seconds for each."""


def is_worth_requests(compilation: Compilation) -> bool:
    """Whether to ask other hosts before compiling: not for a program that is surely too quick to be stored."""
    return Floors.of(compilation.settings).publish < _LEAST_FLOOR or compilation.key.size >= _SMALL


class TinyPrograms:
    """How long the tiny programs of this process took to compile. Safe for threads."""

    def __init__(self) -> None:
        # Of each platform: how many there were, and the seconds of the slowest. A thread that overwrites what another
        # one has counted makes the answer yes come later.
        self._known: dict[str, tuple[int, float]] = {}

    def note(self, key: CacheKey, seconds: float) -> None:
        """Remember that this program compiled in so many seconds, if it is tiny."""
        if 0 < key.size < _TINY:
            count, slowest = self._known.get(key.platform, (0, 0.0))
            self._known[key.platform] = (count + 1, max(slowest, seconds))

    def is_quick(self, compilation: Compilation) -> bool:
        """Whether the program surely compiles in less than the floor for other hosts, so that no host publishes it.

        Once a tiny program of its platform took longer, the answer is False as long as the process lives. It is also
        False for a program of several processes, which agree about what they find, and for PGLE's variants.
        """
        key, floors = compilation.key, Floors.of(compilation.settings)
        count, slowest = self._known.get(key.platform, (0, 0.0))
        is_plain = key.variant == PLAIN and not compilation.is_multi_process
        return is_plain and count >= _EVIDENCE and slowest < _LEAST_FLOOR <= floors.publish and 0 < key.size < _TINY
