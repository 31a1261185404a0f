"""Notes on this host that a storage has served a process within a day, or failed one within an hour."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ejcache.util.files import make_below, write_atomically

if TYPE_CHECKING:
    from pathlib import Path


SERVED: Final = "served"
"""A process of this host has got an answer."""
FAILED: Final = "failed"
"""A process of this host has given up."""

_SERVED_SECONDS: Final = 24 * 3600.0
_FAILED_SECONDS: Final = 3600.0
"""How long a word counts."""
_RENEWED_SECONDS: Final = 3600.0
"""The age from which a further answer renews `served`."""


class StorageNote:
    """What this host knows of a storage: that it served a process within a day, or failed one within an hour.

    A file with one of the two words; the time of its last change is when a process left it. A process that gets an
    answer leaves `served`, one that gives up leaves `failed`. Those that wait for the shorter time do not renew
    `failed`: after an hour one process waits as long as the first one did, because the storage may only have been slow.
    Errors of the disk are ignored.

    Args:
        path: of the file, on a local file system.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._left = ""

    @property
    def said(self) -> str:
        """`SERVED` or `FAILED`, if a process of this host left that; otherwise an empty text."""
        return self._read()[0]

    def _read(self) -> tuple[str, float]:
        try:
            word = self._path.read_text(errors="replace").strip()
            age = time.time() - self._path.stat().st_mtime
        except OSError:
            return "", 0.0
        longest = {SERVED: _SERVED_SECONDS, FAILED: _FAILED_SECONDS}.get(word, 0.0)
        return (word, age) if 0 <= age < longest else ("", 0.0)

    def leave(self, word: str) -> None:
        """Note for the next processes that the storage has served this one, or failed it."""
        if word == self._left:
            return
        self._left = word
        said, age = self._read()
        if said == word and (word == FAILED or age < _RENEWED_SECONDS):
            return
        with suppress(OSError):
            make_below(self._path.parent)
            write_atomically(self._path, f"{word}\n".encode())
