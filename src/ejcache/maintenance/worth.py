"""What an entry is worth to a cache that is too small: the seconds that it saves for each byte.

A local store orders its entries by that (`stores.local.cost_order`), and a pass over a shared cache by

    order := worth * weight / bytes / (1 + days since the last use)

with the weight of a local store. There a number grows with what is evicted, so that what is not used any more goes some
day; of shared storage no process sees all evictions, and every pass reads when each entry was last used.
"""

from __future__ import annotations

import re
from typing import Final

from ejcache.stores.base import worth_of_use

FORGETTING_SECONDS: Final = 86_400.0
"""An entry of a shared cache that was not used for so long counts half."""
_START: Final = 8192
_SECONDS: Final = re.compile(rb'"compile_seconds":([0-9]{1,9}(?:\.[0-9]{1,20})?)[,}]')
"""In the header of an entry, which is canonical JSON, so that within a text the quotation marks are escaped. To decode
the header takes as long as a tenth of a put."""


def worth_of_bytes(start: bytes) -> float:
    """Weigh one use of an entry, by the compile seconds in its first bytes."""
    found = _SECONDS.search(start, 0, _START)
    return worth_of_use(float(found[1]) if found is not None else 0.0)


def worth(start: bytes, size: int) -> float:
    """Return the seconds of compiling for each byte of an entry, by its beginning and its size."""
    return worth_of_bytes(start) / max(size, 1)
