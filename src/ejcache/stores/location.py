"""Where a cache is: one parsed `Location` for every spelling of a directory or a URL.

Nothing is looked at, but for a scheme that is not known here: an installed package may have a file system for it.
"""

from __future__ import annotations

import os
import re
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from ejcache.common_errors import UsageError
from ejcache.util.tuples import NamedTuple
from ejcache.util.words import Words

ACCEPTED_URL: Final = (
    "a directory such as /var/cache/ejcache or ~/cache, file:///directory, gs://bucket/prefix, s3://bucket/prefix, "
    "az://container/prefix or abfs://container/prefix, each with ?anonymous behind it if the bucket is public, "
    "memory://name, or with EJCACHE_UNTESTED_SCHEMES=1 a URL of another file system that fsspec "
    "can write to, or that an installed package has for fsspec"
)

_SCHEME: Final = r"([A-Za-z][A-Za-z0-9+.-]*):(//)?"
_USERINFO: Final = r"[^/@?]*:(?!\d*(?:/|$))"
"""The beginning of `user:password@host`: a colon in the host part that no port number follows."""


class LocationKind(Words):
    """Which kind of storage a location names."""

    MEMORY = "memory"
    DIRECTORY = "directory"
    GCS = "gcs"
    S3 = "s3"
    AZURE = "azure"
    FSSPEC = "fsspec"


_BUCKETS: Final = {
    "gs": ("gs", LocationKind.GCS),
    "gcs": ("gs", LocationKind.GCS),
    "s3": ("s3", LocationKind.S3),
    "s3a": ("s3", LocationKind.S3),
    "az": ("az", LocationKind.AZURE),
    "abfs": ("abfs", LocationKind.AZURE),
    "abfss": ("abfss", LocationKind.AZURE),
}
"""For each spelling of a scheme: the one that is used in messages and digests, and its kind."""
_ANONYMOUS: Final = "?anonymous"
_PUBLIC: Final = frozenset({LocationKind.GCS, LocationKind.S3, LocationKind.AZURE})
"""Kinds of storage that may be public: `gs://bucket/prefix?anonymous` is read without credentials."""
_NAMES_ACCOUNT: Final = frozenset(
    {"abfs", "abfss", "adl", "az", "ftp", "hdfs", "oci", "ocilake", "sftp", "smb", "webhdfs"}
)
"""Protocols whose URLs name a container or a user before an `@`; for the others that part can only be a credential."""
_OTHERS: Final = (_NAMES_ACCOUNT - _BUCKETS.keys() - {"sftp"}) | {
    "arrow_hdfs", "dbfs", "gdrive", "hf", "lakefs", "oss", "tos", "webdav",
}  # fmt: skip
"""Protocols of fsspec's known implementations that can be written to. Asking fsspec would cost its import."""


class Location(NamedTuple):
    """Where a store is. Equal for all spellings of one place; never holds a password or a token.

    Attributes:
        url: the one spelling used for messages and digests; for a directory its absolute path.
        kind: which storage it is.
        path: of a directory: the absolute path.
        bucket: of a bucket: its name; of a memory store: its name; of another URL: the host part.
        prefix: of a bucket or another URL: what follows, without slashes at its ends.
        anonymous: of a bucket: it is read without credentials.
    """

    url: str
    kind: LocationKind
    path: str = ""
    bucket: str = ""
    prefix: str = ""
    anonymous: bool = False

    def __str__(self) -> str:
        return self.url

    @classmethod
    def parse(cls, url: object) -> Location:
        """Return the location that `url` names; `~` is expanded, and a relative path starts at the working directory.

        Raises:
            UsageError: it names no store, or carries a credential. The message says what is accepted, and it never
                repeats the credential.
        """
        if isinstance(url, cls):
            return url
        text = _checked_text(url)
        scheme = re.match(_SCHEME, text) if ":" in text else None  # to compile the pattern takes longer than the rest
        if scheme is None:
            return _directory(text, text)
        name = scheme[1].lower()
        if name == "file":
            parts = _split(text)
            if parts.netloc not in ("", "localhost") or not parts.path.startswith("/") or parts.query or parts.fragment:
                raise _refuse(text, "a file URL is file:// and an absolute path")
            return _directory(unquote(parts.path), text)
        if scheme[2] is None:
            raise _refuse(text, f"a URL cannot begin with {scheme[1]}: without //")
        rest = text[scheme.end() :]
        if name == "memory":
            return cls(f"memory://{rest}", LocationKind.MEMORY, bucket=rest)
        return _remote(name, rest, text)


