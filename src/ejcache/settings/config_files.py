"""Reads and changes configuration files: settings of a user, and of a host.

    file    := TOML; each key of the top level is the name of a setting, each value what the setting accepts
    user's  := $XDG_CONFIG_HOME/ejcache/config.toml, or ~/.config/ejcache/config.toml
    host's  := /etc/ejcache/config.toml

A value of the user's file counts before one of the host's. A file decides where code is loaded from, so one that other
users can write to is not read.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ejcache.errors import ConfigFileError
from ejcache.settings.directories import configuration_files
from ejcache.util.directory_access import why_untrusted
from ejcache.util.files import UnsafeFileError, read_regular, write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MAX_BYTES: Final = 64 << 10


def read_files(env: Mapping[str, str]) -> Iterator[tuple[Path, dict[str, Any] | ConfigFileError]]:
    """Yield the values of each configuration file that exists, by the name as written, or why it cannot be read."""
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
