"""The directories and the configuration files of a user.

The directories of a user on this machine, made so that no other user can write to them; and configuration files.

Configuration files: settings of a user, and of a host, that hold where the environment does not set them.

    file    := TOML; each key of the top level is the name of a setting, each value what the setting accepts
    user's  := $XDG_CONFIG_HOME/ejcache/config.toml, or ~/.config/ejcache/config.toml
    host's  := /etc/ejcache/config.toml (both in `directories.py`)

A value of the user's file counts before one of the host's. A file decides where code is loaded from, so one that other
users can write to is not read.
"""

from __future__ import annotations

import functools
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ejcache.errors import ConfigFileError
from ejcache.util.access import decide_access, why_untrusted
from ejcache.util.files import UnsafeFileError, read_regular, write_atomically
from ejcache.util.log import log, warn_once

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


HOST_FILE: Final = Path("/etc/ejcache/config.toml")
"""The configuration file of this host."""


def user_directory() -> Path:
    """The default cache directory of this user on this machine; made nowhere yet.

    If it cannot be made, because the home directory is read-only or another user's, it is a private directory among the
    temporary files.
    """
    return or_temporary(default_directory(os.environ))


@functools.lru_cache(maxsize=16)
def or_temporary(path: Path) -> Path:
    """`path`, or a private directory of this user among the temporary files if `path` cannot be made."""
    above = next((existing for existing in (path, *path.parents) if os.path.lexists(existing)), path)
    if above == path or os.access(above, os.W_OK | os.X_OK):
        return path
    instead = temporary_directory() or path
    log.info("ejcache: %s cannot be made, because %s cannot be written; %s is used instead", path, above, instead)
    return instead


def default_directory(env: Mapping[str, str]) -> Path:
    """The user's cache directory by the convention of the system; on Linux, the XDG Base Directory Specification."""
    root = env.get("XDG_CACHE_HOME", "")
    # The specification says to ignore a relative path.
    if sys.platform != "darwin" and root.startswith("/"):
        return Path(root) / "ejcache"
    home = home_directory(env)
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "ejcache"
    return home / ".cache" / "ejcache"


def home_directory(env: Mapping[str, str]) -> Path:
    """The home directory of this user; a directory of this process where there is none."""
    return Path(env["HOME"]) if env.get("HOME") else _home()


def user_file(env: Mapping[str, str] = os.environ) -> Path:
    """The path of the user's configuration file, which need not exist."""
    root = env.get("XDG_CONFIG_HOME", "")
    # The specification says to ignore a relative path.
    above = Path(root) if root.startswith("/") else home_directory(env) / ".config"
    return above / "ejcache" / "config.toml"


def configuration_files(env: Mapping[str, str]) -> tuple[Path, ...]:
    """The configuration files that count, the one with precedence first."""
    return user_file(env), HOST_FILE


def may_exist(path: Path) -> bool:
    """Whether there is something under `path`, or this user cannot know."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def state_directory() -> Path:
    """A directory of this user on this host for files that later runs read and that belong to no cache.

    Digests of the compiler's libraries are in it, which keys are made of. So a directory that another user owns or can
    write to is not used, and one warning names the one that is used instead.
    """
    env = os.environ
    # At each compilation that is logged: making the path anew takes longer than writing the line.
    own = _named_by(*map(env.get, _NAMING)) if env.get("HOME") else default_directory(env)
    return _decided_state(or_temporary(own))


_NAMING: Final = ("HOME", "XDG_CACHE_HOME")
"""The variables that name the user's directory."""


@functools.lru_cache(maxsize=16)
def _named_by(*values: str | None) -> Path:
    return default_directory({name: value for name, value in zip(_NAMING, values, strict=True) if value is not None})


@functools.lru_cache(maxsize=16)
def _decided_state(own: Path) -> Path:
    access = decide_access(own, trusted=None, names=("state",), setting="XDG_CACHE_HOME")
    if not access.why:
        return own / "state"
    instead = (temporary_directory() or _directory_of_this_process()) / "state"
    warn_once(("refused state", own), "ejcache: %s; %s is used instead of %s", access.why, instead, own / "state")
    return instead


def temporary_directory() -> Path | None:
    """A directory of this user among the temporary files, or None if another user could write to it.

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


def _home() -> Path:
    try:
        return Path.home()
    except (RuntimeError, KeyError):
        # In some containers the uid has no passwd entry and HOME is not set.
        return temporary_directory() or _directory_of_this_process()


@functools.cache
def _directory_of_this_process() -> Path:
    import tempfile

    try:
        return Path(tempfile.mkdtemp(prefix="ejcache-"))
    except OSError:
        # No directory can be made. Opening the store will fail with a message that says so.
        return Path("/")


_MAX_BYTES: Final = 64 << 10


def read_files(env: Mapping[str, str]) -> Iterator[tuple[Path, dict[str, Any] | ConfigFileError]]:
    """The values of each configuration file that exists, by the name as written, or why it cannot be read."""
    for path in configuration_files(env):
        try:
            values = _read(path)
        except ConfigFileError as problem:
            yield path, problem
        else:
            if values is not None:
                yield path, values


def change_file(path: Path, changes: Mapping[str, Any]) -> None:
    """Write settings into a configuration file. Comments and other settings stay as they are.

    Two processes that change the file at once leave one of the two results, whole.

    Args:
        path: the file; it is made, with its directory, if it does not exist.
        changes: the value of each setting, or None to remove it.

    Raises:
        ConfigFileError: the file cannot be read or written; it stays as it was.
    """
    import tomlkit

    real = Path(os.path.realpath(path))  # the file may be a link into a directory of configuration files
    try:
        document = tomlkit.parse(_read_text(path) or "")
    except tomlkit.exceptions.ParseError as exc:
        raise ConfigFileError(path, f"it is not TOML: {exc}") from exc
    for name, value in changes.items():
        if value is not None:
            document[name] = value
        else:
            document.pop(name, None)
    try:
        real.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        write_atomically(real, tomlkit.dumps(document).encode(), mode=0o644)
    except OSError as exc:
        raise ConfigFileError(path, f"it cannot be written ({exc.strerror or exc})") from exc


def _read(path: Path) -> dict[str, Any] | None:
    text = _read_text(path)
    if text is None:
        return None
    import tomllib  # only where there is a file: every process would pay for the import

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as exc:
        raise ConfigFileError(path, f"it is not TOML: {exc}") from exc


def _read_text(path: Path) -> str | None:
    try:
        about = path.stat()
        if stat.S_ISREG(about.st_mode) and why_untrusted(path, about):
            raise ConfigFileError(path, "it is not read, because another user owns it or can write to it")
        return read_regular(os.path.realpath(path), max_size=_MAX_BYTES).decode()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (UnsafeFileError, UnicodeDecodeError) as exc:
        raise ConfigFileError(path, f"it is not a text file of at most {_MAX_BYTES} bytes") from exc
    except OSError as exc:
        raise ConfigFileError(path, f"it cannot be read ({exc.strerror or exc})") from exc
