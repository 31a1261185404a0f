"""`CacheReader` opens the store of one cache, reads entries as the settings say, and counts hits and failures.

Nothing in here fails a program. A failure of the storage is counted, logged once for each kind of operation, and
becomes a miss; only `jax_raise_persistent_cache_errors` lets the error through.
"""

from __future__ import annotations

import threading
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from ejcache import entry
from ejcache.cache.compile_time import compile_time
from ejcache.cache.reasons import Miss
from ejcache.errors import (
    EjcacheError,
    EntryCorruptError,
    EntryError,
    EntryVersionError,
    StoreBusyError,
    StoreError,
    StoreForbiddenError,
    StoreUnavailableError,
    UsageError,
)
from ejcache.journal.recorder import recorder
from ejcache.keys.key import parse_any_key
from ejcache.stores.base import Store, two_tiers
from ejcache.stores.location import display_url
from ejcache.util.lifecycle import AtExit, ExitPhase, track_forks
from ejcache.util.log import log, warn_once
from ejcache.util.scheduler import short_tasks
from ejcache.util.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.bucket.breaker import CircuitBreaker
    from ejcache.cache.early_entries import EarlyEntries
    from ejcache.cache.policy_watch import PolicyWatch
    from ejcache.coordination.single_flight import SingleFlight
    from ejcache.maintenance.recalls import Recalls
    from ejcache.settings.table import Settings
    from ejcache.stores.base import TwoTiers
    from ejcache.util.time_budget import Budget

_NAMED: Final = 10
"""Recalled programs that a sentence names."""
_FLUSH_SECONDS: Final = 2.0
"""Counters of hits go to the store at most this often: that is a transaction. A killed process loses the last."""


class OpenedStore(NamedTuple):
    """What opening a cache gives, where something is known of the policy that is stored with it.

    Attributes:
        store: the store.
        stored_policy: what is known of that policy; None if nobody can say anything of it.
        epoch: at which the store is open; None if that is not known yet, and the store is what this host has of it.
        kept_here: then notes what to upload.
    """

    store: Store
    stored_policy: PolicyWatch | None = None
    epoch: str | None = ""
    kept_here: EarlyEntries | None = None


