"""From a URL to the store that it names. Importing this imports no backend."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from ejcache.errors import UsageError
from ejcache.settings import resolve
from ejcache.stores.base import UNLIMITED
from ejcache.stores.filesystems import is_network_filesystem
from ejcache.stores.shared_retry import TransientError
from ejcache.stores.shared_workers import call_with_timeout
from ejcache.units import parse_size

if TYPE_CHECKING:
    from ejcache.settings import Settings
    from ejcache.stores.base import Store
    from ejcache.stores.shared_bucket import Bucket

__all__ = ["ACCEPTED_URL", "canonical_url", "check_url", "is_shared", "local_path", "open_bucket_at", "open_store"]

ACCEPTED_URL: Final = (
    "a directory such as /var/cache/ejcache or ~/cache, file:///directory, gs://bucket/prefix, s3://bucket/prefix, "
    "a URL of another file system that fsspec can write to, such as abfs:// or sftp://, or memory://name"
)

_MEMORY: Final = "memory://"
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?")
_BUCKETS: Final = {"gs": "gs", "gcs": "gs", "s3": "s3", "s3a": "s3"}
"""Every spelling of a scheme, and the one that is used in messages and digests."""
_OTHERS: Final = frozenset(
    {
        "abfs", "abfss", "adl", "arrow_hdfs", "az", "dbfs", "ftp", "gdrive", "hdfs", "hf", "lakefs", "oci", "ocilake",
        "oss", "sftp", "smb", "ssh", "tos", "webdav", "webhdfs",
    }
)  # fmt: skip
"""Protocols of fsspec's known implementations that can be written to; fsspec itself would cost an import to ask."""
_LOOK_SECONDS: Final = 5.0


def open_store(
    url: str | os.PathLike[str],
    *,
    max_size: int | str = UNLIMITED,
    read_only: bool = False,
    settings: Settings | None = None,
) -> Store:
    """The store at `url`; of a remote one nothing is asked yet, and whether it is there shows when it is used.

    Entries of a compilation cache are code that is run: open what you, or those you trust, alone can write to.

    Args:
        url: a directory (relative to the working directory now; `~` and `~user` are expanded), `file:///directory`,
            `gs://bucket/prefix`, `s3://bucket/prefix`, another URL that fsspec can write to, or `memory://name`, which
            is shared by all who open that name in this process. A directory on a network file system, or one that a
            host which sees it as such has written to, is shared between hosts without locks, as a bucket is.
        max_size: bytes of all entries, as a number or such as "10GB"; -1 for no limit. On shared storage it refuses
            what is larger than all of it; the sum is kept by upkeep.
        read_only: writes raise `StoreReadOnlyError`; nothing is made, and reads leave no trace.
        settings: who says which credentials and endpoint are used; by default the environment.

    Raises:
        UsageError: the URL or the size is not one; nothing was made.
        StoreError: the store cannot be opened.
    """
    limit = parse_size(max_size, setting="max_size", unlimited=True)
    text = check_url(url)
    if is_shared(text):
        from ejcache.stores.shared import SharedStore

        return SharedStore(open_bucket_at(text, settings=settings), max_size=limit, read_only=read_only)
    path = local_path(text)
    if path is None:
        from ejcache.stores.memory import MemoryStore

        return MemoryStore(text.removeprefix(_MEMORY), max_size=limit, read_only=read_only)
    from ejcache.stores.local import LocalStore

    return LocalStore(path, max_size=limit, read_only=read_only)


