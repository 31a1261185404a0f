"""`AutotuneStore`: tuned configurations, in memory and in layers of documents."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.autotune.key import ROOT, slug
from ejcache.autotune.layer import Layer, warn_once
from ejcache.autotune.records import Source, encode_record
from ejcache.errors import EjcacheError, UsageError
from ejcache.settings import environment, resolve, user_directory
from ejcache.stores.documents import open_documents

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ejcache.autotune.key import RecordKey
    from ejcache.autotune.records import Record
    from ejcache.stores.documents import DocumentStore

__all__ = ["AutotuneStore", "Found", "default_store", "set_default_store"]

_REFRESH_SECONDS: Final = 2.0
_LONGEST_REFRESH_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Found:
    """A record, and where it was.

    Attributes:
        record: the record.
        layer: the layer's name, or `memory`.
        source: what the record counts as there: a seed stays a seed however it was measured.
    """

    record: Record
    layer: str
    source: Source


class AutotuneStore:
    """Tuned configurations that threads, processes and hosts share.

    Whoever can write to a layer decides which configurations a program runs with; open only what you trust.

    Args:
        url: a directory, any URL that a shared store can have, or documents that are open already; None for the
            user's own (`EJKERNEL_PERSISTENT_CACHE_DIR`, else the cache directory).
        shared: another one, below it: read after it and written with it.
        seeds: read-only places below both; None for `EJCACHE_AUTOTUNE_SEEDS`. The package's own come last.
        read_only: publish nothing.
        refresh_seconds: how soon a key that was not found is looked for again, in an ongoing process; it doubles
            each time, up to a minute. A record that was found stays for the life of the process or until `reload`,
            because a configuration that changes under a program makes it compile again and makes ranks disagree.

    No method raises because of what a layer holds or because it fails: that is counted, said once, and a miss.
    """

    def __init__(
        self,
        url: str | DocumentStore | None = None,
        *,
        shared: str | DocumentStore | None = None,
        seeds: Sequence[str | DocumentStore] | None = None,
        read_only: bool = False,
        refresh_seconds: float = _REFRESH_SECONDS,
    ) -> None:
        settings = resolve()
        places = _places(url, shared)
        self.refresh_seconds = refresh_seconds
        self.beside: object = None
        """What this process keeps as long as it keeps the store: its chooser."""
        self.generation = 0
        """How often it was reloaded: what was chosen before is chosen anew."""
        self.layers = [Layer(name, _opened(place, read_only=read_only)) for name, place in places]
        for place in settings.autotune_seeds if seeds is None else seeds:
            self.layers.append(Layer("seeds", _opened(place, read_only=True), seeds=True))
        package = files("ejcache.autotune") / "seeds"
        if isinstance(package, Path):
            self.layers.append(Layer("package", open_documents(str(package), read_only=True), seeds=True))
        self._lock = threading.Lock()
        self._found: dict[str, list[Found]] = {}
        self._absent: dict[str, tuple[float, float]] = {}
        self._unpublished: dict[tuple[int, str], Record] = {}

    def __repr__(self) -> str:
        return f"AutotuneStore({self.url!r})"

    @property
    def url(self) -> str:
        """Where records are published first."""
        return self.layers[0].documents.url

    def find(self, key: RecordKey) -> Found | None:
        """The strongest record of `key`, or None. The first lookup reads the layers, the next ones nothing."""
        found = self.find_all(key)
        return found[0] if found else None

    def find_all(self, key: RecordKey) -> list[Found]:
        """Every layer's record of `key`, strongest first."""
        held = self._found.get(key.digest)
        if held is not None:
            return held
        if not self._due(key.digest):
            return []
        found = []
        for layer in self.layers:
            record = layer.read(key)
            if record is not None:
                found.append(Found(record, layer.name, Source.SEED if layer.seeds else record.source))
        # Stable: of equals, the layer that comes first.
        found.sort(key=lambda item: item.source.rank)
        with self._lock:
            if found:
                self._found[key.digest] = found
                self._absent.pop(key.digest, None)
            else:
                self._postpone(key.digest)
        return found

    def publish(self, record: Record) -> bool:
        """Keep the record for this process and in every layer that can be written; False if none took it.

        A record that is there already is merged with it: the stronger choice stands, and all evidence is kept. What
        a layer could not take is offered to it again with the next publication, and when the store is closed.

        Raises:
            UsageError: the record is none that may be stored.
        """
        try:
            encode_record(record)
        except (TypeError, ValueError) as exc:
            raise UsageError(f"the record of {record.key.text} cannot be stored: {exc}") from exc
        with self._lock:
            held = [item for item in self._found.get(record.key.digest, ()) if item.source.rank < record.source.rank]
            self._found[record.key.digest] = [*held, Found(record, "memory", record.source)]
            self._absent.pop(record.key.digest, None)
            for number, layer in enumerate(self.layers):
                if layer.writable:
                    self._unpublished[number, record.key.digest] = record
        taken = self._publish_waiting()
        return any(digest == record.key.digest for _, digest in taken)

    def forget(self, key: RecordKey) -> None:
        """Look `key` up in the layers again, the next time that it is asked for."""
        with self._lock:
            self._found.pop(key.digest, None)
            self._absent.pop(key.digest, None)

    def reload(self) -> None:
        """Look everything up in the layers again, each key when it is asked for; calls choose anew then, too."""
        with self._lock:
            self.generation += 1
            self._found.clear()
            self._absent.clear()

    def delete(self, key: RecordKey) -> bool:
        """Remove the record of `key` from every layer that can be written; False if none had one."""
        self.forget(key)
        with self._lock:
            for place in [place for place in self._unpublished if place[1] == key.digest]:
                del self._unpublished[place]
        deleted = [layer.delete(key.path) for layer in self.layers if layer.writable]
        return any(deleted)

    def records(
        self, *, operation: str | None = None, device: str | None = None, layer: str | None = None
    ) -> Iterator[Found]:
        """Every record in the layers, the same key once for each layer that has it; reads them all.

        Args:
            operation: only this operation's.
            device: only this device's.
            layer: only this layer's.
        """
        prefix = f"{ROOT}/" if operation is None else f"{ROOT}/{slug(operation)}/"
        if operation is not None and device is not None:
            prefix += f"{slug(device)}/"
        for place in self.layers:
            if layer is not None and place.name != layer:
                continue
            for _, record in place.records(prefix):
                if operation in {None, record.key.operation} and device in {None, record.key.device}:
                    yield Found(record, place.name, Source.SEED if place.seeds else record.source)

    def elsewhere(self, key: RecordKey) -> list[Found]:
        """Records of the same call in other environments, newest first."""
        found = []
        for layer in self.layers:
            for path, record in layer.records(f"{key.shelf}{key.call_digest}-"):
                if path != key.path:
                    found.append(Found(record, layer.name, Source.STALE))
        return sorted(found, key=lambda item: -item.record.created)

    def stats(self) -> dict[str, int]:
        """Counters of all layers together, and how many keys this process holds."""
        total: dict[str, int] = dict.fromkeys(("read", "published", "unpublished", "corrupt", "unknown", "errors"), 0)
        for layer in self.layers:
            for name, amount in layer.counters.items():
                total[name] = total.get(name, 0) + amount
        return total | {"in_memory": len(self._found), "waiting": len(self._unpublished)}

    def close(self) -> None:
        """Publish what could not be published before, however lately that failed, and release connections."""
        if self._unpublished:
            for layer in self.layers:
                layer.resume()
            self._publish_waiting()
        for layer in self.layers:
            layer.documents.close()

    def _publish_waiting(self) -> list[tuple[int, str]]:
        taken = []
        for place, record in list(self._unpublished.items()):
            layer = self.layers[place[0]]
            try:
                if layer.publish(record):
                    taken.append(place)
                elif layer.writable:
                    continue
            except (EjcacheError, RecursionError, TypeError, ValueError) as exc:
                # Dropped: it would come first the next time, too, and nothing behind it would ever be published.
                layer.counters["errors"] += 1
                url = layer.documents.url
                warn_once(f"{url} unmergeable", "%s cannot be stored in %s: %s", record.key.text, url, exc)
            with self._lock:
                if self._unpublished.get(place) is record:
                    del self._unpublished[place]
        return taken

    def _due(self, digest: str) -> bool:
        postponed = self._absent.get(digest)
        return postponed is None or time.monotonic() >= postponed[0]

    def _postpone(self, digest: str) -> None:
        wait = self._absent[digest][1] * 2 if digest in self._absent else self.refresh_seconds
        wait = min(wait, max(_LONGEST_REFRESH_SECONDS, self.refresh_seconds))
        self._absent[digest] = (time.monotonic() + wait, wait)


