"""Whether a cache is used at all: an operator turns it off with `ejcache config set --dir CACHE enabled=false`.

What is stored with the cache says so (`maintenance.stored_policy`). A host keeps what it has read beside its copies, so
that its processes ask once a minute together, and so that a process that gets no answer knows what held last:

    <tier>/scratch/policy := the time of reading, in seconds since 1970, and the end of a line; then what is stored, or
                             nothing if nothing is

A cache on a local disk is asked directly. A process of a cache that is off says so once, and goes on without it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from ejcache.errors import EntryError, StoreBusyError, StoreError
from ejcache.util.files import make_below, read_regular, write_atomically
from ejcache.util.locks import exclusive
from ejcache.util.log import log, warn_once

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOOK_SECONDS: Final = 5.0
"""How often a process looks at what its host knows,"""
FRESH_SECONDS: Final = 55.0
"""and at which age that is asked for anew: what is turned off is off everywhere within a minute."""
WAIT_SECONDS: Final = 1.0
"""How long the first lookup waits for the answer."""
MAX_BYTES: Final = 64 << 10
_LOCK_SECONDS: Final = 1.0


class CacheSwitch:
    """What the stored policy of a cache says of its use, at most a minute old. Safe for threads and forks.

    Args:
        url: of the cache, for messages.
        read: reads the stored policy; no bytes if there is none.
        note: the file in which this host keeps what it has read; None if reading asks nobody else.
        clock: seconds since the epoch.
    """

    def __init__(
        self, url: str, read: Callable[[], bytes], *, note: Path | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._url = url
        self._read = read
        self._note = note
        self._clock = clock
        self._off = ""
        self._looked_at = float("-inf")
        self._answered: threading.Event | None = None
        self._wait_until = 0.0

    def begin(self, *, ask: bool = True) -> None:
        """Take what this host knows; if that is old, ask in another thread, whose answer the first lookup waits for.

        Args:
            ask: False if the storage is known to give no answer.
        """
        if self._note is None:
            return
        age, data = self._noted()
        if data is not None:
            self._take(data)
        if ask and not 0 <= age <= FRESH_SECONDS:
            from ejcache.util.threads import submit  # a cache on a local disk is asked without a thread

            self._answered = threading.Event()
            self._wait_until = time.monotonic() + WAIT_SECONDS
            submit(partial(self._look_and_tell, self._answered))

    def is_off(self) -> bool:
        """True if the cache is not to be used."""
        answered = self._answered
        if answered is not None:
            answered.wait(max(0.0, self._wait_until - time.monotonic()))
            self._answered = None
        elif self._note is None and self._clock() - self._looked_at > FRESH_SECONDS:
            self._looked_at = self._clock()
            with contextlib.suppress(OSError):
                self._take(self._read())
        return bool(self._off)

    def look(self) -> None:
        """Look at what this host knows, and ask if that is old. Without an answer, what is known holds."""
        from ejcache.util.time_budget import in_background

        with contextlib.suppress(StoreError, OSError), in_background():
            self._take(self._asked_by_one())

    def _look_and_tell(self, answered: threading.Event) -> None:
        try:
            self.look()
        finally:
            answered.set()

    def _asked_by_one(self) -> bytes:
        """Return what is stored, as one process of this host has read it within the last minute."""
        note = self._note
        if note is None:
            return self._read()
        age, data = self._noted()
        if data is not None and 0 <= age <= FRESH_SECONDS:
            return data
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(StoreBusyError, OSError):
                make_below(note.parent)
                stack.enter_context(
                    exclusive(note.with_name(f"{note.name}.lock"), deadline=time.monotonic() + _LOCK_SECONDS)
                )
                age, data = self._noted()
                if data is not None and 0 <= age <= FRESH_SECONDS:
                    return data
            data = self._read()
            with contextlib.suppress(OSError):
                write_atomically(note, f"{self._clock():.3f}\n".encode() + data)
            return data

    def _noted(self) -> tuple[float, bytes | None]:
        """Return the age of what this host has read, and what that is; None if it has read nothing."""
        with contextlib.suppress(OSError, ValueError):
            if self._note is not None:
                moment, _, data = read_regular(self._note, max_size=2 * MAX_BYTES).partition(b"\n")
                return self._clock() - float(moment), data
        return -1.0, None

    def _take(self, data: bytes) -> None:
        off = ""
        if data:
            from ejcache.maintenance.stored_policy import decode_policy, who_turned_off

            try:
                off = who_turned_off(decode_policy(data))
            except EntryError as exc:
                warn_once(("switch", self._url), "ejcache: what is stored with %s cannot be read: %s", self._url, exc)
                return
        if off and not self._off:
            warn_once(
                ("off", self._url, off),
                "ejcache: %s is turned off (%s): nothing is read from it or stored there; "
                "`ejcache config set --dir %s enabled=true` turns it on",
                self._url,
                off,
                self._url,
            )
        elif self._off and not off:
            log.info("ejcache: %s is turned on again", self._url)
        self._off = off
