"""Keeps entries in a directory of a local file system, shared by the processes of one host: the default.

An entry is a file that is named by its key (`layout`), and the files are the store. Guarantees:

* a hit opens a file, and a use sets its time: neither takes a lock, asks another file, or needs to write anything;
* a put is one transaction of the `order`: it is made, and others are evicted, or nothing has happened;
* no call waits longer than `timeout` for another process;
* the order is made again from the files if it is lost or damaged: that costs no entry and no hit.

Entries are code, so a directory that another user owns or can write to is refused (`util.files`).
"""

# pathlib's methods cost as much as the calls that they make, and most of these are on the path of every hit.
# ruff: noqa: PTH100, PTH110, PTH112

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.errors import StoreError, StoreReadOnlyError, StoreUnavailableError
from ejcache.stores.base import UNLIMITED, EntryInfo, Store
from ejcache.stores.local.counters import add_line, read_sums, reset
from ejcache.stores.local.failures import explain_error, explain_failure
from ejcache.stores.local.layout import MAX_ENTRY_BYTES, Layout
from ejcache.util.store_keys import check_key, key_digest, key_of_place, place_of_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import TypeVar

    from ejcache.stores.local.order import EvictionOrder
    from ejcache.stores.local.transaction import Transaction

    T = TypeVar("T")

TIMEOUT: Final = 5.0
"""Seconds to wait for other processes."""

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ABSENT: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)
_TRIES: Final = 5


