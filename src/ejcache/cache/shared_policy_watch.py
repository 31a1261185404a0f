"""Watches the policy of a cache on shared storage, for which a host asks once a minute.

A host keeps what it has read beside its copies, so that a process that gets no answer knows what held last:

    <tier>/scratch/policy := a line of JSON; then the policy by which this host goes, or nothing if none is stored
    line                  := {"asked": seconds since 1970, "read": the same or null, "failures": in a row,
                             "generation": text}

What is damaged, or gone, or names an epoch that this host knows to be over, changes nothing. A host that never could
read the policy does not know whether the cache is off, and where its entries are: it asks shared storage for nothing
else, sends it nothing, and asks again after a minute, two, four and so on, up to ten. Without a local disk for copies,
each process asks for itself.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ejcache.cache.policy_watch import FRESH_SECONDS, MAX_BYTES, PolicyWatch, Reading
from ejcache.errors import (
    MALFORMED,
    EntryError,
    NoPermissionError,
    StoreBusyError,
    StoreError,
    StoreUnavailableError,
)
from ejcache.maintenance.stored_policy import decode_policy, encode_policy
from ejcache.stores.epochs import decode_epochs, encode_epochs, policy_fields
from ejcache.util.files import make_below, read_regular, write_atomically
from ejcache.util.locks import exclusive
from ejcache.util.log import log, warn_once
from ejcache.util.scheduler import Scheduler
from ejcache.util.threads import submit
from ejcache.util.time_budget import in_background

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ejcache.cache.policy_watch import Said
    from ejcache.stores.base import Store

LOOK_SECONDS: Final = 5.0
"""How often a process looks at what its host knows."""
WAIT_SECONDS: Final = 1.0
"""How long the first lookup waits for the answer, on a host that knows what held last."""
_FIRST_SECONDS: Final = 20.0
"""How long it waits at most on another host: the request has its own deadline, and a client may have to sign in."""
_LONGEST_SECONDS: Final = 600.0
_LOCK_SECONDS: Final = 1.0


class _Note(NamedTuple):
    """What this host knows: when it asked last and when it last got an answer, in seconds since the epoch, how often in
    a row it got none, and by which policy it goes; None if it never could read one.
    """

    asked: float = float("-inf")
    read: float | None = None
    failures: int = 0
    known: Reading | None = None

    def is_due(self, now: float) -> bool:
        """True if it is time to ask; also if the clock was set back since."""
        pause = FRESH_SECONDS if self.known is not None else min(FRESH_SECONDS * 2**self.failures / 2, _LONGEST_SECONDS)
        return not 0 <= now - self.asked <= max(pause, FRESH_SECONDS)


class SharedPolicyWatch(PolicyWatch):
    """What the stored policy of a cache on shared storage says.

    Args:
        url: of the cache, for messages.
        read: reads the stored policy.
        note: the file in which this host keeps what it has read; None to keep it in this process.
        open_at: opens the store of an epoch, of the store that was opened before; None without a store.
        storage_url: of the storage, as its client names it; `url` by default.
        clock: seconds since the epoch.
    """

    is_shared = True

    def __init__(
        self,
        url: str,
        read: Callable[[], Reading],
        *,
        note: Path | None = None,
        open_at: Callable[[str, Store], Store] | None = None,
        storage_url: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(url, read, clock=clock)
        self.storage_url = storage_url or url
        self.epoch = None
        self._note_file = note
        self._open_at = open_at
        self._known = _Note()
        self._answered: threading.Event | None = None
        self._wait_until = 0.0
        self._worker = Scheduler(threads=1, name="ejcache-policy")

    def begin(self, *, ask: bool = True) -> None:
        """Take what this host knows; if that is old, ask in another thread, whose answer the first lookup waits for.

        Args:
            ask: False if the storage is known to give no answer.
        """
        note = self._noted()
        self._take_note(note)
        if ask and note.is_due(self._clock()):
            self._answered = threading.Event()
            is_new = note.known is None
            self._wait_until = time.monotonic() + (_FIRST_SECONDS if is_new else WAIT_SECONDS)
            submit(partial(self._look_and_tell, self._answered, is_new=is_new))

    def keep_looking(self) -> None:
        """Look from time to time, in a thread of its own, until `stop`: no store of two tiers does it yet."""
        self._worker.every(LOOK_SECONDS, self.look)
        self._worker.submit(_nothing)  # recurring tasks run from then on

    def stop(self) -> None:
        """Look no more in that thread."""
        self._worker.stop()

    def is_off(self) -> bool:
        """True if the cache is not to be used."""
        answered = self._answered
        if answered is not None:
            answered.wait(max(0.0, self._wait_until - time.monotonic()))
            self._answered = None
        return bool(self.off)

    def look(self) -> None:
        """Look at what this host knows, and ask if that is old. Without an answer, what is known holds."""
        with contextlib.suppress(StoreError, OSError), in_background():
            self.ask()

    def ask(self) -> None:
        """Look at what this host knows, and ask if that is old.

        Raises:
            StoreError: the storage failed.
        """
        self._take_note(self._asked_by_one())

    def store_in(self, opened: Store) -> Store:
        """Return the store at the place that the policy names, if that is not the one that was opened before."""
        return opened if self._open_at is None or self.epoch is None else self._open_at(self.epoch, opened)

    def _take_note(self, note: _Note) -> None:
        if note.known is None:
            return
        age = max(0.0, self._clock() - (note.read or 0.0))
        if note.known.data:
            self._take(note.known, age=age)
        elif self._taken is None:
            self._taken, self.epoch = b"", ""
            log.info("ejcache: no policy is stored with %s, as was read %.0f s ago", self._url, age)

    def _look_and_tell(self, answered: threading.Event, *, is_new: bool) -> None:
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(contextlib.suppress(StoreError, OSError))
                if not is_new:  # otherwise the program waits for it as it would for its first entry
                    stack.enter_context(in_background())
                self.ask()
        finally:
            answered.set()

    def _asked_by_one(self) -> _Note:
        """Return what this host knows, once one of its processes has asked within the last minute."""
        note, file = self._noted(), self._note_file
        if not note.is_due(self._clock()):
            return note
        with contextlib.ExitStack() as stack:
            if file is not None:
                with contextlib.suppress(StoreBusyError, OSError):
                    make_below(file.parent)
                    stack.enter_context(
                        exclusive(file.with_name(f"{file.name}.lock"), deadline=time.monotonic() + _LOCK_SECONDS)
                    )
                    note = self._noted()
                    if not note.is_due(self._clock()):
                        return note
            try:
                found = self._read()
            except StoreError as exc:
                log.info("ejcache: the policy of %s could not be read: %s", self._url, exc)
                if note.known is None:
                    # Without its frames, which hold a program's values.
                    kind = NoPermissionError if isinstance(exc, NoPermissionError) else StoreUnavailableError
                    self.trouble = kind(f"{exc}; nothing else is asked of it until that can be read")
                self._keep(note._replace(asked=self._clock(), failures=note.failures + 1))
                raise
            return self._keep(self._judged(found, note))

    def _judged(self, found: Reading, before: _Note) -> _Note:
        """Return what this host knows now that it has read this."""
        now = self._clock()
        kept = before._replace(asked=now, failures=before.failures + 1)
        if before.known is not None and found == before.known:
            return _Note(now, now, 0, found)
        if not found.data:
            if before.known is not None and before.known.data:
                self._take_note(before)
                self._say_gone()
                return kept
            return _Note(now, now, 0, found)
        said = self._decode(found.data)
        if said is None:
            return kept
        known = None if before.known is None or not before.known.data else self._decode(before.known.data)
        if known is not None and said.epochs.present in {each.epoch for each in known.epochs.former}:
            found = self._in_known_epoch(found, known)
        return _Note(now, now, 0, found)

    def _in_known_epoch(self, found: Reading, known: Said) -> Reading:
        """Return what was read, with the epoch that this host knows in place of one that it knows to be over."""
        warn_once(
            ("former epoch", self._url),
            "ejcache: %s/v1/policy.json is an earlier one, from before everything was recalled; this host stays with "
            "what it knew. `ejcache recall --all --dir %s` settles it for all hosts",
            self._url,
            self._url,
        )
        fields = decode_policy(found.data) | {"epoch": None, "former": None}
        return Reading(encode_policy(fields | encode_epochs(known.epochs)), found.generation)

    def _say_unreadable(self, exc: Exception) -> None:
        if self._noted().known is None:
            self._say_unknown(exc)
        else:
            super()._say_unreadable(exc)

    def _say_unknown(self, why: Exception) -> None:
        warn_once(
            ("policy", self._url),
            "ejcache: %s is not used until its policy, v1/policy.json, can be read, which says whether it is turned "
            "off and where its entries are; what programs compile stays on this host meanwhile. Reading it failed: %s",
            self._url,
            why,
        )

    def _keep(self, note: _Note) -> _Note:
        self._known = note
        if self._note_file is not None:
            line: dict[str, Any] = {"asked": note.asked, "read": note.read, "failures": note.failures}
            data = b""
            if note.known is not None:
                line["generation"], data = note.known.generation, note.known.data
            try:
                make_below(self._note_file.parent)
                write_atomically(self._note_file, json.dumps(line).encode() + b"\n" + data)
            except OSError:
                self._note_file = None  # the disk is full: otherwise each upload would ask anew
        return note

    def _noted(self) -> _Note:
        """Return what this host knows."""
        return self._known if self._note_file is None else read_note(self._note_file)


def read_note(file: Path) -> _Note:
    """Return what a host has noted in this file; nothing if it has not, or if that is damaged."""
    with contextlib.suppress(OSError, EntryError, *MALFORMED):
        line, _, data = read_regular(file, max_size=2 * MAX_BYTES).partition(b"\n")
        fields = json.loads(line)
        asked, failures, read = float(fields["asked"]), int(fields["failures"]), fields["read"]
        if read is None:
            return _Note(asked, None, min(max(failures, 0), 16))
        _epoch_in(data)
        return _Note(asked, float(read), 0, Reading(data, str(fields["generation"])))
    return _Note()


def noted_epoch(file: Path) -> str | None:
    """Return the epoch that a cache is in, by the note of this host in this file; None if it does not know that."""
    known = read_note(file).known
    return None if known is None else _epoch_in(known.data)


def _epoch_in(data: bytes) -> str:
    """Return the epoch that a noted policy names; raises EntryError if it cannot be read."""
    if not data:
        return ""

    return decode_epochs(policy_fields(data)).present


def _nothing() -> None:
    """Do nothing."""
