"""Where this host keeps its part of a remote cache: copies of entries, pending uploads, XLA's own caches.

    <root>/<digest of the location>/
      v1/          the local tier: a store as any other
      scratch/     locks between processes of this host, and markers of pending uploads
      xla/         caches that XLA writes itself, for which it takes local paths only

`<root>` is EJCACHE_LOCAL_DIR, or `tiers/` in the user's cache folder. A home directory is often on a network file
system, where a local store cannot work: then the root is in a folder of this user among the host's temporary files.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.errors import UsageError
from ejcache.settings.directories import temporary_directory, user_directory
from ejcache.stores.filesystems import detect_shared_storage
from ejcache.stores.location import Location, LocationKind, display_url
from ejcache.util.log import warn_once
from ejcache.util.trust import why_replaceable, why_untrusted

if TYPE_CHECKING:
    from ejcache.settings.table import Settings

log = logging.getLogger("ejcache")

_READABLE: Final = 48


@dataclass(frozen=True, slots=True)
class LocalTierPaths:
    """The directory on this host for one remote cache."""

    directory: Path

    @property
    def scratch(self) -> Path:
        """For locks and pending uploads."""
        return self.directory / "scratch"

    @property
    def xla(self) -> Path:
        """For XLA's own caches."""
        return self.directory / "xla"


def find_local_tier(location: Location, settings: Settings) -> LocalTierPaths | None:
    """The directory on this host for the remote cache at `location`; None if there is no local disk for it.

    Copies of entries are code. So a directory that another user owns or can write to is not used, unless
    EJCACHE_TRUST_DIR says so: a private directory of this user takes its place, and one warning says why.

    It is not made. Only the folder among the temporary files is, because its owner has to be known before it is used.
    """
    root = _find_root(settings)
    if root is None:
        return None
    paths = _paths_below(root, location)
    why = "" if settings.trust_dir else _why_untrusted(paths)
    if not why:
        return paths
    for other in (user_directory(), temporary_directory()):
        own = None if other is None or other / "tiers" == root else _paths_below(other / "tiers", location)
        if own is not None and not _detect_shared(own.directory) and not _why_untrusted(own):
            instead = f"in {own.directory}"
            break
    else:
        own, instead = None, "in memory"
    warn_once(
        ("untrusted tier", str(paths.directory)),
        "ejcache: %s; copies of %s are not kept there but %s. Delete it, choose another EJCACHE_LOCAL_DIR, or set "
        "EJCACHE_TRUST_DIR=1 if you trust them",
        why,
        location,
        instead,
    )
    return own


def _paths_below(root: Path, location: Location) -> LocalTierPaths:
    digest = hashlib.sha256(location.url.encode()).hexdigest()[:16]
    # Version 0.1.0 put a readable part before the digest. Its copies and pending uploads are still used.
    readable = re.sub(r"[^A-Za-z0-9._]+", "-", location.url).strip("-.")[:_READABLE]
    earlier = root / f"{readable}-{digest}"
    return LocalTierPaths(earlier if os.path.isdir(earlier) else root / digest)  # noqa: PTH112 (raises nothing)


def _why_untrusted(paths: LocalTierPaths) -> str:
    """Why another user could have put code, or links, into the directories of a tier; "" if nobody could."""
    for path in (paths.directory, paths.directory / "v1", paths.scratch, paths.xla):
        try:
            about = path.lstat()
        except OSError:
            continue  # not there yet, or not for this user: opening it says so
        if stat.S_ISLNK(about.st_mode):
            return f"{path} is a symbolic link"
        why = why_untrusted(path, about)
        if why:
            return why
    return why_replaceable(paths.directory)


def _find_root(settings: Settings) -> Path | None:
    chosen = settings.local_dir
    if chosen is None:
        default = user_directory() / "tiers"
        return default if not _detect_shared(default) else _find_temporary()
    source = settings["local_dir"].source
    try:
        location = Location.parse(chosen)
    except UsageError as exc:
        log.warning("ejcache: %s: %s", source, exc)
        return None
    if location.kind is not LocationKind.DIRECTORY or detect_shared_storage(location):
        log.warning(
            "ejcache: %s: %s is not on a local disk, so copies are kept in memory only", source, display_url(chosen)
        )
        return None
    return Path(location.path)


def _detect_shared(path: Path) -> bool:
    return detect_shared_storage(Location.parse(path))


def _find_temporary() -> Path | None:
    path = temporary_directory()
    if path is None:
        log.warning(
            "ejcache: the folder among the temporary files cannot be made, or other users can write to it, so copies "
            "are kept in memory only; set EJCACHE_LOCAL_DIR"
        )
        return None
    return path / "tiers" if not _detect_shared(path) else None
