"""Leases between hosts, as small objects of shared storage.

    v1/leases/<key>      JSON: holder, fence, beat, interval

Created under the condition that there is none; every heartbeat and every takeover is written under the condition that
the object is still the one that was seen. A storage that cannot compare on writing (a file system) can still decide
who removes a version and who creates the next, and a takeover is these two there.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ejcache.errors import StoreError, StoreReadOnlyError
from ejcache.stores.heart import Heart, heart
from ejcache.stores.leases import Sighting
from ejcache.stores.objects import ABSENT
from ejcache.stores.shared_layout import escape_key, process_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.stores.objects import ConditionalObjects

__all__ = ["LEASES", "StoreLeases"]

log = logging.getLogger("ejcache")

LEASES: Final = "v1/leases/"


@dataclass(frozen=True, slots=True)
class _Record:
    holder: str
    fence: int
    beat: int
    interval: float

    def encode(self) -> bytes:
        fields = {"holder": self.holder, "fence": self.fence, "beat": self.beat, "interval": self.interval}
        return json.dumps(fields, sort_keys=True).encode()


def _decode(data: bytes) -> _Record | None:
    try:
        fields = json.loads(data)
        interval = float(fields["interval"])
        return _Record(str(fields["holder"]), int(fields["fence"]), int(fields["beat"]), min(max(interval, 0.0), 60.0))
    except (ValueError, KeyError, TypeError):
        return None


class StoreLeases:
    """Leases that all users of a shared store respect. Safe for threads, processes and forks.

    Args:
        objects: where they are kept.
        interval: seconds between heartbeats; storage allows about one write a second to an object.
        grace: see `Leases`.
        beats: calls the heartbeats.
    """

    def __init__(
        self, objects: ConditionalObjects, *, interval: float = 3.0, grace: float = 1.0, beats: Heart = heart
    ) -> None:
        self.grace = grace
        self._objects = objects
        self._interval = interval
        self._heart = beats
        self._refused: StoreReadOnlyError | None = None

    def acquire(self, key: str) -> _StoreLease | None:
        """The lease, or None if somebody has it; one request.

        Raises:
            StoreReadOnlyError: credentials that may create a lease but not change or remove one leave it behind, and
                everybody else waits for it; after the first such refusal no more are taken.
        """
        if self._refused is not None:
            raise StoreReadOnlyError(f"no leases are taken that cannot be given up: {self._refused}")
        return self._written(_name(key), fence=1, version=ABSENT)

    def look(self, key: str) -> Sighting | None:
        """Who has the lease, or None if nobody has; one request."""
        blob = self._objects.read(_name(key))
        if blob is None:
            return None
        # What nobody can read was not written by anybody who lives and can.
        record = _decode(blob.data) or _Record("", 0, 0, self._interval)
        return Sighting(token=blob.version, fence=record.fence, interval=record.interval)

    def take_over(self, key: str, seen: Sighting) -> _StoreLease | None:
        """The lease of a dead holder, or None if it has changed since it was seen."""
        name = _name(key)
        if self._objects.conditional:
            return self._written(name, fence=seen.fence + 1, version=seen.token)
        if not self._objects.delete(name, version=seen.token):
            return None
        return self._written(name, fence=seen.fence + 1, version=ABSENT)

    def _written(self, name: str, *, fence: int, version: str) -> _StoreLease | None:
        record = _Record(process_name(), fence, 0, self._interval)
        written = self._objects.write(name, record.encode(), version=version)
        if written is None:
            return None
        lease = _StoreLease(self._objects, self._heart, name, record, written, refused=self._note_refusal)
        self._heart.add(lease)
        return lease

    def _note_refusal(self, exc: StoreReadOnlyError) -> None:
        if self._refused is None:
            log.info("ejcache: leases cannot be given up (%s), so that each process compiles for itself", exc)
        self._refused = exc


class _StoreLease:
    def __init__(
        self,
        objects: ConditionalObjects,
        beats: Heart,
        name: str,
        record: _Record,
        version: str,
        *,
        refused: Callable[[StoreReadOnlyError], None],
    ) -> None:
        self.interval = record.interval
        self.lost = False
        self._objects = objects
        self._heart = beats
        self._name = name
        self._record = record
        self._version = version
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._ended = False
        self._note_refusal = refused

    @property
    def fence(self) -> int:
        return self._record.fence

    def release(self, *, after: float = 0.0) -> None:
        # In a forked child the lease is the parent's.
        if self._pid == os.getpid():
            self._heart.end(self, after=after)

    def beat(self) -> bool:
        with self._lock:
            if self._ended or self.lost:
                return False
            record = _Record(self._record.holder, self._record.fence, self._record.beat + 1, self._record.interval)
            try:
                written = self._objects.write(self._name, record.encode(), version=self._version)
            except StoreReadOnlyError as exc:
                self._note_refusal(exc)
                return False
            except StoreError as exc:
                log.debug("a heartbeat of %s was not written: %s", self._name, exc)
                return True
            if written is None:
                self.lost = not self._is_ours(record)
                return not self.lost
            self._record, self._version = record, written
            return True

    def end(self) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = True
            if self.lost:
                return
            try:
                if not self._objects.delete(self._name, version=self._version) and self._is_ours(self._record):
                    self._objects.delete(self._name, version=self._version)
            except StoreReadOnlyError as exc:
                self._note_refusal(exc)
            except StoreError as exc:
                log.debug("the lease %s was not given up, and will be found dead: %s", self._name, exc)

    def _is_ours(self, record: _Record) -> bool:
        """Whether the object is ours all the same: a write whose answer was lost has changed its version."""
        try:
            blob = self._objects.read(self._name)
        except StoreError:
            return True  # not known; the next beat asks again
        found = None if blob is None else _decode(blob.data)
        if blob is None or found is None or found.holder != record.holder:
            return False
        self._record, self._version = found, blob.version
        return True


def _name(key: str) -> str:
    return LEASES + escape_key(key)
