"""What a local store's directory looks like, and how much of it is not entries.

    <root>/                        the user's; files of plain JAX (`*-cache`, `*-atime`) and anything else is left alone
      CACHEDIR.TAG                 only where nothing but caches is (https://bford.info/cachedir/)
      v1/                          0700, made by us; `entries/` and others in it belong to the shared layout
        local/
          format                   the number of this layout
          lock                     held while a store is opened, rebuilt or swept
          present/<token>          one per process that has the store open for writing, locked while it lives
          g-<random>/              one generation: an index and the values that it knows
            cache.db               diskcache's, with -wal and -shm while it is open
            <hex>/<digest>-<random>.val
            tmp/<token>-<name>     a value that is being written by the process of that token
          new-<random>/            a generation in the making
          dead-<random>/           a generation that was given up, while it is being removed
        quarantine/                a bounded number of damaged entries and indexes, for inspection

A generation's name is never used twice. SQLite finds a write-ahead log by the name of its database: if a new database
took the name of one that was set aside, or deleted, a process that still has the old one open would, when it closes
it, delete the log of the new one.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ejcache.errors import NotAStoreError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["FORMAT", "INDEX", "Layout", "declared_overhead", "explain_failure", "quarantine_bytes"]

FORMAT: Final = 1
"""The layout that this version reads and writes; a higher number in `format` is left alone."""
INDEX: Final = "cache.db"

WAL_BYTES: Final = 4 * 2**20
"""A write-ahead log longer than this is folded into its database by the put that finds it so."""
ENTRY_BYTES: Final = 8 * 2**10
"""An entry's share of the index, its directory entry, and the rounding of its file to blocks."""
SET_ASIDE_BYTES: Final = 2 * 2**20
"""A damaged index larger than this is removed, not kept for inspection."""
FIXED_BYTES: Final = 2**19
"""Directories, markers, and an index without entries."""
QUARANTINED_ENTRIES: Final = 8
QUARANTINED_BYTES: Final = 64 * 2**20

_TAG: Final = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This file is a cache directory tag created by ejcache.\n"
    "# For information about cache directory tags see https://bford.info/cachedir/\n"
)
_PLAIN_JAX: Final = re.compile(r".*-(cache|atime)|\.lockfile|xla_gpu_.*")


