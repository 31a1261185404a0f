"""The floors: how long a program must have compiled for its executable to be stored, and for other hosts to get it."""

from __future__ import annotations

from typing import Final, NamedTuple, Self

_KEEP_SECONDS: Final = 0.01
"""98 % of the compile time of real programs is above it; to store the rest costs more than it saves."""
_PUBLISH_SECONDS: Final = 0.1
"""About three requests to a bucket in another region."""


class Floors(NamedTuple):
    """The floors that some settings ask for, in seconds of compiling.

    Attributes:
        keep: an executable that compiled in less is not stored at all.
        publish: an executable that compiled in less is not stored where other hosts read it.
        ask: an executable that compiled in less on this host is not asked for on shared storage.
    """

    keep: float = _KEEP_SECONDS
    publish: float = _PUBLISH_SECONDS
    ask: float = _PUBLISH_SECONDS

    def __str__(self) -> str:
        return f"{self.keep:g}" if self.keep == self.publish else f"{self.keep:g} here, {self.publish:g} to publish"

    @classmethod
    def of(cls, chosen: float | None) -> Self:
        """Make the floors of a minimum compile time that somebody has set; None: each floor has its own default."""
        return cls() if chosen is None else cls(chosen, chosen, min(chosen, _PUBLISH_SECONDS))
