"""A node-local store over a shared one: read through, written to the local one at once and to the shared one behind.

* a hit of the local tier asks nobody else; a hit of the shared one is verified and copied into the local one;
* processes of one host share the local tier, and of several that miss at once one asks the shared tier;
* a `put` returns when the local tier has the entry; the shared tier's trouble is never the caller's;
* a shared tier in trouble is left alone for a while (`breaker`), and probed behind the program.

What is uploaded later, and by whom when this process is killed, is said in `uploads` and `spool`.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  # cannot be imported any more when uploads are awaited at exit
import contextlib
import logging
import os
import threading
import weakref
from typing import TYPE_CHECKING, Final

from ejcache.errors import StoreError, StoreReadOnlyError, StoreTooSmallError
from ejcache.stores.background import BackgroundWorker
from ejcache.stores.base import EntryInfo, Store, check_key
from ejcache.stores.breaker import breaker_for
from ejcache.stores.fetching import HostFetches
from ejcache.stores.read_through import ReadThrough
from ejcache.stores.spool import PUT, REPLACE, Spool
from ejcache.stores.tier import Tier, TierCounters
from ejcache.stores.uploads import Uploads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

__all__ = ["DRAIN_SECONDS", "TieredStore"]

log = logging.getLogger("ejcache")

DRAIN_SECONDS: Final = 5.0
"""At the end of a program, seconds to wait for the next pending upload to finish."""
_DRAIN_LIMIT: Final = 60.0
_RETRY_SECONDS: Final = 15.0


_SETTLE_SECONDS: Final = 5.0
"""How long a quarantine waits for an upload of the entry that is under way."""


def _accept(key: str, data: bytes) -> None:
    """What stores that know nothing of bytes take for intact."""


class TieredStore(Store):
    """Entries of `shared`, kept nearer in `local`. Safe for threads, processes and forks; it owns both.

    Args:
        local: this host's, with a limit of its own.
        shared: everybody's.
        scratch: a directory on a local file system for locks and for what is yet to be uploaded, one for each pair
            of tiers; None does without both.
        verify: `verify(key, data)` raises an `EntryError` for bytes that must not get from one tier to the other.
        read_only: writes raise `StoreReadOnlyError`; what is read is still copied into a local tier that is not.
        drain_seconds: what closing waits for the next pending upload to finish.
        worker: whose threads upload; one of its own if not given.
    """

    def __init__(
        self,
        local: Store,
        shared: Store,
        *,
        scratch: Path | None = None,
        verify: Callable[[str, bytes], object] = _accept,
        read_only: bool = False,
        drain_seconds: float = DRAIN_SECONDS,
        worker: BackgroundWorker | None = None,
    ) -> None:
        self.local = local
        self.shared = shared
        self.url = shared.url
        self.max_size = shared.max_size
        self.read_only = read_only
        self.worker = worker or BackgroundWorker()
        self._drain_seconds = drain_seconds
        self._counters = TierCounters()
        self._local = Tier("local", local, breaker=breaker_for(local.url), counters=self._counters, probe=self._probe)
        self._shared = Tier(
            "shared", shared, breaker=breaker_for(shared.url), counters=self._counters, probe=self._probe
        )
        self._fetches = HostFetches(None if scratch is None else scratch / "fetch")
        self._reading = ReadThrough(
            self._local, self._shared, fetches=self._fetches, verify=verify, read_only=read_only
        )
        spool = None if scratch is None or read_only else Spool(scratch / "spool")
        self._uploads = Uploads(self._local, self._shared, spool=spool, worker=self.worker, verify=verify)
        self._before_close: list[Callable[[], None]] = []
        self._when_closing: list[Callable[[], object]] = []
        self._awake = False
        if not read_only:
            self.worker.every(_RETRY_SECONDS, self._retry)
        _open.add(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.local!r}, {self.shared!r}, read_only={self.read_only})"

    # -- reading ---------------------------------------------------------------------------------------------------

    def get(self, key: str) -> bytes | None:
        """The bytes under `key`, or None; the entry becomes the most recently used in both tiers.

        Bytes of the shared tier that `verify` refuses are set aside there and kept from the local tier, but still
        returned: only the caller can say what is wrong with them.

        Raises:
            StoreError: the local tier has no entry and the shared one cannot be asked.
        """
        self._wake()
        return self._reading.get(check_key(key))

    def peek(self, key: str, *, length: int | None = None) -> bytes | None:
        """The bytes under `key`, or their first `length`, or None; recency is left alone and nothing is copied."""
        check_key(key)
        with contextlib.suppress(StoreError):
            data = self._local.call(lambda store: store.peek(key, length=length))
            if data is not None:
                return data
        return self._shared.call(lambda store: store.peek(key, length=length))

    def contains(self, key: str) -> bool:
        """Whether `get` would find an entry; one request if the local tier has none."""
        check_key(key)
        with contextlib.suppress(StoreError):
            if self._local.call(lambda store: store.contains(key)):
                return True
        return self._shared.call(lambda store: store.contains(key))

    def entries(self) -> Iterator[EntryInfo]:
        """Every entry of either tier; of one that both have, as the local tier knows it."""
        seen = set()
        with contextlib.suppress(StoreError):
            for info in self._local.call(lambda store: list(store.entries())):
                seen.add(info.key)
                yield info
        for info in self._shared.call(lambda store: store.entries()):
            if info.key not in seen:
                yield info

    def size(self) -> int:
        """Bytes of all entries of either tier, by a listing."""
        return sum(info.size for info in self.entries())

    # -- writing ---------------------------------------------------------------------------------------------------

    def put(self, key: str, data: bytes) -> bool:
        """Create the entry in the local tier, and in the shared one behind; False if the local tier has one.

        Raises:
            StoreTooSmallError: `data` is larger than the shared tier's limit.
            StoreReadOnlyError: the store is read-only.
            StoreError: the local tier failed, and there is no room to keep the entry for the shared one.
        """
        return self._write(key, data, PUT)

    def replace(self, key: str, data: bytes) -> None:
        """Put `data` under `key` in both tiers, in the shared one behind; raises as `put` does."""
        self._write(key, data, REPLACE)

    def _write(self, key: str, data: bytes, how: str) -> bool:
        check_key(key)
        self._check_writable()
        self._wake()
        if not isinstance(data, bytes):
            raise TypeError(f"an entry is bytes, not {type(data).__name__}")
        if 0 <= self.max_size < len(data):
            raise StoreTooSmallError(
                f"an entry of {len(data)} bytes does not fit into {self.url}, whose limit is {self.max_size}"
            )
        if self.shared.read_only:
            return self._write_local(key, data, how)
        self._uploads.announce(key, how)
        try:
            created = self._write_local(key, data, how)
        except StoreError as exc:
            log.debug("%s goes to the shared tier only: %s", key, exc)
            if not self._uploads.add(key, how, data):
                raise
            return True
        except BaseException:
            self._uploads.withdraw(key)
            raise
        if created:
            self._uploads.add(key, how)
        else:
            self._uploads.withdraw(key)
        return created

    def _write_local(self, key: str, data: bytes, how: str) -> bool:
        if how == PUT:
            created = self._local.call(lambda store: store.put(key, data))
        else:
            try:
                self._local.call(lambda store: store.replace(key, data))
            except StoreError:
                with contextlib.suppress(StoreError):
                    self._local.call(lambda store: store.delete(key))  # rather none than the old one
                raise
            created = True
        if created:
            self._local.count("writes")
        return created

    def delete(self, key: str) -> bool:
        """Remove the entry from both tiers; False if neither had one.

        Raises:
            StoreError: a tier failed, and may still have the entry.
        """
        check_key(key)
        self._check_writable()
        self._uploads.cancel(key)
        here = self._local.call(lambda store: store.delete(key))
        return self._shared.call(lambda store: store.delete(key)) or here

    def quarantine(self, key: str, data: bytes) -> bool:
        """Take the entry out of use in each tier in which it still is exactly `data`; False if in neither.

        Raises:
            StoreError: the shared tier failed, and the local one had another entry or none.
        """
        check_key(key)
        self._check_writable()
        # What is on its way is compared where it arrives: taken out here only, it would be there a moment later.
        settled = threading.Event()
        self._uploads.when_tried(key, settled.set)
        settled.wait(_SETTLE_SECONDS)
        # Two processes of this host that met the same damage must not find one tier each.
        with self._fetches.apart(key):
            return self._quarantine(key, data)

    def _quarantine(self, key: str, data: bytes) -> bool:
        here = False
        with contextlib.suppress(StoreError):
            here = not self.local.read_only and self._local.call(lambda store: store.quarantine(key, data))
            if not here and self._local.call(lambda store: store.contains(key)):
                return False  # what anybody sees is another entry already
        if here:
            self._local.count("corrupt")
        replaced = here and self._uploads.cancel(key) == REPLACE
        try:
            if replaced:
                self._shared.call(lambda store: store.delete(key))  # what was being replaced must not come back
            elif not self.shared.read_only and self._shared.call(lambda store: store.quarantine(key, data)):
                self._shared.count("corrupt")
                return True
        except StoreError:
            if not here:
                raise
        return here

    # -- counters --------------------------------------------------------------------------------------------------

    def add_counters(self, amounts: Mapping[str, float]) -> None:
        """Add to the counters kept with each tier; as far as one can be reached."""
        if self.read_only:
            return
        for tier in (self._local, self._shared):
            with contextlib.suppress(StoreError):
                tier.call(lambda store: store.add_counters(amounts))

    def counters(self) -> dict[str, float]:
        """The counters kept with the shared tier; with the local one while the shared one cannot be asked."""
        try:
            return self._shared.call(lambda store: store.counters())
        except StoreError:
            return self._local.call(lambda store: store.counters())

    def reset_counters(self) -> None:
        """Start counting from zero, in both tiers."""
        self._check_writable()
        self._local.call(lambda store: store.reset_counters())
        self._shared.call(lambda store: store.reset_counters())

    def tier_counters(self) -> dict[str, float]:
        """What this process did with each tier, by names that begin with `local_` and `shared_`."""
        return self._counters.totals()

    def take_tier_counters(self) -> dict[str, float]:
        """What `tier_counters` has counted since the last call, to be kept with `add_counters`."""
        return self._counters.take()

    # -- uploads and the end ---------------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until nothing is left to upload; False if something is.

        Args:
            timeout: seconds in all; without it, as long as uploads go on finishing.
        """
        if timeout is None:
            return self._uploads.flush(patience=self._drain_seconds, limit=_DRAIN_LIMIT)
        return self._uploads.flush(patience=timeout, limit=timeout)

    def when_uploaded(self, key: str, callback: Callable[[], None]) -> bool:
        """Call `callback`, from any thread, once the upload of `key` was tried; at once if none is pending.

        Returns:
            Whether the key has an upload, or had one a moment ago: whether others will find an entry.
        """
        return self._uploads.when_tried(key, callback)

    def before_close(self, task: Callable[[], None]) -> None:
        """Run `task` among the uploads that are awaited each time the store is closed, and when the program ends."""
        self._before_close.append(task)

    def when_closing(self, callback: Callable[[], object]) -> None:
        """Call `callback` whenever the store is closed, when uploads are done and before the tiers are closed."""
        self._when_closing.append(callback)

    def close(self) -> None:
        """Upload what is pending as far as time allows, leave the rest to the next process, and close both tiers."""
        for task in self._before_close:
            self.worker.submit(task)
        if not self.flush():
            if self.worker.waiting:
                # Whatever has not answered until now would keep the program waiting once more.
                self._shared.breaker.fail(seconds=float("inf"))
            log.info("ejcache: %d uploads are left to the next process on this host", len(self._uploads))
        self.worker.stop()
        self._awake = False
        self._uploads.leave()
        for callback in self._when_closing:
            callback()
        self.local.close()
        with contextlib.suppress(StoreError):
            self._shared.call(lambda store: store.close())

    # -- inside ----------------------------------------------------------------------------------------------------

    def _check_writable(self) -> None:
        if self.read_only:
            raise StoreReadOnlyError(f"{self.url} is open for reading only")

    def _probe(self, tier: Tier) -> None:
        def probe() -> None:
            tier.probe()

        self.worker.submit(probe)

    def _wake(self) -> None:
        if not self._awake and not self.read_only:
            self._awake = True
            self.worker.submit(self._resume)

    def _resume(self) -> None:
        self._uploads.resume()

    def _retry(self) -> None:
        self._uploads.resume()
        self._uploads.retry()

    def _after_fork(self) -> None:
        self._awake = False
        self._counters.after_fork()
        self._uploads.after_fork()


_open: Final[weakref.WeakSet[TieredStore]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for store in list(_open):
        store.close()


def _after_fork_in_child() -> None:
    for store in list(_open):
        store._after_fork()  # noqa: SLF001  # the other half of the class


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
