"""Which entries of a local tier are yet to be uploaded, on disk, so that a killed process's uploads are not lost.

    <directory>/present/<token>      locked by a process while it lives
    <directory>/<token>/<digest>     one marker per entry that this process has yet to upload: JSON, key and how

The bytes are in the local tier. A marker is moved, by one rename, from a dead process's folder into that of whoever
adopts it, so that of several that start together each marker has one owner, whenever one of them dies.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import threading
from typing import TYPE_CHECKING, Final

from ejcache.stores.local_locks import Presence, living

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["PUT", "REPLACE", "Spool"]

log = logging.getLogger("ejcache")

PUT: Final = "put"
REPLACE: Final = "replace"


class Spool:
    """Markers of this process, and those of dead ones for the taking. Safe for threads; a forked child gets its own.

    Trouble of the disk is logged and otherwise ignored: an upload that is not on disk is still in memory.

    Args:
        directory: on a local file system; made when the first marker is.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.after_fork()

    def after_fork(self) -> None:
        """In a forked child: the markers so far are the parent's."""
        presence = getattr(self, "_presence", None)
        if presence is not None:
            presence.forget()
        self._lock = threading.Lock()
        self._presence: Presence | None = None

    def add(self, key: str, how: str) -> bool:
        """Note that `key` is to be uploaded by `how`; False if that could not be written."""
        try:
            folder = self._own_folder()
            self._write(folder / _digest(key), key, how)
        except OSError as exc:
            log.debug("pending uploads cannot be noted in %s: %s", self._directory, exc)
            return False
        return True

    def remove(self, key: str) -> None:
        """Note that nothing is left to do for `key`."""
        with contextlib.suppress(OSError):
            if self._presence is not None:
                (self._directory / self._presence.token / _digest(key)).unlink(missing_ok=True)

    def adopt(self) -> Iterator[tuple[str, str]]:
        """Take over the markers of dead processes: (key, how) of each."""
        for folder in self._abandoned():
            for marker in _files(folder):
                found = self._take(marker)
                if found is not None:
                    yield found
            with contextlib.suppress(OSError):
                folder.rmdir()
                (self._directory / "present" / folder.name).unlink(missing_ok=True)

    def leave(self) -> int:
        """Depart; markers that are left are for others to adopt. How many they are."""
        with self._lock:
            presence, self._presence = self._presence, None
        if presence is None:
            return 0
        folder = self._directory / presence.token
        left = len(_files(folder))
        with contextlib.suppress(OSError):
            folder.rmdir()
        presence.leave(clean=True)
        return left

    def _own_folder(self) -> Path:
        with self._lock:
            if self._presence is None:
                present = self._directory / "present"
                present.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._presence = Presence(present)
            return self._directory / self._presence.token

    def _write(self, marker: Path, key: str, how: str) -> None:
        text = json.dumps({"key": key, "how": how}).encode()
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            fd = os.open(marker, flags, 0o600)
        except FileNotFoundError:
            marker.parent.mkdir(mode=0o700, exist_ok=True)
            fd = os.open(marker, flags, 0o600)
        try:
            # One call: a marker that is torn all the same is no JSON, and is dropped with an upload that never began.
            os.write(fd, text)
        finally:
            os.close(fd)

    def _abandoned(self) -> list[Path]:
        try:
            folders = [path for path in self._directory.iterdir() if path.name != "present" and path.is_dir()]
        except OSError:
            return []
        if not folders:
            return []
        alive = living(self._directory / "present")
        return [folder for folder in folders if folder.name not in alive]

    def _take(self, marker: Path) -> tuple[str, str] | None:
        try:
            mine = self._own_folder() / marker.name
            mine.parent.mkdir(mode=0o700, exist_ok=True)
            marker.rename(mine)
            fields = json.loads(mine.read_bytes())
            return str(fields["key"]), REPLACE if fields["how"] == REPLACE else PUT
        except OSError:
            return None  # somebody else was faster
        except (ValueError, KeyError, TypeError):
            mine.unlink(missing_ok=True)
            return None


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
