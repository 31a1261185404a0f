"""Environment variables that the rest of the package reads or sets, each by a function that says what for.

Settings are read by `settings.resolve`. A few variables are left of JAX, XLA and the operating system that describe the
machine, the whole environment where a cache key depends on it, and the environment that a child process inherits.
Nothing outside this room touches `os.environ`.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Final

from ejcache.settings.parsers import switch_or_location
from ejcache.settings.table import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


OTHER_VARIABLES: Final = frozenset({
    *("EJCACHE", "EJCACHE_AUTOTUNE_CANDIDATE", "EJCACHE_RUN_COUNTS"),
    *("EJCACHE_REUSE_CHECK_ONE_IN", "EJCACHE_REUSE_FLOOR"),
})  # fmt: skip
"""Our variables that are not settings: what enables the cache, what marks a process that measures a candidate, the
file in which processes of an `ejcache run` count, and two that tests and checks of `reuse_lowering` set."""


def environment_variable(name: str) -> str | None:
    """Return the text of one variable as it is now, or None if it is not set."""
    return os.environ.get(name)


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


def settings_environment(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables with which a process enables the cache with these settings, given by name and parsed."""
    wanted = str(values.get("dir") or os.environ.get("EJCACHE") or "1")
    with contextlib.suppress(ValueError):
        if switch_or_location(wanted) is False:
            wanted = "1"  # the caller asks for the cache, whatever the environment said before
    named = [setting for setting in SETTINGS if setting.name in values and setting.name != "dir"]
    given = {setting.variables[0]: str(values[setting.name]) for setting in named}
    # JAX reads its own variables, too, and refuses to be imported with a value that is not in its form.
    of_jax = {setting.flag.upper(): str(values[setting.name]) for setting in named if setting.flag}
    return {"EJCACHE": wanted, **given, **of_jax}


def export_settings(values: Mapping[str, Any]) -> None:
    """Let child processes of this process enable the cache with these settings, however they are started."""
    os.environ.update(settings_environment(values))


@contextlib.contextmanager
def restored_after_errors() -> Iterator[None]:
    """Put the environment back as it was if the block raises."""
    before = dict(os.environ)
    try:
        yield
    except BaseException:
        os.environ.clear()
        os.environ.update(before)
        raise


def child_environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child process: this process's own, with `changes`."""
    return {**os.environ, **changes}


def fixed_hash_seed() -> str:
    """Return the hash seed that `PYTHONHASHSEED` fixes for every process that has it; empty if each process has its
    own.
    """
    seed = os.environ.get("PYTHONHASHSEED", "")
    return seed if seed.isdigit() else ""
