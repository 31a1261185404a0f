"""Many small values by one look into the index: what preload asks of a local store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ejcache.stores.local.index import WHOLE, IndexRow
from ejcache.stores.local.layout import MODE_RAW

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ejcache.stores.local.index import EntryIndex


def find_small(index: EntryIndex, keys: Sequence[str]) -> dict[str, IndexRow]:
    """Return the rows of those of these keys, at most a few hundred, whose values are in the rows."""
    named = ", ".join("?" * len(keys))
    select = f"SELECT key, {WHOLE} FROM Cache WHERE raw = 1 AND mode = {MODE_RAW} AND key IN ({named})"  # noqa: S608 (constants)
    return {key: IndexRow(*row) for key, *row in index.rows(select, *keys)}
