"""Where a cache is: one parsed `Location` for every spelling of a directory or a URL.

Nothing is looked at, but for a scheme that is not known here: an installed package may have a file system for it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from ejcache.stores.urls import read_url, refuse, without_credentials

if TYPE_CHECKING:
    from ejcache.stores.urls import LocationKind


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
        if ":" not in text:
            return _directory(text, text)

        read = read_url(text)
        if read is None:
            return _directory(text, text)
        kind, where, bucket, prefix, anonymous = read
        if kind == "directory":
            return _directory(where, text)
        return cls(where, kind, bucket=bucket, prefix=prefix, anonymous=anonymous)


def display_url(text: str | os.PathLike[str]) -> str:
    """Return `text` without a password, a token or a query, for messages, logs and reports.

    `Location.parse` refuses URLs that carry one; this is for the messages that refuse them, and for values of settings
    that nobody has parsed.
    """
    shown = os.fspath(text)
    if "://" not in shown:
        return shown

    return without_credentials(shown)


def display_value(value: Any) -> Any:
    """Return a value of a setting without the passwords and tokens of its URLs; a tuple as a list."""
    if isinstance(value, tuple | list):
        return [display_value(each) for each in value]
    return display_url(value) if isinstance(value, str) else value


def _directory(path: str, text: str) -> Location:
    expanded = os.path.expanduser(path)  # noqa: PTH111 (pathlib raises RuntimeError)
    if expanded.startswith("~"):
        raise refuse(text, "there is no such home directory")
    absolute = os.path.abspath(expanded)  # noqa: PTH100 (pathlib keeps "..")
    return Location(absolute, "directory", path=absolute)


def _checked_text(url: object) -> str:
    text = os.fspath(url) if isinstance(url, str | os.PathLike) else None
    if not isinstance(text, str):
        text, why = url, "it is not text"
    elif not text.strip():
        why = "it is empty"
    elif any(ord(character) < 32 for character in text):
        why = "it has control characters"
    else:
        return text

    raise refuse(text, why)