def _split(text: str) -> SplitResult:
    try:
        return urlsplit(text)
    except ValueError as exc:
        raise _refuse(text, f"a URL cannot have this form: {exc}") from exc


def display_url(text: str | os.PathLike[str]) -> str:
    """Return `text` without a password, a token or a query, for messages, logs and reports.

    `Location.parse` refuses URLs that carry one; this is for the messages that refuse them, and for values of settings
    that nobody has parsed.
    """
    shown = os.fspath(text)
    scheme = re.match(_SCHEME, shown) if ":" in shown else None
    if scheme is None or scheme[2] is None:
        return shown
    rest, mark, query = shown[scheme.end() :].partition("?")
    name = scheme[1].lower()
    if re.match(_USERINFO, rest):
        rest = "***@" + rest.rpartition("@")[2] if "@" in rest else "***"
    elif "@" in rest.partition("/")[0] and name not in _NAMES_ACCOUNT:
        rest = "***@" + rest.partition("@")[2]
    query = mark + query if mark + query in ("", _ANONYMOUS) else "?***"
    return f"{shown[: scheme.end()]}{rest}{query}"


def display_value(value: Any) -> Any:
    """Return a value of a setting without the passwords and tokens of its URLs; a tuple as a list."""
    if isinstance(value, tuple | list):
        return [display_value(each) for each in value]
    return display_url(value) if isinstance(value, str) else value


def _remote(scheme: str, rest: str, text: str) -> Location:
    if scheme == "sftp":
        raise UsageError(
            f"{display_url(text)} cannot be opened as a store: mount the directory with sshfs, and give its path "
            "(docs/shared.md says with which options)"
        )
    if scheme not in _BUCKETS and scheme not in _OTHERS and not _is_installed(scheme):
        raise _refuse(text, "this version does not support that kind of storage")
    meant, kind = _BUCKETS.get(scheme, (scheme, LocationKind.FSSPEC))
    anonymous = kind in _PUBLIC and rest.endswith(_ANONYMOUS)
    rest = rest.removesuffix(_ANONYMOUS) if anonymous else rest
    host = rest.partition("/")[0]
    if re.match(_USERINFO, rest) or "?" in rest or ("@" in host and scheme not in _NAMES_ACCOUNT):
        raise UsageError(
            f"{display_url(text)} carries a credential (a password, a token or a query), which would show up in logs: "
            "remove it from the URL and put credentials in the variables or files that the storage's own tools read"
        )
    bucket, _, prefix = rest.partition("/")
    if not bucket or any(character in " #" for character in bucket):
        is_bucket = kind in (LocationKind.GCS, LocationKind.S3)
        raise _refuse(text, "it names no bucket" if is_bucket else "it names no host")
    url = f"{meant}://{rest.rstrip('/')}{_ANONYMOUS if anonymous else ''}"
    return Location(url, kind, bucket=bucket, prefix=prefix.strip("/"), anonymous=anonymous)


def _is_installed(scheme: str) -> bool:
    """True if an installed package has a file system for it, in the group of entry points that fsspec reads."""
    from importlib.metadata import (
        entry_points,
    )  # for a scheme that is none of ours; `ejcache run --dir` would wait for it

    return any(point.name == scheme for point in entry_points(group="fsspec.specs"))


def _directory(path: str, text: str) -> Location:
    expanded = os.path.expanduser(path)  # noqa: PTH111 (pathlib raises RuntimeError)
    if expanded.startswith("~"):
        raise _refuse(text, "there is no such home directory")
    absolute = os.path.abspath(expanded)  # noqa: PTH100 (pathlib keeps "..")
    return Location(absolute, LocationKind.DIRECTORY, path=absolute)


def _checked_text(url: object) -> str:
    text = os.fspath(url) if isinstance(url, str | os.PathLike) else None
    if not isinstance(text, str):
        raise _refuse(url, "it is not text")
    if not text.strip():
        raise _refuse(url, "it is empty")
    if any(ord(character) < 32 for character in text):
        raise _refuse(text, "it has control characters")
    return text


def _refuse(url: object, why: str) -> UsageError:
    shown = repr(display_url(url)) if isinstance(url, str) else repr(url)
    return UsageError(f"{shown} cannot be opened as a store: {why}; accepted is {ACCEPTED_URL}")
