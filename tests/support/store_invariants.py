"""What must hold of a store whenever nobody is in the middle of something: plain functions that raise `AssertionError`.

They use the public contract only, so that they can be called on any store, in a test or in a program that is
suspected; `check_everything` is all of them. They change nothing, recency included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ejcache.errors import InvalidKeyError
from ejcache.util.store_keys import check_key

if TYPE_CHECKING:
    from ejcache.stores.base import Store

__all__ = ["check_bound", "check_bytes", "check_everything", "check_listing"]


def check_bound(store: Store) -> None:
    """The bytes of all entries are at most the store's limit, by its own sum and by its listing."""
    if store.max_size <= 0:
        return
    listed = sum(info.size for info in store.entries())
    if max(store.size(), listed) > store.max_size:
        raise AssertionError(f"{store.url} holds {store.size()} bytes ({listed} listed) over {store.max_size}")


def check_listing(store: Store) -> None:
    """A listing names valid keys once each, with sane sizes and times, and its sizes add up to `size()`."""
    infos = list(store.entries())
    keys = [info.key for info in infos]
    if len(keys) != len(set(keys)):
        raise AssertionError(f"{store.url} lists a key twice: {sorted(key for key in keys if keys.count(key) > 1)}")
    for info in infos:
        try:
            check_key(info.key)
        except InvalidKeyError as exc:
            raise AssertionError(f"{store.url} lists a key that it could not hold: {info}") from exc
        if info.size < 0 or not 0 < info.created <= info.last_used:
            raise AssertionError(f"{store.url} lists an entry that cannot be: {info}")
    listed = sum(info.size for info in infos)
    if listed != store.size():
        raise AssertionError(f"{store.url} lists {listed} bytes and says that it holds {store.size()}")


def check_bytes(store: Store) -> None:
    """Every entry that is listed can be read, whole and by its beginning, and has the size that is listed."""
    for info in store.entries():
        if not store.contains(info.key):
            raise AssertionError(f"{store.url} lists {info.key!r} and does not contain it")
        data = store.peek(info.key)
        if data is None or len(data) != info.size:
            found = "nothing" if data is None else f"{len(data)} bytes"
            raise AssertionError(f"{store.url} lists {info.size} bytes under {info.key!r} and gives {found}")
        if store.peek(info.key, length=16) != data[:16]:
            raise AssertionError(f"{store.url} gives {info.key!r} another beginning than the whole has")


def check_everything(store: Store) -> None:
    """All of the checks above; for a store that nobody is changing."""
    check_bound(store)
    check_listing(store)
    check_bytes(store)
