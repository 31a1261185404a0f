"""Where a user's caches are on this machine, and that they are that user's alone."""

from __future__ import annotations

import functools
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


__all__ = [
    "default_directory",
    "make_private",
    "make_user_directory_above",
    "state_directory",
    "temporary_directory",
    "user_directory",
]


def user_directory() -> Path:
    """Where this user's caches are by default, on this machine."""
    return default_directory(os.environ)


def make_private(directory: Path) -> None:
    """Make a directory for this user alone, and first, if it is below that, the user's cache directory.

    `mkdir(parents=True, mode=0o700)` leaves the parents to the umask: with an open one, others could then put entries,
    which are code, into a cache directory that was made for something else.

    Raises:
        OSError: it cannot be made.
    """
    make_user_directory_above(directory)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)


def make_user_directory_above(path: Path) -> None:
    """Make the user's cache directory for this user alone, if `path` is below it. Raises OSError: it cannot be made."""
    own = user_directory()
    if own in path.parents:
        own.mkdir(mode=0o700, parents=True, exist_ok=True)


def default_directory(env: Mapping[str, str]) -> Path:
    """The user's cache folder, as each system has it (XDG Base Directory Specification on Linux)."""
    root = env.get("XDG_CACHE_HOME", "")
    # A relative XDG path is invalid and to be ignored, by that specification.
    if sys.platform not in {"darwin", "win32"} and root.startswith("/"):
        return Path(root) / "ejcache"
    home = Path(env["HOME"]) if env.get("HOME") else _home()
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "ejcache"
    if sys.platform == "win32":
        return Path(env.get("LOCALAPPDATA") or home / "AppData" / "Local") / "ejcache"
    return home / ".cache" / "ejcache"


def state_directory() -> Path:
    """A folder of this user on this host for what is remembered between runs but no part of any cache."""
    return default_directory(os.environ) / "state"


def temporary_directory() -> Path | None:
    """A folder among the temporary files that nobody else can write to: what is in it is run. None if there is none."""
    import tempfile

    try:
        path = Path(tempfile.gettempdir()) / f"ejcache-{os.getuid()}"
        path.mkdir(mode=0o700, exist_ok=True)
        about = path.lstat()
    except OSError:
        return None
    # Anyone may have made it, for its name can be guessed.
    private = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not stat.S_IMODE(about.st_mode) & 0o022
    return path if private else None


def _home() -> Path:
    try:
        return Path.home()
    except (RuntimeError, KeyError):
        # A uid without a passwd entry and no HOME, as in some containers.
        return temporary_directory() or _directory_of_this_process()


@functools.cache
def _directory_of_this_process() -> Path:
    import tempfile

    try:
        return Path(tempfile.mkdtemp(prefix="ejcache-"))
    except OSError:
        # Nothing can be written; the store will say so.
        return Path("/")
