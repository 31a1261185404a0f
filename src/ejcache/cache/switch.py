"""What operators say of a cache: whether it is used at all, and which of its entries nobody loads any more.

`ejcache config set --dir CACHE enabled=false` turns a cache off, and `ejcache recall` takes entries back. What is
stored with the cache says both (`maintenance.stored_policy`). A host keeps what it has read beside its copies, so that
its processes ask once a minute together, and so that a process that gets no answer knows what held last:

    <tier>/scratch/policy := the time of reading, in seconds since 1970, and the end of a line; then what is stored, or
                             nothing if nothing is

A cache on a local disk is asked directly. Without a local disk for copies, each process asks for itself. A process of a
cache that is off says so once, and goes on without it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from ejcache.common_errors import EntryError, StoreBusyError, StoreError
from ejcache.util.files import make_below, read_regular, write_atomically
from ejcache.util.locks import exclusive
from ejcache.util.log import log, warn_once

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ejcache.cache.recalled_copies import RecalledCopies
    from ejcache.entry import Header
    from ejcache.maintenance.recalls import Recalls

LOOK_SECONDS: Final = 5.0
"""How often a process looks at what its host knows,"""
FRESH_SECONDS: Final = 55.0
"""and at which age that is asked for anew: what is turned off is off everywhere within a minute."""
WAIT_SECONDS: Final = 1.0
"""How long the first lookup waits for the answer."""
MAX_BYTES: Final = 64 << 10
_LOCK_SECONDS: Final = 1.0


class CacheSwitch:
    """What the stored policy of a cache says of its use and its entries, at most a minute old. Safe for threads, forks.

    Args:
        url: of the cache, for messages.
        read: reads the stored policy; no bytes if there is none.
        note: the file in which this host keeps what it has read; None to keep it in this process.
        remote: reading asks another machine.
        copies: of entries on this host, which go when they are recalled; None if there are none.
        clock: seconds since the epoch.

    Attributes:
        when_recalled: called with what is recalled, whenever that has become more; from any thread.
    """

    def __init__(
        self,
        url: str,
        read: Callable[[], bytes],
        *,
        note: Path | None = None,
        remote: bool = True,
        copies: RecalledCopies | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._url = url
        self._read = read
        self._note = note
        self._remote = remote
        self._copies = copies
        self._clock = clock
        self.when_recalled: Callable[[Recalls], object] = lambda _: None
        self._off = ""
        self._recalls: Recalls | None = None
        self._known: bytes | None = None
        self._taken: bytes | None = None
        self._decoded: tuple[bytes, str, Recalls] | None = None
        self._looked_at = float("-inf")
        self._answered: threading.Event | None = None
        self._wait_until = 0.0

    def begin(self, *, ask: bool = True) -> None:
        """Take what this host knows; if that is old, ask in another thread, whose answer the first lookup waits for.

        Args:
            ask: False if the storage is known to give no answer.
        """
        if not self._remote:
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
        elif not self._remote and self._clock() - self._looked_at > FRESH_SECONDS:
            self._looked_at = self._clock()
            with contextlib.suppress(OSError):
                self._take(self._read())
        return bool(self._off)

    @property
    def was_off(self) -> bool:
        """True if the cache was off when this process or its host last knew; nothing is waited for."""
        return bool(self._off)

    @property
    def number(self) -> int:
        """The number of the last recall that this process knows; 0 for none."""
        return 0 if self._recalls is None else self._recalls.number

    def is_recalled(self, header: Header, data: bytes) -> bool:
        """True if nobody is to load this entry."""
        if self._recalls is None:
            return False
        from ejcache.maintenance.recalls import stamp_of

        return self._recalls.includes(stamp_of(header, data))

    def look(self) -> None:
        """Look at what this host knows, and ask if that is old. Without an answer, what is known holds.

        Copies of what was recalled since the last look are removed.
        """
        from ejcache.util.time_budget import in_background

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
        from ejcache.util.time_budget import in_background

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
            try:
                _, recalls = self._decode(data)
            except EntryError as exc:
                self._complain(exc)
                data = before
            else:
                # Before another process of this host can take it that its copies are good.
                if self._copies is not None:
                    self._copies.drop_if_unknown(recalls)
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

    def _decode(self, data: bytes) -> tuple[str, Recalls]:
        """Return who turned the cache off, and what is recalled; of the same bytes once. Raises EntryError."""
        if self._decoded is None or self._decoded[0] != data:
            from ejcache.maintenance.stored_policy import decode_policy, recalls_of, who_turned_off

            policy = decode_policy(data)
            self._decoded = data, who_turned_off(policy), recalls_of(policy)
        return self._decoded[1:]

    def _complain(self, exc: EntryError) -> None:
        warn_once(("switch", self._url), "ejcache: what is stored with %s cannot be read: %s", self._url, exc)

    def _take(self, data: bytes) -> None:
        if data == self._taken:
            return  # processes look every few seconds, and it changes once in months
        self._taken = data
        off, recalls = "", None
        if data:
            try:
                off, recalls = self._decode(data)
            except EntryError as exc:
                self._complain(exc)
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
        if recalls is not None and recalls.number > self.number:
            self._recalls = recalls
            self.when_recalled(recalls)