def quarantine_bytes(max_size: int) -> int:
    """How many bytes of damaged entries a store with this limit keeps for inspection."""
    return QUARANTINED_BYTES if max_size < 0 else min(QUARANTINED_BYTES, max_size // 16)


def declared_overhead(entries: int, *, max_size: int = -1) -> int:
    """Bytes by which `du` of a store of `entries` entries exceeds the sum of their sizes, at most, when it is opened.

    It holds after any crash as soon as the next process has opened the store. While processes write, each adds the
    value that it is writing; what one that was killed was writing stays until the next one opens the store.
    """
    return FIXED_BYTES + WAL_BYTES + SET_ASIDE_BYTES + quarantine_bytes(max_size) + entries * ENTRY_BYTES


@dataclass(frozen=True)
class Layout:
    """The paths of one store."""

    root: Path

    @property
    def version(self) -> Path:
        return self.root / "v1"

    @property
    def local(self) -> Path:
        return self.version / "local"

    @property
    def lock(self) -> Path:
        return self.local / "lock"

    @property
    def present(self) -> Path:
        return self.local / "present"

    @property
    def aside(self) -> Path:
        return self.version / "quarantine"

    def check(self) -> bool:
        """Whether there is a store, or something that could become one.

        Raises:
            NotAStoreError: something else is there.
            StoreUnavailableError: it cannot be looked at.
        """
        for path in (self.root, self.version, self.local):
            try:
                mode = path.stat().st_mode
            except FileNotFoundError:
                return False
            except NotADirectoryError as exc:
                raise NotAStoreError(f"{path} cannot be a cache directory: a part of its path is a file") from exc
            except OSError as exc:
                raise explain_failure(path, exc) from exc
            if not stat.S_ISDIR(mode):
                raise NotAStoreError(f"{path} is not a directory, so {self.root} cannot be used as a cache directory")
        found = self._format()
        if found is not None and found > FORMAT:
            raise NotAStoreError(
                f"{self.local} was made by a newer ejcache (format {found}, and this version reads {FORMAT})"
            )
        return True

    def prepare(self) -> None:
        """Make what is missing; nothing that is there is changed.

        Raises:
            OSError: it cannot be made.
        """
        tag = not self.local.is_dir() and (not self.root.is_dir() or self._holds_caches_only())
        if not self.root.is_dir():
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in (self.version, self.local, self.present):
            path.mkdir(mode=0o700, exist_ok=True)
        if tag:
            _write_once(self.root / "CACHEDIR.TAG", _TAG)
        if self._format() is None:
            (self.local / "format").unlink(missing_ok=True)
            _write_once(self.local / "format", f"{FORMAT}\n")

    def generations(self) -> list[Path]:
        """The generations, the newest first; more than one only after a crash."""
        try:
            found = [path for path in self.local.iterdir() if path.name.startswith("g-")]
        except FileNotFoundError:
            return []
        return sorted(found, key=_made, reverse=True)

    def leftovers(self) -> list[Path]:
        """Generations that were being made or removed when their process died."""
        return [path for path in self.local.iterdir() if path.name.startswith(("new-", "dead-"))]

    def fresh(self, kind: str) -> Path:
        """A name that was never used."""
        return self.local / f"{kind}-{secrets.token_hex(8)}"

    def keep_index(self, dead: Path) -> None:
        """Keep a copy of the newest damaged index for inspection, if it is small enough, and no older one."""
        files = [path for path in dead.glob(INDEX + "*") if path.is_file() and not path.name.endswith("-shm")]
        with contextlib.suppress(OSError):
            for old in self.aside.glob("index-*"):
                shutil.rmtree(old, ignore_errors=True)
            if files and sum(_size(path) for path in files) <= SET_ASIDE_BYTES:
                kept = self.aside / f"index-{dead.name.partition('-')[2]}"
                kept.mkdir(mode=0o700, parents=True, exist_ok=True)
                for path in files:
                    path.rename(kept / path.name)

    def keep_entry(self, name: str, data: bytes, *, max_size: int) -> None:
        """Keep a copy of a damaged entry for inspection, if there is room for it, instead of the oldest ones."""
        allowed = quarantine_bytes(max_size)
        if len(data) > allowed:
            return
        with contextlib.suppress(OSError):
            self.aside.mkdir(mode=0o700, parents=True, exist_ok=True)
            kept = sorted(self.aside.glob("*.entry"), key=_made)
            total = sum(_size(path) for path in kept)
            while kept and (len(kept) >= QUARANTINED_ENTRIES or total + len(data) > allowed):
                oldest = kept.pop(0)
                total -= _size(oldest)
                oldest.unlink(missing_ok=True)
            path = self.aside / f"{name}-{secrets.token_hex(4)}.entry"
            try:
                path.write_bytes(data)
            except OSError:
                path.unlink(missing_ok=True)
                raise

    def _format(self) -> int | None:
        try:
            text = (self.local / "format").read_text(errors="replace").strip()
        except FileNotFoundError:
            return None
        # Anything but a number is damage, and no claim to be newer.
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None

    def _holds_caches_only(self) -> bool:
        with contextlib.suppress(OSError):
            return all(_is_cache(path.name) for path in self.root.iterdir())
        return False


def explain_failure(path: Path, exc: OSError) -> StoreUnavailableError:
    """One sentence on why `path` cannot be used."""
    reason = exc.strerror or str(exc)
    for part in (path, *path.parents):
        try:
            about = part.stat()
        except OSError:
            continue
        owner = "" if about.st_uid == os.geteuid() else f"; it belongs to the user with id {about.st_uid}"
        where = "" if part == path else f" ({part} has mode {stat.S_IMODE(about.st_mode):04o}{owner})"
        if part == path:
            where = f" (mode {stat.S_IMODE(about.st_mode):04o}{owner})"
        return StoreUnavailableError(f"{path} cannot be used as a cache directory: {reason}{where}")
    return StoreUnavailableError(f"{path} cannot be used as a cache directory: {reason}")


def _is_cache(name: str) -> bool:
    return name in {"v1", "CACHEDIR.TAG"} or _PLAIN_JAX.fullmatch(name) is not None


def _write_once(path: Path, text: str) -> None:
    with contextlib.suppress(FileExistsError), path.open("x") as file:
        file.write(text)


def _made(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def remove_trees(paths: Iterable[Path]) -> None:
    """Remove directories that nobody uses any more, as far as that goes."""
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
