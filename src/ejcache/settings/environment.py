"""Reads environment variables for the rest of the package, and sets those that child processes inherit.

`settings.resolve` reads the settings. Others read a few variables of JAX, XLA and the operating system that describe
the machine, and the whole environment where a cache key depends on it. Nothing outside this room touches `os.environ`.
Child processes get what enables the cache in them, and with which settings.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # `ejcache run` starts with this module: with `typing`, that would take twice as long
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Final

OTHER_VARIABLES: Final = (
    *("EJCACHE", "EJCACHE_AUTOTUNE_CANDIDATE", "EJCACHE_RUN_COUNTS"),
    *("EJCACHE_REUSE_CHECK_ONE_IN", "EJCACHE_REUSE_FLOOR"),
)  # fmt: skip
"""Our variables that are not settings: what enables the cache, what marks a process that measures a candidate, the
file in which processes of an `ejcache run` count, and two that tests and checks of `reuse_lowering` set."""


def environment_variable(name: str) -> str | None:
    """Return the text of one variable as it is now, or None if it is not set."""
    return os.environ.get(name)


def environment_number(name: str, default: float) -> float:
    """Return the number in one of our variables as it is now, or `default` if it is not set or holds no number."""
    try:
        return float(environment_variable(name) or default)
    except ValueError:
        return default


def all_variables() -> Mapping[str, str]:
    """Return the whole environment, for cache keys: `compile_variables` picks what changes compiled code."""
    return os.environ


def variables_to_compare() -> Mapping[Any, Any]:
    """Return the live mapping behind `os.environ`, to compare with an earlier copy; copy it before keeping it.

    It compares in a quarter of a microsecond; reading fifty variables through `os.environ` takes thirty. An
    `os.environ` that a program replaced by a plain dictionary is returned as it is.
    """
    variables: Mapping[Any, Any] = getattr(os.environ, "_data", os.environ)
    return variables


_BEGINNINGS: Final = (
    *("EJCACHE", "EASYDEL_", "EJKERNEL_", "ALLOW_FULL_CACHE", "COMPILE_FUNC_DIR"),
    *("JAX_COMPILATION_CACHE", "JAX_ENABLE_COMPILATION_CACHE", "JAX_PERSISTENT_CACHE", "JAX_RAISE_PERSISTENT_CACHE"),
    *("JAX_EXPLAIN_CACHE", "JAX_SHARE_BINARY", "JAX_HLO_SOURCE_FILE", "JAX_REMOVE_CUSTOM_PARTITIONING"),
    *("JAX_ENABLE_PGLE", "JAX_PGLE"),
)
"""How every variable begins that sets something."""
_HOST_FILE: Final = "/etc/ejcache/config.toml"
_CACHE_WITHOUT_REPORT: Final = {"EJCACHE": "1", "EJCACHE_REPORT": "off"}


def export_defaults() -> bool:
    """Let child processes enable the cache, and report nothing, if no variable and no configuration file sets anything.

    False, and nothing is done, where something may be set. This module can tell without the table of settings, the
    readers of values and of files, and what those import.
    """
    home, root = os.environ.get("HOME", ""), os.environ.get("XDG_CONFIG_HOME", "")
    above = root if root.startswith("/") else f"{home}/.config"
    if not home or any(name.startswith(_BEGINNINGS) for name in os.environ):
        return False
    for path in (f"{above}/ejcache/config.toml", _HOST_FILE):
        try:
            os.stat(path)  # noqa: PTH116 (each start would wait for pathlib)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return False
        return False
    os.environ.update(_CACHE_WITHOUT_REPORT)
    return True


def settings_environment(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables with which a process enables the cache with these settings, given by name and parsed."""
    from ejcache.settings.table import FLAGS, VARIABLES, switch_or_location  # the door to settings of a run

    wanted = str(values.get("dir") or os.environ.get("EJCACHE") or "1")
    try:
        if switch_or_location(wanted) is False:
            wanted = "1"  # the caller asks for the cache, whatever the environment said before
    except ValueError:
        pass  # it is no switch, so it says where the cache is
    named = [name for name in VARIABLES if name in values and name != "dir"]
    given = {VARIABLES[name][0]: str(values[name]) for name in named}
    # JAX reads its own variables, too, and refuses to be imported with a value that is not in its form.
    of_jax = {FLAGS[name].upper(): str(values[name]) for name in named if name in FLAGS}
    return {"EJCACHE": wanted, **given, **of_jax}


def export_settings(values: Mapping[str, Any]) -> None:
    """Let child processes of this process enable the cache with these settings, however they are started."""
    os.environ.update(settings_environment(values))


class RestoredAfterErrors:
    """Puts the environment back as it was if the block raises."""

    def __enter__(self) -> None:
        self._before = dict(os.environ)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            os.environ.clear()
            os.environ.update(self._before)


def child_environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return the environment of a child process: this process's own, with `changes`; None removes a variable."""
    changed = {**os.environ, **changes}
    return {name: value for name, value in changed.items() if value is not None}
