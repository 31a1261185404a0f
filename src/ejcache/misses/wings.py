"""What the wings know of functions besides their misses: the hook `why` of each wing, which `ejcache why` calls.

A hook is called with a function's name, or None for all functions, and with a filter for the URL of a cache and a time.
It returns a `WingLog` of what passes both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ejcache.misses.explanation import Explanation
from ejcache.wings import hooks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ejcache.misses.explanation import WingNote

    IsWithin = Callable[[str, float], bool]


class WingLog(Protocol):
    """What a wing remembers on this host."""

    def named(self) -> Sequence[WingNote]:
        """The functions, those first that were called last."""

    def programs(self) -> Sequence[str]:
        """The names that JAX gives to the modules of these functions."""

    def of_program(self, name: str, url: str) -> tuple[WingNote, ...]:
        """The functions whose modules have that name, in that cache."""


class WingLogs:
    """The logs of all wings.

    Args:
        what: a function's name; None for all.
        is_within: whether to count what happened in a cache (its URL) at a time (seconds since the epoch).
    """

    def __init__(self, what: str | None, is_within: IsWithin) -> None:
        self._logs: dict[str, WingLog] = {name: hook(what, is_within) for name, hook in hooks("why").items()}

    def programs(self) -> list[str]:
        """The names that JAX gives to the modules of the functions."""
        return [program for log in self._logs.values() for program in log.programs()]

    def of_program(self, name: str, url: str) -> Mapping[str, tuple[WingNote, ...]]:
        """By the name of the wing: what it did with the functions whose modules have that name, in that cache."""
        return {wing: log.of_program(name, url) for wing, log in self._logs.items()}

    def explained(self) -> Iterator[tuple[WingNote, Explanation]]:
        """An explanation of each function, for functions that were not missed."""
        for wing, log in self._logs.items():
            nothing: dict[str, tuple[WingNote, ...]] = dict.fromkeys(self._logs, ())
            for note in log.named():
                yield note, Explanation(note.title, wings={**nothing, wing: (note,)})
