"""Marks on disk which entries a process has yet to upload, so that they are not lost if it is killed.

    <directory>/present/<token>      locked by a process while it lives
    <directory>/<token>/<digest>     one marker per entry that this process has yet to upload: JSON, key and how

The bytes are in the local tier. A process that starts adopts the markers of dead processes: it moves each, by one
rename, into its own folder, so that each marker has one owner even if several processes start together and die.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from typing import TYPE_CHECKING, Final

from ejcache.errors import MALFORMED
from ejcache.util.files import make_below, open_like_directory, read_regular
from ejcache.util.lifecycle import track_forks
from ejcache.util.log import log
from ejcache.util.presence import Presence, living
from ejcache.util.store_keys import check_key, key_digest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


PUT: Final = "put"
REPLACE: Final = "replace"


_MARKER_BYTES: Final = 16_384
"""A marker is a key and a word; a larger file is not a marker."""


class PendingUploads:
    """The markers of this process, and those of dead processes to adopt. Safe for threads; a forked child has its own.

    Errors of the disk are logged and otherwise ignored: an upload that has no marker is still in memory.

    Args:
        directory: on a local file system; made when the first marker is.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._presence: Presence | None = None
        self.after_fork_in_child()
        track_forks(self)

    def after_fork_in_child(self) -> None:
        """Leave the markers to the parent."""
        if self._presence is not None:
            self._presence.forget()
        self._lock = threading.RLock()
        self._presence = None

    def add(self, key: str, how: str) -> bool:
        """Note that `key` has to be uploaded by `how`; False if the marker could not be written."""
        try:
            self._write(self._own_folder() / key_digest(key), key, how)
        except OSError as exc:
            log.debug("pending uploads cannot be noted in %s: %s", self._directory, exc)
            return False
        return True

    def remove(self, key: str) -> None:
        """Note that nothing is left to do for `key`."""
        with contextlib.suppress(OSError):
            if self._presence is not None:
                (self._directory / self._presence.token / key_digest(key)).unlink(missing_ok=True)

    def exists(self, key: str) -> bool:
        """True if the marker of `key` is there."""
        presence = self._presence
        return presence is not None and (self._directory / presence.token / key_digest(key)).exists()

    def remove_all(self, key: str) -> None:
        """Remove the markers of `key` that any process of this host has: its entry is deleted."""
        for folder in _files(self._directory):
            with contextlib.suppress(OSError):
                (folder / key_digest(key)).unlink(missing_ok=True)

    def adopt(self) -> Iterator[tuple[str, str]]:
        """Take over the markers of dead processes: (key, how) of each."""
        for folder in self._abandoned_folders():
            for marker in _files(folder):
                found = self._take(marker)
                if found is not None:
                    yield found
            with contextlib.suppress(OSError):
                folder.rmdir()
                (self._directory / "present" / folder.name).unlink(missing_ok=True)

    def drop(self) -> None:
        """Remove the markers of dead processes."""
        for key, _ in self.adopt():
            self.remove(key)
        self.leave()

    def leave(self) -> int:
        """Let other processes adopt the remaining markers; returns how many they are."""
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
            presence = self._presence
            if presence is None:
                present = self._directory / "present"
                make_below(present)
                presence = Presence(present)
                if self._presence is not None:  # a signal handler has stored something meanwhile
                    presence.leave(clean=True)
                    presence = self._presence
                self._presence = presence
            return self._directory / presence.token

    def _write(self, marker: Path, key: str, how: str) -> None:
        # Of one length for each `how`: it is written over what is there, so that a marker that is written again stays
        # whole if the process ends after open(2), as it does in a daemon thread while the interpreter finalizes.
        text = json.dumps({"key": key, "how": how}).encode().ljust(len(json.dumps({"key": key, "how": REPLACE})))
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        try:
            fd = open_like_directory(marker, flags)
        except FileNotFoundError:
            make_below(marker.parent)
            fd = open_like_directory(marker, flags)
        try:
            # One call: a marker that is torn all the same is not JSON, and its upload had not begun.
            os.write(fd, text)
        finally:
            os.close(fd)

    def _abandoned_folders(self) -> list[Path]:
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
            make_below(mine.parent)
            marker.rename(mine)
            fields = json.loads(read_regular(mine, max_size=_MARKER_BYTES))
            return check_key(fields["key"]), REPLACE if fields["how"] == REPLACE else PUT
        except OSError:
            return None  # another process was faster
        except MALFORMED:
            mine.unlink(missing_ok=True)
            return None


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
