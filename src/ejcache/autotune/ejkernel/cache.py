"""`PersistentCache`: ejkernel's class of this name, over ejkernel's files and our records."""

from __future__ import annotations

import time
from argparse import Namespace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ejcache.autotune.ejkernel.exchange import EJKERNEL_FILE, EJKERNEL_KEY
from ejcache.autotune.ejkernel.files import OperationFile, file_key, key_of_file, operation_directory
from ejcache.autotune.log import warn_once
from ejcache.autotune.records.json_values import ConfigurationError, from_json, to_json
from ejcache.autotune.records.record import Record, Source
from ejcache.autotune.records.store import default_store
from ejcache.errors import EjcacheError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ejcache.autotune.records.store import AutotuneStore

__all__ = ["PersistentCache", "adopt"]

Cfg = TypeVar("Cfg")


class PersistentCache(Generic[Cfg]):
    """Configurations of one operation, kept across processes. It has the interface of ejkernel's class.

    Args:
        opname: the file is `<opname>.json`.
        path: of the file, also a URL; by default in `EJKERNEL_PERSISTENT_CACHE_DIR` or in ejkernel's own directory,
            looked up at each use.
        loader: makes a configuration from a stored JSON value.
        dumper: makes a JSON value from a configuration.
        cfg_type: the type of stored objects; without it they become a `Namespace`.
        store: takes a record of each configuration, too; by default the process's own store.

    Reads see the writes of other processes. Damaged contents and failing storage raise no exception: they are logged
    once, and the configuration counts as absent.
    """

    def __init__(
        self,
        opname: str,
        path: str | None = None,
        loader: Callable[[Any], Cfg] | None = None,
        dumper: Callable[[Cfg], Any] | None = None,
        cfg_type: type[Cfg] | None = None,
        *,
        store: AutotuneStore | None = None,
    ) -> None:
        self.opname = opname
        self.loader = loader
        self.dumper = dumper
        self.cfg_type = cfg_type
        self._path = path
        self._store = store
        self._files: dict[str, OperationFile] = {}
        self._memory: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"PersistentCache({self.opname!r}, path={self._path!r})"

    @property
    def path(self) -> str:
        """The path of the file now."""
        return self.file.path

    @property
    def file(self) -> OperationFile:
        """The file at its present path."""
        where = self._path or f"{operation_directory()}/{self.opname}.json"
        if where not in self._files:
            self._files[where] = OperationFile.at(where)
        return self._files[where]

    @property
    def store(self) -> AutotuneStore:
        """The store that takes the records."""
        return default_store() if self._store is None else self._store

    @property
    def _data(self) -> dict[str, Any]:
        return {**self._read(), **self._memory}

    @property
    def _disabled(self) -> bool:
        return False

    def _key(self, device: str, op_id: str, call_key: str) -> str:
        return file_key(device, op_id, call_key)

    def get(self, device: str, op_id: str, call_key: str) -> Cfg | None:
        """The configuration, or None."""
        text = self._key(device, op_id, call_key)
        for plain in self._stored(text):
            try:
                return self.load(plain)
            except Exception as exc:
                warn_once(f"{self.opname} load", "a configuration of %s cannot be used: %s", self.opname, exc)
        return None

    def put(self, device: str, op_id: str, call_key: str, cfg: Cfg) -> None:
        """Keep the configuration in this process, and for others if it can be written.

        Its source is IMPORTED, because ejkernel does not say how it was found.
        """
        text = self._key(device, op_id, call_key)
        try:
            plain = self.dump(cfg)
        except Exception as exc:
            warn_once(f"{self.opname} dump", "a configuration of %s is not kept: %s", self.opname, exc)
            return
        self._memory[text] = plain
        self.write(text, plain)
        key = key_of_file(text)
        if key is not None:
            provenance = {EJKERNEL_KEY: text, EJKERNEL_FILE: f"{self.opname}.json"}
            record = Record(key, plain, Source.IMPORTED, provenance=provenance, created=time.time())
            try:
                held = self.store.find(key)
                if held is None or not record.repeats(held.record):
                    self.store.publish(record)
            except EjcacheError as exc:
                warn_once(f"{self.opname} publish", "a configuration of %s is not kept: %s", self.opname, exc)

    def load(self, plain: Any) -> Cfg:
        """A stored value as the configuration.

        Raises:
            ConfigurationError: it does not fit `cfg_type`.
            Exception: the error of `loader`.
        """
        value: Any = plain if self.loader is None else self.loader(plain)
        if not isinstance(value, dict):
            if self.cfg_type is not None and not isinstance(value, self.cfg_type):
                raise ConfigurationError(f"{value!r} is not a {self.cfg_type.__qualname__}")
            return value  # type: ignore[no-any-return]  # the type of a stored value is unknown
        if self.cfg_type is None:
            return Namespace(**value)  # type: ignore[return-value]  # as ejkernel does without a type
        return from_json(value, cfg_type=self.cfg_type)  # type: ignore[no-any-return]

    def dump(self, cfg: Cfg) -> Any:
        """The configuration as a JSON value.

        Raises:
            ConfigurationError: it has no such form.
            Exception: the error of `dumper`.
        """
        return to_json(cfg if self.dumper is None else self.dumper(cfg))

    def write(self, text: str, plain: Any) -> None:
        """Set the entry in the file only."""
        try:
            self.file.put(text, plain)
        except EjcacheError as exc:
            warn_once(f"{self.opname} file", "ejkernel's file of %s cannot be used: %s", self.opname, exc)

    def read(self, text: str) -> Any:
        """The entry in the file, or None."""
        return self._read().get(text)

    def _read(self) -> dict[str, Any]:
        try:
            return self.file.read()
        except EjcacheError as exc:
            warn_once(f"{self.opname} file", "ejkernel's file of %s cannot be used: %s", self.opname, exc)
            return {}

    def _stored(self, text: str) -> Sequence[Any]:
        if text in self._memory:
            return (self._memory[text],)
        key = key_of_file(text)
        found = [] if key is None else [item.record.configuration for item in self.store.find_all(key)]
        entry = self.read(text)
        return found if entry is None else [*found, entry]


def adopt(chain: Any) -> PersistentCache[Any] | None:
    """Replace the store of one of ejkernel's chains by ours, and return ours; None if the chain has none."""
    held = chain.persistent
    if held is None or isinstance(held, PersistentCache):
        return held
    name = str(getattr(held, "path", "")).replace("\\", "/").rpartition("/")[2].removesuffix(".json")
    chain.persistent = PersistentCache(
        name or "operation",
        loader=getattr(held, "loader", None),
        dumper=getattr(held, "dumper", None),
        cfg_type=getattr(held, "cfg_type", None),
    )
    return chain.persistent  # type: ignore[no-any-return]