class CacheReader:
    """Reads the entries of one store as the settings say, and counts. Safe for threads and forks.

    The store is opened when it is first needed. Every operation takes the settings that hold for it, so that one
    compilation follows one set of settings.

    Args:
        url: where the entries are, as `ejcache.open_store` takes it; of a directory the absolute path, because the
            program may change its own.
        open_store: opens the store, or opens it with what knows whether the cache is turned off and where it is; called
            when it is first needed.
        open_single_flight: makes what lets several processes compile each program once, for the store that was
            opened; called at the first miss.

    Attributes:
        tiers: the store, once it is open, if it has two tiers.
        stored_policy: what this process knows of the policy that is stored with the cache; None before the store is
            open, and where nobody can turn it off.
        epoch: at which the store is open; None while this host does not know where the cache is.
        used: the keys of the programs that this process runs.
        kept_here: notes what this process stores on this host while that is not known; None once it is.
        taken_back: the keys whose entries, as this process knows them, were recalled since.
    """

    def __init__(
        self,
        url: str,
        *,
        open_store: Callable[[], Store | OpenedStore],
        open_single_flight: Callable[[Store], SingleFlight | None] | None = None,
    ) -> None:
        self.url = display_url(url)  # of a URL that is refused because it carries a credential
        self.tally = Tally()
        self._open_store = open_store
        self._open_single_flight = open_single_flight
        self.stored_policy: PolicyWatch | None = None
        self.epoch: str | None = ""
        self._known: dict[str, tuple[float, str, bytes]] = {}
        self.used: set[str] = set()
        self.kept_here: EarlyEntries | None = None
        self.taken_back: frozenset[str] = frozenset()
        self._single_flight: tuple[Store, SingleFlight | None] | None = None
        self._store: Store | None = None
        self.tiers: TwoTiers | None = None
        self._opening: CircuitBreaker | None = None
        self._failed_opening: Exception | None = None
        self._flushed_at = time.monotonic()
        self._flush_seconds = _FLUSH_SECONDS
        self._flush_is_planned = False
        self._lock = threading.RLock()
        _alive.add(self)
        track_forks(self)

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(
        self,
        key: str,
        settings: Settings,
        *,
        kind: str | None = "executable",
        local_only: bool = False,
        budget: Callable[[], Budget] | None = None,
        beside: Callable[[], object] | None = None,
    ) -> entry.Entry | Miss:
        """Return the verified entry of this kind under `key`, or why there is none. The caller counts the result.

        A damaged entry is counted and quarantined here, so that the next `write` replaces it. Shared storage is not
        read for a program that is known to be quick, nor with `local_only`, and waited for as long as the budget lasts;
        `beside` is called before (`TwoTiers.get_verified`).
        """
        if settings.disabled_reason:
            return Miss.DISABLED
        if settings.recompile_force:
            return Miss.FORCED
        store = self._store or self._opened(settings)
        if store is None:
            return Miss.ERROR
        watch = self.stored_policy
        if watch is not None:
            if watch.is_off():
                return Miss.DISABLED
            if watch.epoch != self.epoch:
                store = self._moved() or store
            if watch.trouble is not None:
                trouble, watch.trouble = watch.trouble, None
                self.report_failure("read the policy of the cache", trouble, settings)
        damaged: list[bytes] = []
        found = self._read(store, key, kind, settings, damaged, local_only=local_only, budget=budget, beside=beside)
        if found is Miss.RECALLED or (damaged and may_write(store, settings)):
            # That one is gone. Another tier may have a good one, or another host wrote one.
            again = self._read(
                self._moved() or store, key, kind, settings, damaged, local_only=local_only, budget=budget
            )
            if isinstance(again, entry.Entry):
                return again
        return found

    def _read(
        self,
        store: Store,
        key: str,
        kind: str | None,
        settings: Settings,
        damaged: list[bytes],
        *,
        local_only: bool,
        budget: Callable[[], Budget] | None,
        beside: Callable[[], object] | None = None,
    ) -> entry.Entry | Miss:
        tiers = self.tiers
        try:
            if tiers is not None:
                local_only = local_only or self.is_noted_as_quick(key, settings)
                data, verified = tiers.get_verified(key, local_only=local_only, budget=budget, beside=beside)
            else:
                data, verified, local_only = store.get(key), None, False
        except StoreError as exc:
            self.report_failure("read an entry", exc, settings, key=key)
            return Miss.ERROR
        if data is None:
            if self.epoch is None:
                return Miss.ERROR  # what others have stored could not be asked for
            return Miss.QUICK if local_only else Miss.ABSENT
        if self.stored_policy is not None and self.stored_policy.epoch != self.epoch:
            return Miss.RECALLED  # while it was read
        try:
            header = verified if isinstance(verified, entry.Header) else None
            found = entry.decode(data, key=key, kind=kind, verified=header)
        except EntryVersionError:
            return Miss.VERSION
        except EntryError as exc:
            if data not in damaged:
                damaged.append(data)
                self._quarantine_damaged(store, key, data, exc, settings)
            return Miss.CORRUPT if isinstance(exc, EntryCorruptError) else Miss.FOREIGN
        if not self.admits(found.header, data):
            self._remove_recalled(store, key, data, settings)
            return Miss.RECALLED
        self.tally.add(bytes_read=len(data))
        note_used = store.note_used if tiers is None or not local_only else tiers.note_used_here
        note_used(key)
        return found

    def admits(self, header: entry.Header, data: bytes) -> bool:
        """True if the entry is not recalled. Then it is remembered, because it may be recalled later."""
        watch = self.stored_policy
        if watch is not None:
            if watch.is_recalled(header, data):
                return False
            self._known[header.key] = header.created, header.writer, entry.checksum_of(data)
        return True

    def _note_recalls(self, recalls: Recalls) -> None:
        """Note and say which programs of this process are recalled now."""
        from ejcache.maintenance.recalls import Stamp  # the door to a stored policy

        if self.stored_policy is not None and self.epoch not in (None, self.stored_policy.epoch):
            self._take_back(set(self._known.copy()))  # everything was
            return
        # A cache of one host has no other place: what a recall of everything has removed is known by its date.
        recalled = recalls.condemns if self.is_shared else recalls.keeps_out
        self._take_back({key for key, stamp in self._known.copy().items() if recalled(Stamp(*stamp))})

    def _take_back(self, keys: set[str]) -> None:
        new = keys - self.taken_back
        self.taken_back |= new
        names = sorted({parse_any_key(key).name for key in new & self.used})
        if names:
            said = f"{', '.join(names[:_NAMED])}{', …' if len(names) > _NAMED else ''}"
            self.warn(
                f"recalled:{said}",
                f"programs that this process runs were recalled in {self.url}, and stay loaded until it ends: {said}",
            )

    def is_noted_as_quick(self, key: str, settings: Settings) -> bool:
        """True if this host has noted that the program compiles too quickly for shared storage to be asked for it."""
        below = settings.floors.ask
        noted = self.tiers.local_note(key) if below > 0 and self.tiers is not None else None
        return noted is not None and noted < below

    def is_local_only(self, compile_seconds: float, settings: Settings) -> bool:
        """True if what compiled in so many seconds is stored on this host only, though the cache is shared."""
        store = self.opened(settings) if 0.0 < compile_seconds < settings.floors.publish else None
        return store is not None and two_tiers(store) is not None

    def contains(self, key: str, settings: Settings) -> bool:
        """True if there is an entry under `key`; it is neither read nor counted."""
        store = self.opened(settings)
        if store is None or settings.recompile_force:
            return False
        try:
            return store.contains(key)
        except StoreError as exc:
            self.report_failure("look for an entry", exc, settings, key=key)
            return False

    def single_flight(self, settings: Settings) -> SingleFlight | None:
        """Return the single flight that has each program compiled once; None if no other process is waited for.

        It is opened at the first miss, because hits do without.
        """
        is_off = self.is_off()
        with self._lock:
            store = self._store
            if store is None or self._open_single_flight is None or settings.recompile_force or is_off:
                return None
            if self._single_flight is None or self._single_flight[0] is not store:
                self._single_flight = store, self._open_single_flight(store)
            return self._single_flight[1]

    def read_beside(self, key: str, kind: str, settings: Settings, *, max_size: int) -> bytes | None:
        """Read what `write_beside` stored; None if there is none, or it is damaged, too large or of another kind.

        Args:
            key: of the object.
            kind: in its header.
            settings: which store.
            max_size: bytes; a larger object is not decoded.

        Raises:
            StoreError: the storage failed.
        """
        store = self._store or self._opened(settings)
        if store is None or (self.stored_policy is not None and self.stored_policy.off):
            return None
        if self.epoch is None:
            store = self.opened(settings) or store
        data = store.get(key)  # meanwhile, the answer to whether the cache is off may come
        if self.is_off():
            return None
        if (moved := self._moved()) is not None:
            data = moved.get(key)
        if data is None:
            return None
        try:
            header = entry.verify(data, key=key, kind=kind)
            if self.stored_policy is not None and self.stored_policy.is_recalled(header, data):
                return None
            store.note_used(key)
            return entry.decode(data, verified=header).raw if header.raw_size <= max_size else None
        except EntryError as exc:
            # The next write replaces it.
            log.debug("ejcache: %s cannot be read: %s", key, exc)
            return None

    # -- damage --------------------------------------------------------------------------------------------------------

    def _quarantine_damaged(self, store: Store, key: str, data: bytes, exc: EntryError, settings: Settings) -> None:
        self.tally.add(corrupt=1)
        writes, is_gone = may_write(store, settings), False
        try:
            is_gone = writes and store.quarantine(key, data)
        except StoreError as failure:
            self.report_failure("quarantine an entry", failure, settings)
        # An entry that is left there may be intact: then its bytes were damaged on their way here.
        replaced = " and will be replaced" if is_gone else ""
        text = f"a damaged entry in {self.url} is not used{replaced}: {key}: {exc}"
        recorder.add_trouble("use a damaged entry", text)
        self.warn("corrupt", text)
        if writes and settings.raise_errors:
            raise exc

    def _remove_recalled(self, store: Store, key: str, data: bytes, settings: Settings) -> None:
        """Remove what is recalled, so that the next write takes its place, or this host's copy of it."""
        try:
            if may_write(store, settings):
                store.quarantine(key, data, wrong=True)
            elif self.tiers is not None:
                self.tiers.drop_copy(key, data)
        except StoreError as exc:
            log.debug("ejcache: what was recalled under %s could not be removed: %s", key, exc)

    # -- counting ------------------------------------------------------------------------------------------------------

    def count_hit(self, header: entry.Header, *, load_seconds: float, since: float = 0.0) -> None:
        """Count a hit of this thread on an entry that took `load_seconds` to read and load (`CompileTime.hit`)."""
        self.used.add(header.key)
        saved = compile_time.hit(header.compile_seconds, load_seconds, since=since)
        self.tally.add(hits=1, load_seconds=load_seconds, seconds_saved=saved)
        if not self._flush_is_planned:
            self.flush_if_due()

    def flush(self, timeout: float | None = None) -> bool:
        """Write the counters; with `timeout`, also wait that many seconds for uploads. False if one is not finished."""
        self._flush_is_planned = False
        store = self._store
        if store is None or store.read_only:
            return True
        uploaded = True
        if timeout is not None and (tiers := two_tiers(store)) is not None:
            uploaded = tiers.flush(timeout)
        self.count_tiers()
        amounts = self.tally.take_pending()
        if amounts:
            self._flushed_at = time.monotonic()
            try:
                store.add_counters(amounts)
            except Exception as exc:
                # Whatever is wrong with counters must not fail a compile.
                self.tally.put_back(amounts)
                log.debug("counters of %s were not written, and will be with the next ones: %s", self.url, exc)
        return uploaded

    def close(self) -> None:
        """Write the counters and close the store. The next operation opens it again."""
        if self.kept_here is not None:
            self.kept_here.leave()
        self.flush()
        store = self._store
        if store is None:
            return
        if self.stored_policy is not None:
            self.stored_policy.stop()  # another one is made with the store
        # Not under the lock: closing may wait for uploads, and other threads compile meanwhile.
        store.close()
        with self._lock:
            if self._store is store:
                self._store = None

    def count_tiers(self) -> None:
        """Count what the tiers of the store have counted since the last call."""
        tiers = two_tiers(self._store) if self._store is not None else None
        if tiers is not None:
            self.tally.add(**tiers.take_tier_counters())
        if self.kept_here is not None:
            self.tally.add(**self.kept_here.take_counters())

    def flush_if_due(self) -> None:
        """Write the counters now, or in the background as soon as they are due."""
        left = self._flushed_at + self._flush_seconds - time.monotonic()
        if left > 0 and (self._flush_is_planned or short_tasks.later(left, partial(_flush_later, weakref.ref(self)))):
            self._flush_is_planned = True
        else:
            self.flush()

    def after_fork_in_child(self) -> None:
        """Count from zero, with a free lock, and write each counter at once.

        A forked child often ends by `os._exit`, as those of `multiprocessing` do, which runs no exit handlers.
        """
        self._lock = threading.RLock()
        self._flush_seconds = 0.0
        self._flush_is_planned = False
        self.tally.after_fork_in_child()

    # -- the store -----------------------------------------------------------------------------------------------------

    def opened(self, settings: Settings, *, awaits_policy: bool = True) -> Store | None:
        """Return the store, opened if it was not; None if it cannot be opened, or is turned off.

        Args:
            settings: which store.
            awaits_policy: False for a caller that loads nothing before it has asked again.

        Raises:
            Exception: why it cannot be opened, if the setting `raise_errors` asks for that; also if another thread,
                such as that of preload, has found that out.
        """
        store = self._store or self._opened(settings)
        if not awaits_policy or store is None:
            return store
        return None if self.is_off() else self._moved() or self._store or store

    def _moved(self) -> Store | None:
        """Return the store at the place where the cache is now; None if that is where the store is open."""
        watch = self.stored_policy
        if watch is None or watch.epoch == self.epoch:
            return None
        with self._lock:
            opened, epoch = self._store, watch.epoch
            if opened is None or epoch == self.epoch:
                return self._store
            kept = self.kept_here
            store = watch.store_in(opened)
            self._use(store, epoch)
        if kept is None:
            self._take_back(set(self._known.copy()))
        else:
            kept.carry_over(opened, store)
            self.tally.add(**kept.take_counters())
        return store

    def _use(self, store: Store, epoch: str | None, kept_here: EarlyEntries | None = None) -> None:
        self.tiers = two_tiers(store)
        self._store, self.epoch, self.kept_here = store, epoch, kept_here
        if (tiers := self.tiers) is not None:
            # Uploads that are made while it closes count, too.
            tiers.when_closing(self.flush)

    @property
    def is_shared(self) -> bool:
        """True if hosts share the cache, as is known once its store is open."""
        return self.stored_policy is not None and self.stored_policy.is_shared

    def is_off(self) -> bool:
        """True if the cache is turned off for all."""
        return self.stored_policy is not None and self.stored_policy.is_off()

    def _opened(self, settings: Settings) -> Store | None:
        store = self._store
        if store is not None:
            return store
        with self._lock:
            if self._store is not None:
                return self._store
            if self._opening is not None and not self._opening.allow_probe():
                if settings.raise_errors and self._failed_opening is not None:
                    raise self._failed_opening.with_traceback(None)
                return None
            try:
                found = self._open_store()
                store, watch, epoch, kept_here = (found, None, "", None) if isinstance(found, Store) else found
                place = store.url.removeprefix("file://")
                if place.startswith("/") and not (watch is not None and watch.is_shared):
                    self.url = place  # the directory that is used, if it is not the one that was asked for
                self.stored_policy = watch
                if watch is not None:
                    watch.when_recalled = self._note_recalls
                self._use(store, epoch, kept_here)
                self._opening = self._failed_opening = None
            except (StoreError, UsageError) as exc:
                self._failed_opening = exc
                if self._opening is None:
                    from ejcache.bucket.breaker import CircuitBreaker  # a room that no hit needs

                    self._opening = CircuitBreaker(failures=1)
                self._opening.fail()  # after its cool-down the store may be mounted again
                self.report_failure("open the cache", exc, settings)
            return self._store

    # -- failures ------------------------------------------------------------------------------------------------------

    def report_failure(
        self, doing: str, exc: Exception, settings: Settings, *, program: str = "", key: str = ""
    ) -> None:
        """Count an error, and log it the first time that `doing` fails, with the program, or what its key says of it.

        Raises:
            Exception: `exc` itself, if the setting `raise_errors` asks for that.
        """
        self.tally.add(errors=1)
        if settings.raise_errors:
            raise exc
        if key:
            program = parse_any_key(key).name
        of_program = f" for {program!r}" if program else ""
        # Our own messages are sentences, and most of them name the place.
        said = (str(exc) if isinstance(exc, EjcacheError) else "") or f"{type(exc).__name__}: {exc}"
        where = "" if self.url in said else f" in {self.url}"
        text = f"could not {doing}{where}{of_program}; the program goes on without it: {said}"
        recorder.add_trouble(doing, text)
        if isinstance(exc, StoreForbiddenError) or isinstance(exc.__cause__, StoreForbiddenError):
            # Storage that refuses reads refuses uploads too (stores.tiered.uploads); one sentence says so.
            self.warn("refused", text)
        elif (
            isinstance(exc, StoreBusyError | StoreUnavailableError)
            and self._store is not None
            and (storage := self._storage_url()) is not None
        ):
            # The circuit breaker says it if nothing but work in the background has failed (bucket.breaker).
            warn_once(("unreachable", storage), "ejcache: %s", text)
        else:
            self.warn(doing, text)

    def _storage_url(self) -> str | None:
        """Return the URL of the storage that hosts share; None if they share none."""
        if self.stored_policy is not None and self.stored_policy.is_shared:
            return self.stored_policy.storage_url
        return self._store.url if self._store is not None and two_tiers(self._store) is not None else None

    def warn(self, kind: str, message: str) -> None:
        """Log a warning the first time that something of this `kind` happens with this cache, at DEBUG after that."""
        warn_once((kind, self.url), "ejcache: %s", message)


def may_write(store: Store, settings: Settings) -> bool:
    """True if neither the settings nor the store forbid to write."""
    return not (settings.read_only or store.read_only)


def _flush_later(reference: weakref.ref[CacheReader]) -> None:
    store = reference()
    if store is not None:
        store.flush()


_alive: Final[AtExit[CacheReader]] = AtExit(ExitPhase.COUNTERS, CacheReader.flush)
