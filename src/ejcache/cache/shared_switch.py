"""The switch of a cache on shared storage, which the processes of a host ask once a minute together.

A host keeps what it has read beside its copies, so that a process that gets no answer knows what held last:

    <tier>/scratch/policy := the time of reading, in seconds since 1970, and the end of a line; then what is stored, or
                             nothing if nothing is

Without a local disk for copies, each process asks for itself.
"""

from __future__ import annotations

import contextlib
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from ejcache.cache.switch import FRESH_SECONDS, MAX_BYTES, CacheSwitch
from ejcache.errors import StoreBusyError, StoreError
from ejcache.util.files import read_regular
from ejcache.util.locks import exclusive
from ejcache.util.new_files import make_below, write_atomically
from ejcache.util.threads import submit
from ejcache.util.time_budget import in_background

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ejcache.cache.recalled_copies import RecalledCopies

LOOK_SECONDS: Final = 5.0
"""How often a process looks at what its host knows."""
WAIT_SECONDS: Final = 1.0
"""How long the first lookup waits for the answer."""
_LOCK_SECONDS: Final = 1.0


class SharedSwitch(CacheSwitch):
    """What the stored policy of a cache on shared storage says.

    Args:
        url: of the cache, for messages.
        read: reads the stored policy; no bytes if there is none.
        note: the file in which this host keeps what it has read; None to keep it in this process.
        copies: of entries on this host, which go when they are recalled; None if there are none.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        url: str,
        read: Callable[[], bytes],
        *,
        note: Path | None = None,
        copies: RecalledCopies | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(url, read, clock=clock)
        self._note = note
        self._copies = copies
        self._known: bytes | None = None
        self._answered: threading.Event | None = None
        self._wait_until = 0.0

    def begin(self, *, ask: bool = True) -> None:
        """Take what this host knows; if that is old, ask in another thread, whose answer the first lookup waits for.

        Args:
            ask: False if the storage is known to give no answer.
        """
        age, data = self._noted()
        if data is not None:
            self._take(data)
        if ask and not 0 <= age <= FRESH_SECONDS:
            self._answered = threading.Event()
            self._wait_until = time.monotonic() + WAIT_SECONDS
            submit(partial(self._look_and_tell, self._answered))

    def is_off(self) -> bool:
        """True if the cache is not to be used."""
        answered = self._answered
        if answered is not None:
            answered.wait(max(0.0, self._wait_until - time.monotonic()))
            self._answered = None
        return bool(self.off)

    def look(self) -> None:
        """Look at what this host knows, and ask if that is old. Without an answer, what is known holds.

        Copies of what was recalled since the last look are removed.
        """
        with contextlib.suppress(StoreError, OSError), in_background():
            self.ask()
            if self._copies is not None and self._recalls is not None:
                self._copies.remove(self._recalls)

    def ask(self) -> None:
        """Look at what this host knows, and ask if that is old.

        Raises:
            StoreError: the storage failed.
        """
        self._take(self._asked_by_one())

    def _look_and_tell(self, answered: threading.Event) -> None:
        try:
            with contextlib.suppress(StoreError, OSError), in_background():
                self.ask()
        finally:
            answered.set()

    def _asked_by_one(self) -> bytes:
        """Return what is stored, as one process of this host has read it within the last minute."""
        age, data = self._noted()
        if data is not None and 0 <= age <= FRESH_SECONDS:
            return data
        note = self._note
        with contextlib.ExitStack() as stack:
            if note is not None:
                with contextlib.suppress(StoreBusyError, OSError):
                    make_below(note.parent)
                    stack.enter_context(
                        exclusive(note.with_name(f"{note.name}.lock"), deadline=time.monotonic() + _LOCK_SECONDS)
                    )
                    age, data = self._noted()
                    if data is not None and 0 <= age <= FRESH_SECONDS:
                        return data
            return self._keep(self._read(), before=data or b"")

    def _keep(self, data: bytes, *, before: bytes) -> bytes:
        """Note what was read now, or what was read before if that cannot be used; return what is noted."""
        if data and data != before:
            said = self._decode(data)
            if said is None:
                data = before
            elif self._copies is not None:
                # Before another process of this host can take it that its copies are good.
                self._copies.drop_if_unknown(said[1])
        self._looked_at, self._known = self._clock(), data
        if self._note is not None:
            try:
                write_atomically(self._note, f"{self._looked_at:.3f}\n".encode() + data)
            except OSError:
                self._note = None  # the disk is full: otherwise each upload would ask anew
        return data

    def _noted(self) -> tuple[float, bytes | None]:
        """Return the age of what was read last, and what that is; None if nothing was."""
        if self._note is None:
            return self._clock() - self._looked_at, self._known
        with contextlib.suppress(OSError, ValueError):
            moment, _, data = read_regular(self._note, max_size=2 * MAX_BYTES).partition(b"\n")
            return self._clock() - float(moment), data
        return -1.0, None
