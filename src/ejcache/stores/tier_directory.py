"""Finds where this host keeps its part of a remote cache: copies, pending uploads, XLA's own caches.

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
from pathlib import Path
from typing import TYPE_CHECKING

from ejcache.errors import UsageError
from ejcache.settings.directories import temporary_directory, user_directory
from ejcache.stores.location import Location, display_url
from ejcache.stores.sharing_detection import detect_shared_storage
from ejcache.util.directory_access import Access, decide_access, refusal
from ejcache.util.log import warn_once

if TYPE_CHECKING:
    from ejcache.settings.table import Settings


log = logging.getLogger("ejcache")


def find_local_tier(location: Location, settings: Settings) -> Path | None:
    """Return the directory on this host for the remote cache at `location`; None if there is no local disk for it.

    If access to it is refused, a private directory of this user takes its place, and one warning says why.

    It is not made. Only the folder among the temporary files is, because its owner has to be known before it is used.
    """
    root = _find_root(settings)
    if root is None:
        return None
    place = _place_below(root, location)
    access = _decide_tier(root, place.name, settings)
    if not access.why:
        return place
    for other in (user_directory(), temporary_directory()):
        tiers = None if other is None else other / "tiers"
        if (
            tiers not in (None, root)
            and not _detect_shared(tiers)
            and not _decide_tier(tiers, place.name, settings).why
        ):
            own, instead = tiers / place.name, f"in {tiers / place.name}"
            break
    else:
        own, instead = None, "in memory"
    warn_once(
        ("refused tier", str(place)),
        "ejcache: %s; copies of %s are not kept there but %s. %s",
        access.why,
        location,
        instead,
        refusal(access.why, access.mend).partition("; it is not used. ")[2],
    )
    return own


def _decide_tier(root: Path, name: str, settings: Settings) -> Access:
    names = (name, *(f"{name}/{below}" for below in ("v1", "scratch", "xla")))
    return decide_access(root, trusted=settings.trust_dir, names=names, setting="EJCACHE_LOCAL_DIR")


def _place_below(root: Path, location: Location) -> Path:
    digest = hashlib.sha256(location.url.encode()).hexdigest()[:16]
    return root / digest


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
    if location.kind != "directory" or detect_shared_storage(location):
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
