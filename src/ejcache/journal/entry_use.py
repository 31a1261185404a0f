"""What processes say of the uses of an entry, in journals and in what is to be sent there."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class EntryUse(NamedTuple):
    """What a process says of the uses of an entry.

    Attributes:
        when: the last one, in seconds since the epoch; 0 if it only says what the entry is worth.
        times: how many there were.
        worth: the seconds of compiling that one use saves (`stores.base.worth_of_use`), which who stores the entry
            says once: it is in the entry's header, and a pass over a bucket reads no entry. None if nobody has said it.
    """

    when: float
    times: int = 1
    worth: float | None = None

    def joined(self, other: EntryUse) -> EntryUse:
        """Join two uses: the later time, all uses, and the worth that was said last."""
        later, earlier = (self, other) if self.when >= other.when else (other, self)
        worth = earlier.worth if later.worth is None else later.worth
        return EntryUse(later.when, self.times + other.times, worth)


def joined_uses(parts: Iterable[Mapping[str, EntryUse]]) -> dict[str, EntryUse]:
    """Return the uses of each key in all of these together."""
    joined: dict[str, EntryUse] = {}
    for part in parts:
        for key, use in part.items():
            joined[key] = joined[key].joined(use) if key in joined else use
    return joined
