"""Finds where XLA's own caches are, and makes the private directory of a process for them, with any cache URL.

XLA does not understand URLs (given one it aborts the process), and processes that share a directory disturb each other.
So each process has a private directory for each cache and compiler, which is removed when it ends.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ejcache.stores.epochs import FIRST, tier_folder
from ejcache.stores.location import Location
from ejcache.stores.opening import usable_location
from ejcache.stores.sharing_detection import detect_shared_storage
from ejcache.stores.tier_directory import find_local_tier
from ejcache.util.files import UnsafeFileError, make_below
from ejcache.util.lifecycle import AtExit, ExitPhase
from ejcache.util.presence import Presence

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.settings.table import Settings

AUTOTUNE: Final = "xla_gpu_per_fusion_autotune_cache_dir"
KERNELS: Final = "xla_gpu_kernel_cache_file"
"""Names of XLA's options, and of the directory and the file that they get."""
PRESENT: Final = "present"
"""Beside the directories: one file for each, locked as long as its process lives."""


class OwnDirectory:
    """A directory of this process alone. It is made with the empty one of XLA's results, without which XLA fails.

    Args:
        root: a directory, which may be reached through links.
        below: the directory below `root` where this and other processes have theirs; no link there is followed.

    Attributes:
        path: the directory.
        finish: called when it is closed, to store what is in it; True if nothing is left there. Without it, a directory
            in which there are files is left to the next process that compiles.

    Raises:
        OSError: it cannot be made, or a link is where a directory is expected.
    """

    def __init__(self, root: Path, below: str = "") -> None:
        self.root = root
        self.below = below
        self.finish: Callable[[], bool] = self._is_empty
        self._process = os.getpid()
        _refuse_links(root, f"{below}/{PRESENT}")
        present = root / below / PRESENT
        make_below(present)
        self._presence = Presence(present)
        self.path = root / below / self._presence.token
        make_below(self.path / AUTOTUNE)
        _open.add(self)

    @property
    def is_ours(self) -> bool:
        """False in a forked child."""
        return self._process == os.getpid()

    def close(self) -> None:
        """Remove the directory. If something is left in it, the next process of this cache stores that."""
        if not self.is_ours:
            return
        _open.discard(self)
        stored = self.finish()
        if stored:
            shutil.rmtree(self.path, ignore_errors=True)
        self._presence.leave(clean=stored)

    def _is_empty(self) -> bool:
        return not any(files for _, _, files in os.walk(self.path))


_open: Final[AtExit[OwnDirectory]] = AtExit(ExitPhase.UPLOAD, OwnDirectory.close)


def _refuse_links(root: Path, below: str) -> None:
    for path in (root / below, *(root / below).parents):
        if path == root:
            return
        if path.is_symlink():
            raise UnsafeFileError(errno.ELOOP, f"{path} is a symbolic link, so it is not used")


class XlaCacheLocation(NamedTuple):
    """Where XLA's own caches are.

    Attributes:
        location: of the cache.
        shared: hosts share it.
        root: a local directory, which may be reached through links.
        below: the directory below it for what each process has of its own; it may not exist yet.
        note: where this host notes in which epoch a shared cache is.
        epoch: of a shared cache; None if this host did not know it when this was asked.
    """

    location: Location
    shared: bool
    root: Path
    below: str
    note: Path | None = None
    epoch: str | None = ""


def find_xla_caches(url: str | Location, settings: Settings) -> XlaCacheLocation | None:
    """Find the place of XLA's own caches for the cache at `url`; None if there is no local disk for them.

    Raises:
        UsageError: `url` names no store.
    """
    location = usable_location(Location.parse(url), settings)
    if location.kind == "memory":
        return None
    shared = detect_shared_storage(location)
    if not shared and not settings.read_only:
        return XlaCacheLocation(location, shared, Path(location.path), "v1/xla-processes")

    place = find_local_tier(location, settings)
    if place is None:
        return None
    if not shared:
        return XlaCacheLocation(location, shared, place, "xla")

    from ejcache.cache.shared_policy_watch import noted_epoch  # the door to shared storage

    note = place / "scratch" / "policy"
    epoch = noted_epoch(note)
    below = f"{tier_folder(epoch or FIRST)}/xla".lstrip("/")
    return XlaCacheLocation(location, shared, place, below, note, epoch)
