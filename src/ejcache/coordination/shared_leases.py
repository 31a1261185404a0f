"""Keeps leases between hosts, by small objects in shared storage.

    v1/leases/<key>      JSON: holder, beat, interval; done, once others can see what the work left

A lease that was not renewed for three intervals, by the storage's own clock, is of a dead holder. The clock of this
host only says for which leases it is worth asking the storage what time it has.

A lease is created on the condition that there is none. Each heartbeat and each takeover is written on the condition
that the object is still the one that was seen. A file system cannot compare on writing, but it can decide who removes
a version and who creates the next one; there, a takeover is these two steps.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ejcache.bucket.base import ABSENT
from ejcache.bucket.object_names import TEMPORARY
from ejcache.coordination.leases import MISSED_BEATS, HeldLease, LeaseState, lease_scheduler
from ejcache.errors import MALFORMED, StoreError, StoreReadOnlyError
from ejcache.util.log import log
from ejcache.util.store_keys import escape_key
from ejcache.util.writer import process_in_words, process_name

if TYPE_CHECKING:
    from ejcache.bucket.base import Bucket
    from ejcache.util.scheduler import Scheduler

LEASES: Final = "v1/leases/"
_MAX_BYTES: Final = 4096
HEARTBEAT_SECONDS: Final = 3.0
"""Between two heartbeats: buckets allow about one write per second to an object."""
_LONGEST_INTERVAL: Final = 60.0
_GRACE: Final = 3.0
"""Seconds: storage that takes a second for each answer is not asked again whether there is an entry."""
_RESOLUTION: Final = 2.0
"""Seconds: some storage tells whole ones, and a heartbeat takes its time."""


@dataclass(frozen=True, slots=True)
class LeaseFields:
    """The fields of a lease object: who holds it, how often it has beaten, and each how many seconds."""

    holder: str
    beat: int
    interval: float
    done: bool = False

    def encode(self) -> bytes:
        fields = {"holder": self.holder, "beat": self.beat, "interval": self.interval}
        if self.done:
            fields["done"] = True
        return json.dumps(fields, sort_keys=True).encode()


def decode_lease(data: bytes) -> LeaseFields | None:
    """Return the record in a lease object; None if it is not one that ejcache writes."""
    try:
        fields = json.loads(data)
        holder, beat, interval = fields["holder"], fields["beat"], fields["interval"]
    except MALFORMED:
        return None
    if not isinstance(holder, str) or type(beat) is not int or type(interval) not in (int, float):
        return None
    # Compared before it is converted: an int may be too large for a float. NaN fails every comparison.
    if not 0 <= interval <= 1e9 or not abs(beat) < 1 << 62:
        return None
    return LeaseFields(holder, beat, min(float(interval), _LONGEST_INTERVAL), fields.get("done") is True)


class StoreLeases:
    """Leases that all users of a shared store respect. Safe for threads, processes and forks.

    Args:
        bucket: where they are kept.
        interval: seconds between heartbeats.
        scheduler: renews the leases.
    """

    def __init__(
        self, bucket: Bucket, *, interval: float = HEARTBEAT_SECONDS, scheduler: Scheduler = lease_scheduler
    ) -> None:
        self.grace = _GRACE
        self._bucket = bucket
        self._interval = interval
        self._scheduler = scheduler
        self._refusal: StoreReadOnlyError | None = None
        self._ahead: float | None = None  # the storage's clock before our monotonic one

    def acquire(self, key: str) -> _StoreLease | None:
        """Return the lease, or None if another process has it; one request.

        Raises:
            StoreReadOnlyError: an earlier lease could be created but not changed or deleted with these credentials.
                Such a lease stays behind, and every other process waits for it, so no more are taken.
        """
        if self._refusal is not None:
            raise StoreReadOnlyError(f"no leases are taken, because they could not be released: {self._refusal}")
        return self._write(_name(key), version=ABSENT)

    def look(self, key: str) -> LeaseState | None:
        """Return the lease as it is now, or None if no process holds it; one request."""
        blob = self._bucket.read(_name(key), length=_MAX_BYTES)
        if blob is None:
            return None
        # No living holder wrote what cannot be decoded; it is taken over like the lease of a dead one.
        record = decode_lease(blob.data) or LeaseFields("", 0, self._interval)
        return LeaseState(blob.version, record.interval, False, process_in_words(record.holder), record.done)

    def look_for_dead(self, key: str) -> LeaseState | None:
        """Return the lease if it was not renewed for longer than a living holder leaves it, by the storage's clock.

        One request if its holder lives, by the clock of this host. Otherwise, or if this clock is far behind, two, and
        three once in a process.
        """
        info = self._bucket.stat(_name(key))
        if info is None or abs(time.time() - info.created) <= _longest(self._interval):
            return None
        if self._ahead is None:
            now = self._bucket.now(f"{TEMPORARY}{process_name()}")
            if now is None:
                return None
            self._ahead = now - time.monotonic()
        state = self.look(key)
        age = self._ahead + time.monotonic() - info.created
        if state is None or state.token != info.version or age <= _longest(state.interval):
            return None
        return replace(state, abandoned=True)

    def take_over(self, key: str, seen: LeaseState) -> _StoreLease | None:
        """Return the lease of a dead holder, or None if it has changed since `seen`."""
        name = _name(key)
        if self._bucket.conditional:
            return self._write(name, version=seen.token)
        if not self._bucket.delete(name, version=seen.token):
            return None
        return self._write(name, version=ABSENT)

    def _write(self, name: str, *, version: str) -> _StoreLease | None:
        record = LeaseFields(process_name(), 0, self._interval)
        written = self._bucket.write(name, record.encode(), version=version)
        return None if written is None else _StoreLease(self, name, record, written)

    @property
    def refused(self) -> bool:
        """True if these credentials cannot change or delete a lease."""
        return self._refusal is not None

    def note_refusal(self, exc: StoreReadOnlyError) -> None:
        """Take no more leases: these credentials cannot change or delete one."""
        if self._refusal is None:
            log.info("ejcache: leases cannot be released (%s), so each process compiles what it misses", exc)
        self._refusal = exc


class _StoreLease(HeldLease):
    def __init__(self, leases: StoreLeases, name: str, record: LeaseFields, version: str) -> None:
        self._leases = leases
        self._bucket = leases._bucket  # noqa: SLF001 (the other half of the class)
        self._name = name
        self._record = record
        self._version = version
        super().__init__(record.interval, leases._scheduler)  # noqa: SLF001

    def _beat(self) -> bool:
        """Renew the lease; False if another process has it now. A failure of the storage does not end it."""
        if self._leases.refused:
            return True
        record = replace(self._record, beat=self._record.beat + 1)
        try:
            written = self._bucket.write(self._name, record.encode(), version=self._version)
        except StoreReadOnlyError as exc:
            self._leases.note_refusal(exc)
            return True
        except StoreError as exc:
            log.debug("a heartbeat of %s was not written: %s", self._name, exc)
            return True
        if written is None:
            return self._is_ours()
        self._record, self._version = record, written
        return True

    def _mark_done(self) -> None:
        self._record = replace(self._record, done=True)
        self.lost = not self._beat()

    def _delete(self) -> None:
        if self.lost:
            return
        try:
            if not self._bucket.delete(self._name, version=self._version) and self._is_ours():
                self._bucket.delete(self._name, version=self._version)
        except StoreReadOnlyError as exc:
            self._leases.note_refusal(exc)
        except StoreError as exc:
            log.debug("the lease %s was not released; others will take it over: %s", self._name, exc)

    def _is_ours(self) -> bool:
        """True if the object is still this process's, with another version: the answer to a write was lost."""
        try:
            blob = self._bucket.read(self._name, length=_MAX_BYTES)
        except StoreError:
            return True  # unknown; the next heartbeat asks again
        found = None if blob is None else decode_lease(blob.data)
        if blob is None or found is None or found.holder != self._record.holder:
            return False
        self._record, self._version = found, blob.version
        return True


def _longest(interval: float) -> float:
    """Return the seconds for which a living holder leaves its lease as it is, at most."""
    return MISSED_BEATS * interval + _RESOLUTION


def _name(key: str) -> str:
    return LEASES + escape_key(key)
