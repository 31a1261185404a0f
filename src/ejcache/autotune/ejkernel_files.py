"""ejkernel's files: one `<operation>.json` for each operation, a flat object of configurations.

    {"<device kind>|<platform version>|<op>@v<version>|<16 hex>": {"block_m": 128, …}, …}

The device has a `|` of its own, so a key is taken apart from its end (ejkernel 0.0.80, ops/config/persistent.py). A
process that uses ejkernel's own class reads a file once and later writes all of it from memory; the records beside
the files lose nothing by that.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.key import RecordKey
from ejcache.autotune.layer import QUARANTINE, warn_once
from ejcache.errors import EjcacheError, InvalidKeyError, StoreError
from ejcache.settings import resolve
from ejcache.stores.documents import open_documents

if TYPE_CHECKING:
    from ejcache.stores.documents import DocumentStore

__all__ = ["OperationFile", "file_key", "key_of_file", "operation_directory", "parsed_file"]

_DIRECTORY: Final = "ejkernel-presistent-cache"
"""Spelled as ejkernel spells it."""
_RECHECK_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 30.0
_failing: Final[dict[str, float]] = {}
"""Directories that failed a moment ago, and until when they are left alone: all operations share one."""


def file_key(device: str, op_id: str, call_key: str) -> str:
    """The key in a file, as ejkernel makes it."""
    return f"{device}|{op_id}|{call_key}"


def key_of_file(text: str) -> RecordKey | None:
    """The record key for a key in a file, or None if it is no such key."""
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
    """Where the files are: `EJKERNEL_PERSISTENT_CACHE_DIR`, else where ejkernel would go, now."""
    configured = resolve().autotune_dir
    if configured is not None:
        if "://" in configured or _possible(Path(configured).expanduser()):
            return str(configured)
    else:
        home = Path("~").expanduser() / _DIRECTORY
        if _possible(home):
            return str(home)
    for fallback in (Path.cwd() / f".{_DIRECTORY}", Path(tempfile.gettempdir()) / _DIRECTORY):
        if _possible(fallback):
            return str(fallback)
    return str(configured or Path(tempfile.gettempdir()) / _DIRECTORY)


def _possible(directory: Path) -> bool:
    """Whether the directory is there, or could be made."""
    if directory.is_dir():
        return True
    parent = next((above for above in directory.parents if above.exists()), None)
    return parent is not None and parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)


def parsed_file(data: bytes) -> dict[str, Any] | None:
    """What a file holds, or None if it is no JSON object."""
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


class OperationFile:
    """One of the files; others may write it at any time. Trouble is counted, said once, and a miss.

    Args:
        documents: its directory.
        name: of the file.
    """

    def __init__(self, documents: DocumentStore, name: str) -> None:
        self.documents = documents
        self.name = name
        self.counters: Counter[str] = Counter()
        self._held: dict[str, Any] = {}
        self._stamp: str | None = None
        self._checked = -1e9

    @classmethod
    def at(cls, path: str) -> OperationFile:
        """The file at `path`, a path or URL that ends in a file name."""
        directory, _, name = path.rpartition("/")
        return cls(open_documents(directory or "."), name)

    @property
    def path(self) -> str:
        """Where it is."""
        return f"{self.documents.url}/{self.name}"

    def read(self) -> dict[str, Any]:
        """Its entries, not older than a second."""
        if time.monotonic() - self._checked < _RECHECK_SECONDS:
            return self._held
        self._checked = time.monotonic()
        if self._checked < _failing.get(self.documents.url, 0.0):
            return self._held
        try:
            stamp = self.documents.stamp(self.name)
            if stamp != self._stamp:
                data = self.documents.read(self.name)
                self._stamp = stamp
                self._held = {} if data is None else self._parsed(data)
        except (StoreError, InvalidKeyError) as exc:
            self.counters["errors"] += 1
            _failing[self.documents.url] = time.monotonic() + _PAUSE_SECONDS
            warn_once(self.documents.url, "%s cannot be read: %s", self.path, exc)
        return self._held

    def put(self, key: str, value: Any) -> bool:
        """Set one entry and leave all others as they are then; False if it could not be written.

        Files in a bucket are read and not written: it takes about one write a second to an object, and the records
        are there for that.
        """
        if self.documents.remote and "://" in self.documents.url:
            return False

        def change(old: bytes | None) -> bytes:
            entries = {} if old is None else parsed_file(old)
            if entries is None:
                self._set_aside(old or b"")
                entries = {}
            entries[key] = value
            return json.dumps(entries).encode()

        self._checked = -1e9
        try:
            self.documents.update(self.name, change)
        except (EjcacheError, TypeError, ValueError) as exc:
            self.counters["errors"] += 1
            warn_once(self.path, "%s cannot be written: %s", self.path, exc)
            return False
        return True

    def _parsed(self, data: bytes) -> dict[str, Any]:
        entries = parsed_file(data)
        if entries is None:
            self.counters["corrupt"] += 1
            warn_once(self.path, "%s is no JSON object, and is taken to be empty", self.path)
        return entries or {}

    def _set_aside(self, data: bytes) -> None:
        try:
            self.documents.replace(f"{QUARANTINE}{self.name}", data)
        except (StoreError, InvalidKeyError):
            self.counters["errors"] += 1
