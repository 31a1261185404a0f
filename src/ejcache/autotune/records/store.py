"""Looks up and stores tuned records in layers: of this process, of the user, on shared storage, and of packages.

A layer is one directory or bucket. It never raises because of storage: a lookup that fails is a miss; the failure is
counted and logged once. The circuit breaker of the bucket decides how often storage that failed is asked again. A
damaged record is a miss, too; a layer that can be written moves it to its quarantine.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.log import warn_once
from ejcache.autotune.records.record import MAX_RECORD_BYTES, Source, dated_after, decode_record, encode_record, merged
from ejcache.autotune.records.record_key import ROOT, distance, is_similar, slug
from ejcache.autotune.records.shipped import package_seeds
from ejcache.cache.exit_report import name_place
from ejcache.errors import (
    MALFORMED,
    EjcacheError,
    EntryError,
    EntryVersionError,
    InvalidKeyError,
    StoreError,
    StoreNotAskedError,
    StoreReadOnlyError,
    UsageError,
)
from ejcache.settings.directories import user_directory
from ejcache.settings.environment import environment_variable
from ejcache.settings.resolve import settings_in_use
from ejcache.stores.documents import open_documents
from ejcache.stores.location import Location
from ejcache.stores.opening import usable_location
from ejcache.util.lifecycle import ExitPhase, at_exit
from ejcache.util.threads import call_with_timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ejcache.autotune.records.record import Record
    from ejcache.autotune.records.record_key import RecordKey
    from ejcache.settings.table import Settings
    from ejcache.stores.documents import Documents


QUARANTINE: Final = "autotune-quarantine/"


class RecordLayer:
    """The records in one directory or bucket.

    Attributes:
        name: `user`, `shared`, `seeds`, or `package` and the name of an entry point, for people.
        documents: the directory or bucket.
        seeds: its records count as shipped seeds, whatever their own source is.
        counters: how often a record was read, published, corrupt and so on.
    """

    def __init__(self, name: str, documents: Documents, *, seeds: bool = False) -> None:
        self.name = name
        self.documents = documents
        self.seeds = seeds
        self.counters: Counter[str] = Counter()
        self._refuses_writes = False

    def __repr__(self) -> str:
        return f"RecordLayer({self.name!r}, {self.documents.url!r})"

    @property
    def writable(self) -> bool:
        """True if records can be published here now, as far as is known."""
        return not (self.seeds or self._refuses_writes or self.documents.read_only)

    def read(self, key: RecordKey) -> Record | None:
        """Return the intact record of `key`, or None."""
        record: Record | None = self._guarded(lambda: self._read(key.path))
        return record

    def records(self, prefix: str = f"{ROOT}/") -> Iterator[Record]:
        """Yield each intact record whose path begins with `prefix`."""
        found = self._guarded(lambda: [path for path in self.documents.list(prefix) if path.endswith(".json")])
        for path in found or ():
            record = self._guarded(partial(self._read, path))
            if record is not None:
                yield record

    def publish(self, record: Record) -> bool:
        """Write the record, merged with an existing one of its key; False if it could not be written."""
        if not self.writable:
            return False
        data = encode_record(record)

        def change(old: bytes | None) -> bytes | None:
            if old is None:
                return data
            try:
                held = decode_record(old, path=record.key.path)
            except EntryVersionError:
                return None
            except EntryError:
                return data
            combined = encode_record(merged(held, record))
            return None if combined == old else combined

        def write() -> bool:
            path = record.key.path
            if self.documents.create(path, data):
                return True
            held = self.documents.read(path, max_size=MAX_RECORD_BYTES)
            if held is not None and len(held) > MAX_RECORD_BYTES:
                # `update` would read all of it.
                self.documents.replace(path, data)
            else:
                self.documents.update(path, change)
            return True

        done = bool(self._guarded(write))
        self.counters["published" if done else "unpublished"] += 1
        return done

    def delete(self, path: str) -> bool:
        """Delete the record under `path`; False if there was none or it could not be deleted."""
        return bool(self._guarded(lambda: self.documents.delete(path)))

    def _read(self, path: str) -> Record | None:
        data = self.documents.read(path, max_size=MAX_RECORD_BYTES)
        if data is None:
            return None
        url = self.documents.url
        try:
            found = decode_record(data, path=path)
        except EntryVersionError as exc:
            self.counters["unknown"] += 1
            warn_once(f"{url} version", "%s/%s is not used: %s", url, path, exc)
        except EntryError as exc:
            self.counters["corrupt"] += 1
            done = "quarantined" if self._quarantine(path, data) else "ignored"
            warn_once(f"{url} corrupt", "%s/%s is damaged and %s: %s", url, path, done, exc)
        else:
            self.counters["read"] += 1
            return found
        return None

    def _quarantine(self, path: str, data: bytes) -> bool:
        if not self.writable or len(data) > MAX_RECORD_BYTES:
            return False
        try:
            self.documents.replace(QUARANTINE + path.removeprefix(f"{ROOT}/").replace("/", "-"), data)
            return self.documents.discard(path, data)
        except (StoreError, InvalidKeyError):
            self.counters["errors"] += 1
        return False

    def _failure(self, exc: Exception) -> str:
        """Say what the failure of this layer means for the program."""
        url = self.documents.url
        if isinstance(exc, StoreReadOnlyError):
            return f"tuned configurations cannot be kept in {url}, so each start measures them again: {exc}"
        return f"tuned configurations in {url} cannot be used, so a start may measure them again: {exc}"

    def _guarded(self, action: Callable[[], Any]) -> Any:
        """Return the result of `action`; None if the storage fails or its circuit breaker is open."""
        try:
            return action()
        except StoreNotAskedError:
            return None
        except (StoreError, InvalidKeyError) as exc:
            self.counters["errors"] += 1
            if isinstance(exc, StoreReadOnlyError):
                self._refuses_writes = True
            warn_once(f"{self.documents.url} failed", "%s", self._failure(exc))
        return None


_NOT_KEPT: Final = (
    "EJCACHE_READ_ONLY is set, so tuned configurations are not kept, and each start measures them again; "
    "EJCACHE_AUTOTUNE_DIR can name a directory outside of the cache that keeps them"
)
_REFRESH_SECONDS: Final = 2.0
_LONGEST_REFRESH_SECONDS: Final = 60.0
_REMEMBERED_KEYS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Found:
    """A record and its layer.

    Attributes:
        record: the record.
        layer: the name of the layer, or `memory`.
        source: the record's source; IMPORTED for each record that a package ships or that a read-only place has.
        shipped: a package ships the record, or a read-only place has it.
    """

    record: Record
    layer: str
    source: Source
    shipped: bool = False


@dataclass(slots=True)
class _KeyRecords:
    """The records of one key that this process found. An empty list is looked up again at `due`, monotonic seconds."""

    found: list[Found]
    due: float = 0.0
    wait: float = 0.0


class AutotuneStore:
    """Records of tuned configurations that threads, processes and hosts share.

    Open only stores that you trust: a person who can write to a layer decides which configurations a program uses.

    Args:
        url: a directory, the URL of a bucket, or open documents; None for `EJCACHE_AUTOTUNE_DIR` or, without
            that, the cache directory.
        shared: a second place, read after the first one and written with it.
        seeds: read-only places below both; None for those of the installed packages with an entry point
            `ejcache.seeds`.
        read_only: publish nothing. By default, a store whose `url` is None follows the setting `read_only`: while that
            is true, it publishes neither to the cache nor to a bucket.
        refresh_seconds: how long a key that was not found counts as absent. The time doubles with each lookup, up to
            a minute.

    A record that was found is used until the process ends or calls `reload`. If it changed under a running program,
    the program would compile again and the ranks of a job would disagree.

    A layer that fails or holds damaged records makes no method raise. Such a lookup is a miss; the failure is counted
    and logged once.
    """

    def __init__(
        self,
        url: str | Documents | None = None,
        *,
        shared: str | Documents | None = None,
        seeds: Sequence[str | Documents] | None = None,
        read_only: bool | None = None,
        refresh_seconds: float = _REFRESH_SECONDS,
    ) -> None:
        self.refresh_seconds = refresh_seconds
        self.generation = 0
        """How often `reload` was called. Choices of an earlier generation are made again."""
        places: list[_Place] = [("user", url, False)] if url is not None else _default_places()
        if shared:
            places.append(("shared", shared, False))
        self.layers = [
            RecordLayer(name, _opened(place, read_only=by_default if read_only is None else read_only))
            for name, place, by_default in places
        ]
        self._follows_setting = url is None and read_only is None
        for place in seeds or ():
            self.layers.append(RecordLayer("seeds", _opened(place, read_only=True), seeds=True))
        self._packages: list[RecordLayer] | None = None if seeds is None else []
        self._broken_packages = 0
        self._lock = threading.RLock()  # reentrant: a signal handler may call an operation
        self._keys: OrderedDict[str, _KeyRecords] = OrderedDict()
        self._unpublished: dict[tuple[int, str], Record] = {}

    def __repr__(self) -> str:
        return f"AutotuneStore({self.url!r})"

    @property
    def url(self) -> str:
        """The URL of the first layer."""
        return self.layers[0].documents.url

    def find(self, key: RecordKey) -> Found | None:
        """Return the strongest record of `key`, or None. The first lookup reads the layers; later ones use memory."""
        found = self.find_all(key)
        return found[0] if found else None

    def find_all(self, key: RecordKey) -> list[Found]:
        """Return the record of `key` in each layer that has one, strongest first."""
        held = self._keys.get(key.digest)
        if held is not None and (held.found or time.monotonic() < held.due):
            return held.found
        found = _found_in(self.layers, key)
        if all(item.shipped for item in found):
            # Only now, because finding the packages takes some time.
            found += _found_in(self._package_layers(), key)
        # The sort is stable: of equally strong records, that of the first layer comes first.
        found.sort(key=_strength)
        wait = 0.0
        if not found:
            longest = max(_LONGEST_REFRESH_SECONDS, self.refresh_seconds)
            wait = self.refresh_seconds if held is None else min(2 * held.wait, longest)
        self._remember(key, _KeyRecords(found, time.monotonic() + wait, wait))
        return found

    def publish(self, record: Record) -> bool:
        """Keep the record in this process and in each layer that can be written; False if no layer took it.

        If a layer has a record of this key, the two are merged, see `merged`. A record replaces those that this store
        has found, so it is dated after them. A record that a layer could not take is offered again with the next
        publication and when the store is closed.

        Raises:
            UsageError: the record cannot be stored anywhere.
        """
        try:
            encode_record(record)
        except (TypeError, ValueError) as exc:
            raise UsageError(f"the record of {record.key.text} cannot be stored: {exc}") from exc
        digest = record.key.digest
        held = self._keys.get(digest)
        found = [] if held is None else held.found
        record = dated_after(record, [item.record for item in found])
        published = Found(record, "memory", record.source)
        stronger = [item for item in found if _strength(item) < _strength(published)]
        self._remember(record.key, _KeyRecords([*stronger, published]))
        with self._lock:
            for number, layer in enumerate(self.layers):
                if layer.writable:
                    self._unpublished[number, digest] = record
        if self._follows_setting and _only_reads() and not any(layer.writable for layer in self.layers):
            warn_once("read only", _NOT_KEPT)
        return any(taken == digest for _, taken in self._publish_waiting())

    def look_again(self, key: RecordKey) -> list[Found]:
        """Read the records of one key anew; see `find_all`."""
        with self._lock:
            self._keys.pop(key.digest, None)
        return self.find_all(key)

    def reload(self) -> None:
        """Read the layers again at the next lookup of each key. Calls choose their configurations again, too."""
        with self._lock:
            self.generation += 1
            self._keys.clear()

    def delete(self, key: RecordKey) -> bool:
        """Delete the record of `key` from each layer that can be written; False if none had one."""
        with self._lock:
            self._keys.pop(key.digest, None)
            for place in [place for place in list(self._unpublished) if place[1] == key.digest]:
                self._unpublished.pop(place, None)
        deleted = [layer.delete(key.path) for layer in self.layers if layer.writable]
        return any(deleted)

    def records(
        self, *, operation: str | None = None, device: str | None = None, layer: str | None = None
    ) -> Iterator[Found]:
        """Yield each record in each layer. A key that several layers have comes several times. This reads all records.

        Args:
            operation: only records of this operation.
            device: only records of this device.
            layer: only records in this layer.
        """
        prefix = f"{ROOT}/" if operation is None else f"{ROOT}/{slug(operation)}/"
        for place in self.all_layers():
            if layer in {None, place.name}:
                for record in place.records(prefix):
                    if operation in {None, record.key.operation} and device in {None, record.key.device}:
                        yield _found(place, record)

    def near(self, key: RecordKey, *, same_call: bool = False) -> list[Found]:
        """Return records of the operation under other keys; those that differ least come first, then the newest.

        A record of the same call that says what is probably best here, see `is_similar`, has the source SIMILAR; any
        other one its own.

        Args:
            key: of the call.
            same_call: only records of this call, of any device and in any environment, which are read alone.
        """
        if same_call:
            records = [_found(layer, each) for layer in self.all_layers() for each in layer.records(key.directory)]
        else:
            records = list(self.records(operation=key.operation))
        found = []
        for item in records:
            other = item.record.key
            if other == key or (same_call and other.call_digest != key.call_digest):
                continue
            source = Source.SIMILAR if is_similar(key, other) else item.source
            found.append((distance(key, other), -item.record.created, replace(item, source=source)))
        return [item for _, _, item in sorted(found, key=lambda each: each[:2])]

    def stats(self) -> dict[str, int]:
        """Return counters of all layers together, the keys in memory, and the records that wait for a layer.

        `broken_packages` counts the entries of installed packages that name no directory of records.
        """
        total: dict[str, int] = dict.fromkeys(("read", "published", "unpublished", "corrupt", "unknown", "errors"), 0)
        for layer in [*self.layers, *(self._packages or ())]:
            for name, amount in layer.counters.items():
                total[name] = total.get(name, 0) + amount
        in_memory = sum(bool(held.found) for held in list(self._keys.values()))
        waiting = len(self._unpublished)
        return total | {"in_memory": in_memory, "waiting": waiting, "broken_packages": self._broken_packages}

    def close(self) -> None:
        """Offer waiting records to their layers once more, and release connections."""
        if self._unpublished:
            self._publish_waiting()
        for layer in self.layers:
            layer.documents.close()

    def all_layers(self) -> list[RecordLayer]:
        """Return `layers` and those of the installed packages."""
        return [*self.layers, *self._package_layers()]

    def _package_layers(self) -> list[RecordLayer]:
        """Return the layers of the installed packages."""
        if self._packages is None:
            self._packages = []
            for name, place in package_seeds():
                if place is None:
                    self._broken_packages += 1
                else:
                    documents = open_documents(place, read_only=True)
                    self._packages.append(RecordLayer(f"package {name}", documents, seeds=True))
        return self._packages

    def _remember(self, key: RecordKey, records: _KeyRecords) -> None:
        with self._lock:
            self._keys.pop(key.digest, None)
            if len(self._keys) >= _REMEMBERED_KEYS:
                self._keys.popitem(last=False)
            self._keys[key.digest] = records

    def _publish_waiting(self) -> list[tuple[int, str]]:
        taken = []
        for place, record in list(self._unpublished.items()):
            layer = self.layers[place[0]]
            try:
                if layer.publish(record):
                    taken.append(place)
                elif layer.writable:
                    continue
            except (EjcacheError, *MALFORMED) as exc:
                # Drop this record. Otherwise each publication would fail at it, before the records that wait behind.
                layer.counters["errors"] += 1
                url = layer.documents.url
                warn_once(f"{url} unmergeable", "%s cannot be stored in %s: %s", record.key.text, url, exc)
            with self._lock:
                if self._unpublished.get(place) is record:
                    self._unpublished.pop(place, None)
        return taken


def _found_in(layers: Sequence[RecordLayer], key: RecordKey) -> list[Found]:
    records = [(layer, layer.read(key)) for layer in layers]
    return [_found(layer, record) for layer, record in records if record is not None]


def _found(layer: RecordLayer, record: Record) -> Found:
    return Found(record, layer.name, Source.IMPORTED if layer.seeds else record.source, layer.seeds)


def _strength(item: Found) -> tuple[int, bool, bool]:
    """Return less for a stronger record."""
    return item.source.rank, not item.record.with_profile, bool(item.record.unsure)


def _opened(place: str | Documents, *, read_only: bool | Callable[[], bool]) -> Documents:
    return open_documents(place, read_only=read_only) if isinstance(place, str) else place


def _only_reads() -> bool:
    return settings_in_use().read_only


def is_held_back(place: str) -> bool:
    """True if a directory or URL is in the cache, and the setting `read_only` forbids to write there now."""
    settings = settings_in_use()
    return settings.read_only and _is_in_cache(place, settings)


def _is_in_cache(place: str, settings: Settings) -> bool:
    """True if a directory or URL is that of the cache, or below it."""
    try:
        own, cache = (_resolved(Location.parse(each)) for each in (place, settings.dir))
    except UsageError:
        return False
    return f"{own}/".startswith(f"{cache}/")


def _resolved(location: Location) -> str:
    # A link may lead into the cache.
    return os.path.realpath(location.path) if location.kind == "directory" else location.url.partition("?")[0]


_Place = tuple[str, "str | Documents", "bool | Callable[[], bool]"]
"""The name and the place of a layer, and what says that nothing is written there if the caller does not."""


def _default_places() -> list[_Place]:
    # `ejcache.enable(url)` moves tuned configurations, too, so its settings go before those of the environment.
    settings = settings_in_use()
    root = settings.autotune_dir or settings.dir or str(user_directory())
    if "://" in root and not root.startswith("file://"):
        own = _usable(str(user_directory()), settings)
        return [("user", own, _is_in_cache(own, settings) and _only_reads), ("shared", root, _only_reads)]
    place = _usable(root, settings)
    return [("user", place, (not settings.autotune_dir or _is_in_cache(place, settings)) and _only_reads)]


def _usable(root: str, settings: Settings) -> str:
    """Return the directory `root`, or the one that is used where it is refused; the line at exit then names that."""
    location, chosen = Location.parse(root), root == settings.autotune_dir
    found = usable_location(location, settings, setting="EJCACHE_AUTOTUNE_DIR" if chosen else "EJCACHE_DIR")
    if found == location:
        return root
    if chosen:
        name_place(f"tuned configurations in {found.path}")
    return found.path


_EXIT_SECONDS: Final = 5.0
_VARIABLES: Final = (
    "EJCACHE_AUTOTUNE_DIR",
    "EJKERNEL_PERSISTENT_CACHE_DIR",
    "JAX_COMPILATION_CACHE_DIR",
)
_default: AutotuneStore | None = None
_default_variables: tuple[str | None, ...] | None = None
_default_lock: Final = threading.RLock()


def default_store() -> AutotuneStore:
    """Return the store of this process: the one given to `set_default_store`, or else the user's own.

    The user's own is opened at first use, and again when a variable that names it has changed.
    """
    global _default, _default_variables
    # This runs at each call of each operation, so it compares variables instead of resolving all settings.
    variables = tuple([environment_variable(name) for name in _VARIABLES])
    if (held := _held(variables)) is not None:
        return held
    with _default_lock:
        if (held := _held(variables)) is None:
            made = _opened_default()
            if (held := _held(variables)) is None:  # no signal handler has opened it meanwhile
                held, _default, _default_variables = made, made, variables
        _close_at_exit()
        return held


def _held(variables: tuple[str | None, ...]) -> AutotuneStore | None:
    """Return the store that is open, if these values of the variables still name it."""
    return _default if _default_variables in (None, variables) else None


def _opened_default() -> AutotuneStore:
    try:
        return AutotuneStore()
    except EjcacheError as exc:
        # An unusable URL in a job's environment must not fail the job.
        warn_once("default store", "the autotune store cannot be opened, so results are not kept: %s", exc)
        return AutotuneStore("/nonexistent/ejcache", seeds=(), read_only=True)


@cache
def _close_at_exit() -> None:
    at_exit(ExitPhase.UPLOAD, _close_default)


def _close_default() -> None:
    """Offer waiting records to their layers for a few seconds; a program that has ended must not hang."""
    if _default is None or not _default.stats()["waiting"]:
        return
    try:
        call_with_timeout("publishing tuned configurations", _default.close, _EXIT_SECONDS)
    except Exception as exc:
        warn_once("closing", "some tuned configurations were not kept: %s", exc)


def set_default_store(store: AutotuneStore | None) -> None:
    """Use `store` wherever a caller names no store; None for the user's own again."""
    global _default, _default_variables
    with _default_lock:
        _default, _default_variables = store, None
        _close_at_exit()
