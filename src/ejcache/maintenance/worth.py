"""What an entry is worth to a cache that is too small: the seconds that it saves for each byte.

A put of a local store evicts in an order that is made of that (`stores.local.order`), and a pass over all entries by

    order := worth * weight / bytes / (1 + days since the last use)

with the weight of a local store. There a number grows with what is evicted, so that what is not used any more goes some
day; of shared storage no process sees all evictions, and every pass reads when each entry was last used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ejcache.stores.base import weight_of_uses
from ejcache.stores.entry_start import worth_of_bytes

if TYPE_CHECKING:
    from ejcache.stores.listing import EntryInfo

FORGETTING_SECONDS: Final = 86_400.0
"""An entry that was not used for so long counts half."""


def worth(start: bytes, size: int) -> float:
    """Return the seconds of compiling for each byte of an entry, by its beginning and its size."""
    return worth_of_bytes(start) / max(size, 1)


def order_by_cost(info: EntryInfo, *, now: float) -> float | None:
    """Return the place of an entry by what it saves, the lowest first; None where nobody has said what it is worth."""
    if info.worth is None:
        return None
    days = max(now - info.last_used, 0.0) / FORGETTING_SECONDS
    return info.worth * weight_of_uses(info.hits or 0) / max(info.size, 1) / (1 + days)
