"""`PersistentCache` stands for ejkernel's class of this name, over ejkernel's files and our records.

There is one file `<operation>.json` for each operation, an object of configurations by key:

    {"<device kind>|<platform version>|<op>@v<version>|<16 hex>": {"block_m": 128, …}, …}

The platform version may contain `|`, so a key is split from its end (ejkernel 0.0.80, ops/config/persistent.py).
ejkernel's own class reads a file once and later writes all of it from memory. Such a write can lose entries of the
file, but not our records of them.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from argparse import Namespace
from collections import Counter
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from ejcache.autotune.log import warn_once
from ejcache.autotune.records.json_values import ConfigurationError, from_json, parse_json, to_json
from ejcache.autotune.records.record import Record, Source
from ejcache.autotune.records.record_key import RecordKey
from ejcache.autotune.records.store import QUARANTINE, default_store, is_held_back
from ejcache.errors import EjcacheError, UsageError
from ejcache.settings.resolve import settings_in_use
from ejcache.stores.documents import open_documents
from ejcache.util.directory_access import why_untrusted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ejcache.autotune.records.store import AutotuneStore, Found
    from ejcache.stores.documents import Documents


_DIRECTORY: Final = "ejkernel-presistent-cache"
"""ejkernel spells it so."""
_RECHECK_SECONDS: Final = 1.0
MAX_FILE_BYTES: Final = 64 * 2**20


def file_key(device: str, op_id: str, call_key: str) -> str:
    """Return the key of an entry in a file."""
    return f"{device}|{op_id}|{call_key}"


def key_of_file(text: str) -> RecordKey | None:
    """Return the record key for the key of an entry, or None if `text` has another form."""
    device, _, rest = text.partition("|")
    middle, _, call_key = rest.rpartition("|")
    platform_version, separator, op_id = middle.rpartition("|")
    if not separator:
        platform_version, op_id = "", middle
    operation, versioned, version = op_id.rpartition("@v")
    if not (device and versioned and operation and call_key):
        return None
    return RecordKey(operation, version, device, {"platform_version": platform_version}, {"ejkernel": call_key})


def operation_directory() -> str:
    """Find the directory of the files: `EJKERNEL_PERSISTENT_CACHE_DIR`, or else ejkernel's own choice now."""
    configured = settings_in_use().autotune_dir
    if configured is not None and "://" in configured:
        return str(configured)
    first = Path(configured or f"~/{_DIRECTORY}").expanduser()
    places = (first, Path.cwd() / f".{_DIRECTORY}", Path(tempfile.gettempdir()) / _DIRECTORY)
    return str(next(filter(_usable, places), first if configured else places[-1]))


def _usable(directory: Path) -> bool:
    """True if the directory exists, and no other user can have put configurations into it, or could be made."""
    if directory.is_dir():
        return not why_untrusted(directory, directory.stat())
    parent = next((above for above in directory.parents if above.exists()), None)
    return parent is not None and parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)


def parsed_file(data: bytes) -> dict[str, Any] | None:
    """Return the entries of a file, or None if it is not a JSON object."""
    try:
        parsed = parse_json(data, max_size=MAX_FILE_BYTES)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


class OperationFile:
    """One of the files. Other processes may write it at any time. A failure raises nothing and is logged once.

    Args:
        path: a path or URL that ends in the name of the file.
        read_only: write nothing. A function is asked before each write.
    """

    def __init__(self, path: str, *, read_only: bool | Callable[[], bool] = False) -> None:
        self.path = path
        self._read_only = read_only
        self._held: dict[str, Any] = {}
        self._stamp: str | None = None
        self._checked = -1e9

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.path.rpartition("/")[2]

    @cached_property
    def documents(self) -> Documents:
        """The directory of the file; raises `UsageError` if the path is no place of files."""
        return open_documents(self.path.rpartition("/")[0] or ".", read_only=self._read_only)

    def read(self) -> dict[str, Any]:
        """Return the entries as they were at most a second ago; after a read that failed, those of the last good one.

        A file that is no JSON object, or is larger than `MAX_FILE_BYTES`, counts as empty. The caller must not change
        the dictionary.
        """
        if time.monotonic() - self._checked < _RECHECK_SECONDS:
            return self._held
        self._checked = time.monotonic()
        try:
            stamp = self.documents.stamp(self.name)
            if stamp != self._stamp:
                data = self.documents.read(self.name, max_size=MAX_FILE_BYTES)
                self._stamp = stamp
                entries = {} if data is None else parsed_file(data)
                if entries is None:
                    warn_once(self.path, "%s is not a JSON object and counts as empty", self.path)
                self._held = entries or {}
        except EjcacheError as exc:
            warn_once(self.path, "%s cannot be read: %s", self.path, exc)
        return self._held

    def put(self, key: str, value: Any) -> bool:
        """Set one entry and keep all others; False if the file could not be written.

        Files in a bucket are only read, because a bucket takes about one write per second to an object. The records
        hold the same configurations.
        """

        def change(old: bytes | None) -> bytes:
            entries = {} if old is None else parsed_file(old)
            if entries is None:
                self.documents.replace(f"{QUARANTINE}{self.name}", old or b"")
                entries = {}
            entries[key] = value
            return json.dumps(entries).encode()

        try:
            if self.documents.remote and "://" in self.documents.url:
                return False
            self.documents.update(self.name, change)
        except (EjcacheError, TypeError, ValueError) as exc:
            warn_once(self.path, "%s cannot be written: %s", self.path, exc)
            return False
        self._checked = -1e9  # after the write: another thread may have read the file just before it
        return True