def _places(
    url: str | DocumentStore | None, shared: str | DocumentStore | None
) -> list[tuple[str, str | DocumentStore]]:
    places = [("user", url)] if url is not None else _default_places()
    return [*places, *([("shared", shared)] if shared else [])]


def _opened(place: str | DocumentStore, *, read_only: bool) -> DocumentStore:
    return open_documents(place, read_only=read_only) if isinstance(place, str) else place


def _default_places() -> list[tuple[str, str | DocumentStore]]:
    # With what a program said itself, if it did: `ejcache.enable(url)` moves tuned configurations, too.
    activate = sys.modules.get("ejcache.jaxside.activate")
    settings = resolve() if activate is None else activate.current_settings()
    root = settings.autotune_dir or settings.cache_dir
    if "://" in root and not root.startswith("file://"):
        return [("user", str(user_directory())), ("shared", root)]
    return [("user", root)]


_EXIT_SECONDS: Final = 5.0
_VARIABLES: Final = ("EJKERNEL_PERSISTENT_CACHE_DIR", "EJCACHE_AUTOTUNE_SEEDS", "JAX_COMPILATION_CACHE_DIR")
_default: AutotuneStore | None = None
_default_variables: tuple[str | None, ...] | None = None
_default_lock: Final = threading.Lock()


