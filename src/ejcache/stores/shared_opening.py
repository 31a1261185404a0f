"""A shared store from its URL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from ejcache.errors import UsageError
from ejcache.stores.base import UNLIMITED
from ejcache.stores.shared import SharedStore
from ejcache.stores.shared_retry import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ejcache.stores.shared_bucket import Bucket

__all__ = ["DEADLINE", "open_bucket", "open_shared"]

DEADLINE: Final = 5.0
"""Seconds that one operation may take, retries included."""


def open_bucket(
    url: str,
    *,
    deadline: float = DEADLINE,
    credentials: str | None = None,
    endpoint_url: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Bucket:
    """The bucket at `url`; nothing is asked of it yet, and whether it is there shows when it is used.

    Args:
        url: gs://bucket/prefix, s3://bucket/prefix, file:///path, a path, or another protocol that fsspec knows.
        deadline: seconds that one operation may take, retries included; large transfers get more.
        credentials: path of a Google credentials file.
        endpoint_url: of an emulator, or of a service that speaks the protocol of S3.
        options: further arguments of the file system that fsspec has for the protocol.

    Raises:
        UsageError: the URL names no bucket or path.
    """
    policy = RetryPolicy(deadline=deadline)
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    if scheme in ("", "file", "local"):
        from ejcache.stores.shared_files import FileBucket

        path = unquote(urlsplit(url).path) if scheme else url
        if not path:
            raise UsageError(f"{url} names no directory")
        return FileBucket(path, policy=policy)
    bucket, _, prefix = url.partition("://")[2].partition("/")
    if scheme in ("gs", "gcs", "s3", "s3a"):
        if not bucket:
            raise UsageError(f"{url} names no bucket: it is {scheme}://bucket/prefix")
        prefix = prefix.strip("/")
        if scheme in ("gs", "gcs"):
            from ejcache.stores.shared_gcs import GcsBucket

            return GcsBucket(
                bucket, prefix, policy=policy, credentials=credentials, endpoint_url=endpoint_url, options=options
            )
        from ejcache.stores.shared_s3 import S3Bucket

        return S3Bucket(bucket, prefix, policy=policy, endpoint_url=endpoint_url, options=options)
    from ejcache.stores.shared_fsspec import FsspecBucket

    return FsspecBucket(url, policy=policy, options=options)


def open_shared(
    url: str,
    *,
    max_size: int = UNLIMITED,
    read_only: bool = False,
    deadline: float = DEADLINE,
    credentials: str | None = None,
    endpoint_url: str | None = None,
    options: Mapping[str, Any] | None = None,
    counter_interval: float = 1.0,
) -> SharedStore:
    """The shared store at `url`; the arguments are those of `open_bucket` and of `SharedStore`."""
    bucket = open_bucket(url, deadline=deadline, credentials=credentials, endpoint_url=endpoint_url, options=options)
    return SharedStore(bucket, max_size=max_size, read_only=read_only, counter_interval=counter_interval)