def open_bucket_at(
    url: str | os.PathLike[str], *, settings: Settings | None = None, deadline: float | None = None
) -> Bucket:
    """The objects below the shared `url`, with the credentials and the endpoint that `settings` name.

    Args:
        url: one that `is_shared`, or any directory.
        settings: by default those of the environment.
        deadline: seconds that one operation may take; by default ten.

    Raises:
        UsageError: the URL is not one.
    """
    from ejcache.stores.shared_opening import DEADLINE, open_bucket

    text = check_url(url)
    now = settings if settings is not None else resolve()
    google = text.startswith("gs:")
    return open_bucket(
        local_path(text) or text,
        deadline=DEADLINE if deadline is None else deadline,
        credentials=now.gcs_credentials if google else None,
        endpoint_url=now.gcs_endpoint if google else None,
    )


def check_url(url: str | os.PathLike[str]) -> str:
    """`url` as text, if it names a store that can be opened as far as its spelling goes; nothing is looked at.

    Raises:
        UsageError: it does not; the message says what is accepted.
    """
    text = _checked(url)
    if local_path(text) is not None or text.startswith(_MEMORY):
        return text
    scheme, _, rest = text.partition("://")
    scheme = scheme.lower()
    if scheme not in _BUCKETS and scheme not in _OTHERS:
        raise _refused(text, "its kind of storage is not one that this version opens")
    bucket = rest.partition("/")[0]
    if not bucket or any(character in " ?#" for character in bucket):
        raise _refused(text, "it names no bucket" if scheme in _BUCKETS else "it names no place")
    return canonical_url(text)


def canonical_url(url: str) -> str:
    """One spelling for all URLs of one remote place; other URLs as they are."""
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if not separator or (scheme not in _BUCKETS and scheme not in _OTHERS):
        return url
    return f"{_BUCKETS.get(scheme, scheme)}://{rest.rstrip('/')}"


def is_shared(url: str | os.PathLike[str]) -> bool:
    """Whether what is at `url` is shared between hosts: a bucket, or a directory as `open_store` has it.

    Raises:
        UsageError: it is no URL of a store.
    """
    text = check_url(url)
    path = local_path(text)
    if path is None:
        return not text.startswith(_MEMORY)
    try:
        return call_with_timeout(f"looking at {path}", lambda: _is_shared_directory(path), _LOOK_SECONDS)
    except TransientError:
        # A mount that is dead: those who use it as shared storage have deadlines.
        return True


def _is_shared_directory(path: str) -> bool:
    if is_network_filesystem(path):
        return True
    # The server of a network file system sees its directories as local ones.
    # Not pathlib: whether a directory is there that nobody may look into is no error here.
    return os.path.isdir(f"{path}/v1/entries") and not os.path.isdir(f"{path}/v1/local")  # noqa: PTH112


def local_path(url: str | os.PathLike[str]) -> str | None:
    """The absolute directory that `url` names, or None if it names no directory.

    Raises:
        UsageError: it is no URL at all.
    """
    text = _checked(url)
    scheme = _SCHEME.match(text)
    if scheme is None:
        return _absolute(text, text)
    if scheme[1].lower() != "file":
        if scheme[2] is None:
            raise _refused(text, f"{scheme[1]}: is no beginning of a URL")
        return None
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/") or parts.query or parts.fragment:
        raise _refused(text, "a file URL is file:// and an absolute path")
    return _absolute(unquote(parts.path), text)


def _checked(url: object) -> str:
    text = os.fspath(url) if isinstance(url, str | os.PathLike) else None
    if not isinstance(text, str):
        raise _refused(url, "it is not text")
    if not text.strip():
        raise _refused(url, "it is empty")
    if any(ord(character) < 32 for character in text):
        raise _refused(text, "it has control characters")
    return text


def _absolute(path: str, url: str) -> str:
    expanded = os.path.expanduser(path)  # noqa: PTH111 (pathlib raises RuntimeError)
    if expanded.startswith("~"):
        raise _refused(url, "there is no such home directory")
    return os.path.abspath(expanded)  # noqa: PTH100 (pathlib keeps "..")


def _refused(url: object, why: str) -> UsageError:
    return UsageError(f"{url!r} cannot be opened as a store: {why}; accepted is {ACCEPTED_URL}")