class LocalStore(Store):
    """Entries in a local directory, shared by threads and processes, and across forks.

    Opening creates the directory if necessary. Where this user may not write, the store is `read_only` and its entries
    can be read.

    Args:
        path: the directory; `~` is not expanded.
        max_size: bytes of all entries, -1 for no limit, None for the limit that is written down in the store. Each
            process keeps its own limit when it writes.
        read_only: leave no trace; a directory that does not exist is an empty store and is not created.
        timeout: seconds that a call waits for other processes.
        trusted: use the directory even if other users could have put code there.
        evict_before: the keys of entries that are of no use while the entry of a key exists; they are evicted first.
        worth: what a use of an entry is worth for each byte, by its beginning and its size, if what is worth least is
            to be evicted first; None if what was not used for longest is.

    Raises:
        NotAStoreError: there is something else, or another format; nothing was changed.
        UntrustedDirectoryError: another user owns the directory of the store, or can write to it.
        StoreUnavailableError: it can neither be created nor read.
        StoreError: the storage failed, for example because the disk is full.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_size: int | None = UNLIMITED,
        read_only: bool = False,
        timeout: float = TIMEOUT,
        trusted: bool = False,
        evict_before: Callable[[str], Iterable[str]] | None = None,
        worth: Callable[[bytes, int], float] | None = None,
    ) -> None:
        self.path = Path(os.path.abspath(path))
        self.url = str(self.path)
        self._layout = Layout(self.path, trusted=trusted)
        self._wants_read_only = read_only
        self._timeout = timeout
        self._evict_before = evict_before
        self._worth = worth
        self._is_closed_to_us = False
        self.max_size = UNLIMITED
        self._open()
        self.max_size = self._layout.limit() if max_size is None else max_size

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, max_size={self.max_size}, read_only={self.read_only})"

    @property
    def read_only(self) -> bool:  # type: ignore[override]  # what the directory allows may change while it is open
        """True if writes raise `StoreReadOnlyError`: the caller wanted that, or this user may not write there."""
        return self._wants_read_only or self._is_closed_to_us

    def _open(self) -> None:
        """Look at the directory, and make it if it is to be written to and is not there."""
        is_there = self._layout.check()
        if self._wants_read_only:
            if not os.access(self._layout.local, os.R_OK | os.X_OK) and os.path.isdir(self._layout.local):
                raise explain_failure(Path(self._layout.local), PermissionError(errno.EACCES, "Permission denied"))
            return
        try:
            if not is_there:
                self._layout.make_directories()
            self._is_closed_to_us = not os.access(self._layout.temporary, os.W_OK | os.X_OK)
        except OSError as exc:
            if isinstance(exc, StoreError):
                raise
            self._is_closed_to_us = self._may_read(exc)
            if not self._is_closed_to_us:
                odd = (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP)
                if exc.errno in (*odd, errno.EINVAL):
                    raise explain_failure(self.path, exc) from exc
                raise explain_error(exc, self.path) from exc

    def _may_read(self, exc: OSError) -> bool:
        if exc.errno == errno.EROFS:
            return self.path.is_dir()
        if exc.errno not in (errno.EACCES, errno.EPERM) or not os.access(self.path, os.R_OK | os.X_OK):
            return False
        local = self._layout.local
        return not os.path.exists(local) or os.access(local, os.R_OK | os.X_OK)

    # -- reading ---------------------------------------------------------------------------------------------------

    def get(self, key: str) -> bytes | None:
        """Return the bytes under `key`, or None. Whether they are the right ones is checked by `ejcache.entry`.

        Raises:
            StoreError: the storage failed.
        """
        return self.peek(key)

    def peek(self, key: str, *, length: int | None = None) -> bytes | None:
        """Return the bytes under `key`, or their first `length`, or None."""
        try:
            directory, name = self._layout.open_parent(place_of_key(check_key(key)))
            try:
                fd = os.open(name, _READ, dir_fd=directory)
            finally:
                os.close(directory)
            try:
                about = os.fstat(fd)
                if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_ENTRY_BYTES:
                    return None
                wanted = about.st_size if length is None else min(length, about.st_size)
                data = os.read(fd, wanted)
                while len(data) < wanted:  # one read(2) returns at most 2 GiB
                    more = os.read(fd, wanted - len(data))
                    if not more:
                        return None
                    data += more
                return data
            finally:
                os.close(fd)
        except OSError as exc:
            self._explain(exc)
            return None

    def _explain(self, exc: OSError) -> None:
        """Raise the error for a failure to look at an entry, unless it says that there is none."""
        if exc.errno == errno.ENOTDIR:
            self._layout.check()  # there may be a file where the store was
        if exc.errno not in _ABSENT:
            error = explain_error(exc, self.path)
            raise StoreError(str(error)) if isinstance(error, StoreReadOnlyError) else error

    def note_used(self, key: str) -> None:
        """Note a use of an entry that was read a moment ago, in the time of its file.

        It is lost where this user may not write, and where it would copy the file from the image of a container.
        """
        if self._wants_read_only:
            return
        with contextlib.suppress(OSError):
            directory, name = self._layout.open_parent(place_of_key(check_key(key)))
            try:
                if self._lower_until:
                    about = os.stat(name, dir_fd=directory, follow_symlinks=False)
                    if about.st_ctime_ns < self._lower_until:
                        return
                now = time.time_ns()
                try:
                    os.utime(name, ns=(now, now), dir_fd=directory, follow_symlinks=False)
                except PermissionError:  # who may write to another user's file may set it to now
                    os.utime(name, dir_fd=directory, follow_symlinks=False)
            finally:
                os.close(directory)

    @cached_property
    def _lower_until(self) -> int:
        return self._layout.lower_until()

    def contains(self, key: str) -> bool:
        """True if `get` would find an entry."""
        try:
            about = self._layout.look_at(place_of_key(check_key(key)))
        except OSError as exc:
            self._explain(exc)
            return False
        return about is not None and about.st_size <= MAX_ENTRY_BYTES

    def entries(self) -> Iterator[EntryInfo]:
        """List every entry, directory by directory; no lock is held. Other files are left out."""
        from ejcache.stores.worth import created_of, worth_of_bytes  # the door to a listing

        now = time.time()
        for name, about in self._layout.walk():
            key = key_of_place(name)
            if key is not None:
                start = self._layout.start_of(name)
                used = min(about.st_mtime, max(now, time.time()))
                created = min(created_of(start, otherwise=used), used)
                yield EntryInfo(key, about.st_size, created, used, worth=worth_of_bytes(start))

    def size(self) -> int:
        """Return the bytes of all entries, from the sum that the order keeps, or by a listing."""
        if not self.read_only and os.path.isdir(self._layout.local):
            with contextlib.suppress(StoreError, FileNotFoundError):
                total = self._order.change(lambda change: change.state.total if change.state.is_sized else None)
                if total is not None:
                    return total
        self._layout.check()
        return sum(about.st_size for _, about in self._layout.walk())

    # -- writing ---------------------------------------------------------------------------------------------------

    def put(self, key: str, data: bytes) -> bool:
        """Create the entry and evict others until the limit holds; False if there is one already.

        Raises:
            StoreTooSmallError: `data` is larger than `max_size`; nothing was evicted.
            StoreReadOnlyError: the store is read-only.
            StoreBusyError: another process kept the store busy.
            StoreError: the storage failed; the entry is absent.
        """
        self._check_write(data)
        return not self.contains(key) and self._write(key, data, replace=False)

    def replace(self, key: str, data: bytes) -> None:
        """Store `data` under `key`, in place of any entry there; raises as `put` does, and changes nothing then."""
        check_key(key)
        self._check_write(data)
        self._write(key, data, replace=True)

    def _write(self, key: str, data: bytes, *, replace: bool) -> bool:
        from ejcache.stores.local.order import is_full  # the door to a put
        from ejcache.stores.local.writing import write_entry  # the door to a put

        name, is_last = place_of_key(key), False
        for _ in range(_TRIES):
            try:
                done = write_entry(self._order, name, data, replace=replace)
            except OSError as exc:
                if exc.errno in (errno.ENOENT, errno.ENOTDIR) and not isinstance(exc, StoreError):
                    done = None
                elif is_last or not is_full(exc):
                    raise exc if isinstance(exc, StoreError) else explain_error(exc, self.path) from exc
                else:
                    is_last, done = True, None
                    self._make_room(len(data))
                    continue
            if done is not None:
                return done
            self._open()  # the directory was removed or replaced, or a sweep was quicker
            self._check_writable()
        raise StoreUnavailableError(f"{self.path} is being removed or replaced again and again")

    def _make_room(self, size: int) -> None:
        from ejcache.stores.local.writing import make_room  # the door to a put

        try:
            make_room(self._order, size)
        except OSError as exc:
            raise exc if isinstance(exc, StoreError) else explain_error(exc, self.path) from exc

    @cached_property
    def _order(self) -> EvictionOrder:
        from ejcache.stores.local.order import EvictionOrder  # the door to a put
        from ejcache.stores.local.transaction import EvictionRules  # the door to a put

        rules = EvictionRules(self._layout, self.max_size, self._evict_before, self._worth)
        return EvictionOrder(rules, timeout=self._timeout)

    def _change(self, action: Callable[[Transaction], T]) -> T | None:
        """Return what `action` does in a transaction; None if there is no store."""
        if not os.path.isdir(self._layout.local):
            self._layout.check()
            return None
        try:
            return self._order.change(action)
        except FileNotFoundError:
            return None
        except StoreError:
            raise
        except OSError as exc:
            raise explain_error(exc, self.path) from exc

    def delete(self, key: str) -> bool:
        """Remove the entry; False if there was none. Works on a full disk."""
        return key in self.delete_many([key])

    def delete_many(self, keys: Iterable[str]) -> set[str]:
        """Remove these entries in one transaction; return the keys of those that were removed.

        Raises:
            StoreReadOnlyError: the store is read-only.
            StoreError: the order could not be used, or none of them could be removed.
        """
        names = {place_of_key(check_key(key)): key for key in keys}
        self._check_writable()
        names = {name: key for name, key in names.items() if self.contains(key)}
        if not names:
            return set()
        from ejcache.stores.local.order import is_full  # the door to a put
        from ejcache.stores.local.writing import remove_by_hand, remove_entries  # the door to a put

        try:
            gone = self._change(partial(remove_entries, names=names)) or []
        except StoreError as exc:
            if not is_full(exc):
                raise
            gone = remove_by_hand(self._order, names)
        return {names[name] for name in gone}

    def clear(self) -> None:
        """Remove every entry at once. Works on a full disk."""
        self._check_writable()
        if not os.path.isdir(self._layout.local):
            return
        from ejcache.stores.local.writing import remove_all  # the door to a put

        try:
            remove_all(self._order)
        except OSError as exc:
            raise exc if isinstance(exc, StoreError) else explain_error(exc, self.path) from exc

    def quarantine(self, key: str, data: bytes, *, wrong: bool = False) -> bool:
        """Take the entry out of use if it still is exactly `data`, and keep a copy if there is room for it."""
        check_key(key)
        self._check_writable()
        if self.peek(key) != data:
            return False
        from ejcache.stores.local.quarantine import quarantine_entry  # the door to repair
        from ejcache.stores.local.writing import remove_entries  # the door to a put

        def take_out(change: Transaction) -> bool:
            return self.peek(key) == data and bool(remove_entries(change, [place_of_key(key)]))

        taken = self._change(take_out) or False
        if taken:
            quarantine_entry(self.path, key_digest(key, 16), data, max_size=self.max_size, wrong=wrong)
        return taken

    def restore(self, key_of: Callable[[bytes], str | None]) -> int:
        """Put back what is intact in quarantine, as far as there is room."""
        from ejcache.stores.local.quarantine import restore  # the door to repair

        self._check_writable()
        return restore(self, self.path, key_of, max_bytes=MAX_ENTRY_BYTES)

    def check(self, *, fix: bool = False) -> list[str]:
        """Return the problems of the store's structures, one sentence each; the content of entries is not examined.

        Args:
            fix: remove what is no entry, and make the order anew if its sum is wrong. The problems that were found are
                returned.

        Raises:
            StoreReadOnlyError: something is to be fixed in a store that is read-only.
        """
        if fix:
            self._check_writable()
        self._layout.check()
        odd_names = [name for name, _ in self._layout.walk() if key_of_place(name) is None]
        odd = [f"{name!r} is no entry's name" for name in odd_names]
        if self.read_only:
            return odd
        for name in odd_names if fix else ():
            with contextlib.suppress(OSError):
                self._layout.remove(name)
        drift = 0
        if os.path.isdir(self._layout.local):
            with self._explained():
                drift = _check_sum(self._order, fix=fix)
        return odd + ([f"the stored sum of sizes is wrong by {drift} bytes"] if drift else [])

    def overhead(self, number: int) -> int:
        """Return at most how many bytes of the disk are taken beyond those of so many entries."""
        from ejcache.stores.local.overhead import overhead_of  # the door to a command

        try:
            return overhead_of(self._layout, number)
        except OSError as exc:
            raise explain_error(exc, self.path) from exc

    # -- counters --------------------------------------------------------------------------------------------------

    def add_counters(self, amounts: Mapping[str, float]) -> None:
        """Add to the counters kept with the store, by one line.

        They are lost in a read-only store, and in one whose directory was removed: counters alone do not make it again.
        """
        if amounts and not self.read_only and os.path.isdir(self._layout.local):
            with self._explained():
                add_line(self._layout, amounts, timeout=self._timeout)

    def counters(self) -> dict[str, float]:
        """Return the counters kept with the store."""
        return read_sums(self._layout)

    def reset_counters(self) -> None:
        """Start counting from zero."""
        self._check_writable()
        with self._explained():
            reset(self._layout, timeout=self._timeout)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (StoreError, FileNotFoundError) as exc:
            if isinstance(exc, StoreError):
                raise
        except OSError as exc:
            raise explain_error(exc, self.path) from exc

    def close(self) -> None:
        """Release what this process holds. The store can still be used."""
        order = self.__dict__.get("_order")
        if order is not None:
            order.close()

    def _check_writable(self) -> None:
        if self._wants_read_only:
            raise StoreReadOnlyError(f"{self.url} is open for reading only")
        if self._is_closed_to_us:
            self._open()
        if self._is_closed_to_us:
            raise StoreReadOnlyError(f"{self.url} cannot be written by this user")


def _count_all(order: EvictionOrder) -> None:
    """Count all files that are not counted yet, in many transactions."""
    while not order.change(lambda change: change.state.is_complete or change.count_share().is_complete):
        pass


def _check_sum(order: EvictionOrder, *, fix: bool) -> int:
    """Return by how many bytes the sum is wrong; with `fix`, make the order anew."""
    from ejcache.stores.local.writing import remove_by_hand  # the door to a put

    _count_all(order)
    drift = order.change(lambda change: change.state.total - sum(about.st_size for _, about in change.layout.walk()))
    if fix and drift:
        remove_by_hand(order, ())
        _count_all(order)
    return drift
