"""Opens the store or the bucket at a location, if this user may use it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.errors import UntrustedDirectoryError, UsageError
from ejcache.settings.directories import temporary_directory, user_directory
from ejcache.settings.environment import environment_variable
from ejcache.settings.resolve import settings_in_use
from ejcache.stores.base import UNLIMITED
from ejcache.stores.local.layout import Layout
from ejcache.stores.local.store import LocalStore
from ejcache.stores.location import Location
from ejcache.stores.sharing_detection import detect_shared_storage
from ejcache.util.directory_access import Access, decide_access, refusal
from ejcache.util.log import warn_once
from ejcache.util.threads import CallTimeoutError, call_with_timeout
from ejcache.util.units import parse_size

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

    from ejcache.bucket.base import Bucket
    from ejcache.bucket.gcs import GcsBucket
    from ejcache.settings.table import Settings
    from ejcache.stores.base import Store


_DEADLINE_SECONDS: Final = 5.0
"""Seconds that one operation on a bucket may take, retries included; large transfers get more."""
_DIRECTORY_SECONDS: Final = 4.0
"""The same for a shared directory. A mount whose server is gone costs a program this time, once."""


def open_store(
    url: str | os.PathLike[str] | Location,
    *,
    max_size: int | str | None = UNLIMITED,
    read_only: bool = False,
    settings: Settings | None = None,
    evict_before: Callable[[str], Iterable[str]] | None = None,
    worth: Callable[[bytes, int], float] | None = None,
) -> Store:
    """Open the store at `url`. Remote storage is not asked yet: whether it can be reached shows at the first use.

    Entries of a compilation cache are code that is run: open only what you, or people you trust, can write to.

    Args:
        url: a directory (relative to the working directory now; `~` and `~user` are expanded), `file:///directory`,
            `gs://bucket/prefix`, `s3://bucket/prefix`, `az://container/prefix`, `abfs://container/prefix`,
            or `memory://name`, which all who open that name in this process share. With EJCACHE_UNTESTED_SCHEMES=1,
            also another URL that fsspec can write to. A directory on a network file system, or one that a host that has
            it on one has written to, is shared between hosts without locks, as a bucket is.
        max_size: limit for the bytes of all entries, as a number or such as "10GB"; -1 for no limit. On shared storage
            a `put` only refuses an entry that is larger than the limit; maintenance keeps the sum below it. None: the
            limit that was written down when a local store was made, no limit for others.
        read_only: writes raise `StoreReadOnlyError`; no file is made, and reads leave no trace.
        settings: give the credentials and the endpoint; by default those of the environment.
        evict_before: of a local directory, the keys of entries that are of no use while the entry of a key exists;
            they are evicted first.
        worth: of a local directory, what an entry is worth, by its beginning and its size, if what is worth least is to
            be evicted first; otherwise what was not used for longest is.

    Raises:
        UsageError: the URL or the size cannot be understood, or the URL needs EJCACHE_UNTESTED_SCHEMES; nothing was
            made.
        StoreError: the store cannot be opened.
    """
    given = None
    if max_size is not None:
        given = parse_size(max_size, setting="max_size", unlimited=True)
    limit = UNLIMITED if given is None else given
    location = Location.parse(url)
    if detect_shared_storage(location):
        from ejcache.stores.epochs import present_place  # the door to shared storage
        from ejcache.stores.shared.store import SharedStore  # the door to shared storage

        root = open_bucket(location, settings=settings)
        read_only = read_only or location.anonymous
        return SharedStore(present_place(root), root=root, max_size=limit, read_only=read_only)
    if location.kind == "memory":
        from ejcache.stores.memory import MemoryStore  # the door to a cache in memory

        return MemoryStore(location.bucket, max_size=limit, read_only=read_only)

    trusted = (settings or settings_in_use()).trust_dir
    return LocalStore(
        location.path, max_size=given, read_only=read_only, trusted=trusted, evict_before=evict_before, worth=worth
    )


def open_bucket(
    url: str | os.PathLike[str] | Location,
    *,
    settings: Settings | None = None,
    deadline: float | None = None,
    prepare: bool = True,
) -> Bucket:
    """Return the objects at `url`: those of a bucket, or the files of any directory, which need not be shared.

    The storage is not asked yet: whether it can be reached shows at the first use.

    Args:
        url: as `open_store` takes it, but not `memory://`.
        settings: give the credentials and the endpoint; by default those of the environment.
        deadline: seconds that one operation may take, retries included; by default five, four for a directory.
            Large transfers get more.
        prepare: begin at once, in the background, to make the client of a bucket, and not at the first request.

    Raises:
        UsageError: the URL cannot be understood.
    """
    bucket = _make_bucket(Location.parse(url), settings, deadline)
    if prepare:
        bucket.prepare()
    return bucket


def _make_bucket(location: Location, settings: Settings | None, deadline: float | None) -> Bucket:
    from ejcache.bucket.retry import RetryPolicy  # a room that no hit needs

    now = settings if settings is not None else settings_in_use()
    usual = _DIRECTORY_SECONDS if location.kind == "directory" else _DEADLINE_SECONDS
    policy = RetryPolicy(deadline=usual if deadline is None else deadline)
    if location.kind == "directory":
        from ejcache.bucket.files import FileBucket  # a room that no hit needs

        return FileBucket(location.path, policy=policy, access=decide_location(location, now))
    if location.kind == "gcs":
        return kind_of_gcs()(
            location.bucket,
            location.prefix,
            policy=policy,
            credentials=environment_variable("EASYDEL_GCS_CLIENT"),
            endpoint_url=environment_variable("STORAGE_EMULATOR_HOST"),
            anonymous=location.anonymous,
        )
    if location.kind == "s3":
        from ejcache.bucket.s3 import S3Bucket  # a room that no hit needs

        options = {"anon": True} if location.anonymous else None
        return S3Bucket(location.bucket, location.prefix, policy=policy, options=options)
    if location.kind == "azure":
        from ejcache.bucket.azure import AzureBucket  # a room that no hit needs

        options = {"anon": True} if location.anonymous else None
        return AzureBucket(location.url.partition("?")[0], policy=policy, options=options)
    _check_untested(location, now)
    from ejcache.bucket.fsspec_bucket import FsspecBucket  # a room that no hit needs

    return FsspecBucket(location.url, policy=policy)


def kind_of_gcs() -> type[GcsBucket]:
    """Return the class of the buckets of Google Cloud Storage: that of our own client, where gcsfs is not needed."""
    from ejcache.bucket.google_credentials import is_left_to_gcsfs  # a room that no hit needs

    if is_left_to_gcsfs():
        from ejcache.bucket.gcsfs_bucket import GcsfsBucket  # a room that no hit needs

        return GcsfsBucket
    from ejcache.bucket.gcs import GcsBucket  # a room that no hit needs

    return GcsBucket


def _check_untested(location: Location, settings: Settings) -> None:
    scheme = f"{location.url.partition('://')[0]}://"
    if not settings.untested_schemes:
        raise UsageError(
            f"{location} is not opened, because ejcache is not tested with {scheme}; EJCACHE_UNTESTED_SCHEMES=1 opens "
            "it all the same; supported are gs://, s3://, az://, abfs://, mounted directories and memory://"
        )
    warn_once(("untested", scheme), "ejcache: EJCACHE_UNTESTED_SCHEMES is set: ejcache is not tested with %s", scheme)


def decide_location(location: Location, settings: Settings) -> Access:
    """Say whether the directory at `location` is used as a cache, and who may read and write there. Nothing is made."""
    path, writing = Path(location.path), not settings.read_only
    if not detect_shared_storage(location):
        return Layout(path, trusted=settings.trust_dir, writing=writing).access

    try:
        return call_with_timeout(
            f"looking at {path}", lambda: decide_access(path, hosts_share=True, writing=writing), _DIRECTORY_SECONDS
        )
    except CallTimeoutError:
        return Access(path, others=True)  # the mount's server is down, which the first request finds out


def usable_location(
    location: Location, settings: Settings, *, setting: str = "EJCACHE_DIR", or_raise: bool = False
) -> Location:
    """Return `location`, or a private directory of this user if it is a directory that is not used. One warning says
    why.

    Args:
        location: where the cache or the tuned configurations are to be kept.
        settings: say whom this user trusts.
        setting: the variable that chooses the location, for the advice.
        or_raise: another directory is not used in place of one that this user cannot use.

    Raises:
        UntrustedDirectoryError: the user has no such directory, or with `or_raise` cannot use the one at `location`.
    """
    if location.kind != "directory":
        return location
    access = decide_location(location, settings)
    if not access.why:
        return location

    why = refusal(access.why, access.mend)
    if or_raise and access.closed:
        raise UntrustedDirectoryError(why)

    for own in filter(None, (user_directory(), temporary_directory())):
        instead = Location.parse(own)
        if instead != location and not decide_location(instead, settings).why:
            break
    else:
        raise UntrustedDirectoryError(why)
    why = why.replace("(EJCACHE_DIR)", f"({setting})")
    warn_once(("refused", location.path), "ejcache: %s. This process uses %s instead", why, own)
    return instead