EJKERNEL_KEY: Final = "ejkernel_key"
EJKERNEL_FILE: Final = "ejkernel_file"
"""In a record's provenance: the key and the file in which ejkernel looks for it, if that key is unambiguous."""


def imported_record(text: str, plain: Any, name: str) -> Record | None:
    """Return the record of an entry of the file with this name; None if its key has another form."""
    key = key_of_file(text)
    provenance = {EJKERNEL_KEY: text, EJKERNEL_FILE: name}
    return None if key is None else Record(key, plain, Source.IMPORTED, provenance=provenance, created=time.time())


def read_file(data: bytes, name: str) -> tuple[list[Record], list[str]]:
    """Return the records in a file of ejkernel's with this name, and a line for each entry that has another key.

    Their source is IMPORTED, because a file does not say whether an entry was measured, guessed or given.

    Raises:
        UsageError: it is not a JSON object.
    """
    entries = parsed_file(data)
    if entries is None:
        raise UsageError("it is not a JSON object")
    made = {text: imported_record(text, plain, name) for text, plain in entries.items()}
    # Other programs may have put entries of their own into the file.
    problems = [f"{text!r} is not a key of ejkernel's" for text, record in made.items() if record is None]
    return [record for record in made.values() if record is not None], problems


def legacy_key(record: Record) -> tuple[str, str] | None:
    """Return (file name, key) of the entry in which ejkernel looks for the record; None if its key would be
    ambiguous.
    """
    text, name = record.provenance.get(EJKERNEL_KEY), record.provenance.get(EJKERNEL_FILE)
    if isinstance(text, str) and isinstance(name, str):
        return name, text
    key = record.key
    if set(key.call) == {"ejkernel"}:
        device = f"{key.device}|{key.environment.get('platform_version', '')}"
        text = file_key(device, f"{key.operation}@v{key.version}", str(key.call["ejkernel"]))
        return f"{key.operation}.json", text
    return None


def export_to_ejkernel(found: Iterable[Found], directory: str) -> tuple[Counter[str], int, int]:
    """Write records into ejkernel's files, and keep the other entries of these files.

    Returns:
        The number of entries written to each file, of records without a key of ejkernel's, and of failed writes.
    """
    written: Counter[str] = Counter()
    left_out = failed = 0
    strongest: dict[tuple[str, str], tuple[int, Any]] = {}
    for item in found:
        place = legacy_key(item.record)
        if place is None:
            left_out += 1
            continue
        held = strongest.get(place)
        if held is None or item.source.rank < held[0]:
            strongest[place] = (item.source.rank, item.record.configuration)
    for (name, text), (_, configuration) in sorted(strongest.items()):
        if OperationFile(f"{directory}/{name}").put(text, configuration):
            written[name] += 1
        else:
            failed += 1
    return written, left_out, failed


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
        return self._path or f"{operation_directory()}/{self.opname}.json"

    @property
    def file(self) -> OperationFile:
        """The file at its present path."""
        path = self.path
        return self._files.setdefault(path, OperationFile(path, read_only=partial(is_held_back, path)))

    @property
    def store(self) -> AutotuneStore:
        """The store that takes the records."""
        return default_store() if self._store is None else self._store

    def get(self, device: str, op_id: str, call_key: str) -> Cfg | None:
        """Return the configuration, or None."""
        for plain in self._stored(file_key(device, op_id, call_key)):
            try:
                return self.load(plain)
            except Exception as exc:
                warn_once(f"{self.opname} load", "a configuration of %s cannot be used: %s", self.opname, exc)
        return None

    def put(self, device: str, op_id: str, call_key: str, cfg: Cfg) -> None:
        """Keep the configuration in this process, and for others if it can be written.

        Its source is IMPORTED, because ejkernel does not say how it was found.
        """
        text = file_key(device, op_id, call_key)
        try:
            plain = to_json(cfg if self.dumper is None else self.dumper(cfg))
        except Exception as exc:
            warn_once(f"{self.opname} dump", "a configuration of %s is not kept: %s", self.opname, exc)
            return
        self._memory[text] = plain
        self.file.put(text, plain)
        record = imported_record(text, plain, f"{self.opname}.json")
        if record is None:
            return
        try:
            held = self.store.find(record.key)
            if held is None or not record.repeats(held.record):
                self.store.publish(record)
        except EjcacheError as exc:
            warn_once(f"{self.opname} publish", "a configuration of %s is not kept: %s", self.opname, exc)

    def load(self, plain: Any) -> Cfg:
        """Return a stored value as the configuration.

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

    def _stored(self, text: str) -> Sequence[Any]:
        if text in self._memory:
            return (self._memory[text],)
        key = key_of_file(text)
        found = [] if key is None else [item.record.configuration for item in self.store.find_all(key)]
        entry = self.file.read().get(text)
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