def default_store() -> AutotuneStore:
    """The store of this process: the one of `set_default_store`, else the user's own.

    The user's own is found when it is first asked for, and again when a variable that names it has changed.
    """
    global _default, _default_variables
    # Every call of every operation comes by here: the settings are resolved only when a variable has changed.
    env = environment()
    variables = tuple([env.get(name) for name in _VARIABLES])
    held = _default
    if held is not None and _default_variables in (None, variables):
        return held
    with _default_lock:
        if _default is None or _default_variables not in (None, variables):
            try:
                _default = AutotuneStore()
            except EjcacheError as exc:
                # A bad URL in a job's environment must not fail the job.
                warn_once("default store", "the autotune store cannot be opened, and results are not kept: %s", exc)
                _default = AutotuneStore("/nonexistent/ejcache", seeds=(), read_only=True)
            _default_variables = variables
        _close_at_exit()
        return _default


@cache
def _close_at_exit() -> None:
    from ejcache.stores.shared_workers import at_exit

    at_exit(_close_default)


def _close_default() -> None:
    """Offer what is still to be published once more, for a few seconds: a program that has ended must not hang."""
    from ejcache.stores.shared_workers import call_with_timeout

    if _default is None or not _default.stats()["waiting"]:
        return
    try:
        call_with_timeout("publishing tuned configurations", _default.close, _EXIT_SECONDS)
    except Exception as exc:
        warn_once("closing", "tuned configurations could not be kept: %s", exc)


def set_default_store(store: AutotuneStore | None) -> None:
    """Use `store` wherever none is given; None for the user's own again."""
    global _default, _default_variables
    with _default_lock:
        _default, _default_variables = store, None
        _close_at_exit()
