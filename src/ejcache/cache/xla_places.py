"""Where XLA's own caches are, and the documents in which all processes share them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ejcache.bucket.files import FileBucket
from ejcache.bucket.folder import BucketFolder
from ejcache.cache.shared_switch import noted_epoch
from ejcache.errors import StoreNotAskedError
from ejcache.stores.documents import Documents
from ejcache.stores.epochs import FIRST, folder_of, tier_folder
from ejcache.stores.location import Location
from ejcache.stores.opening import detect_shared_storage, open_bucket, usable_location
from ejcache.stores.tier_directory import find_local_tier

if TYPE_CHECKING:
    from ejcache.bucket.base import Bucket
    from ejcache.settings.table import Settings

_XLA_SECONDS: Final = 5.0
"""The first compilation waits for XLA's own caches, from storage that is down for at most this long."""


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

    note = place / "scratch" / "policy"
    epoch = noted_epoch(note)
    below = f"{tier_folder(epoch or FIRST)}/xla".lstrip("/")
    return XlaCacheLocation(location, shared, place, below, note, epoch)


def open_xla_documents(place: XlaCacheLocation, settings: Settings) -> Documents:
    """Open what all processes share of XLA's own caches.

    Raises:
        UsageError: the cache is at a URL that names no store.
        StoreNotAskedError: nobody could read yet where the cache is.
    """
    bucket: Bucket
    if place.shared:
        epoch = place.epoch
        if epoch is None and place.note is not None:
            epoch = noted_epoch(place.note)  # the program's first lookup has asked meanwhile
        if epoch is None:
            raise StoreNotAskedError(f"the policy of {place.location} could not be read yet")
        root = open_bucket(place.location, settings=settings, deadline=_XLA_SECONDS)
        bucket = BucketFolder(root, folder_of(epoch)) if epoch else root
    else:
        bucket = FileBucket(place.location.path, local=True, documents=True)
    return Documents(bucket, read_only=settings.read_only)
