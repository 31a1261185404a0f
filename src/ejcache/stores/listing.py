"""An entry in the listing of a store."""

from __future__ import annotations

from typing import NamedTuple


class EntryInfo(NamedTuple):
    """An entry in a listing, which does not read it.

    Attributes:
        key: the key it was put under.
        size: bytes of the entry.
        created: seconds since the epoch.
        last_used: seconds since the epoch; the later of creation and the last use that was noted.
        version: on storage that versions its objects, which version was listed; empty elsewhere.
        hits: how many uses the journal of a shared cache has; None where that is not counted.
        worth: what one use is worth (`EntryUse`); None where nobody has said it.
    """

    key: str
    size: int
    created: float
    last_used: float
    version: str = ""
    hits: int | None = None
    worth: float | None = None
