"""Keeps a bounded number of damaged entries of a local store, for inspection and for `restore`."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from typing import TYPE_CHECKING, Final

from ejcache.util.files import directory_below, make_below, read_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ejcache.stores.base import Store

QUARANTINED_ENTRIES: Final = 8
QUARANTINED_BYTES: Final = 64 * 2**20

_WRONG: Final = ".wrong"
_QUARANTINED_ENTRY: Final = r"[0-9a-f]{16}-[0-9a-f]{8}\.(entry|wrong)"


def quarantine_bytes(max_size: int) -> int:
    """Limit the bytes of damaged entries that a store with this `max_size` keeps in quarantine."""
    return QUARANTINED_BYTES if max_size < 0 else min(QUARANTINED_BYTES, max_size // 16)


def quarantine_entry(root: Path, digest: str, data: bytes, *, max_size: int, wrong: bool = False) -> None:
    """Keep a copy of a damaged entry, if there is room for it, and delete the oldest ones for it.

    Args:
        root: of the store.
        digest: of the key.
        data: the entry.
        max_size: the limit of the store.
        wrong: it is intact, and not what it should be, so it is never put back.
    """
    allowed = quarantine_bytes(max_size)
    if len(data) > allowed:
        return
    with contextlib.suppress(OSError), _quarantine(root) as folder:
        found = []
        for name in os.listdir(folder):  # noqa: PTH208
            if re.fullmatch(_QUARANTINED_ENTRY, name):
                about = os.stat(name, dir_fd=folder, follow_symlinks=False)
                found.append((about.st_mtime, name, about.st_size))
        found.sort()
        total = sum(size for *_, size in found)
        while found and (len(found) >= QUARANTINED_ENTRIES or total + len(data) > allowed):
            _, name, size = found.pop(0)
            total -= size
            os.unlink(name, dir_fd=folder)
        path = f"{digest}-{secrets.token_hex(4)}{_WRONG if wrong else '.entry'}"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
        except OSError:
            os.unlink(path, dir_fd=folder)
            raise


def restore(store: Store, root: Path, key_of: Callable[[bytes], str | None], *, max_bytes: int) -> int:
    """Put back what is intact in quarantine, and delete what was put back; return how many entries that was.

    An entry that is there is not replaced, and none is evicted for one that comes back.

    Args:
        store: it is open.
        root: its directory.
        key_of: the key in an intact entry; None of bytes that are none.
        max_bytes: no entry is larger.

    Raises:
        StoreError: the storage failed.
    """
    number = 0
    for path in _copies(root):
        data = None
        with contextlib.suppress(OSError):
            data = read_regular(path, max_size=max_bytes)
        key = None if data is None else key_of(data)
        if key is not None and data is not None and _has_room(store, data):
            number += store.put(key, data)
            path.unlink(missing_ok=True)
    return number


def _copies(root: Path) -> list[Path]:
    try:
        with directory_below(root, "v1/quarantine") as folder:
            names = sorted(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return []
    names = [name for name in names if re.fullmatch(_QUARANTINED_ENTRY, name) and not name.endswith(_WRONG)]
    return [root / "v1/quarantine" / name for name in names]


def _has_room(store: Store, data: bytes) -> bool:
    return store.max_size < 0 or store.size() + len(data) <= store.max_size


@contextlib.contextmanager
def _quarantine(root: Path) -> Iterator[int]:
    make_below(root / "v1/quarantine")
    with directory_below(root, "v1/quarantine") as folder:
        yield folder
