"""Directories among the temporary files, for where this user has no home directory or cannot use it."""

from __future__ import annotations

import functools
import os
import stat
from pathlib import Path


def temporary_directory() -> Path | None:
    """Return a directory of this user among the temporary files, or None if another user could write to it.

    It may hold entries, and entries are code, so a directory that somebody else prepared must not be used.
    """
    import tempfile

    try:
        path = Path(tempfile.gettempdir()) / f"ejcache-{os.getuid()}"
        path.mkdir(mode=0o700, exist_ok=True)
        about = path.lstat()
    except OSError:
        return None
    # Its name can be guessed, so another user may have made it first.
    private = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not stat.S_IMODE(about.st_mode) & 0o022
    return path if private else None


def home_without_variable() -> Path:
    """Return the home directory that the system has for this user; a directory of this process where there is none."""
    import pwd

    # Not by `Path.home`, which takes an empty HOME for the root of all directories.
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except (KeyError, OSError):  # in some containers the uid has no passwd entry and HOME is not set
        home = ""
    return Path(home) if home.startswith("/") else temporary_directory() or directory_of_this_process()


@functools.cache
def directory_of_this_process() -> Path:
    """Return a directory that this process alone uses."""
    import tempfile

    try:
        return Path(tempfile.mkdtemp(prefix="ejcache-"))
    except OSError:
        # No directory can be made. Opening the store will fail with a message that says so.
        return Path("/")
