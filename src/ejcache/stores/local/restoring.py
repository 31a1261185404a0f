"""Puts entries of a local store back that are out of use and intact: from quarantine, and from an index beside the own.

Quarantine keeps copies of entries and one index that seemed damaged. Another index comes into the directory when
somebody copies two caches into one; no program reads or deletes it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from ejcache.stores.local.index import MAX_VALUE_BYTES, EntryIndex, read_value
from ejcache.stores.local.index_upkeep import integrity_problems, whole_rows
from ejcache.stores.local.layout import remove_trees
from ejcache.stores.local.quarantine import quarantined
from ejcache.stores.local.sqlite import sqlite3
from ejcache.stores.local.value_files import is_present
from ejcache.util.files import read_regular
from ejcache.util.store_keys import is_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ejcache.stores.base import Store
    from ejcache.stores.local.layout import Layout

_PAGE: Final = 50


def restore(store: Store, layout: Layout, key_of: Callable[[bytes], str | None]) -> int:
    """Put back what is intact, and delete what was put back; return how many entries that was.

    An entry that is there is not replaced, and none is evicted for one that comes back.

    Args:
        store: it is open.
        layout: of the store.
        key_of: the key in an intact entry; None of bytes that are none.

    Raises:
        StoreError: the storage failed.
    """
    number = 0
    copies, indexes = quarantined(layout)
    for path in copies:
        data = None
        with contextlib.suppress(OSError):
            data = read_regular(path, max_size=MAX_VALUE_BYTES)
        key = None if data is None else key_of(data)
        if key is not None and data is not None and _has_room(store, data):
            number += store.put(key, data)
            path.unlink(missing_ok=True)
    for directory in (*indexes, *layout.generations()[1:]):
        left = False
        try:
            for data in _values(directory, layout):
                key = key_of(data)
                if key is not None and _has_room(store, data):
                    number += store.put(key, data)
                else:
                    left = left or key is not None
        except (sqlite3.Error, UnicodeError, OSError):
            continue  # it is damaged, and stays
        if not left:
            remove_trees([directory])
    return number


def _has_room(store: Store, data: bytes) -> bool:
    return store.max_size < 0 or store.size() + len(data) <= store.max_size


def _values(directory: Path, layout: Layout) -> Iterator[bytes]:
    """Yield the values that an index can give.

    Raises:
        sqlite3.Error: it is damaged. Values that it gave before may be intact all the same.
        OSError: it cannot be read.
    """
    why = layout.unexpected(directory)
    if why:
        raise OSError(why)
    index = EntryIndex(directory, mode="ro")
    try:
        last = -(2**63)
        while page := whole_rows(index, last, _PAGE, values=True):
            for key, _, row in page:
                last = row.rowid
                # Values in files were linked into the index that took the place of this one, if it was damaged.
                if is_key(key) and row.trustworthy(key) and is_present(index.generation, row):
                    value = read_value(index.generation, row)
                    if value is not None:
                        yield value
        if problems := integrity_problems(index):
            raise sqlite3.DatabaseError(problems[0])
    finally:
        index.connection.close()
