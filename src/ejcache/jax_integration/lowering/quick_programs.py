"""Programs so small that they compile quickly: shared storage is not read for them.

A program's size says something about the time that it takes to compile. A request to a bucket takes longer than to
compile a program of one operation, and other hosts do not publish such a program. Of 369 programs of eight libraries,
296 had a canonical form below 512 bytes; all compiled in less than 0.08 s on a busy CPU. Above that, size says less:
2,000 bytes that draw random numbers may take a tenth of a second, or one. Whether other hosts are waited for is decided
by time alone (`coordination/compile_speed.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ejcache.coordination.compile_speed import SLOW_SECONDS
from ejcache.keys.key import PLAIN, CacheKey
from ejcache.settings.table import Floors

if TYPE_CHECKING:
    from ejcache.coordination.single_flight import SingleFlight
    from ejcache.jax_integration.compilation import Compilation


_SMALLEST: Final = 512
"""Bytes of a program's canonical form below which it has one operation, or a few simple ones."""
_LEAST_FLOOR: Final = Floors().publish
"""Seconds. With a lower floor for what other hosts get, small programs are published too."""
_EVIDENCE: Final = 3
"""How many of the smallest programs must have compiled here: an accelerator may need seconds for each."""


def is_worth_a_lease(compilation: Compilation, flight: SingleFlight) -> bool:
    """True if other hosts are asked before compiling: not for a program that is surely too quick to wait for."""
    key, floor = compilation.key, compilation.settings.floors.publish
    return floor < _LEAST_FLOOR or flight.may_take(key.platform, key.size, max(floor, SLOW_SECONDS))


class QuickPrograms:
    """Learns how long the smallest programs of this process take to compile, and so which are quick. Thread-safe."""

    def __init__(self) -> None:
        # Of each platform: how many there were, and the seconds of the slowest. If two threads write at once, one count
        # is lost, and the answer is True one program later.
        self._known: dict[str, tuple[int, float]] = {}

    def note(self, key: CacheKey, seconds: float) -> None:
        """Remember that this program compiled in so many seconds, if it is one of the smallest."""
        if 0 < key.size < _SMALLEST:
            count, slowest = self._known.get(key.platform, (0, 0.0))
            self._known[key.platform] = (count + 1, max(slowest, seconds))

    def is_quick(self, compilation: Compilation) -> bool:
        """True if the program surely compiles in less than the floor for other hosts, so that no host publishes it.

        Once one of the smallest programs of its platform took longer, the answer is False as long as the process lives.
        It is also False for a program of several processes, which agree about what they find, and for PGLE's variants.
        """
        key = compilation.key
        count, slowest = self._known.get(key.platform, (0, 0.0))
        if count < _EVIDENCE or slowest >= _LEAST_FLOOR or not 0 < key.size < _SMALLEST:
            return False
        is_plain = key.variant == PLAIN and not compilation.is_multi_process
        return is_plain and compilation.settings.floors.publish >= _LEAST_FLOOR
