"""Uploads behind the program: what the local tier was given goes to the shared one, now, later, or by another process.

The queue holds keys; the bytes stay in the local tier, unless it would not take them. An upload that fails waits for
the shared tier to recover, and its marker in the spool outlives the process.
"""

from __future__ import annotations

import collections
import logging
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from ejcache.errors import EntryError, StoreError, StoreReadOnlyError, StoreTooSmallError
from ejcache.stores.spool import PUT, REPLACE

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.stores.background import BackgroundWorker
    from ejcache.stores.spool import Spool
    from ejcache.stores.tier import Tier

__all__ = ["Uploads"]

log = logging.getLogger("ejcache")

_CANCEL_SECONDS: Final = 15.0
_REMEMBERED: Final = 64
_HELD_BYTES: Final = 256 << 20
"""Bytes that may be kept in memory for uploads because the local tier would not take them."""


@dataclass(slots=True, eq=False)
class _Upload:
    how: str
    data: bytes | None = None
    queued: bool = False
    running: bool = False
    again: bool = False
    tried: bool = False
    callbacks: list[Callable[[], None]] = field(default_factory=list)


class Uploads:
    """Entries on their way from one tier to another. Safe for threads; a forked child starts with none.

    Args:
        local: where the bytes are.
        shared: where they go.
        spool: where pending ones are noted, or None.
        worker: whose threads carry them.
        verify: `verify(key, data)` raises an `EntryError` for what must not be uploaded.
    """

    def __init__(
        self,
        local: Tier,
        shared: Tier,
        *,
        spool: Spool | None,
        worker: BackgroundWorker,
        verify: Callable[[str, bytes], object],
    ) -> None:
        self._local = local
        self._shared = shared
        self._spool = spool
        self._worker = worker
        self._verify = verify
        self.after_fork()

    def after_fork(self) -> None:
        """In a forked child: what is pending is the parent's."""
        self._lock = threading.Lock()
        self._pending: dict[str, _Upload] = {}
        self._lately: collections.deque[str] = collections.deque(maxlen=_REMEMBERED)
        self._held = 0
        if self._spool is not None:
            self._spool.after_fork()

    def __len__(self) -> int:
        return len(self._pending)

    def announce(self, key: str, how: str) -> None:
        """Note on disk that `key` is about to be given to the local tier; `add` or `withdraw` follows."""
        with self._lock:
            if key in self._pending:
                return
            self._pending[key] = _Upload(how)
        if self._spool is not None:
            self._spool.add(key, how)

    def withdraw(self, key: str) -> None:
        """The local tier had the entry already: nothing is to be uploaded by whoever announced it."""
        with self._lock:
            upload = self._pending.get(key)
            if upload is None or upload.queued:
                return
        self._finish(key, upload)

    def add(self, key: str, how: str, data: bytes | None = None) -> bool:
        """Upload `key` soon; `data` is given if the local tier does not have it. False if there is no room for that."""
        with self._lock:
            upload = self._pending.get(key)
            new = upload is None
            if upload is None:
                upload = self._pending[key] = _Upload(how)
            if data is not None:
                if self._held + len(data) > _HELD_BYTES:
                    if not upload.queued:
                        del self._pending[key]
                    return False
                self._held += len(data) - len(upload.data or b"")
            elif upload.data is not None:
                self._held -= len(upload.data)
            upload.data = data
            upload.how = REPLACE if REPLACE in (how, upload.how) else PUT
            upload.again = upload.running
            upload.queued = True
        if new and self._spool is not None:
            self._spool.add(key, how)
        if not upload.running:
            self._submit(key)
        return True

    def cancel(self, key: str) -> str | None:
        """Forget the upload of `key`, and say how it was to be made; one under way is waited for, to its deadline."""
        # Of one under way, what counts is what was to come after it: that it is done says nothing of the later one.
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
                    # One that replaces may find that the local tier has nothing any more, and leave the old entry.
                    dropped, upload.again = upload.how, False
            if not done.wait(_CANCEL_SECONDS):
                return upload.how
        self._finish(key, upload)
        return upload.how

    def when_tried(self, key: str, callback: Callable[[], None]) -> bool:
        """Call `callback` once the upload of `key` was tried, whatever came of it; at once if it was or there is none.

        Returns:
            Whether there is, or was lately, such an upload.
        """
        with self._lock:
            upload = self._pending.get(key)
            waits = upload is not None and upload.queued and (upload.running or not upload.tried)
            if upload is not None and waits:
                upload.callbacks.append(callback)
            known = upload is not None or key in self._lately
        if not waits:
            callback()
        return known

    def resume(self) -> int:
        """Take over what dead processes of this host have left to upload; how many entries."""
        count = 0
        for key, how in self._spool.adopt() if self._spool is not None else ():
            count += 1
            self.add(key, how)
        if count:
            self._shared.count("resumed", count)
            log.info("ejcache: %d uploads that ended processes had left are resumed", count)
        return count

    def retry(self) -> None:
        """Try again what failed, if the shared tier has recovered. May wait for its deadline."""
        with self._lock:
            keys = [key for key, upload in self._pending.items() if upload.tried and not upload.running]
        if keys and self._shared.probe():
            for key in keys:
                self._submit(key)

    def flush(self, *, patience: float, limit: float) -> bool:
        """Wait for the uploads; True if none is left.

        Args:
            patience: seconds to wait for the next one to finish.
            limit: seconds to wait in all.
        """
        if not self._shared.breaker.is_open:
            self.retry()
        if not self._shared.breaker.is_open:
            self._worker.drain(patience=patience, limit=limit)
        return not self._pending

    def leave(self) -> int:
        """Give up what is pending, to be adopted by the next process if it is on disk; how many entries."""
        with self._lock:
            pending, self._pending, self._held = self._pending, {}, 0
        for upload in pending.values():
            for callback in upload.callbacks:
                callback()
        left = self._spool.leave() if self._spool is not None else 0
        if left:
            self._shared.count("spooled", left)
        if len(pending) > left:
            self._shared.count("uploads_lost", len(pending) - left)
        return len(pending)

    # -- one upload, in a thread of the worker ---------------------------------------------------------------------

    def _submit(self, key: str) -> None:
        if not self._worker.submit(partial(self._upload, key)):
            with self._lock:
                upload = self._pending.get(key)
                if upload is not None:
                    upload.tried = True  # `retry` comes back to it

    def _upload(self, key: str) -> None:
        with self._lock:
            upload = self._pending.get(key)
            if upload is None or upload.running or not upload.queued:
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

    def _carry(self, key: str, upload: _Upload) -> bool:
        """Upload one entry; whether nothing is left to do."""
        try:
            data = upload.data if upload.data is not None else self._local.call(lambda store: store.peek(key))
        except StoreError:
            return False
        if data is None:
            self._shared.count("uploads_lost")  # evicted before its turn came
            return True
        try:
            self._verify(key, data)
        except EntryError as exc:
            log.warning("ejcache: a damaged entry was not uploaded: %s: %s", key, exc)
            self._local.count("corrupt")
            self._set_aside(key, data)
            return True
        try:
            if upload.how == REPLACE:
                self._shared.call(lambda store: store.replace(key, data))
                created = True
            else:
                created = self._shared.call(lambda store: store.put(key, data))
        except (StoreReadOnlyError, StoreTooSmallError) as exc:
            log.debug("%s is not for %s: %s", key, self._shared.store.url, exc)
            self._shared.count("refused")
            return True
        except StoreError as exc:
            log.debug("the upload of %s waits: %s", key, exc)
            return False
        self._shared.count("uploads" if created else "duplicates")
        if created:
            self._shared.count("writes")
            self._shared.count("bytes_written", len(data))
        return True

    def _set_aside(self, key: str, data: bytes) -> None:
        try:
            self._local.call(lambda store: store.quarantine(key, data))
        except StoreError as exc:
            log.debug("a damaged entry could not be set aside: %s", exc)

    def _finish(self, key: str, upload: _Upload) -> None:
        with self._lock:
            if self._pending.get(key) is upload:
                del self._pending[key]
                self._held -= len(upload.data or b"")
            if upload.tried:
                self._lately.append(key)
        if self._spool is not None:
            self._spool.remove(key)
        self._call_back(upload)

    def _call_back(self, upload: _Upload) -> None:
        with self._lock:
            callbacks, upload.callbacks = upload.callbacks, []
        for callback in callbacks:
            callback()
