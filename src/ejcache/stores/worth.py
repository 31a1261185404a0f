"""Says what an entry is worth to a cache that is too small: the seconds that it saves for each byte.

A put of a local store evicts in an order that is made of that (`stores.local.order`), and a pass over all entries by

    order := worth * weight / bytes / (1 + days since the last use)

with the weight of a local store. There a number grows with what is evicted, so that what is not used any more goes some
day; of shared storage no process sees all evictions, and every pass reads when each entry was last used.

The first bytes of an entry say it, without decoding its header.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ejcache.stores.base import EntryInfo

_LEAST: Final = 0.01
"""What a use of a text or a profile counts for, which saves no compilation by itself; no entry counts for less."""
FORGETTING_SECONDS: Final = 86_400.0
"""An entry that was not used for so long counts half."""
_SECONDS: Final = re.compile(rb'"compile_seconds":([0-9]{1,9}(?:\.[0-9]{1,20})?)[,}]')
_CREATED: Final = re.compile(rb'"created":([0-9]{1,11}(?:\.[0-9]{1,20})?)[,}]')
"""In the header of an entry, which is canonical JSON, so that within a text the quotation marks are escaped. To decode
the header takes as long as a tenth of a put."""
_BEFORE_HEADER: Final = 8
"""Bytes of an entry before its header: the name of the format, and the header's length."""


def worth_of_use(compile_seconds: float) -> float:
    """Weigh one use of an entry: the seconds of compiling that it saves."""
    return max(_LEAST, compile_seconds)


def weight_of_uses(uses: int) -> float:
    """Weigh the uses of an entry after it was put: from 1 to 3."""
    return 3.0 * (1 + uses) / (3 + uses)


def worth_of_bytes(start: bytes) -> float:
    """Weigh one use of an entry, by the compile seconds in its first bytes."""
    found = _SECONDS.search(start, 0, _end_of_header(start))
    return worth_of_use(float(found[1]) if found is not None else 0.0)


def created_of(start: bytes, *, otherwise: float) -> float:
    """Return when an entry was made, by its first bytes, in seconds since the epoch; `otherwise` if they do not say."""
    found = _CREATED.search(start, 0, _end_of_header(start))
    return float(found[1]) or otherwise if found is not None else otherwise


def _end_of_header(start: bytes) -> int:
    return _BEFORE_HEADER + int.from_bytes(start[4:_BEFORE_HEADER], "big")


def worth(start: bytes, size: int) -> float:
    """Return the seconds of compiling for each byte of an entry, by its beginning and its size."""
    return worth_of_bytes(start) / max(size, 1)


def order_by_cost(info: EntryInfo, *, now: float) -> float | None:
    """Return the place of an entry by what it saves, the lowest first; None where nobody has said what it is worth."""
    if info.worth is None:
        return None
    days = max(now - info.last_used, 0.0) / FORGETTING_SECONDS
    return info.worth * weight_of_uses(info.hits or 0) / max(info.size, 1) / (1 + days)
