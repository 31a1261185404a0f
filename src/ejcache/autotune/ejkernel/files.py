"""ejkernel's files: one `<operation>.json` for each operation, an object of configurations by key.

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
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.log import warn_once
from ejcache.autotune.records.key import RecordKey
from ejcache.autotune.records.layer import QUARANTINE
from ejcache.errors import EjcacheError, InvalidKeyError, StoreError
from ejcache.settings.resolve import resolve
from ejcache.stores.documents import open_documents
from ejcache.util.trust import why_untrusted

if TYPE_CHECKING:
    from ejcache.stores.documents import Documents

__all__ = ["OperationFile", "file_key", "key_of_file", "operation_directory", "parsed_file"]

_DIRECTORY: Final = "ejkernel-presistent-cache"
"""ejkernel spells it so."""
_RECHECK_SECONDS: Final = 1.0
MAX_FILE_BYTES: Final = 64 * 2**20


def file_key(device: str, op_id: str, call_key: str) -> str:
    """The key of an entry in a file."""
    return f"{device}|{op_id}|{call_key}"


def key_of_file(text: str) -> RecordKey | None:
    """The record key for the key of an entry, or None if `text` has another form."""
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
    """The directory of the files: `EJKERNEL_PERSISTENT_CACHE_DIR`, or else the one that ejkernel would choose now."""
    configured = resolve().autotune_dir
    if configured is not None:
        if "://" in configured or _usable(Path(configured).expanduser()):
            return str(configured)
    else:
        home = Path("~").expanduser() / _DIRECTORY
        if _usable(home):
            return str(home)
    for fallback in (Path.cwd() / f".{_DIRECTORY}", Path(tempfile.gettempdir()) / _DIRECTORY):
        if _usable(fallback):
            return str(fallback)
    return str(configured or Path(tempfile.gettempdir()) / _DIRECTORY)


def _usable(directory: Path) -> bool:
    """Whether the directory exists, and no other user can have put configurations into it, or could be made."""
    if directory.is_dir():
        return not why_untrusted(directory, directory.stat())
    parent = next((above for above in directory.parents if above.exists()), None)
    return parent is not None and parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)


def parsed_file(data: bytes) -> dict[str, Any] | None:
    """The entries of a file, or None if it is not a JSON object."""
    try:
        parsed = json.loads(data[: MAX_FILE_BYTES + 1])
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


class OperationFile:
    """One of the files. Other processes may write it at any time. A failed read finds nothing and is logged once.

    Args:
        documents: its directory.
        name: of the file.
    """

    def __init__(self, documents: Documents, name: str) -> None:
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
        """The path or URL of the file."""
        return f"{self.documents.url}/{self.name}"

    def read(self) -> dict[str, Any]:
        """The entries as they were at most a second ago."""
        if time.monotonic() - self._checked < _RECHECK_SECONDS:
            return self._held
        self._checked = time.monotonic()
        try:
            stamp = self.documents.stamp(self.name)
            if stamp != self._stamp:
                data = self.documents.read(self.name, max_size=MAX_FILE_BYTES)
                self._stamp = stamp
                self._held = {} if data is None else self._parsed(data)
        except (StoreError, InvalidKeyError) as exc:
            self.counters["errors"] += 1
            warn_once(self.documents.url, "%s cannot be read: %s", self.path, exc)
        return self._held

    def put(self, key: str, value: Any) -> bool:
        """Set one entry and keep all others; False if the file could not be written.

        Files in a bucket are only read, because a bucket takes about one write per second to an object. The records
        hold the same configurations.
        """
        if self.documents.remote and "://" in self.documents.url:
            return False

        def change(old: bytes | None) -> bytes:
            entries = {} if old is None else parsed_file(old)
            if entries is None:
                self._quarantine(old or b"")
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
            warn_once(self.path, "%s is not a JSON object and counts as empty", self.path)
        return entries or {}

    def _quarantine(self, data: bytes) -> None:
        try:
            self.documents.replace(f"{QUARANTINE}{self.name}", data)
        except (StoreError, InvalidKeyError):
            self.counters["errors"] += 1
