"""Names the objects of a shared store, and says by a name how large an object can be and who waits for it.

    v1/entries/<2 hex>/<key>       entries; the hex digits are of SHA-256 of the key, to spread listings and directories
    v1/quarantine/<digest>         copies of a few damaged entries, for inspection
    v1/leases/<key>                who compiles the program with this key now
    v1/journal/                    what processes used and counted: their journals, and a snapshot
    v1/xla/                        XLA's own caches
    v1/policy.json                 the policy of the store: limits, switch, recalls
    v1/tmp/<process>               on file systems: a file that is being written

After `ejcache recall --all`, entries, quarantine, leases and XLA's caches lie in a folder of their own
(`stores.epochs`).

The layout is the same for file systems and buckets, because a bucket may be mounted as a file system on another host.
"""

from __future__ import annotations

from typing import Final

from ejcache import entry
from ejcache.errors import EntryError, EntryVersionError
from ejcache.util.store_keys import key_of_place, place_of_key

ENTRIES: Final = "v1/entries/"
QUARANTINE: Final = "v1/quarantine/"
TEMPORARY: Final = "v1/tmp/"


_MAX_ENTRY: Final = entry.MAX_RAW_SIZE + entry.MAX_HEADER_SIZE + entry.OVERHEAD
_MAX_SIZES: Final = {
    QUARANTINE: 64 << 20,
    "v1/leases/": 4096,
    "v1/policy.json": 128 << 10,
    "v1/journal/": 512 << 20,
    "v1/": _MAX_ENTRY,
    "autotune": 32 << 20,
}
"""Bytes of the largest object whose name begins so. Names that are not here are documents, or plain JAX's entries."""
_OF_MAINTENANCE: Final = ("v1/journal/", QUARANTINE, TEMPORARY)
_LARGE: Final = 64 << 20


def max_size(name: str) -> int:
    """Return the bytes that an object of this name has at most. A larger one was not written by ejcache."""
    return next((size for prefix, size in _MAX_SIZES.items() if name.startswith(prefix)), _MAX_ENTRY)


def is_plausible_entry(name: str, start: bytes, size: int) -> bool:
    """True if an entry that begins with `start` states in its header that it has `size` bytes; True for small ones."""
    if size <= _LARGE or not name.startswith(ENTRIES):
        return True
    try:
        entry.decode_header(start)
    except EntryVersionError:
        return True
    except EntryError:
        return False
    return entry.expected_size(start) == size


def may_hold_up(name: str) -> bool:
    """True if a program may wait for an object of this name, or for a listing of this prefix; else maintenance asks."""
    return not name.startswith(_OF_MAINTENANCE) and name not in ("", "v1/", ENTRIES)


def entry_name(key: str) -> str:
    """Return the name of the entry under `key`."""
    return ENTRIES + place_of_key(key)


def key_of_name(name: str) -> str | None:
    """Return the key of the entry with this name; None if no entry has such a name."""
    return key_of_place(name[len(ENTRIES) :]) if name.startswith(ENTRIES) else None
