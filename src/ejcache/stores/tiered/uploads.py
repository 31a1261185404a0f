"""Uploads entries of the local tier to the shared one in the background: now, later, or by another process.

The queue holds keys. The bytes stay in the local tier, unless it refused them. An upload that fails is tried again when
the shared tier has recovered, and its marker on disk (`pending_uploads`) outlives this process.

A shared tier that has failed this host lately (`CircuitBreaker.is_presumed_dead`) gets one upload. The others follow
when it has answered, and are left to another process if it has not when the program ends.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from ejcache.errors import EntryError, EntryRecalledError, StoreError, StoreReadOnlyError, StoreTooSmallError
from ejcache.stores.tiered.pending_uploads import PUT, REPLACE, PendingUploads
from ejcache.util.lifecycle import track_forks
from ejcache.util.log import log, warn_once
from ejcache.util.time_budget import in_background

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from ejcache.stores.tiered.tier import Tier
    from ejcache.util.scheduler import Scheduler


HELD_BYTES: Final = 256 << 20
_CANCEL_SECONDS: Final = 15.0
_REMEMBERED: Final = 64


def _stronger(how: str, other: str) -> str:
    return REPLACE if REPLACE in (how, other) else PUT


@dataclass(slots=True, eq=False)
class _Upload:
    """One pending upload.

    Attributes:
        how: `PUT` or `REPLACE`.
        data: the bytes, if the local tier does not have them.
        marked: there is a marker on disk.
        running: a thread is uploading it.
        again: it was written again while it was running, and has to be uploaded once more.
        tried: a thread has tried it.
        callbacks: to be called after the next try.
    """

    how: str
    data: bytes | None = None
    marked: bool = False
    running: bool = False
    again: bool = False
    tried: bool = False
    callbacks: list[Callable[[], None]] = field(default_factory=list)


class Uploads:
    """Entries on their way from the local tier to the shared one. Safe for threads; a forked child starts with none.

    Args:
        local: where the bytes are.
        shared: where they go.
        pending: markers on disk, or None.
        worker: its threads upload.
        verify: `verify(key, data)` raises an `EntryError` for bytes that must not be uploaded, and a `StoreError` if
            that cannot be known now.
        lock: `lock(key)` is held around each upload; a process that deletes the key holds the same lock.
    """

    def __init__(
        self,
        local: Tier,
        shared: Tier,
        *,
        lock: Callable[[str], AbstractContextManager[None]],
        pending: PendingUploads | None,
        worker: Scheduler,
        verify: Callable[[str, bytes], object],
    ) -> None:
        self._local = local
        self._shared = shared
        self._markers = pending
        self._worker = worker
        self._verify = verify
        self._exclusively = lock
        self.after_fork_in_child()
        track_forks(self)

    def after_fork_in_child(self) -> None:
        """Leave the uploads to the parent."""
        self._lock = threading.RLock()
        self._resuming = threading.RLock()
        self._has_resumed = False
        self._pending: dict[str, _Upload] = {}
        self._lately: collections.deque[str] = collections.deque(maxlen=_REMEMBERED)
        self._announced: dict[str, bool] = {}  # whether there is a marker
        self._held = 0
        self._scout: str | None = None  # the only key that goes to storage that is presumed dead

    def __len__(self) -> int:
        return len(self._pending)

    def announce(self, key: str, how: str) -> None:
        """Note on disk that `key` is about to be written to the local tier; `add` or `withdraw` follows."""
        if self._markers is not None:
            with self._lock:
                self._announced[key] = True
                pending = self._pending.get(key)
            # Again if the entry is written again: another process may have removed the marker before.
            self._announced[key] = self._markers.add(key, how if pending is None else _stronger(how, pending.how))

    def withdraw(self, key: str) -> None:
        """Forget what `announce` noted: the local tier had the entry already."""
        with self._lock:
            self._announced.pop(key, None)
            is_pending = key in self._pending
        if not is_pending and self._markers is not None:
            self._markers.remove(key)

    def add(self, key: str, how: str, data: bytes | None = None) -> bool:
        """Upload `key` soon.

        Args:
            key: of the entry.
            how: `PUT` or `REPLACE`.
            data: the entry, if the local tier does not have it.

        Returns:
            False if no memory is left for `data`.
        """
        with self._lock:
            before = self._pending.get(key) or _Upload(how)
            held = self._held + len(data or b"") - len(before.data or b"")
            if data is not None and held > HELD_BYTES:
                return False
            upload = self._pending.setdefault(key, before)
            self._held, upload.data = held, data
            upload.how = _stronger(how, upload.how)
            upload.again = upload.running
            announced = self._announced.pop(key, None)
        if announced is None and self._markers is not None:
            announced = self._markers.add(key, upload.how)
        upload.marked = bool(announced)
        if not upload.running:
            self._submit(key)
        return True

    def cancel_on_host(self, key: str) -> None:
        """Forget the upload of `key`, and have the other processes of this host forget theirs."""
        self.cancel(key)
        if self._markers is not None:
            self._markers.remove_all(key)

    def cancel(self, key: str) -> str | None:
        """Forget the upload of `key` and return `PUT`, `REPLACE` or None; waits for a running one, to its deadline."""
        # If an upload is running, report the write that is queued behind it: that the running one finishes does not
        # mean that the queued one was uploaded.
        dropped: str | None = None
        while True:
            with self._lock:
                upload = self._pending.get(key)
                if upload is None:
                    return dropped
                if not upload.running:
                    del self._pending[key]
                    self._held -= len(upload.data or b"")
                    break
                done = threading.Event()
                upload.callbacks.append(done.set)
                if upload.again or upload.how == REPLACE:
                    # A running replacement may find that the local tier lost the entry, and leave the old one.
                    dropped, upload.again = upload.how, False
            if not done.wait(_CANCEL_SECONDS):
                return upload.how
        self._finish(key, upload)
        return upload.how

    def when_tried(self, key: str, callback: Callable[[], None]) -> bool:
        """Call `callback` once the upload of `key` was tried, with whatever result; at once if there is none to try.

        Returns:
            Whether there is such an upload, or was one a moment ago.
        """
        with self._lock:
            upload = self._pending.get(key)
            waits = upload is not None and (upload.running or not upload.tried)
            if upload is not None and waits:
                upload.callbacks.append(callback)
            known = upload is not None or key in self._lately
        if not waits:
            callback()
        return known

    def resume(self, *, again: bool = True) -> None:
        """Take over the uploads that killed processes of this host have left.

        Args:
            again: also those that were left since the last time.
        """
        with self._resuming:
            if self._has_resumed and not again:
                return
            count = 0
            for key, how in self._markers.adopt() if self._markers is not None else ():
                if not count and not self._shared.breaker.is_presumed_dead:
                    self._shared.store.prepare()  # a program that is ending cannot make a client
                count += 1
                self.add(key, how)
            self._has_resumed = True
        if count:
            self._shared.count("resumed", amount=count)
            log.info("ejcache: %d uploads that other processes had left are resumed", count)

    def retry(self) -> None:
        """Try failed uploads again if the shared tier has recovered. May wait for its deadline."""
        with self._lock:
            keys = [key for key, upload in self._pending.items() if upload.tried and not upload.running]
        if keys and self._shared.probe():
            for key in keys:
                self._submit(key)

    def flush(self, *, patience: float, limit: float) -> bool:
        """Wait for the uploads, unless the storage is presumed dead; True if none is left.

        Args:
            patience: seconds to wait for the next one to finish.
            limit: seconds to wait in all.
        """
        if self._shared.breaker.is_presumed_dead:
            return not self._pending
        if self._pending and not self._shared.breaker.is_open:
            # To make a client is work of this process, which takes long on a busy host.
            self._shared.store.prepare(wait=patience)
            self.retry()
        if self._shared.patience < patience:
            # Storage that has not answered yet is waited for once in a process.
            self._worker.drain(patience=self._shared.patience, limit=self._shared.patience)
        if self._shared.patience >= patience:
            self._worker.drain(patience=patience, limit=limit)
        return not self._pending

    def leave(self) -> None:
        """Forget all uploads; those that have a marker on disk are left to the next process."""
        self._has_resumed = False
        with self._lock:
            pending, self._pending, self._held = self._pending, {}, 0
        for upload in pending.values():
            for callback in upload.callbacks:
                callback()
        left = self._markers.leave() if self._markers is not None else 0
        if left:
            self._shared.count("spooled", amount=left)
        if len(pending) > left:
            self._shared.count("uploads_lost", amount=len(pending) - left)

    # -- one upload, in a thread of the worker ---------------------------------------------------------------------

    def _submit(self, key: str) -> None:
        if self._may_go(key) and self._worker.submit(partial(self._upload, key)):
            return
        with self._lock:
            upload = self._pending.get(key)
            if upload is not None:
                upload.tried = True  # `retry` submits it again
        if upload is not None:
            self._call_back(upload)

    def _may_go(self, key: str) -> bool:
        """True if no other upload is to show first that the storage lives."""
        if not self._shared.breaker.is_presumed_dead:
            return True
        with self._lock:
            self._scout = self._scout or key
            return self._scout == key

    def _end_scouting(self, key: str) -> None:
        """Have the others follow if `key` has shown that the storage lives."""
        with self._lock:
            if self._scout != key:
                return
            self._scout = None
            keys = [key for key, upload in self._pending.items() if upload.tried and not upload.running]
        if keys and not self._shared.breaker.is_presumed_dead:
            self._shared.store.prepare()
            for each in keys:
                self._submit(each)

    def _upload(self, key: str) -> None:
        """Upload the entry of `key` in this thread, unless another one does, and call those that wait for the try."""
        # Taken before the upload counts as running: a thread that holds the lock may wait for running uploads.
        with in_background(), self._exclusively(key):
            with self._lock:
                upload = self._pending.get(key)
                if upload is None or upload.running:
                    return
                upload.running, upload.again = True, False
            settled = False
            try:
                settled = self._carry(key, upload)
            finally:
                with self._lock:
                    upload.running, upload.tried = False, True
                    again = upload.again
                if again:
                    self._submit(key)
                elif settled:
                    self._finish(key, upload)
                else:
                    self._call_back(upload)
                self._end_scouting(key)

    def _carry(self, key: str, upload: _Upload) -> bool:
        """Upload one entry; False if it has to be tried again. An entry that is gone or damaged is not."""
        if upload.data is not None and upload.marked and self._markers is not None and not self._markers.exists(key):
            return True  # another process of this host has deleted the entry
        try:
            data = upload.data if upload.data is not None else self._local.call(lambda store: store.peek(key))
        except StoreError:
            return False
        if data is None:
            self._shared.count("uploads_lost")  # evicted before its turn came
            return True
        try:
            self._verify(key, data)
        except StoreError as exc:
            log.debug("the upload of %s is tried again later: %s", key, exc)
            return False
        except EntryRecalledError:
            self._shared.count("refused")
            with contextlib.suppress(StoreError):
                self._local.quarantine(key, data, wrong=True)
            return True
        except EntryError as exc:
            log.warning("ejcache: a damaged entry was not uploaded: %s: %s", key, exc)
            with contextlib.suppress(StoreError):
                if not self._local.quarantine(key, data):
                    self._local.count("corrupt")
            return True
        return self._write(key, data, upload.how)

    def _write(self, key: str, data: bytes, how: str) -> bool:
        try:
            if how == REPLACE:
                self._shared.call(lambda store: store.replace(key, data))
                created = True
            else:
                created = self._shared.call(lambda store: store.put(key, data))
        except StoreReadOnlyError as exc:
            url = self._shared.store.url
            warn_once(("refused", url), "ejcache: %s is only read by this process: %s", url, exc)
            self._shared.count("refused")
            return True
        except StoreTooSmallError as exc:
            log.debug("%s is not uploaded: %s", key, exc)
            self._shared.count("refused")
            return True
        except StoreError as exc:
            log.debug("the upload of %s is tried again later: %s", key, exc)
            return False
        self._shared.count("uploads" if created else "duplicates")
        if created:
            self._shared.count("writes")
            self._shared.count("bytes_written", amount=len(data))
        return True

    def _finish(self, key: str, upload: _Upload) -> None:
        with self._lock:
            if self._pending.get(key) is upload:
                del self._pending[key]
                self._held -= len(upload.data or b"")
            if upload.tried:
                self._lately.append(key)
        if self._markers is not None and key not in self._announced:
            self._markers.remove(key)
        self._call_back(upload)

    def _call_back(self, upload: _Upload) -> None:
        with self._lock:
            callbacks, upload.callbacks = upload.callbacks, []
        for callback in callbacks:
            callback()
