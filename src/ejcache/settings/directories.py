"""Finds the directories of a user on this machine, which no other user can write to, and configuration files."""

from __future__ import annotations

import functools
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.util.directory_access import decide_access
from ejcache.util.log import log, warn_once

if TYPE_CHECKING:
    from collections.abc import Mapping

HOST_FILE: Final = "/etc/ejcache/config.toml"
"""The configuration file of this host."""


def user_directory() -> Path:
    """Return the default cache directory of this user on this machine; made nowhere yet.

    If it cannot be made, because the home directory is read-only or another user's, it is a private directory among the
    temporary files.
    """
    return or_temporary(default_directory(os.environ))


@functools.lru_cache(maxsize=16)
def or_temporary(path: Path) -> Path:
    """Return `path`, or a private directory of this user among the temporary files if `path` cannot be made."""
    above = next((existing for existing in (path, *path.parents) if os.path.lexists(existing)), path)
    if above == path or os.access(above, os.W_OK | os.X_OK):
        return path

    instead = temporary_directory() or path
    log.info("ejcache: %s cannot be made, because %s cannot be written; %s is used instead", path, above, instead)
    return instead


def default_directory(env: Mapping[str, str]) -> Path:
    """Return the user's cache directory by the system's convention; on Linux, the XDG Base Directory one."""
    root = env.get("XDG_CACHE_HOME", "")
    # The specification says to ignore a relative path.
    if sys.platform != "darwin" and root.startswith("/"):
        return Path(root) / "ejcache"
    home = home_directory(env)
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "ejcache"
    return home / ".cache" / "ejcache"


def home_directory(env: Mapping[str, str]) -> Path:
    """Return the home directory of this user; a directory of this process where there is none."""
    if env.get("HOME"):
        return Path(env["HOME"])

    return home_without_variable()


def user_file(env: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the user's configuration file, which need not exist."""
    root = env.get("XDG_CONFIG_HOME", "")
    # The specification says to ignore a relative path.
    above = Path(root) if root.startswith("/") else home_directory(env) / ".config"
    return above / "ejcache" / "config.toml"


def configuration_files(env: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the configuration files that count, the one with precedence first."""
    return user_file(env), Path(HOST_FILE)


def may_exist(path: Path) -> bool:
    """True if there is something under `path`, or this user cannot know."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def state_directory() -> Path:
    """Return a directory of this user on this host for files that later runs read and that belong to no cache.

    Digests of the compiler's libraries are in it, which keys are made of. So a directory that another user owns or can
    write to is not used, and one warning names the one that is used instead.
    """
    # At each compilation that is logged: making the path anew takes longer than writing the line.
    home = os.environ.get("HOME", "")
    return _state_directory(home, os.environ.get("XDG_CACHE_HOME", ""), None if home else default_directory(os.environ))


@functools.lru_cache(maxsize=16)
def _state_directory(home: str, root: str, default: Path | None) -> Path:
    own = or_temporary(default or default_directory({"HOME": home, "XDG_CACHE_HOME": root}))
    access = decide_access(own, trusted=None, names=("state",), setting="XDG_CACHE_HOME")
    if not access.why:
        return own / "state"

    instead = (temporary_directory() or directory_of_this_process()) / "state"
    warn_once(("refused state", own), "ejcache: %s; %s is used instead of %s", access.why, instead, own / "state")
    return instead


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
