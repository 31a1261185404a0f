"""Estimates how long a program will take to compile, for its bytes, by what others took on this host.

A lease between hosts costs two requests, and saves the others a compilation. For a program that compiles in less than
three quarters of a second, or that is not published, nobody asks for a lease. What tells is time: of the last programs,
how many seconds they took for each byte of their canonical form. The slowest counts, because a compilation costs more
than two requests; of eight, the second slowest, because one alone may have been held up by other work of the host.
Without that evidence a lease is asked for.

A program of one operation takes as long as any other of its kind, whatever its size: a tenth of a second on a CPU, and
perhaps seconds on an accelerator. Most programs of a start are such. For them a lease is asked for once several of the
last ones were slow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ejcache.stores.host_notes import HostNotes

_SMALLEST: Final = 512
"""Bytes of a canonical form below which a program has one operation, or a few simple ones."""
_LAST: Final = 8
"""How many programs of a platform are remembered, of the smallest and of the others."""
_EVIDENCE: Final = 3
"""So many slow ones say that the smallest programs of this host are slow."""
SLOW_SECONDS: Final = 0.75
"""A program that takes less is compiled by each host that misses it: to wait for another one would take as long."""
_BYTES: Final = 1e6
"""Seconds for so many bytes are noted: notes have a millionth of a second."""
_MOST: Final = 9e5


class CompileSpeed:
    """The seconds for each byte of the last programs of each platform. Safe for threads, processes and forks.

    Args:
        notes: keep it on this host, or in this process. Of two processes that note at once, the later one counts.
    """

    def __init__(self, notes: HostNotes) -> None:
        self._notes = notes
        self._next: dict[str, int] = {}

    def note(self, platform: str, size: int, seconds: float) -> None:
        """Remember that a program of so many bytes compiled in so many seconds."""
        if size >= _SMALLEST:
            self._add(platform, min(_MOST, seconds / size * _BYTES))
        elif size > 0:
            kind = _smallest_of(platform)
            # While none was slow, quick ones say nothing new, and are most of the programs.
            if seconds >= SLOW_SECONDS or any(each >= SLOW_SECONDS for each in self._known(kind)):
                self._add(kind, min(_MOST, seconds))

    def may_take(self, platform: str, size: int, seconds: float) -> bool:
        """True if a program of so many bytes may take so many seconds, as far as this host knows."""
        if size < _SMALLEST:
            return sum(each >= seconds for each in self._known(_smallest_of(platform))) >= _EVIDENCE
        known = sorted(self._known(platform))
        return not known or known[-2 if len(known) == _LAST else -1] * size / _BYTES >= seconds

    def _known(self, kind: str) -> list[float]:
        numbers = (self._notes.number(f"{kind} {place}") for place in range(_LAST))
        return [each for each in numbers if each is not None]

    def _add(self, kind: str, number: float) -> None:
        place = self._next.get(kind)
        if place is None:
            place = len(self._known(kind))  # of what processes before this one have noted
        self._next[kind] = place + 1
        self._notes.note(f"{kind} {place % _LAST}", number)


def _smallest_of(platform: str) -> str:
    return f"{platform}, smallest"
