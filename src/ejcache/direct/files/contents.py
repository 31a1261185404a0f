"""The content of files, by digest. Each is read once for each time that it was changed."""

from __future__ import annotations

import hashlib
import os
from typing import Final

__all__ = ["directory_digest", "file_digest"]

_digests: Final[dict[tuple[str, int, int, int], str]] = {}
"""By path, size, time of the last change and inode."""


def file_digest(path: str) -> str | None:
    """The SHA-256 of a file in hex; None if it cannot be read."""
    try:
        status = os.stat(path)
        key = (path, status.st_size, status.st_mtime_ns, status.st_ino)
        if key not in _digests:
            with open(path, "rb", buffering=0) as file:
                _digests[key] = hashlib.file_digest(file, "sha256").hexdigest()
        return _digests[key]
    except OSError:
        return None


def directory_digest(path: str) -> str | None:
    """A digest of the names in a directory; None if it cannot be read."""
    try:
        names = sorted(os.listdir(path))
    except OSError:
        return None
    return hashlib.sha256("\0".join(names).encode("utf-8", "surrogateescape")).hexdigest()
