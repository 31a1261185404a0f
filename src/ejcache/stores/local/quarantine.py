"""The quarantine of a local store, and what a store takes on its disk besides the entries.

Quarantine has a bounded number of damaged entries and one damaged index, for inspection and for `restoring`.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
from typing import TYPE_CHECKING, Final

from ejcache.stores.local.layout import INDEX, WAL_BYTES
from ejcache.util.files import directory_below
from ejcache.util.new_files import make_below

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ejcache.stores.local.layout import Layout

ENTRY_BYTES: Final = 8 * 2**10
"""An entry's share of the index, its directory entry, and the rounding of its file to blocks."""
QUARANTINED_INDEX_BYTES: Final = 2 * 2**20
"""A damaged index larger than this is deleted, not quarantined."""
FIXED_BYTES: Final = 2**20
"""Directories, markers, the reserve, and an index without entries."""
QUARANTINED_ENTRIES: Final = 8
QUARANTINED_BYTES: Final = 64 * 2**20

_WRONG: Final = ".wrong"
_QUARANTINED_ENTRY: Final = r"[0-9a-f]{16}-[0-9a-f]{8}\.(entry|wrong)"
_QUARANTINED_INDEX: Final = r"index-[0-9a-f]{16}"


def quarantine_bytes(max_size: int) -> int:
    """Limit the bytes of damaged entries that a store with this `max_size` keeps in quarantine."""
    return QUARANTINED_BYTES if max_size < 0 else min(QUARANTINED_BYTES, max_size // 16)


def declared_overhead(entries: int, *, max_size: int = -1) -> int:
    """Say by how many bytes, at most, `du` of a store of `entries` entries exceeds the sum of their sizes.

    It holds after any crash as soon as the next process has opened the store. While processes write, each adds the
    value that it is writing; what a killed process was writing stays until the next one opens the store.
    """
    return FIXED_BYTES + WAL_BYTES + QUARANTINED_INDEX_BYTES + quarantine_bytes(max_size) + entries * ENTRY_BYTES


def quarantine_index(layout: Layout, dead: Path) -> None:
    """Move the files of a damaged index into quarantine, if they are small enough, and delete the one before."""
    with contextlib.suppress(OSError), _quarantine(layout) as folder, directory_below(dead, "") as source:
        sizes = {name: _regular_size(name, source) for name in (INDEX, f"{INDEX}-wal")}
        names = [name for name, size in sizes.items() if size is not None]
        if not names or sum(filter(None, sizes.values())) > QUARANTINED_INDEX_BYTES:
            return
        for name in os.listdir(folder):  # noqa: PTH208 (of a descriptor)
            if re.fullmatch(_QUARANTINED_INDEX, name):
                shutil.rmtree(name, ignore_errors=True, dir_fd=folder)
        kept = f"index-{dead.name.partition('-')[2]}"
        os.mkdir(kept, 0o700, dir_fd=folder)
        os.chmod(kept, os.fstat(folder).st_mode & 0o2777, dir_fd=folder)  # so that others can clear it away
        for name in names:
            os.rename(name, f"{kept}/{name}", src_dir_fd=source, dst_dir_fd=folder)


def quarantined(layout: Layout) -> tuple[list[Path], list[Path]]:
    """Return the copies of entries that quarantine keeps because they seemed damaged, and the indexes."""
    folder = layout.root / "v1/quarantine"
    try:
        with directory_below(layout.root, "v1/quarantine") as descriptor:
            names = sorted(os.listdir(descriptor))  # noqa: PTH208
    except OSError:
        return [], []
    copies = [folder / name for name in names if re.fullmatch(_QUARANTINED_ENTRY, name)]
    copies = [path for path in copies if path.suffix != _WRONG]
    return copies, [folder / name for name in names if re.fullmatch(_QUARANTINED_INDEX, name)]


def quarantine_entry(layout: Layout, digest: str, data: bytes, *, max_size: int, wrong: bool = False) -> None:
    """Keep a copy of a damaged entry, if there is room for it, and delete the oldest ones for it.

    Args:
        layout: of the store.
        digest: of the key.
        data: the entry.
        max_size: the limit of the store.
        wrong: it is intact, and not what it should be, so it is never put back.
    """
    allowed = quarantine_bytes(max_size)
    if len(data) > allowed:
        return
    with contextlib.suppress(OSError), _quarantine(layout) as folder:
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


@contextlib.contextmanager
def _quarantine(layout: Layout) -> Iterator[int]:
    make_below(layout.root / "v1/quarantine")
    with directory_below(layout.root, "v1/quarantine") as folder:
        yield folder


def _regular_size(name: str, directory: int) -> int | None:
    with contextlib.suppress(OSError):
        about = os.stat(name, dir_fd=directory, follow_symlinks=False)
        return about.st_size if stat.S_ISREG(about.st_mode) else None
    return None
