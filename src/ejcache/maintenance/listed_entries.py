"""Holds the entries that a listing of a cache has found, and their uses, in columns.

A maintenance pass runs beside a training program that needs its memory, and objects would take three times as much.
"""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING, Final

from ejcache.journal.line import EntryUse
from ejcache.stores.base import EntryInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_NEVER: Final = -math.inf
_NOT_LISTED: Final = -1
"""The size of an entry of which only uses are known."""


class EntryTable:
    """Entries by their numbers, in the order in which they were added; each takes its key, its version and 60 bytes.

    Attributes:
        keys, sizes, created, used, hits, worth: the columns, of which the owner of the table may change the numbers;
            hits below 0 and a worth that is no number say that it is not known.
    """

    def __init__(self, entries: Iterable[EntryInfo] = ()) -> None:
        self.keys: list[str] = []
        self.sizes = array("q")
        self.created = array("d")
        self.used = array("d")
        self.hits = array("q")
        self.worth = array("d")
        self._versions: list[str] = []
        for info in entries:
            self.add(info)

    def add(self, info: EntryInfo) -> None:
        """Add an entry; its number is the next one."""
        key, size, created, used, version, hits, worth = info
        self.keys.append(key)
        self.sizes.append(size)
        self.created.append(created)
        self.used.append(used)
        self.hits.append(-1 if hits is None else hits)
        self.worth.append(_number_of(worth))
        self._versions.append(version)

    def list_again(self, number: int, *, size: int, created: float, version: str) -> None:
        """Note what a listing says of an entry that has a number."""
        self.sizes[number], self.created[number], self._versions[number] = size, created, version

    def use(self, number: int) -> EntryUse:
        """Return what is known of its uses."""
        return EntryUse(self.used[number], self.hits[number], _worth_of(self.worth[number]))

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, number: int) -> EntryInfo:
        used, hits, worth = self.use(number)
        return EntryInfo(
            self.keys[number],
            self.sizes[number],
            self.created[number],
            used,
            self._versions[number],
            None if hits < 0 else hits,
            worth,
        )

    def __iter__(self) -> Iterator[EntryInfo]:
        return map(self.__getitem__, range(len(self)))


class Listing:
    """The entries that a bucket's listing found, and the uses that usage journals report."""

    def __init__(self) -> None:
        self._rows = EntryTable()
        self._numbers: dict[str, int] = {}

    def _number(self, key: str) -> int:
        number = self._numbers.setdefault(key, len(self._rows))
        if number == len(self._rows):
            self._rows.add(EntryInfo(key, _NOT_LISTED, 0.0, _NEVER, hits=0))
        return number

    def add(self, found: Iterable[EntryInfo]) -> None:
        """Add entries; `last_used` is ignored, because `note_uses` knows better."""
        for info in found:
            self._rows.list_again(self._number(info.key), size=info.size, created=info.created, version=info.version)

    def note_uses(self, used: Iterable[tuple[str, EntryUse]], *, now: float) -> None:
        """Note uses of keys, which are joined with those noted before; a time after `now` counts as `now`.

        If `used` raises, none of its uses is noted.
        """
        numbers, last, often, worths = array("q"), array("d"), array("q"), array("d")
        for key, (when, times, worth) in used:
            numbers.append(self._number(key))
            last.append(min(when, now))
            often.append(times)
            worths.append(_number_of(worth))
        rows = self._rows
        for number, when, times, weight in zip(numbers, last, often, worths, strict=True):
            joined = EntryUse(when, times, _worth_of(weight)).joined(rows.use(number))
            rows.used[number], rows.hits[number], rows.worth[number] = joined[0], joined[1], _number_of(joined[2])

    def forget_uses(self) -> None:
        """Forget what `note_uses` has noted."""
        number = len(self._rows)
        self._rows.used = array("d", [_NEVER]) * number
        self._rows.hits = array("q", [0]) * number
        self._rows.worth = array("d", [math.nan]) * number

    def end(self) -> None:
        """Give back the memory that only `add`, `note_uses` and `uses` need; call none of them again."""
        self._numbers = {}

    def entries(self) -> Iterator[EntryInfo]:
        """Yield every entry, with its last use, its uses and its worth."""
        for info in self._rows:
            if info.size != _NOT_LISTED:
                yield info._replace(last_used=max(info.created, info.last_used))

    def uses(self, *, unless_gone_since: float | None = None) -> Iterator[tuple[str, EntryUse]]:
        """Yield keys and their uses, ordered by key.

        Args:
            unless_gone_since: seconds since the epoch; leave out keys that are not listed and were last used before.
        """
        since = _NEVER if unless_gone_since is None else unless_gone_since
        for key in sorted(self._numbers):
            number = self._numbers[key]
            use = self._rows.use(number)
            if use.when > (_NEVER if self._rows.sizes[number] != _NOT_LISTED else since):
                yield key, use


def _number_of(worth: float | None) -> float:
    return math.nan if worth is None else worth


def _worth_of(number: float) -> float | None:
    return None if math.isnan(number) else number
