"""Puts and removes the files of a local store, and makes room for them on a full disk."""

from __future__ import annotations

import contextlib
import heapq
import os
import secrets
import shutil
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.errors import StoreTooSmallError
from ejcache.stores.local.changes import Change
from ejcache.stores.local.layout import MAX_ENTRY_BYTES, PAIRS, START_BYTES
from ejcache.stores.local.order import is_full
from ejcache.util.files import open_like_directory
from ejcache.util.locks import locked_descriptors, try_lock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ejcache.stores.local.layout import Layout
    from ejcache.stores.local.order import EvictionOrder
    from ejcache.stores.local.transaction import Transaction

_LEAST: Final = 4
"""Entries that go where a disk is full: it may lack blocks, or files."""
_SAMPLE: Final = 64


class _Pending:
    """A file that is being written, and locked as long as its writer lives.

    Attributes:
        path: where it is until it has the name of an entry.
        about: its status once it is written.
        worth: what a use of it saves for each byte; None if nobody asks.
    """

    def __init__(self, path: str, about: os.stat_result, worth: float | None) -> None:
        self.path = path
        self.about = about
        self.worth = worth
        self.is_placed = False


def write_entry(order: EvictionOrder, name: str, data: bytes, *, replace: bool) -> bool | None:
    """Store `data` in the file of this name, and evict others until the limit holds.

    Args:
        order: of the store.
        name: of the entry.
        data: the entry.
        replace: an entry that is there is replaced.

    Returns:
        False if there is an entry and not `replace`; None if the directory was removed meanwhile.

    Raises:
        StoreTooSmallError: the entry does not fit; nothing was evicted that is not counted.
        StoreError: the order could not be used; the entry is absent, or as it was.
        OSError: a file could not be written; the same.
    """
    worth = None if order.rules.worth is None else order.rules.worth(data[:START_BYTES], len(data))
    with _written(order.layout, data, worth) as pending:
        return order.change(partial(_add, pending=pending, name=name, replace=replace))


@contextlib.contextmanager
def _written(layout: Layout, data: bytes, worth: float | None) -> Iterator[_Pending]:
    path = f"{layout.temporary}/{secrets.token_hex(8)}"
    fd = open_like_directory(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC)
    locked_descriptors.add(fd)
    pending = None
    try:
        try_lock(fd)
        done = os.write(fd, data)
        while done < len(data):  # one write(2) takes at most 2 GiB
            done += os.write(fd, memoryview(data)[done:])
        now = time.time_ns()
        os.utime(fd, ns=(now, now))
        pending = _Pending(path, os.fstat(fd), worth)
        yield pending
    finally:
        locked_descriptors.unlock(fd, remove=None if pending is not None and pending.is_placed else Path(path))


def _add(change: Transaction, *, pending: _Pending, name: str, replace: bool) -> bool | None:
    layout, size, seen = change.layout, pending.about.st_size, pending.about.st_mtime_ns
    directory, last = layout.make_parent(name)
    try:
        there = layout.look_below(directory, last)
        if there is not None and there.st_size <= MAX_ENTRY_BYTES and not replace:  # a larger file is no entry
            return os.path.samestat(there, pending.about)  # the order was made anew after it was placed
        before = None if there is None else there.st_size
        if not change.fit(size, before=before or 0, kept=name):
            raise StoreTooSmallError(f"an entry of {size} bytes is larger than the limit of {layout.root}")
        change.note({name: Change(before, size, seen, seen)}, worth=pending.worth)
        try:
            os.rename(pending.path, last, dst_dir_fd=directory)
        except FileNotFoundError:
            change.is_void = True
            return None
    finally:
        os.close(directory)
    pending.is_placed = True
    return True


def remove_entries(change: Transaction, names: Iterable[str]) -> list[str]:
    """Remove entries in a transaction; return the names of those that were there and could be removed.

    Raises:
        OSError: none of them could be removed.
    """
    looked = ((name, change.layout.look_at(name)) for name in names)
    there = {name: about for name, about in looked if about is not None}
    if there:
        change.note_removals(there)
    gone, failure = [], None
    for name, about in there.items():
        try:
            if change.delete(name, about, turn=about.st_mtime_ns):
                gone.append(name)
        except OSError as exc:
            failure = exc
    if failure is not None and not gone:
        raise failure
    if len(there) > 1:
        change.note({})  # so that nobody looks at all of them
    return gone


def remove_by_hand(order: EvictionOrder, names: Iterable[str]) -> list[str]:
    """Remove entries without an order, which is made anew; return the names of those that were there.

    For a full disk, on which no transaction can be made.
    """

    def remove() -> list[str]:
        order.forget()
        gone = [name for name in names if order.layout.remove(name)]
        order.layout.remove_dead()
        return gone

    return order.alone(remove)


def remove_all(order: EvictionOrder) -> None:
    """Remove every entry at once."""
    layout = order.layout

    def remove() -> None:
        order.forget()
        layout.put_away(f"{layout.local}/{pair}" for pair in PAIRS)

    order.alone(remove)
    layout.remove_dead()


def make_room(order: EvictionOrder, size: int) -> None:
    """Evict so many bytes, and a few entries, because the disk is full.

    Raises:
        StoreError: others kept the store busy, or the storage failed.
    """
    layout = order.layout

    def free(change: Transaction) -> int:
        is_enough = size <= shutil.disk_usage(layout.local).free + change.state.total
        return change.free(size, _LEAST) if is_enough else 0

    try:
        order.change(free)
    except OSError as exc:
        if not is_full(exc):
            raise
        oldest = heapq.nsmallest(_SAMPLE, layout.walk(), key=lambda each: each[1].st_mtime_ns)
        freed = 0
        names: list[str] = []
        for name, about in oldest:
            if freed >= size and len(names) >= _LEAST:
                break
            freed += about.st_size
            names.append(name)
        remove_by_hand(order, names)
    for pair in PAIRS:  # an empty directory takes a file's room
        with contextlib.suppress(OSError):
            Path(layout.local, pair).rmdir()
