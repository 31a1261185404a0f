"""Where this host keeps what belongs to a remote cache: copies of its entries, pending uploads, XLA's own caches.

    <root>/<readable part>-<digest of the URL>/
      v1/          the local tier, a store as any other
      scratch/     locks between processes of this host, and what is yet to be uploaded
      xla/         caches that XLA keeps itself, and knows no URLs for

`<root>` is EJCACHE_LOCAL_DIR, or `tiers/` in the user's cache folder. Homes are often on a network file system, where a
local store must not be: then it is a folder of this user among the temporary files of the host.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.errors import UsageError
from ejcache.settings import temporary_directory, user_directory
from ejcache.stores.opening import canonical_url, check_url, is_shared, local_path

if TYPE_CHECKING:
    from ejcache.settings import Settings

__all__ = ["Nearby", "nearby"]

log = logging.getLogger("ejcache")

_READABLE: Final = 48


@dataclass(frozen=True, slots=True)
class Nearby:
    """The node-local directory of one remote cache."""

    directory: Path

    @property
    def scratch(self) -> Path:
        """For locks and pending uploads."""
        return self.directory / "scratch"

    @property
    def xla(self) -> Path:
        """For XLA's own caches."""
        return self.directory / "xla"


def nearby(url: str, settings: Settings) -> Nearby | None:
    """The node-local directory for the remote cache at `url`; None if there is no local disk to keep it on.

    Nothing of it is made, but for the folder among the temporary files, whose owner is to be known before it is used.
    """
    root = _root(settings)
    return None if root is None else Nearby(root / _name_of(url))


def _root(settings: Settings) -> Path | None:
    chosen = settings.local_dir
    if chosen is None:
        default = user_directory() / "tiers"
        return default if _can_be_made(default) and not is_shared(str(default)) else _temporary()
    source = settings["local_dir"].source
    try:
        path = local_path(chosen)
    except UsageError as exc:
        log.warning("ejcache: %s: %s", source, exc)
        return None
    if path is None or is_shared(path):
        log.warning("ejcache: %s: %s is not on a local disk, so copies are kept in memory only", source, chosen)
        return None
    return Path(path)


def _can_be_made(path: Path) -> bool:
    """Whether this user may write there: not in the home directory of another one, as containers like to have it."""
    for existing in (path, *path.parents):
        if os.path.lexists(existing):
            return os.access(existing, os.W_OK | os.X_OK)
    return False


def _temporary() -> Path | None:
    path = temporary_directory()
    if path is None:
        log.warning(
            "ejcache: the folder among the temporary files cannot be made, or is not this user's alone, so copies are "
            "kept in memory only; set EJCACHE_LOCAL_DIR"
        )
        return None
    return path / "tiers" if not is_shared(str(path)) else None


def _name_of(url: str) -> str:
    where = canonical_url(local_path(check_url(url)) or url)
    readable = re.sub(r"[^A-Za-z0-9._]+", "-", where).strip("-.")[:_READABLE]
    return f"{readable}-{hashlib.sha256(where.encode()).hexdigest()[:16]}"
