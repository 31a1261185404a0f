"""Writes entries and side objects into the store of a cache, counts them, and quarantines what is wrong.

A hit writes nothing and does not import this. As in `reading`, nothing in here fails a program.
"""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from ejcache import entry
from ejcache.cache.reading import CacheReader, may_write
from ejcache.cache.reasons import Skip
from ejcache.cache.stats import add_skip
from ejcache.errors import StoreError, StoreReadOnlyError, StoreTooSmallError
from ejcache.keys.key import module_text_key
from ejcache.stores.base import two_tiers
from ejcache.util.units import format_size
from ejcache.util.writer import this_writer

if TYPE_CHECKING:
    from ejcache.settings.table import Settings
    from ejcache.stores.base import Store

_TEXT_BYTES: Final = 4_000_000


class WriteResult(NamedTuple):
    """The result of a write: why no entry was created, or None, and the bytes of the entry; 0 if none was made."""

    skip: Skip | None
    size: int = 0


class EntryWriter:
    """Writes what the settings allow into the store of a cache, and counts it there.

    Args:
        reader: opens the store, and counts.
    """

    def __init__(self, reader: CacheReader) -> None:
        self._reader = reader

    def write(self, header: entry.Header, raw: bytes, settings: Settings, *, replacing: bool = False) -> WriteResult:
        """Store `raw` under `header.key` if the settings allow it, and count the result; see `store`."""
        skip, seconds = self.why_not_stored(header.compile_seconds, settings), header.compile_seconds
        if skip is not None:
            self.leave_out(header.key, skip, seconds, settings)
            return WriteResult(skip)
        local_only = self._reader.is_local_only(seconds, settings)
        return self.store(header, raw, settings, local_only=local_only, replacing=replacing)

    def store(
        self, header: entry.Header, raw: bytes, settings: Settings, *, local_only: bool, replacing: bool = False
    ) -> WriteResult:
        """Store what `why_not_stored` does not leave out, and count the result.

        Args:
            header: sizes, codec and creation time are filled in here.
            raw: the serialised executable.
            settings: the limits that hold.
            local_only: what `CacheReader.is_local_only` says of it.
            replacing: replace an entry that is of no use on this host.
        """
        written = self._store_entry(header, raw, settings, local_only=local_only, replacing=replacing)
        if written.skip is not None:
            self.leave_out(header.key, written.skip, header.compile_seconds, settings)
        else:
            self._reader.tally.add(stores=1, bytes_written=written.size)
            self._reader.flush_if_due()
        return written

    def _store_entry(
        self, header: entry.Header, raw: bytes, settings: Settings, *, local_only: bool, replacing: bool
    ) -> WriteResult:
        store = self._reader.opened(settings)
        if store is None:
            return WriteResult(Skip.ERROR)
        signed = self._signed(header)
        data = entry.encode(signed, raw)
        if len(data) < settings.min_entry_size:
            return WriteResult(Skip.SMALL)
        replacing = replacing or settings.recompile_force
        skip = self._create(store, header, data, settings, local_only=local_only, replacing=replacing)
        if skip is None:
            self._reader.admits(signed, data)
            self._reader.used.add(signed.key)
        return WriteResult(skip, len(data))

    def _create(
        self, store: Store, header: entry.Header, data: bytes, settings: Settings, *, local_only: bool, replacing: bool
    ) -> Skip | None:
        try:
            if not self._put(store, header, data, local_only=local_only, replacing=replacing):
                return Skip.DUPLICATE
        except StoreTooSmallError as exc:
            self._reader.warn(
                f"large:{header.name}",
                f"an executable of {format_size(len(data))} ({header.name or header.key}) is larger than "
                f"{settings['max_size'].source} allows ({format_size(store.max_size)}) and is not stored: {exc}",
            )
            return Skip.LARGE
        except StoreReadOnlyError:
            return Skip.READ_ONLY
        except StoreError as exc:
            self._reader.report_failure("write an entry", exc, settings, program=header.name)
            return Skip.ERROR
        return None

    def _put(self, store: Store, header: entry.Header, data: bytes, *, local_only: bool, replacing: bool) -> bool:
        """Create or replace an entry, on this host only if it is below the floor of what others get."""
        key, seconds = header.key, header.compile_seconds
        created = True
        if (kept_here := self._reader.kept_here) is not None and not local_only:
            kept_here.add(key)
        if local_only and (tiers := two_tiers(store)) is not None:
            created = tiers.put_here(key, data, replacing=replacing)
            tiers.note_local(key, seconds)
            if created:
                self._reader.tally.add(kept_here=1, kept_here_seconds=seconds)
        elif replacing:
            store.replace(key, data)
        else:
            created = store.put(key, data)
        return created

    def _signed(self, header: entry.Header) -> entry.Header:
        """Return the header with what says when and by whom its entry was stored.

        A process that knows a recall stores after it, whatever its clock says.
        """
        since = 0.0 if self._reader.stored_policy is None else self._reader.stored_policy.since
        return header._replace(created=max(time.time(), since), writer=this_writer())

    def why_not_stored(self, compile_seconds: float, settings: Settings) -> Skip | None:
        """Say why no executable that compiled in `compile_seconds` is stored, or None if its size decides. Not counted.

        0.0 seconds means that the time is not known; then the minimum compile time does not apply.
        """
        if settings.disabled_reason or self._reader.is_off():
            return Skip.DISABLED
        if settings.read_only:
            return Skip.READ_ONLY
        if 0.0 < compile_seconds < settings.floors.keep:
            return Skip.QUICK
        return None

    def leave_out(self, key: str, reason: Skip, compile_seconds: float, settings: Settings) -> None:
        """Count a compilation that is not stored, and note on this host if that is because it was quick."""
        add_skip(self._reader.tally, reason)
        if reason in (Skip.QUICK, Skip.SMALL):
            self._reader.tally.add(left_out=1, left_out_seconds=compile_seconds)
        floors = settings.floors
        # A process that may not write waits for another one to publish executables above the floor.
        below = {Skip.QUICK: floors.ask, Skip.READ_ONLY: min(floors.keep, floors.ask)}.get(reason, 0.0)
        store = self._reader.opened(settings) if 0.0 < compile_seconds < below else None
        tiers = two_tiers(store) if store is not None else None
        if tiers is not None:
            tiers.note_local(key, compile_seconds)
        self._reader.flush_if_due()

    def write_text(self, text: str, settings: Settings, *, program: str = "") -> str:
        """Store a module's text beside the entries; returns its digest, or "" if it was not stored.

        The text explains later misses. It is worth little space: at most 4 MB, and a hundredth of the size limit.
        """
        store = self._reader.opened(settings)
        raw = text.encode()
        if store is None or store.read_only or len(raw) > _TEXT_BYTES:
            return ""
        digest = hashlib.sha256(raw).hexdigest()
        key = module_text_key(digest)
        try:
            # `contains` is not called first: with a local tier that would be a request while the program waits.
            data = entry.encode(entry.Header(key=key, kind="module_text", created=time.time()), raw)
            if 0 < store.max_size < 100 * len(data):
                return ""
            store.put(key, data)
        except StoreError as exc:
            self._reader.report_failure("write an entry", exc, settings, program=program)
            return ""
        return digest

    def write_beside(self, header: entry.Header, raw: bytes, settings: Settings) -> bool:
        """Store a profile or a record beside the entries, replacing an older one of that key; False if it was not.

        Minimum sizes and hit and miss counters do not apply: it is small and is not an executable.
        """
        store = self._reader.opened(settings)
        if store is None or not may_write(store, settings) or settings.disabled_reason:
            return False
        try:
            data = entry.encode(self._signed(header), raw)
            store.replace(header.key, data)
        except StoreError as exc:
            self._reader.report_failure("write an entry", exc, settings, program=header.name)
            return False
        return True

    def quarantine(self, key: str, settings: Settings) -> None:
        """Quarantine an entry that is proven wrong: it is no longer read, and a copy is kept if there is room."""
        store = self._reader.opened(settings)
        if store is None or not may_write(store, settings):
            return
        try:
            data = store.peek(key)
            if data is not None:
                store.quarantine(key, data, wrong=True)
        except StoreError as exc:
            self._reader.report_failure("quarantine an entry", exc, settings)
