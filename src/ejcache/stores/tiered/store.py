"""Keeps entries on this host and in a shared store: read through, written here at once and there later.

* A hit of the local tier asks nobody else. A hit of the shared tier is verified and copied into the local one.
* The processes of a host share the local tier; if several miss at once, one asks the shared tier for all.
* A `put` returns when the local tier has the entry. Failures of the shared tier never reach its caller.
* A shared tier that failed is not asked for a while (`CircuitBreaker`), and is probed in the background.
* Damaged bytes never get from one tier to the other. Who finds them calls `quarantine`, which handles both tiers.

`uploads` describes when an entry is uploaded, and by which process if this one is killed; `host_notes`
describes the entries for which the shared tier is not asked.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # cannot be imported any more when uploads are awaited at exit
import contextlib
import threading
import time
from operator import methodcaller
from typing import TYPE_CHECKING, Final

from ejcache.bucket.breaker import breaker_for
from ejcache.errors import EntryError, StoreError
from ejcache.stores.base import Store
from ejcache.stores.host_notes import HostNotes
from ejcache.stores.tiered.host_fetches import HostFetches
from ejcache.stores.tiered.pending_uploads import PUT, REPLACE, PendingUploads
from ejcache.stores.tiered.tier import Tier
from ejcache.stores.tiered.uploads import Uploads
from ejcache.util.lifecycle import AtExit, ExitPhase, is_ending, track_forks
from ejcache.util.log import log
from ejcache.util.scheduler import Scheduler
from ejcache.util.store_keys import check_key
from ejcache.util.tally import Tally
from ejcache.util.threads import in_parallel
from ejcache.util.time_budget import spending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from ejcache.stores.base import EntryInfo
    from ejcache.util.time_budget import Budget

SLOW_SECONDS: Final = 0.5
"""An answer that takes as long is slow."""
_UPLOADS: Final = 4
"""How many at once: storage may take a second for each answer."""
DRAIN_SECONDS: Final = 5.0
"""At the end of a program, seconds to wait for the next pending upload to finish."""
_DRAIN_LIMIT: Final = 60.0
_RETRY_SECONDS: Final = 15.0
_SETTLE_SECONDS: Final = 5.0
"""Seconds that a quarantine waits for an upload of the entry that is running."""


def _accept(key: str, data: bytes) -> None:
    """Take any bytes for intact."""


class TieredStore(Store):
    """Entries of `shared`, with copies in `local`. Safe for threads, processes and forks. It owns both stores.

    Args:
        local: of this host, with its own limit.
        shared: of all hosts.
        scratch: a directory on a local file system for locks and pending uploads, one for each pair of tiers; without
            it, processes fetch independently and what a killed process had to upload is lost.
        spool: where pending uploads are noted, if that is not in `scratch`.
        verify: `verify(key, data)` raises an `EntryError` for bytes that must not be copied to the other tier.
        read_only: writes raise `StoreReadOnlyError`; entries that are read are still copied into a writable local tier.
        drain_seconds: how long closing waits for the next pending upload to finish.
        worker: its threads upload; one of its own by default.
        slow_seconds: an answer of the shared tier that takes as long is slow.

    Attributes:
        verify: as it was given.
        verify_upload: is called as `verify` is, before each upload; StoreError means that it is tried again later.
    """

    has_two_tiers = True

    def __init__(
        self,
        local: Store,
        shared: Store,
        *,
        scratch: Path | None = None,
        spool: Path | None = None,
        verify: Callable[[str, bytes], object] = _accept,
        read_only: bool = False,
        drain_seconds: float = DRAIN_SECONDS,
        worker: Scheduler | None = None,
        slow_seconds: float = SLOW_SECONDS,
    ) -> None:
        self.local = local
        self.shared = shared
        self.url = shared.url
        self.max_size = shared.max_size
        self.read_only = read_only
        self._only_reads = shared.read_only  # as was asked for: that the storage refuses writes is found out later
        self.worker = worker or Scheduler(threads=_UPLOADS, spare=1)
        self.verify = self.verify_upload = verify
        self._drain_seconds = drain_seconds
        self._slow_seconds = slow_seconds
        self._misses_slowly = False
        self._tally = Tally()
        self._for_local = Tally()
        self._local = Tier("local", local, breaker=breaker_for(local.url), tally=self._tally)
        self._shared = Tier("shared", shared, breaker=breaker_for(shared.url), tally=self._tally)
        self._fetches = HostFetches(None if scratch is None else scratch / "fetch")
        self._notes = HostNotes(None if scratch is None else scratch / "notes")
        pending = None if scratch is None or read_only else PendingUploads(spool or scratch / "spool")
        self._uploads = Uploads(
            self._local,
            self._shared,
            lock=self._fetches.uploading,
            pending=pending,
            worker=self.worker,
            verify=self._verify_upload,
        )
        self._before_close: list[Callable[[], None]] = []
        self._when_closing: list[Callable[[], object]] = []
        self._awake = False
        if not read_only:
            self.worker.every(_RETRY_SECONDS, self._retry)
        _open.add(self)
        track_forks(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.local!r}, {self.shared!r}, read_only={self.read_only})"

    # -- reading ---------------------------------------------------------------------------------------------------

    def get(self, key: str) -> bytes | None:
        """Return the bytes under `key`, or None.

        Bytes of the shared tier that `verify` refuses are returned and not copied: the caller quarantines them.

        Raises:
            StoreError: the local tier has no entry and the shared one cannot be asked.
        """
        return self.get_verified(key)[0]

    def get_verified(
        self,
        key: str,
        *,
        local_only: bool = False,
        budget: Callable[[], Budget] | None = None,
        beside: Callable[[], object] | None = None,
    ) -> tuple[bytes | None, object]:
        """Get, with what `verify` returned for bytes that came from the shared tier (see `TwoTiers`)."""
        if not self._awake:
            self._wake()
        data = self._get_local(key, "reads", "hits")
        if data is None:
            check_key(key)
            self._local.count("misses")
            if local_only:
                return None, None
            verified: list[object] = []
            with spending(None if budget is None else budget()):
                data = self._fetches.run(
                    key, again=lambda: self._get_local(key), fetch=lambda: self._fetch(key, verified, beside)
                )
            return data, verified[0] if verified else None
        return data, None

    def note_used(self, key: str) -> None:
        """Note a use in both tiers. No tier is asked."""
        self.local.note_used(key)
        if not self.read_only:
            self.shared.note_used(key)

    def note_used_here(self, key: str) -> None:
        """Note a use in the tier of this host."""
        self.local.note_used(key)

    def _get_local(self, key: str, *counted: str) -> bytes | None:
        with contextlib.suppress(StoreError):
            data: bytes | None = self._local.call(methodcaller("get", key))
            if data is not None:
                self._local.count(*(counted or ("reads",)))
            return data
        return None

    def _fetch(self, key: str, verified: list[object], beside: Callable[[], object] | None = None) -> bytes | None:
        self._shared.count("reads")
        if beside is not None and self._misses_slowly:
            beside()
        began = time.monotonic()
        data = self._shared.call(lambda store: store.get(key))
        self._shared.count("misses" if data is None else "hits")
        is_slow = time.monotonic() - began >= self._slow_seconds
        # Storage that refuses some requests is not sent more of them than it needs.
        self._misses_slowly = data is None and is_slow and not self.shared.failed_tries()
        if data is None:
            return None
        # An entry of a later version is not copied either: this version could not tell whether the copy is intact.
        with contextlib.suppress(EntryError, StoreError):
            verified.append(self.verify(key, data))
            if not self.local.read_only and self._local.call(lambda store: store.put(key, data)):
                self._local.count("backfills")
        return data

    def has_local(self, key: str) -> bool:
        """True if the local tier has the entry."""
        with contextlib.suppress(StoreError):
            return self._local.call(lambda store: store.contains(key))
        return False

    def patience(self) -> float:
        """Return seconds that it is worth waiting for the shared tier (`Tier.patience`)."""
        return self._shared.patience

    def prefetch(
        self, keys: Iterable[str], *, requests: int, wanted: Callable[[str], bool]
    ) -> Iterator[tuple[str, bool]]:
        """Copy entries that will be asked for into the local tier, by concurrent requests.

        Of the processes of a host, one fetches so at a time, so that the host makes at most `requests` at once; a
        process that has waited for long makes them one by one. After the first sign that the shared tier is throttled
        or fails, nothing more is asked for.

        Args:
            keys: of entries.
            requests: how many are made at once.
            wanted: whether an entry is still to be fetched; asked before each request.

        Yields:
            Each key, in the order in which it becomes known, and whether its entry is in the local tier.
        """
        if self.local.read_only:
            return
        missing = []
        for key in keys:
            if self.has_local(key):
                yield key, True
            else:
                missing.append(key)
        if not missing:
            return
        failed = self.shared.failed_tries()
        stopped = threading.Event()

        def fetch(key: str) -> tuple[str, bool]:
            if stopped.is_set() or self._shared.breaker.is_open or not wanted(key):
                return key, False
            found = None
            try:
                found = self._fetches.run(key, again=lambda: self._get_local(key), fetch=lambda: self._fetch(key, []))
            except StoreError as exc:
                log.debug("%s is not prefetched: %s", key, exc)
                stopped.set()
            if self.shared.failed_tries() != failed:
                stopped.set()
            return key, found is not None

        with self._fetches.many() as alone:
            yield from in_parallel(fetch, missing, threads=requests if alone else 1)

    def peek(self, key: str, *, length: int | None = None) -> bytes | None:
        """Return the bytes under `key`, or their first `length`, or None; nothing is copied."""
        check_key(key)
        with contextlib.suppress(StoreError):
            data = self._local.call(lambda store: store.peek(key, length=length))
            if data is not None:
                return data
        return self._shared.call(lambda store: store.peek(key, length=length))

    def contains(self, key: str) -> bool:
        """True if `get` would find an entry; one request if the local tier has none."""
        return self.has_local(check_key(key)) or self._shared.call(lambda store: store.contains(key))

    def entries(self) -> Iterator[EntryInfo]:
        """Yield every entry of either tier; of one that both have, as the local tier knows it."""
        seen = set()
        with contextlib.suppress(StoreError):
            for info in self._local.call(lambda store: list(store.entries())):
                seen.add(info.key)
                yield info
        for info in self._shared.call(lambda store: store.entries()):
            if info.key not in seen:
                yield info

    def size(self) -> int:
        """Return bytes of all entries of either tier, by a listing."""
        return sum(info.size for info in self.entries())

    # -- writing ---------------------------------------------------------------------------------------------------

    def put(self, key: str, data: bytes) -> bool:
        """Create the entry in the local tier now and in the shared one later; False if the local tier has one.

        Raises:
            StoreTooSmallError: `data` is larger than the shared tier's limit.
            StoreReadOnlyError: the store is read-only.
            StoreError: the local tier failed, and there is no memory left to keep the entry for the shared one.
        """
        return self._write(key, data, PUT)

    def replace(self, key: str, data: bytes) -> None:
        """Put `data` under `key` in the local tier now and in the shared one later; raises as `put` does."""
        self._write(key, data, REPLACE)

    def put_here(self, key: str, data: bytes, *, replacing: bool = False) -> bool:
        """Put or replace the entry in the local tier; it is never uploaded. Raises as `put` does."""
        check_key(key)
        self._check_writable()
        self._wake()
        return self._write_local(key, data, REPLACE if replacing else PUT)

    def upload(self, key: str) -> None:
        """Upload an entry later that was put into the local tier before that belonged to this store."""
        self._check_writable()
        self._wake()
        if not self._only_reads:
            self._uploads.add(check_key(key), PUT)

    def note_local(self, key: str, number: float) -> None:
        """Remember on this host that the entry of `key` is not for the shared tier, and a number of the caller's."""
        if not self.local.read_only:
            self._notes.note(check_key(key), number)

    def local_note(self, key: str) -> float | None:
        """Return the number of the note, from 0 on; None without one, or once the entry was put into both tiers."""
        return self._notes.number(key)

    def _write(self, key: str, data: bytes, how: str) -> bool:
        check_key(key)
        self._check_write(data)
        self._wake()
        if self._only_reads:
            self._shared.count("refused")
            return self._write_local(key, data, how)
        if not self._shared.breaker.is_presumed_dead:
            # Otherwise the end of a short program would wait for the client that the upload needs.
            self.shared.prepare()
        self._notes.note_published(key)
        self._uploads.announce(key, how)
        try:
            created = self._write_local(key, data, how)
        except StoreError as exc:
            log.debug("%s goes to the shared tier only: %s", key, exc)
            if self._uploads.add(key, how, data):
                return True
            self._uploads.withdraw(key)
            raise
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
                    self._local.call(lambda store: store.delete(key))  # a miss is better than the replaced bytes
                raise
            created = True
        if created:
            self._local.count("writes")
        return created

    def delete(self, key: str) -> bool:
        """Remove the entry from both tiers; False if neither had one.

        Uploads of the entry that processes of this host have pending are cancelled. Another host that has one pending
        brings the entry back.

        Raises:
            StoreError: a tier failed, and may still have the entry.
        """
        check_key(key)
        self._check_writable()
        with self._fetches.exclusive(key):
            self._uploads.cancel_on_host(key)
            here = self._local.call(lambda store: store.delete(key))
            return self._shared.call(lambda store: store.delete(key)) or here

    def quarantine(self, key: str, data: bytes, *, wrong: bool = False) -> bool:
        """Quarantine the entry in each tier in which it still is exactly `data`; False if it is in neither.

        Raises:
            StoreError: the shared tier failed, and the local one had another entry or none.
        """
        check_key(key)
        self._check_writable()
        # Wait for a pending upload first: it would otherwise bring the same bytes into the shared tier a moment later.
        settled = threading.Event()
        self._uploads.when_tried(key, settled.set)
        settled.wait(_SETTLE_SECONDS)
        # Without the lock, two processes of this host that found the same damage could each find it in one tier only,
        # and another one that had read the entry to upload it would write it to the shared tier afterwards.
        with self._fetches.exclusive(key):
            return self._quarantine(key, data, wrong=wrong)

    def drop_copy(self, key: str, data: bytes) -> bool:
        """Remove the copy in the local tier if it still is exactly `data`; raises StoreError if that tier failed."""
        return self._local.quarantine(check_key(key), data, wrong=True)

    def _quarantine(self, key: str, data: bytes, *, wrong: bool) -> bool:
        here = False
        with contextlib.suppress(StoreError):
            here = self._local.quarantine(key, data, wrong=wrong)
            if not here and self._local.call(lambda store: store.contains(key)):
                return False  # readers already get another entry
        replaced = here and self._uploads.cancel(key) == REPLACE
        try:
            if replaced:
                # The damaged bytes were to replace an entry of the shared tier, which must not come back.
                self._shared.call(lambda store: store.delete(key))
            elif self._shared.quarantine(key, data, wrong=wrong):
                return True
        except StoreError:
            if not here:
                raise
        return here

    # -- counters --------------------------------------------------------------------------------------------------

    def add_counters(self, amounts: Mapping[str, float]) -> None:
        """Add to the counters kept with each tier; what the local one does not take gets there with the next ones."""
        if self.read_only:
            return
        self._for_local.add(**amounts)
        waiting = self._for_local.take_pending()
        try:
            self._local.call(lambda store: store.add_counters(waiting))
        except StoreError:
            self._for_local.put_back(waiting)
        with contextlib.suppress(StoreError):
            # Asks nobody: they are written later, by this process or another one.
            self.shared.add_counters(amounts)

    def counters(self) -> dict[str, float]:
        """Return the counters kept with the shared tier; with the local one while the shared one cannot be asked."""
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
        """Return the counters of each tier, by names that begin with `local_` and `shared_`."""
        return self._tally.totals()

    def take_tier_counters(self) -> dict[str, float]:
        """Return the counters of each tier since the last call, which the caller keeps with `add_counters`."""
        return self._tally.take_pending()

    # -- uploads and the end ---------------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until nothing is left to upload; False if something is.

        Args:
            timeout: seconds in all, less if the storage has never answered; without it, as long as uploads go on
                finishing.
        """
        if self._awake:
            self._uploads.resume(again=False)  # in a short program, the thread that is to may not have begun
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
        """Upload for a bounded time, leave pending uploads to the next process, and close both tiers.

        May take a minute, and holds no lock meanwhile: other threads go on using the store, which reopens itself.
        """
        self.finish()
        self.local.close()
        with contextlib.suppress(StoreError):
            self.shared.close()

    def finish(self) -> None:
        """Upload for a bounded time, and leave pending uploads to the next process; both tiers stay open.

        Nothing waits for storage that is presumed dead.
        """
        is_presumed_dead = self._shared.breaker.is_presumed_dead
        for task in () if is_presumed_dead else self._before_close:
            self.worker.submit(task)
        is_all_sent = self.flush()
        if (is_presumed_dead and is_ending()) or (not is_all_sent and self.worker.waiting):
            # What has not been answered until now would keep the program waiting once more.
            self._shared.breaker.give_up(self._shared.store.url)
        if not is_all_sent:
            log.info("ejcache: %d uploads are left to the next process on this host", len(self._uploads))
        self.worker.stop()
        self._awake = False
        self._uploads.leave()
        for callback in self._when_closing:
            callback()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _verify_upload(self, key: str, data: bytes) -> object:
        return self.verify_upload(key, data)

    def _wake(self) -> None:
        if not self._awake and not self.read_only:
            self._awake = True
            self.worker.submit(self._uploads.resume)

    def _retry(self) -> None:
        self._uploads.resume()
        self._uploads.retry()

    def after_fork_in_child(self) -> None:
        """Leave uploads to the parent."""
        self._awake = False


# The tiers stay open: leases and counters come later, and a client cannot be made again while the program ends.
_open: Final = AtExit(ExitPhase.UPLOAD, TieredStore.finish)
